"""Which streams of an owner have grown lately, for readers of very many streams who must not ask for each of them.

Nothing is noted before the first question, and no longer than ASKED_AGAIN_S after the last one.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

STREAMS_MAX: Final = 65_536
"""Noted at one time; the streams that grew longest ago are forgotten first."""
ASKED_AGAIN_S: Final = 600.0


class GrownSince(NamedTuple):
    """The streams that have grown since a mark; None if that is not known: any may have. `mark` is the next one."""

    mark: str
    streams: list[bytes] | None


class GrowthLog:
    """One per owner. It records which streams have grown since `begun_ns`, none if that is 0.

    A mark is the boot of the machine and its monotonic clock, which all workers share: the least of their marks is one
    for all of them.
    """

    def __init__(self, boot_id: str, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._boot = f"{zlib.crc32(boot_id.encode()):08x}"
        self._clock_ns = clock_ns
        self._grown_ns: dict[bytes, int] = {}  # the last growth last
        self.begun_ns = 0
        self._asked_ns = 0

    def note(self, streams: Iterable[bytes]) -> None:
        """These have grown, or have lost their ends, by now."""
        if not self.begun_ns:
            return
        now_ns = self._clock_ns()
        if now_ns - self._asked_ns > ASKED_AGAIN_S * 1e9:
            self._grown_ns.clear()
            self.begun_ns = 0
            return
        for stream in streams:
            self._grown_ns.pop(stream, None)
            self._grown_ns[stream] = now_ns
        while len(self._grown_ns) > STREAMS_MAX:
            stream = next(iter(self._grown_ns))
            self.begun_ns = self._grown_ns.pop(stream) + 1

    def since(self, mark: str) -> GrownSince:
        """The work is bounded by the number of streams that have grown since. Begins to note, if need be."""
        self._asked_ns = now_ns = self._clock_ns()
        boot, _, since = mark.partition(".")
        since_ns = int(since) if boot == self._boot and since.isdecimal() else -1
        streams = None
        if 0 < self.begun_ns <= since_ns:
            streams = []
            for stream, grown_ns in reversed(self._grown_ns.items()):
                if grown_ns < since_ns:
                    break
                streams.append(stream)
        self.begun_ns = self.begun_ns or now_ns
        return GrownSince(f"{self._boot}.{now_ns:020}", streams)
