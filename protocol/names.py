"""Names of streams and nodes as peers write them: checks, and error texts for invalid ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.protocol.address import split_address
from tailrace.protocol.errors import Code, PeerError
from tailrace.shard.names import DEAD_SUFFIX, NAME_BYTES_MAX, base_of, is_reserved, is_session_log, name_bytes_valid
from tailrace.shard.names import NODE_BYTES_MAX as NODE_BYTES_MAX

WILDCARD: Final = b"*"
"""In a pattern of stream names: any characters, or none."""
SHOWN_BYTES_MAX: Final = 60
SHOWN_CHARACTERS_MAX: Final = 400
CONSUMER_BYTES_MAX: Final = 100
GROUPS_MAX: Final = 256
"""Groups of streams that a cluster can have."""
_GROUP = re.compile(rb"\*%(\d{1,3})/(\d{1,3})")


def shown(data: bytes) -> str:
    """A peer's bytes as they may stand in an answer or a log line: printable, quoted, bounded."""
    text = ascii(data[:SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace"))
    return text if len(data) <= SHOWN_BYTES_MAX else f"{text} and {len(data) - SHOWN_BYTES_MAX} bytes more"


def shown_text(text: str) -> str:
    """A peer's text as it may stand in a log line: printable, in one line, bounded."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:SHOWN_CHARACTERS_MAX])


def printable(text: str) -> str:
    """A text for people, in which what a terminal would obey, or not show, is escaped; it may have several lines."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def stream_name(data: bytes) -> bytes:
    """The name itself. Raises PeerError with `name` or `reserved`."""
    if not name_bytes_valid(data):
        rule = f"1 to {NAME_BYTES_MAX} bytes of UTF-8 without white space, control characters or |"
        raise PeerError(Code.NAME, f"{shown(data)} is not a stream name: {rule}")
    if is_reserved(data):
        raise PeerError(Code.RESERVED, f"{shown(data)} begins with $, which is reserved for the broker; choose another")
    return data


def writable_name(data: bytes) -> bytes:
    """The name of a stream to publish to: not one of dead letters. Raises PeerError with `name` or `reserved`."""
    if data.endswith(DEAD_SUFFIX):
        text = f"{shown(data)} ends in {DEAD_SUFFIX.decode()}: only the broker writes dead letters; choose another"
        raise PeerError(Code.RESERVED, text)
    return stream_name(data)


def readable_name(data: bytes) -> bytes:
    """The name of a stream to be read or copied: a companion's too. Raises PeerError with `name` or `reserved`."""
    if is_reserved(data) and name_bytes_valid(data):
        stream_name(base_of(data))
        return data
    return stream_name(data)


def led_name(data: bytes) -> bytes:
    """The name of a stream that has a master of its own: not a companion's. Raises PeerError with `name` or
    `reserved`.
    """
    return data if is_session_log(data) else stream_name(data)


def copied_name(data: bytes) -> bytes:
    """The name of a stream that nodes copy. Raises PeerError with `name` or `reserved`."""
    return data if is_session_log(data) else readable_name(data)


def consumer_name(data: bytes) -> bytes:
    """The name of a durable consumer, or of a member of one: the name itself. Raises PeerError with `usage`."""
    if len(data) > CONSUMER_BYTES_MAX or not name_bytes_valid(data):
        rule = f"1 to {CONSUMER_BYTES_MAX} bytes of UTF-8 without white space, control characters or |"
        raise PeerError(Code.USAGE, f"{shown(data)} is not the name of a consumer or a member: {rule}")
    return data


def node_id(text: str) -> str:
    """The id itself. Raises PeerError with `usage`."""
    data = text.encode()
    if len(data) > NODE_BYTES_MAX or not name_bytes_valid(data):
        rule = f"1 to {NODE_BYTES_MAX} bytes of UTF-8 without white space, control characters or |"
        raise PeerError(Code.USAGE, f"{shown(data)} is not the id of a node: {rule}")
    return text


def node_address(text: str) -> str:
    """Checks a node's address: HOST:PORT, or :PORT for the host that the peer sees. Raises PeerError (`usage`)."""
    try:
        split_address(f"here{text}" if text.startswith(":") else text)
    except ValueError as error:
        raise PeerError(Code.USAGE, f"{shown(text.encode())} is not the address of a node: {error}") from None
    return text


def is_pattern(name: bytes) -> bool:
    """Whether it names streams by a pattern, in which `*` stands for any characters, at any place."""
    return WILDCARD in name


def prefix_of(pattern: bytes) -> bytes:
    """What all names of a pattern begin with."""
    return pattern.partition(WILDCARD)[0]


@lru_cache(maxsize=1_024)
def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Whether a name is of the pattern. Its time is bounded by the product of their lengths."""
    first, *between = pattern.split(WILDCARD)
    if not between:
        return pattern.__eq__
    last = between.pop()

    def matches(name: bytes) -> bool:
        end, place = len(name) - len(last), len(first)
        if end < place or not name.startswith(first) or not name.endswith(last):
            return False
        for part in between:
            place = name.find(part, place, end)
            if place < 0:
                return False
            place += len(part)
        return True

    return matches


def may_share(pattern: bytes, other: bytes) -> bool:
    """Whether a name can be of two patterns."""
    heads = [each.partition(WILDCARD)[0] for each in (pattern, other)]
    tails = [each.rpartition(WILDCARD)[2] for each in (pattern, other)]
    begins_alike = heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])
    return begins_alike and (tails[0].endswith(tails[1]) or tails[1].endswith(tails[0]))


class StreamGroup(NamedTuple):
    """The streams whose name has `number` as the upper 16 bits of its CRC-32 modulo `groups`, and their companions; of
    one group: all streams.
    """

    number: int = 0
    groups: int = 1

    def __str__(self) -> str:
        return "*" if self.groups == 1 else f"*%{self.number}/{self.groups}"


ALL_STREAMS: Final = StreamGroup()


@lru_cache(maxsize=4_096)
def stream_group(data: bytes) -> StreamGroup | None:
    """The group that `*%NUMBER/GROUPS` stands for; None for anything else."""
    found = _GROUP.fullmatch(data)
    if found is None:
        return None
    number, groups = map(int, found.groups())
    return StreamGroup(number, groups) if number < groups <= GROUPS_MAX else None


def stream_pattern(data: bytes) -> bytes:
    """A stream's name, `*` or a prefix and `*` for all that begin so, or a group. Raises PeerError with `name` or
    `reserved`.
    """
    group = stream_group(data)
    if group is not None:
        return str(group).encode()
    stem = data.removesuffix(b"*")
    if stem or not data:
        stream_name(stem)
    return data
