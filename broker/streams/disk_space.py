"""The bounds on the disk space of a node: `max_bytes` of [node], and the free space `reserve_bytes`.

Each worker knows the bytes of its own streams: a sweep measures them (`broker.streams.maintenance`), and what is
appended between two measurements is added. The scoreboard has the sum of each worker, so the sum over the node costs a
few loads. A worker looks at that, and at the free space (one statvfs), once for every LOOK_BYTES that it appends,
before a publish makes a stream, and at its housekeeping; in between, a publish costs one addition.

    room > slack       all is well
    0 < room <= slack  sweeps follow each other quickly, so that retention drops now what it may drop
    room <= 0          publishes are refused, until the room is more than the slack again

The slack keeps a node at its bound from refusing and accepting by turns.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.settings import Settings
from tailrace.broker.streams.memory_rings import MemoryRings
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.directory import DataDirectory
from tailrace.shard.frame import INDEX_ENTRY_BYTES
from tailrace.shard.growth import STEP_BYTES_MAX, limit_steps
from tailrace.shard.names import CURSOR_PREFIX, LAST_PREFIX, SESSIONS_PREFIX, base_of

log = logging.getLogger(__name__)

LOOK_BYTES: Final = 1 << 20
"""Appended by a worker between two looks at the room."""
SLACK_SHARE, SLACK_BYTES_MAX = 16, 64 << 20  # a sixteenth of a bound, and no more than that
STEP_SHARE: Final = 64
"""The part of the room that one open file may reserve ahead."""
WRITTEN_PREFIXES: Final = (CURSOR_PREFIX, LAST_PREFIX, SESSIONS_PREFIX)
"""Of streams that are written at all times."""
LOG_INTERVAL_S: Final = 60.0
NOTHING_TEXT: Final = "nothing of this was logged"


class Room(NamedTuple):
    """What one bound leaves: `free_bytes`, negative beyond it; `slack_bytes`: what ends a refusal."""

    free_bytes: int
    slack_bytes: int
    text: str


class DiskSpace:
    """One per owner.

    is_watched: a bound is set. is_met: publishes are refused. is_short: there is less room than the slack.
    """

    __slots__ = (
        "_beyond_bytes",
        "_clock",
        "_directory",
        "_is_whole",
        "_metrics",
        "_next_log_s",
        "_settings",
        "_share",
        "_silent",
        "_sizes",
        "_text",
        "_total_bytes",
        "is_met",
        "is_short",
        "is_watched",
        "rings",
    )

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        metrics: WorkerMetrics,
        share_bytes: Callable[[int, bool], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share_bytes`: see `OwnerContext.share_bytes`."""
        self._settings = settings
        self._directory = directory
        self._metrics = metrics
        self._share = share_bytes
        self.rings = MemoryRings()  # of the streams in memory, which have bounds of their own
        self._clock = clock
        self._sizes: dict[bytes, int] = {}
        self._total_bytes = self._beyond_bytes = 0
        self._is_whole = False  # all streams have been measured
        self._text = ""
        self._next_log_s, self._silent = float("-inf"), 0
        self.is_watched = bool(settings.node_max_bytes or settings.reserve_bytes)
        self.is_met = self.is_short = False
        metrics.data_max_bytes, metrics.data_reserve_bytes = settings.node_max_bytes, settings.reserve_bytes

    # --- the account ------------------------------------------------------------------------------------------------

    def grew(self, name: bytes, frame_bytes: int, messages: int) -> None:
        """Frames were appended to a stream, and their index entries."""
        if self._directory.is_in_memory(name):
            return
        nbytes = frame_bytes + messages * INDEX_ENTRY_BYTES
        self._sizes[name] = self._sizes.get(name, 0) + nbytes
        self._total_bytes += nbytes
        self._beyond_bytes += nbytes
        if self._beyond_bytes >= LOOK_BYTES:
            self.look()

    def measured(self, name: bytes, nbytes: int) -> None:
        """What the files of a stream take now."""
        self._total_bytes += nbytes - self._sizes.get(name, 0)
        self._sizes[name] = nbytes

    def dropped(self, name: bytes) -> None:
        """The stream is deleted."""
        self._total_bytes -= self._sizes.pop(name, 0)

    def swept(self, nbytes: int) -> None:
        """All streams have been measured since the worker has owned them. `nbytes`: what their messages take."""
        self._is_whole = True
        if self.is_watched:
            self.look()
        else:
            self._share(nbytes, True)

    @property
    def wants_sweep(self) -> bool:
        """Whether the sweeps should follow each other quickly."""
        return self.is_watched and (self.is_short or not self._is_whole)

    # --- the bounds -------------------------------------------------------------------------------------------------

    def look_now(self) -> None:
        """Look before a stream is made: each takes space, also without messages, and its files take far longer."""
        if self.is_watched:
            self.look()

    def look(self) -> None:
        """Find out whether a bound is met."""
        self._beyond_bytes = 0
        used_bytes = self._share(self._total_bytes, self._is_whole)
        rooms = self._rooms(used_bytes)
        self.is_short = any(room.free_bytes <= room.slack_bytes for room in rooms)
        least = min(rooms, key=lambda room: room.free_bytes, default=None)
        if least is not None:
            limit_steps(min(max(least.free_bytes, 0) // STEP_SHARE, STEP_BYTES_MAX))
        if least is not None and least.free_bytes <= 0:
            self._meet(least)
        elif self.is_met and not self.is_short:
            self.is_met = False
            log.info("publishes are taken again: there is room on the disk")
        self._metrics.data_used_bytes = self._total_bytes
        self._metrics.data_refusing = int(self.is_met)

    def _rooms(self, used_bytes: int) -> list[Room]:
        most, reserve, rooms = self._settings.node_max_bytes, self._settings.reserve_bytes, []
        if most:
            text = f"the streams of this node take what max_bytes in [node] allows, {most:,} bytes"
            rooms.append(Room(most - used_bytes, _slack(most), text))
        free = self._free_bytes() if reserve else None
        if free is not None:
            text = f"less is free on the disk of this node than reserve_bytes in [node], {reserve:,} bytes"
            rooms.append(Room(free - reserve, _slack(reserve), text))
        return rooms

    def _free_bytes(self) -> int | None:
        """What the node may still use; None if the disk cannot be asked: appending has an error of its own then."""
        try:
            return free_bytes(self._directory.path)
        except OSError:
            return None

    def report(self, used_bytes: int) -> list[list[str | int]]:
        """Rows for the operator. `used_bytes`: what the streams of all workers take."""
        free = self._free_bytes()
        return [
            ["state", "refusing" if self.is_met else "short" if self.is_short else "ample"],
            ["used_bytes", used_bytes],
            ["max_bytes", self._settings.node_max_bytes],
            ["free_bytes", "unknown" if free is None else free],
            ["reserve_bytes", self._settings.reserve_bytes],
        ]

    def _meet(self, room: Room) -> None:
        self._text = room.text
        if not self.is_met:
            self.is_met = True
            self._log()

    def require(self, name: bytes, messages: int) -> None:
        """Raises Refused if these messages must not be published now.

        What consumers have finished, last values and sessions are written at all times, and so are streams in memory,
        which take nothing of the disk. Dead letters wait for room.
        """
        if self.is_met and not name.startswith(WRITTEN_PREFIXES) and not self._directory.is_in_memory(name):
            self._metrics.data_refused_messages += messages
            self._log()
            raise Refused(Code.FULL, f"{self._text}; {NOTHING_TEXT}")

    def require_for_copy(self, name: bytes) -> None:
        """Raises Refused if messages of the master must not be taken now.

        Those of companions are: a node that knows that a message is a dead letter must have the letter, or a promotion
        would lose it.
        """
        if base_of(name) == name:
            self.require(name, 0)

    def _log(self) -> None:
        """A warning a minute."""
        now_s = self._clock()
        if now_s < self._next_log_s:
            self._silent += 1
            return
        self._next_log_s = now_s + LOG_INTERVAL_S
        log.warning("publishes are refused: %s; %d more of these were not logged", self._text, self._silent)
        self._silent = 0


def free_bytes(path: Path) -> int:
    """What a process that is not root may still use of the file system. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _slack(bound_bytes: int) -> int:
    return min(bound_bytes // SLACK_SHARE, SLACK_BYTES_MAX)
