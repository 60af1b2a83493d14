"""Topic names and topic filters: which are valid.

A topic is a name with levels, which `/` separates: `sensors/7/temp`. Levels may be empty, so `/a` and `a` are two
topics, and `a/` is a third. A filter is a topic in which a whole level may be `+`, for any one level, and the last may
be `#`, for any number of further levels, none included. A filter that begins with a wildcard matches no topic that
begins with `$`. These are the rules of MQTT 5 (section 4.7).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgpack

from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.names import readable_name, shown, writable_name
from tailrace.shard.names import DEAD_SUFFIX, base_of, is_reserved, name_bytes_valid
from tailrace.shard.topics import TOPIC_BYTES_MAX as TOPIC_BYTES_MAX
from tailrace.shard.topics import TOPIC_KEY

LEVELS_MAX: Final = 128
"""Of a topic or a filter: bounds the work of matching one topic with one filter."""

SEPARATOR: Final = b"/"
ONE_LEVEL: Final = b"+"
ANY_LEVELS: Final = b"#"

SHARE_PREFIX: Final = b"$share/"
"""Of the filter of a shared subscription: $share/GROUP/FILTER."""

_NOT_IN_WORDS = re.compile(rb"[\x00- \x7f|%]")
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_WRONG_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def topic_fault(topic: bytes) -> str:
    """Why these bytes are not a topic's name, for a sentence that ends with them; "" if they are one."""
    for wildcard in (ONE_LEVEL, ANY_LEVELS):
        if wildcard in topic:
            return f"{wildcard.decode()} stands for levels in filters, and no topic may have it: {shown(topic)}"
    return _fault(topic, "a topic")


def filter_fault(topic_filter: bytes) -> str:
    """Why these bytes are not a topic filter, for a sentence that ends with them; "" if they are one."""
    fault = _fault(topic_filter, "a topic filter")
    if fault:
        return fault
    levels = topic_filter.split(SEPARATOR)
    for wildcard in (ONE_LEVEL, ANY_LEVELS):
        if any(wildcard in level and level != wildcard for level in levels):
            return f"{wildcard.decode()} must be a whole level of a topic filter: {shown(topic_filter)}"
    if ANY_LEVELS in levels[:-1]:
        return f"# must be the last level of a topic filter: {shown(topic_filter)}"
    return ""


def split_shared(topic_filter: bytes) -> tuple[bytes, bytes]:
    """The group of a shared subscription and the filter in it; b"" and the filter itself if it is not shared."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return b"", topic_filter
    group, _, rest = topic_filter[len(SHARE_PREFIX) :].partition(SEPARATOR)
    return group, rest


def group_fault(group: bytes) -> str:
    """Why these bytes are not the name of a group, for a sentence that ends with them; "" if they are one."""
    if not group or ONE_LEVEL in group or ANY_LEVELS in group:
        return f"the group of a shared subscription is a level without + and #: {shown(group)}"
    return _fault(group, "a group")


def topic_filter(data: bytes) -> bytes:
    """The filter itself. Raises PeerError with `topic`."""
    fault = filter_fault(data)
    if fault:
        raise PeerError(Code.TOPIC, fault)
    return data


def topic_of_word(word: bytes) -> bytes:
    """The topic that a word of a line stands for. Raises PeerError with `topic`."""
    topic = unescaped(word)
    fault = topic_fault(topic)
    if fault:
        raise PeerError(Code.TOPIC, fault)
    return topic


def published_name(name: bytes) -> bytes:
    """The name itself, of a stream or a topic to publish to. Raises PeerError with `name`, `reserved` or `topic`."""
    if not _is_no_stream(name):
        return writable_name(name)
    fault = topic_fault(name)
    if fault:
        raise PeerError(Code.TOPIC, fault)
    return name


def read_name(name: bytes, of_stream: Callable[[bytes], bytes] = readable_name) -> bytes:
    """The name itself, of a stream, a topic or a filter to be read; a stream's is checked by `of_stream`."""
    fault = leveled_fault(name)
    if fault:
        raise PeerError(Code.TOPIC, fault)
    return of_stream(name) if fault is None else name


def leveled_fault(name: bytes) -> str | None:
    """Why a name with levels that no stream can have is no topic and no filter; "" if it is one. None for others."""
    return filter_fault(name) if _is_no_stream(name) else None


def name_of_word(word: bytes) -> bytes:
    """The name that a word of a line stands for; one with levels is written as topics are. PeerError with `topic`."""
    return unescaped(word) if b"%" in word and _has_levels(word) else word


def word_of_name(name: bytes) -> bytes:
    """A name as a word of a line."""
    return escaped(name) if _has_levels(name) else name


def _has_levels(name: bytes) -> bool:
    return SEPARATOR in base_of(name) and not is_reserved(name)


def _is_no_stream(name: bytes) -> bool:
    """Whether a name with levels can be that of a topic or a filter only."""
    if name_bytes_valid(name) or name.endswith(DEAD_SUFFIX):
        return False
    return _has_levels(name)


def unescaped(word: bytes) -> bytes:
    """A word of a line with its bytes %XX as they are. Raises PeerError with `topic` for any other %."""
    if _WRONG_ESCAPE.search(word):
        text = "a % in a topic is followed by two hexadecimal digits, and %25 stands for a % itself"
        raise PeerError(Code.TOPIC, f"{text}: {shown(word)}")
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), word)


def escaped(topic: bytes) -> bytes:
    """A topic as a word of a line: with %XX for white space, control characters, | and %."""
    return _NOT_IN_WORDS.sub(lambda found: b"%%%02X" % found[0][0], topic)


def topic_metadata(topic: bytes) -> bytes:
    """The metadata of a frame that has a valid topic and nothing else."""
    metadata: bytes = msgpack.packb({TOPIC_KEY: topic.decode()})
    return metadata


def has_wildcards(topic_filter: bytes) -> bool:
    """Whether a valid filter can match more than one topic."""
    return ONE_LEVEL in topic_filter or ANY_LEVELS in topic_filter


def _fault(data: bytes, kind: str) -> str:
    """The rules that topics and filters share."""
    if not 0 < len(data) <= TOPIC_BYTES_MAX:
        return f"{kind} has 1 to {TOPIC_BYTES_MAX} bytes of UTF-8, not {len(data)}: {shown(data)}"
    if data.count(SEPARATOR) >= LEVELS_MAX:
        return f"{kind} has at most {LEVELS_MAX} levels, not {data.count(SEPARATOR) + 1}: {shown(data)}"
    if b"\0" in data:
        return f"{kind} has no NUL: {shown(data)}"
    try:
        data.decode()
    except UnicodeDecodeError:
        return f"{kind} is UTF-8: {shown(data)}"
    return ""
