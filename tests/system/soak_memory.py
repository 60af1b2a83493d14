"""The memory that belongs to each worker alone, over time, and whether it grows."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.system.node import Node
from tests.system.processes import worker_pids

FIELDS = ("Rss", "Anonymous")


class Sample(NamedTuple):
    """`at_s` from the start of the soak. `anonymous_bytes` leaves out mapped files, which the kernel can drop, and
    `own_bytes` also the memory shared with the supervisor since the fork: it is the worker's alone. A page that is
    shared becomes the worker's own when it first writes to it, so that `own_bytes` rises for hours, less and less, up
    to all that was there at the fork, while `anonymous_bytes` stays.
    """

    at_s: float
    slot: int
    pid: int
    rss_bytes: int
    anonymous_bytes: int
    own_bytes: int


def rollup(pid: int) -> list[int]:
    """FIELDS of /proc/PID/smaps_rollup, in bytes. Raises OSError when the process is gone."""
    rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    found = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}
    return [found[field] for field in FIELDS]


def own_bytes(pid: int) -> int:
    """What no other process has: the dirty pages of private mappings. Raises OSError when the process is gone."""
    private, found = False, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, value, *_rest = line.split()
        if not key.endswith(":"):  # the first line of a mapping: its place, its permissions
            private = value.endswith("p")
        elif private and key == "Private_Dirty:":
            found += int(value) * 1024
    return found


class Memory:
    """Samples of all workers of a node. `take` adds one of each."""

    def __init__(self, node: Node) -> None:
        self.samples: list[Sample] = []
        self._node = node
        self._began_s = time.monotonic()

    def take(self) -> None:
        at_s = round(time.monotonic() - self._began_s, 1)
        for slot, pids in worker_pids(self._node).items():
            for pid in pids:
                try:
                    rss_bytes, anonymous_bytes = rollup(pid)
                    self.samples.append(Sample(at_s, slot, pid, rss_bytes, anonymous_bytes, own_bytes(pid)))
                except OSError:  # replaced in this moment
                    continue

    def write(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Sample._fields)
            writer.writerows(self.samples)


class Growth(NamedTuple):
    """Memory of one worker in a window: the medians of its first third and of its last, of all that is no file's, and
    of its own.

    Whether a worker grows is seen in all that is no file's: there a page that it no longer shares is no growth.
    """

    slot: int
    pid: int
    before_bytes: float
    after_bytes: float
    own_before_bytes: float
    own_after_bytes: float

    @property
    def percent(self) -> float:
        """The growth of everything, by its own memory before."""
        return 100.0 * (self.after_bytes - self.before_bytes) / self.own_before_bytes

    def __str__(self) -> str:
        everything = f"{self.before_bytes / 1e6:.2f} to {self.after_bytes / 1e6:.2f} MB"
        own = f"{self.own_before_bytes / 1e6:.2f} to {self.own_after_bytes / 1e6:.2f} MB"
        return f"worker {self.slot} (pid {self.pid}): {everything}, its own {own}, {self.percent:+.2f} % of these"


def growths(samples: Sequence[Sample], last_s: float) -> list[Growth]:
    """The growth of each worker that lived through the last `last_s` seconds and has at least three samples."""
    end_s = max((sample.at_s for sample in samples), default=0.0)
    begin_s = end_s - last_s
    before_window = {sample.pid for sample in samples if sample.at_s <= begin_s}
    found = []
    for slot, pid in sorted({(sample.slot, sample.pid) for sample in samples if sample.at_s == end_s}):
        taken = [sample for sample in samples if sample.pid == pid and sample.at_s >= begin_s]
        third = len(taken) // 3
        if pid in before_window and third:
            thirds = taken[:third], taken[-third:]
            everything = [statistics.median(each.anonymous_bytes for each in part) for part in thirds]
            own = [statistics.median(each.own_bytes for each in part) for part in thirds]
            found.append(Growth(slot, pid, *everything, *own))
    return found
