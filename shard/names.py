"""Names of streams: which are valid, their file names and their shard.

A name is 1 to 200 bytes of UTF-8 without white space, control characters or `|`. `25` is a name, `a/b` and `..` are
names; none of them reaches the file system as it is.

A stream X may have three companions, which live in its shard: `$cursor/X`, the log of how far its durable consumers
are, `X/$dead`, the messages that they could not do, and `$last/X`, the last values of its topics. Those of a companion
are companions of X too.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from typing import Final
from urllib.parse import quote, unquote

NAME_BYTES_MAX: Final = 200
STEM_BYTES_MAX: Final = 200
"""Longer percent-encodings are replaced by a hash; with the longest suffix a file name stays below 255 bytes."""
HASHED_PREFIX: Final = "="
"""Begins the stems that are hashes. Percent-encoding never gives this character."""

NODE_BYTES_MAX: Final = 32
"""The longest id of a node, in UTF-8."""

CURSOR_PREFIX: Final = b"$cursor/"
LAST_PREFIX: Final = b"$last/"
SESSIONS_PREFIX: Final = b"$sessions/"
"""Of the logs of MQTT sessions, which are companions of no stream."""
SESSION_LOGS: Final = tuple([SESSIONS_PREFIX + b"%d" % number for number in range(16)])
"""Those of a node. Never changes: a session stays in the log it began in."""
DEAD_SUFFIX: Final = b"/$dead"
REPLIES_PREFIX: Final = b"reply-to/"
"""Of the streams that clients read for replies to their requests."""
ALL_LEVELS: Final = "#"
"""In the place of the first levels whose names are streams of their own: all names are."""

_INVISIBLE: Final = (  # those that Unicode does not put into the category of format characters
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0000, 0xE0FFF),
)
_PLAIN = re.compile(rb"[!-{}~]{1,200}")
_UNESCAPED = re.compile(r"[A-Za-z0-9_.~-]{1,200}")


class InvalidName(ValueError):
    """Not a valid stream name; the text gives the reason."""


def name_bytes_valid(name: bytes) -> bool:
    """Returns whether these bytes are a valid stream name. Reserved names are valid."""
    if _PLAIN.fullmatch(name):
        return True
    if not 0 < len(name) <= NAME_BYTES_MAX:
        return False
    try:
        return _bad_character(name.decode()) == ""
    except UnicodeDecodeError:
        return False


def validate_name(name: str) -> str:
    """The name itself. Raises InvalidName."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the stream name {name!r} has no UTF-8 form") from None
    if not 0 < size <= NAME_BYTES_MAX:
        raise InvalidName(f"a stream name has 1 to {NAME_BYTES_MAX} bytes of UTF-8; this one has {size}")
    bad = _bad_character(name)
    if bad:
        rule = "white space, control characters and | are not allowed"
        raise InvalidName(f"the stream name {name!r} has {bad!r} in it: {rule}")
    return name


def is_reserved(name: str | bytes) -> bool:
    """Returns whether the name begins with `$`: the broker's own."""
    return name[:1] in ("$", b"$")


def is_session_log(name: bytes) -> bool:
    """Returns whether this is a log of MQTT sessions. Nodes that follow all streams of another one copy it too."""
    return name in SESSION_LOGS


def is_never_copied(name: bytes) -> bool:
    """Returns whether a stream of the broker's own stays at its node."""
    return is_reserved(base_of(name)) and not is_session_log(name)


def file_stem(name: str) -> str:
    """The file names up to the suffix: the name percent-encoded, or `=` and a hash if that is too long."""
    if _UNESCAPED.fullmatch(name):
        return name
    stem = quote(name, safe="")
    if len(stem) <= STEM_BYTES_MAX:
        return stem
    import hashlib  # here: it loads OpenSSL, which takes each program that has no such name milliseconds

    return HASHED_PREFIX + hashlib.blake2b(name.encode(), digest_size=20).hexdigest()


def stem_is_hashed(stem: str) -> bool:
    """Whether the name cannot be derived from this stem; it is then in the .meta file."""
    return stem.startswith(HASHED_PREFIX)


def name_of_stem(stem: str) -> str | None:
    """The name a percent-encoded stem stands for; None when `file_stem` would not have made this stem."""
    if _UNESCAPED.fullmatch(stem):
        return stem
    try:
        name = validate_name(unquote(stem, errors="strict"))
    except (UnicodeDecodeError, InvalidName):
        return None
    return name if file_stem(name) == stem else None


def shard_of(name: bytes, shards: int = 64) -> int:
    """Returns the stream's shard, of `shards`. Never changes for a data directory."""
    return zlib.crc32(base_of(name)) % shards


def group_key(name: bytes) -> int:
    """Modulo the number of groups of a cluster this is the group of a stream, and of its companions.

    The upper half: the lower bits choose the shard, and each group is to have streams in all of them.
    """
    return zlib.crc32(base_of(name)) >> 16


def base_of(name: bytes) -> bytes:
    """The stream whose companion this is, or whose companion's; of any other the name itself."""
    while b"$" in name:
        base = name.removeprefix(CURSOR_PREFIX).removeprefix(LAST_PREFIX) or name
        if base == name:
            base = name.removesuffix(DEAD_SUFFIX) or name
        if base == name:
            break
        name = base
    return name


def base_of_prefix(prefix: bytes) -> bytes:
    """The prefix of all streams that have this one, or whose companions have it."""
    while prefix.startswith((CURSOR_PREFIX, LAST_PREFIX)):
        prefix = prefix.removeprefix(CURSOR_PREFIX).removeprefix(LAST_PREFIX)
    return b"" if CURSOR_PREFIX.startswith(prefix) or LAST_PREFIX.startswith(prefix) else prefix


def cursor_name(name: bytes) -> bytes:
    """The log of the stream's consumers. Raises InvalidName if the name would be too long."""
    return _companion(CURSOR_PREFIX + name)


def last_name(name: bytes) -> bytes:
    """The log of the last values of the stream's topics. Raises InvalidName if the name would be too long."""
    return _companion(LAST_PREFIX + name)


def dead_name(name: bytes) -> bytes:
    """The stream of its dead letters. Raises InvalidName if the name would be too long."""
    return _companion(name + DEAD_SUFFIX)


def _companion(name: bytes) -> bytes:
    if len(name) > NAME_BYTES_MAX:
        raise InvalidName(
            f"the name {name.decode()!r} would have {len(name)} bytes, which is more than {NAME_BYTES_MAX}"
        )
    return name


def new_name_fault(name: str) -> str:
    """Why no new stream may have this valid name, for a sentence; "" if it may.

    `*`, `+`, `#` and a `/` at the end are for patterns of names. A character that cannot be seen, or that reverses what
    stands around it, makes two names look like one.
    """
    base = base_of(name.encode()).decode()
    if base.endswith("/"):
        return "that ends in /"
    for character in base:
        if character in "*+#":
            return f"with {character}"
        if not character.isascii() and _is_invisible(character):
            return f"with the invisible character U+{ord(character):04X}"
    return ""


def _is_invisible(character: str) -> bool:
    """Whether a character is shown as nothing, as a gap, or changes only how others are shown."""
    if unicodedata.category(character) in ("Cf", "Cn", "Co"):
        return True
    code = ord(character)
    return any(first <= code <= last for first, last in _INVISIBLE)


def _bad_character(name: str) -> str:
    """The first character that no name may have, or ""."""
    for character in name:
        if character == "|" or character.isspace() or unicodedata.category(character) == "Cc":
            return character
    return ""
