"""Reads last values: a page of those that a topic filter matches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.last.index import LastEntry, TopicIndex
from tailrace.broker.last.stream_values import IN_STREAM, StreamValues
from tailrace.broker.last.value_log import frame_in
from tailrace.broker.topics.rules import literal_prefix
from tailrace.protocol.topics import ANY_LEVELS, SEPARATOR, has_wildcards
from tailrace.shard.errors import Trimmed
from tailrace.shard.leaves import load

SCANNED_MAX: Final = 4_096
"""Topics that are looked at for one page."""

_matches = load("tailrace.broker.topics.pick_cy").matches


class LastPage(NamedTuple):
    """Stamped frames in the order of their topics. `after`: the last topic that was looked at; `more`: whether there
    are others behind it.
    """

    frames: bytes
    messages: int
    after: bytes
    more: bool


def read_page(
    readers: StreamReaders,
    values: StreamValues,
    topic_filter: bytes,
    after: bytes,
    most: int,
    bytes_max: int,
    *,
    retained: bool,
) -> LastPage:
    """At most `most` last values behind a topic, and of `bytes_max`, but one at least if there is one.

    Raises StorageError, OSError.
    """
    frames: list[bytes] = []
    size = 0
    for number, entry in enumerate(_candidates(values.index(retained=retained), topic_filter, after)):
        if number == SCANNED_MAX or len(frames) == most or size >= bytes_max:
            return LastPage(b"".join(frames), len(frames), after, True)
        if _matches(topic_filter, entry.topic):
            frame = _read_frame(readers, values, entry.place)
            if frames and size + len(frame) > bytes_max:
                return LastPage(b"".join(frames), len(frames), after, True)
            if frame:
                frames.append(frame)
                size += len(frame)
        after = entry.topic
    return LastPage(b"".join(frames), len(frames), after, False)


def _candidates(index: TopicIndex, topic_filter: bytes, after: bytes) -> Iterator[LastEntry]:
    """The entries behind a topic that the filter may match."""
    if not has_wildcards(topic_filter):
        entry = index.get(topic_filter) if topic_filter > after else None
        return iter([] if entry is None else [entry])
    prefix = literal_prefix(topic_filter)
    if topic_filter == prefix + ANY_LEVELS:
        prefix = prefix.removesuffix(SEPARATOR)  # `a/#` matches `a` too
    return index.after(after, prefix)


def _read_frame(readers: StreamReaders, values: StreamValues, place: int) -> bytes:
    """The frame of the stream at a place; b"" if the stream was trimmed there and the log does not have it yet."""
    is_in_stream = bool(place & IN_STREAM)
    reader = readers.get(values.name if is_in_stream else values.log.name)
    try:
        entry = reader.entry(place & ~IN_STREAM)
    except Trimmed:
        return b""
    buffer = memoryview(bytearray(entry.length))
    reader.read_into(buffer, entry.offset)
    return bytes(buffer if is_in_stream else frame_in(buffer))
