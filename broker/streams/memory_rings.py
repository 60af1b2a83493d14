"""Streams in memory have no more than about their bound, at any rate of publishing.

Dropped messages stay for a moment, for readers that are in the middle of them; with many of them that ends at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from tailrace.broker.process.setting_specs import MEMORY_BYTES
from tailrace.broker.process.settings import Durability, Settings
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.refused import Refused
from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StorageError
from tailrace.shard.memory_directory import memory_path, open_memory_directory
from tailrace.shard.retention import RetentionPolicy, retention_seq

log = logging.getLogger(__name__)

SLACK_PART: Final = 4
"""A stream is trimmed when it is longer than its bound by this part of it."""
DROPPED_BOUNDS_MAX: Final = 1
"""Bounds of dropped bytes that are not given back yet; above that they are at once."""


NAMES_KEPT: Final = 16_384
"""Names of which it is remembered whether they are in memory."""
TrimStream = Callable[[OpenStream, int], None]
"""`Owner.trim`."""


def uses_memory(settings: Settings) -> bool:
    """Whether streams of some names are in memory."""
    return settings.udp or any(each.durability is Durability.MEMORY for each in settings.streams)


def with_memory(directory: DataDirectory, settings: Settings) -> DataDirectory:
    """The directory with the folder of the streams in memory, if there may be some. Raises DirectoryError."""
    if not uses_memory(settings):
        return directory
    holds = lru_cache(NAMES_KEPT)(lambda name: settings.policy(name.decode()).durability is Durability.MEMORY)
    return replace(directory, memory=open_memory_directory(memory_path(directory.node_id), holds))


class _BoundedStream:
    __slots__ = ("given_back_offset", "stream", "trim_offset")

    def __init__(self, stream: OpenStream) -> None:
        self.stream = stream
        self.trim_offset = 0  # of the content's end, from which on the stream is trimmed; 0: not known yet
        self.given_back_offset = stream.log.end_offset


class MemoryRings:
    """One per owner. `streams`: its open streams in memory, by name."""

    def __init__(self) -> None:
        self.streams: dict[bytes, _BoundedStream] = {}

    def add(self, stream: OpenStream) -> None:
        self.streams[stream.name] = _BoundedStream(stream)

    def remove(self, name: bytes) -> None:
        self.streams.pop(name, None)

    def grew(self, names: Iterable[bytes], trim: TrimStream) -> None:
        """These streams were appended to in this turn."""
        for name in names:
            ring = self.streams.get(name)
            if ring is not None and ring.stream.log.end_offset >= ring.trim_offset:
                try:
                    self._trim(ring, trim)
                except (Refused, StorageError, OSError) as error:
                    log.warning("cannot trim stream %r, which is in memory: %s", name, error)

    def _trim(self, ring: _BoundedStream, trim: TrimStream) -> None:
        stream, bound = ring.stream, ring.stream.policy.max_bytes or MEMORY_BYTES
        seq = retention_seq(stream.log, RetentionPolicy(0, bound), 0)
        if seq > stream.log.first_seq and (ring.trim_offset or not self._has_slack(stream, bound)):
            trim(stream, seq)
        first_offset = self._first_offset(stream)
        if first_offset - ring.given_back_offset > DROPPED_BOUNDS_MAX * bound:
            stream.log.punch(stream.log.first_seq)  # in memory: nothing waits for a disk
            ring.given_back_offset = first_offset
        ring.trim_offset = first_offset + bound + bound // SLACK_PART

    def _has_slack(self, stream: OpenStream, bound: int) -> bool:
        return stream.log.end_offset - self._first_offset(stream) < bound + bound // SLACK_PART

    def _first_offset(self, stream: OpenStream) -> int:
        found = stream.log
        return found.end_offset if found.first_seq == found.next_seq else found.entry(found.first_seq).offset
