"""A short soak, and that a soak can fail: its ledgers notice violations."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.system.soak import Options, level_of, log_faults, soak
from tests.system.soak_ledger import FAULTS_MAX, Continuity, Faults, Finished, payload_of
from tests.system.soak_load import Publisher
from tests.system.soak_memory import Sample, growths, own_bytes

pytestmark = pytest.mark.system

SECONDS = 12.0
SIZE_BYTES = 16 << 20
# A child of which the same size each is memory from before the fork, a mapped file, and its own.
FORKED = """
import mmap, os, sys
size = int(sys.argv[2])
inherited = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
inherited.write(bytes(size))
if child := os.fork():
    os.waitpid(child, 0)
else:
    with open(sys.argv[1], "w+b") as file:
        file.truncate(size)
        mapped = mmap.mmap(file.fileno(), size)
    own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for each in mapped, own:
        for place in range(0, size, 4096):
            each[place] = 1
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
"""
ERROR = "2026-11-22 12:58:22,553 ERROR   [21078] tailrace.broker.worker: no more space"


def faults_of(messages: Iterable[tuple[int, int]], *, from_start: bool = True) -> list[str]:
    """What a reading of these seqs and numbers has found."""
    faults = Faults()
    reading = Continuity("s", faults, from_start=from_start)
    for seq, number in messages:
        reading.take(seq, payload_of("p", number, 10))
    return faults.texts


def test_a_whole_stream_has_no_faults() -> None:
    assert faults_of([(0, 0), (1, 1), (2, 2)]) == []
    assert faults_of([(7, 4), (8, 5)], from_start=False) == []


@pytest.mark.parametrize(
    "messages",
    [
        [(0, 0), (2, 1)],  # a seq is missing
        [(0, 0), (0, 1)],  # a seq comes twice
        [(0, 0), (1, 2)],  # a message is missing
        [(0, 0), (1, 0)],  # a message is there twice
        [(1, 0)],
        [(0, 1)],
    ],
)
def test_a_stream_with_a_gap_or_a_repetition_has_a_fault(messages: list[tuple[int, int]]) -> None:
    assert len(faults_of(messages)) == 1


def test_only_the_first_faults_are_kept() -> None:
    faults = Faults()
    for number in range(FAULTS_MAX + 5):
        faults.add(str(number))
    assert len(faults.texts) == FAULTS_MAX and faults.count == FAULTS_MAX + 5


def test_what_a_consumer_has_finished() -> None:
    finished = Finished()
    for seq in (0, 2, 3):
        finished.add(seq)
    assert finished.low == 1 and [seq in finished for seq in range(5)] == [True, False, True, True, False]
    finished.add(1)
    assert finished.low == 4


def samples(sizes: Iterable[float], pid: int = 7, begin_s: int = 0) -> list[Sample]:
    """The worker shares 1 MB."""
    return [
        Sample(float(at_s), 0, pid, 0, 1_000_000 + int(size), int(size)) for at_s, size in enumerate(sizes, begin_s)
    ]


def test_memory_that_grows_is_noticed() -> None:
    [grown] = growths(samples(1_000_000 + 1_000 * at_s for at_s in range(100)), 30.0)
    assert 1.5 < grown.percent < 2.5
    [flat] = growths(samples(1_000_000 + at_s % 7 for at_s in range(100)), 30.0)
    assert abs(flat.percent) < 0.01


def test_a_page_that_is_no_longer_shared_is_no_growth() -> None:
    rising = [Sample(float(at_s), 0, 7, 0, 2_000_000, 1_000_000 + 1_000 * at_s) for at_s in range(100)]
    [flat] = growths(rising, 30.0)
    assert flat.percent == 0 and flat.own_after_bytes > flat.own_before_bytes


def test_own_memory_is_neither_inherited_nor_a_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "file"), str(SIZE_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert SIZE_BYTES <= own_bytes(pid) < 1.8 * SIZE_BYTES


def test_a_worker_that_began_within_the_window_is_not_judged() -> None:
    assert growths(samples([1.0] * 70) + samples([1.0] * 20, 8, 70), 30.0) == []


def test_an_error_in_the_log_is_noticed() -> None:
    assert level_of(ERROR) == "ERROR"
    assert list(log_faults(ERROR.replace("ERROR", "WARNING"))) == []
    assert len(list(log_faults(ERROR))) == len(list(log_faults("Traceback (most recent call last):"))) == 1


@pytest.mark.slow
class Counted:
    """A client that ends the publisher after some publishes, and knows the sizes of all."""

    def __init__(self, publisher: Publisher, publishes: int) -> None:
        self.sizes: list[int] = []
        self._publisher, self._left = publisher, publishes

    async def publish_many(self, _stream: str, payloads: list[bytes]) -> Counted:
        self.sizes.append(len(payloads))
        if len(self.sizes) == self._left:
            self._publisher.ending.set()
        self.count = len(payloads)
        return self


def test_a_publisher_begins_with_small_publishes_where_memory_is_to_be_flat() -> None:
    spec = {"name": "p", "streams": ["a", "b"], "address": "", "cut_address": "", "rate": 0, "seed": 1, "fill": 5}
    publisher = Publisher(spec)
    client = Counted(publisher, 20)
    asyncio.run(publisher._publish(client, ["a", "b"]))  # type: ignore[arg-type]
    assert client.sizes[:10] == [1] * 10 and max(client.sizes[10:]) > 1 and len(client.sizes) == 20


@pytest.mark.thorough
def test_a_short_soak(tmp_path: Path) -> None:
    found = soak(Options(SECONDS, 1_500.0, 2.5, SECONDS / 2, 0.0, 2.0, 50, 2, 1 << 20, 1, tmp_path))
    assert found["faults"] == []
    assert found["reloads"] == 2 and found["cut_connections"] > 0
    assert all(found["counts"][what] > 0 for what in ("published", "delivered", "finished", "visits", "dropped"))
