"""The heads of `pub` lines, and the frames of their payloads, for the interpreted body of the leaf `line_cy`.

The compiled body parses heads itself and calls only `topic_of`, for topics with escapes or other bytes than ASCII.
"""

from __future__ import annotations

import re
import struct
from functools import cache, lru_cache

from tailrace.protocol.errors import PeerError
from tailrace.protocol.topics import topic_fault, topic_metadata, unescaped
from tailrace.shard.names import DEAD_SUFFIX, name_bytes_valid

HEAD_BYTES_MAX = 240
"""The longest head, up to and with the bar, that `stage` takes. One with a long topic or very many blanks is longer."""

UNSTAMPED = struct.Struct("<I28x").pack
"""The header of an unstamped frame of that many bytes without metadata."""
_WITH_METADATA = struct.Struct("<I26xH").pack
_HEAD = re.compile(
    rb"[pP][uU][bB][ \t]+([^ \t|$][^ \t|]{0,199})"
    rb"(?:[ \t]+[tT][oO][pP][iI][cC][ \t]+([^\x00-\x20|]+))?[ \t]*\|"
)
_FRAME_BYTES_MAX = 2_048


class WholeFrame(bytes):
    """In the place of a payload: a frame with metadata."""


@lru_cache(maxsize=8_192)
def topic_of(word: bytes) -> bytes | None:
    """The topic that a word stands for; None if it is invalid."""
    try:
        topic = unescaped(word)
    except PeerError:
        return None
    return None if topic_fault(topic) else topic


@lru_cache(maxsize=8_192)
def parse_head(head: bytes) -> tuple[bytes, bytes] | None:
    """The stream's name and the metadata if this is the head of a line for `stage`, up to and with the bar."""
    match = _HEAD.fullmatch(head)
    if match is None or len(head) > HEAD_BYTES_MAX or not name_bytes_valid(match[1]):
        return None
    if match[1].endswith(DEAD_SUFFIX) or (b"%" in match[1] and b"/" in match[1]):
        return None
    if match[2] is None:
        return match[1], b""
    topic = topic_of(match[2])
    return None if topic is None else (match[1], topic_metadata(topic))


def frame_with_metadata(metadata: bytes, payload: bytes) -> bytes:
    """An unstamped frame, marked so that `frames_of` takes it as it is."""
    size = len(metadata)
    return WholeFrame(_WITH_METADATA(32 + size + len(payload), size) + metadata + payload)


def frames_of(payloads: list[bytes]) -> bytearray:
    """The unstamped frames of these payloads."""
    if WholeFrame in set(map(type, payloads)):
        frames = [each if type(each) is WholeFrame else UNSTAMPED(32 + len(each)) + each for each in payloads]
        return bytearray().join(frames)
    sizes = set(map(len, payloads))
    if len(sizes) == 1:
        header = UNSTAMPED(32 + sizes.pop())
        return bytearray(header) + header.join(payloads)
    if max(sizes) < _FRAME_BYTES_MAX:
        headers = _headers()
        return bytearray().join([headers[len(payload)] + payload for payload in payloads])
    return bytearray().join([UNSTAMPED(32 + len(payload)) + payload for payload in payloads])


@cache
def _headers() -> list[bytes]:
    """The headers of frames with a payload of up to that many bytes."""
    return [UNSTAMPED(32 + size) for size in range(_FRAME_BYTES_MAX)]
