"""The topic of a message, in its frame's metadata: the text `t`, which is the map's first key.

The numbers of a producer, `p` and `n`, may come before it. A topic has 1 to 1,024 bytes; the metadata of a message with
any other `t`, or with `t` at another place, has no topic. A message without a topic has the name of its stream as one.
"""

from __future__ import annotations

from typing import Final

TOPIC_KEY: Final = "t"
RETAIN_KEY: Final = "k"
"""Right behind the topic, or the first key without one: with the value 1, the message is to be retained."""
RETAINED: Final = b"\xa1k\x01"
TOPIC_BYTES_MAX: Final = 1_024
"""Of a topic or a filter, in UTF-8. Metadata has 65,535 bytes for all its keys."""

_NUMBER_WIDTHS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_LENGTH_WIDTHS: Final = {0xD9: 1, 0xDA: 2}


def topic_in(metadata: bytes) -> bytes:
    """The topic in a frame's metadata; b"" without one. The compiled leaves have their own: `tr_topic` in frame_cy."""
    start, end = _topic_span(metadata)
    return metadata[start:end]


def is_retained(metadata: bytes) -> bool:
    """Whether a message is to be retained as the last value of its topic. Compiled: `tr_is_retained` in last_cy."""
    _start, end = _topic_span(metadata)
    return b"\x81" <= metadata[:1] <= b"\x8f" and metadata[end or 1 : (end or 1) + 3] == RETAINED


def _topic_span(metadata: bytes) -> tuple[int, int]:
    """Where the topic stands in a frame's metadata; (0, 0) without one."""
    if not b"\x81" <= metadata[:1] <= b"\x8f":
        return 0, 0
    at = 1
    if metadata[at : at + 3] == b"\xa1p\xc4":
        at += 4 + sum(metadata[at + 3 : at + 4])
    if metadata[at : at + 2] == b"\xa1n":
        at += 3 + _NUMBER_WIDTHS.get(sum(metadata[at + 2 : at + 3]), 0)
    kind = sum(metadata[at + 2 : at + 3])
    if metadata[at : at + 2] != b"\xa1t":
        return 0, 0
    at += 3
    size = kind & 0x1F
    if kind & 0xE0 != 0xA0:
        width = _LENGTH_WIDTHS.get(kind, 0)
        size = int.from_bytes(metadata[at : at + width], "big")
        at += width
    return (at, at + size) if 0 < size <= TOPIC_BYTES_MAX and len(metadata) >= at + size else (0, 0)
