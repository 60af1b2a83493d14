"""How much longer appends take under a lease: an owner's, in slices that take turns with and without it.

`python -m tests.broker.streams.lease_price` prints the processor time of a message on this path alone, without sockets,
and of one look at the lease. Two runs of a whole node differ by far more.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

from tailrace.broker.process.lease import CLUSTER_CELL, Lease, LeasePage, boottime_ns
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.routing.batch import LonePart
from tailrace.broker.streams.owner import Owner
from tailrace.shard.frame import pack_frame
from tests.broker.owning import Sink, batch, make_owner

STREAMS = [b"s%d" % number for number in range(200)]
FRAME = pack_frame(b"x" * 100)
LONG = 1_000
FAR_NS = 10**15
KEY = 12_345


def parts(owner: Owner, sink: Sink) -> int:
    """A message to each of the streams, as one turn of a worker; returns their number."""
    turn: dict[bytes, LonePart] = {name: (sink, 0, 1, bytearray(FRAME)) for name in STREAMS}
    assert not owner.append_parts(turn, 1_000.0)
    owner.take_grown()
    return len(turn)


def batches(owner: Owner, sink: Sink) -> int:
    """One batch of LONG messages."""
    made = batch(STREAMS[0], b"", sink=sink)
    made.frames, made.count = [bytearray(FRAME * LONG)], LONG
    owner.append(made, 1_000.0)
    owner.take_grown()
    return LONG


def slice_ns(append: Callable[[Owner, Sink], int], owner: Owner, sink: Sink, appends: int) -> float:
    """The processor time of a message."""
    messages, begun_ns = 0, time.process_time_ns()
    for _ in range(appends):
        messages += append(owner, sink)
    return (time.process_time_ns() - begun_ns) / messages


def compared(
    append: Callable[[Owner, Sink], int], owner: Owner, slices: int, appends: int
) -> tuple[float, float, float]:
    """Nanoseconds of a message without a lease and under one, and the increase in percent. Other work of the machine
    only makes slices longer, so these are the slices that a quarter of them are shorter than.
    """
    sink, cells = Sink(), owner.replicas.lease.cells
    found: dict[int, list[float]] = {0: [], 1: []}
    for number in range(slices):
        for leased in (0, 1) if number % 2 else (1, 0):
            cells[CLUSTER_CELL] = leased
            found[leased].append(slice_ns(append, owner, sink, appends))
    assert not sink.refusals
    without, under = (quantiles(found[leased], n=4)[0] for leased in (0, 1))
    return without, under, 100 * (under / without - 1)


def look_ns(lease: Lease, looks: int) -> float:
    """Time the look that a batch takes: it reads the clock."""
    begun_ns = time.process_time_ns()
    for _ in range(looks):
        if lease.cells[CLUSTER_CELL] and lease.is_over(KEY):
            raise RuntimeError("a lease of many days is over")
    return (time.process_time_ns() - begun_ns) / looks


def comparison_ns(lease: Lease, looks: int) -> float:
    """Time one look of many in a turn, which reads the clock once."""
    ends, groups, now_ns, begun_ns = lease.ends, lease.groups, boottime_ns(), time.process_time_ns()
    for _ in range(looks):
        if now_ns >= ends[KEY % groups]:
            raise RuntimeError("a lease of many days is over")
    return (time.process_time_ns() - begun_ns) / looks


def leased_owner(path: Path) -> Owner:
    """An owner of the streams, with a lease that ends in many days."""
    owner = make_owner(path)
    page: LeasePage = Board(1).lease
    assert page.grant(1, boottime_ns() + FAR_NS)
    owner.replicas.lease = Lease(page, owner.catalog.directory.node_id)
    for name in STREAMS:
        owner.append(batch(name, b"x"), 1_000.0)
    owner.take_grown()
    return owner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        owner = leased_owner(Path(folder) / "data")
        for title, look in (("for a batch, with the clock", look_ns), ("one of many in a turn", comparison_ns)):
            looks = [look(owner.replicas.lease, 2_000) for _ in range(options.slices)]
            print(f"a look at the lease, {title}: {quantiles(looks, n=4)[0]:.0f} ns")
        for title, append, appends in (
            ("200 streams, a message each in a turn", parts, 4),
            ("batches of 1,000 messages", batches, 4),
        ):
            without, under, increase = compared(append, owner, options.slices, appends)
            print(f"{title}: {without:.1f} ns a message without a lease, {under:.1f} under one: {increase:+.2f} %")
        owner.release()


if __name__ == "__main__":
    main()
