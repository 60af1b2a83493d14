"""The topic of a message, in its frame's metadata: the text `t`, which is the map's first key.

The numbers of a producer, `p` and `n`, may come before it. A topic has 1 to 1,024 bytes; the metadata of a message with
any other `t`, or with `t` at another place, has no topic. A message without a topic has the name of its stream as one.
"""

from __future__ import annotations

from typing import Final

TOPIC_KEY: Final = "t"
TOPIC_BYTES_MAX: Final = 1_024
"""Of a topic or a filter, in UTF-8. Metadata has 65,535 bytes for all its keys."""

_NUMBER_WIDTHS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_LENGTH_WIDTHS: Final = {0xD9: 1, 0xDA: 2}


def topic_in(metadata: bytes) -> bytes:
    """The topic in a frame's metadata; b"" without one. The compiled leaves have their own: `tr_topic` in frame_cy."""
    if not b"\x81" <= metadata[:1] <= b"\x8f":
        return b""
    at = 1
    if metadata[at : at + 3] == b"\xa1p\xc4":
        at += 4 + sum(metadata[at + 3 : at + 4])
    if metadata[at : at + 2] == b"\xa1n":
        at += 3 + _NUMBER_WIDTHS.get(sum(metadata[at + 2 : at + 3]), 0)
    kind = sum(metadata[at + 2 : at + 3])
    if metadata[at : at + 2] != b"\xa1t":
        return b""
    at += 3
    size = kind & 0x1F
    if kind & 0xE0 != 0xA0:
        width = _LENGTH_WIDTHS.get(kind, 0)
        size = int.from_bytes(metadata[at : at + width], "big")
        at += width
    topic = metadata[at : at + size]
    return topic if 0 < size <= TOPIC_BYTES_MAX and len(topic) == size else b""
