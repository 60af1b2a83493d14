"""Topic names and topic filters: which are valid.

A topic is a name with levels, which `/` separates: `sensors/7/temp`. Levels may be empty, so `/a` and `a` are two
topics, and `a/` is a third. A filter is a topic in which a whole level may be `+`, for any one level, and the last may
be `#`, for any number of further levels, none included. A filter that begins with a wildcard matches no topic that
begins with `$`. These are the rules of MQTT 5 (section 4.7).
"""

from __future__ import annotations

from typing import Final

from tailrace.protocol.names import shown

TOPIC_BYTES_MAX: Final = 1_024
"""Of a topic or a filter, in UTF-8. Topics stand in the metadata of frames, which has 65,535 bytes for all its keys."""
LEVELS_MAX: Final = 128
"""Of a topic or a filter: bounds the work of matching one topic with one filter."""

SEPARATOR: Final = b"/"
ONE_LEVEL: Final = b"+"
ANY_LEVELS: Final = b"#"


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
