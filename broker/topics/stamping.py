"""Writes a topic into the metadata of unstamped frames, for messages that were published to the topic's name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Any, Final

import msgpack

from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import HEADER_BYTES, MAX_FRAME_BYTES, MAX_METADATA_BYTES
from tailrace.shard.numbering import ID_KEY, NUMBER_KEY
from tailrace.shard.topics import TOPIC_KEY

KEYS_MAX: Final = 15
"""Of metadata that has a topic."""

_LENGTH = Struct("<I")
_METADATA_BYTES = Struct("<H")
_METADATA_AT = 30

AnyFrames = bytes | bytearray | memoryview


class UnstampableFrame(ValueError):
    """A frame's metadata cannot take the topic; the text gives the reason."""


def with_topic(frames: AnyFrames, topic: bytes) -> bytearray:
    """These whole unstamped frames with the topic in each of them. Raises UnstampableFrame."""
    made: list[AnyFrames] = []
    view = memoryview(frames)
    alone = _metadata_of(topic)
    at, size = 0, len(view)
    while at < size:
        (length,) = _LENGTH.unpack_from(view, at)
        end, body = at + length, at + HEADER_BYTES
        (had_bytes,) = _METADATA_BYTES.unpack_from(view, at + _METADATA_AT)
        metadata = _merged(bytes(view[body : body + had_bytes]), topic) if had_bytes else alone
        made_bytes = length - had_bytes + len(metadata)
        if made_bytes > MAX_FRAME_BYTES:
            raise UnstampableFrame(f"the message is too large for its topic: at most {MAX_FRAME_BYTES} bytes with it")
        made.append(_LENGTH.pack(made_bytes))
        made.append(view[at + _LENGTH.size : at + _METADATA_AT])
        made += (_METADATA_BYTES.pack(len(metadata)), metadata, view[body + had_bytes : end])
        at = end
    return bytearray(b"").join(made)


def in_order(groups: list[bytearray], order: list[int]) -> bytearray:
    """The frames of several groups as one run: `order` has the index of the group of each frame."""
    rests = [(memoryview(frames), 0) for frames in groups]
    made = []
    for index in order:
        view, at = rests[index]
        end = at + _LENGTH.unpack_from(view, at)[0]
        made.append(view[at:end])
        rests[index] = view, end
    return bytearray(b"").join(made)


def each_frame(frames: bytearray) -> Iterator[memoryview]:
    """The frames of a run, one by one."""
    view, at = memoryview(frames), 0
    while at < len(view):
        end = at + _LENGTH.unpack_from(view, at)[0]
        yield view[at:end]
        at = end


@lru_cache(maxsize=4_096)
def _metadata_of(topic: bytes) -> bytes:
    return topic_metadata(topic)


def _merged(metadata: bytes, topic: bytes) -> bytes:
    """The metadata of a frame, with the topic behind the numbers of a producer and before all else."""
    try:
        fields: Any = msgpack.unpackb(metadata)
    except (ValueError, msgpack.UnpackException) as error:
        raise UnstampableFrame(f"the metadata is not a map: {error!r}") from None
    if not isinstance(fields, dict) or len(fields) >= KEYS_MAX:
        raise UnstampableFrame(f"the metadata is not a map of fewer than {KEYS_MAX} keys")
    text = topic.decode()
    if fields.pop(TOPIC_KEY, text) != text:
        raise UnstampableFrame(f"the message has another topic than the name that it is published to, {text}")
    numbers = {key: fields.pop(key) for key in (ID_KEY, NUMBER_KEY) if key in fields}
    made: bytes = msgpack.packb({**numbers, TOPIC_KEY: text, **fields})
    if len(made) > MAX_METADATA_BYTES:
        raise UnstampableFrame(f"the metadata has {len(made)} bytes with the topic; at most {MAX_METADATA_BYTES}")
    return made
