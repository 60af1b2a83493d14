"""The memory of all producers of a worker: one bound, the longest idle one goes first."""

from __future__ import annotations

import tracemalloc

import pytest

from tailrace.shard.producer_memory import ProducerMemory
from tailrace.shard.producers import PRODUCER_BYTES, RUN_BYTES, NumberVerdict, ProducerRun, Producers

DAY_US = 86_400 * 1_000_000


def make(memory: ProducerMemory) -> Producers:
    producers = Producers(DAY_US)
    producers.count_in(memory)
    return producers


def interleave(producers: Producers, name: bytes, runs: int, now_us: int, *, start: int = 0) -> None:
    """Publishes of one message each, with another's in between."""
    for number in range(start, start + runs):
        if not producers.advance(name, number, 1, 2 * number, now_us):
            producers.note(name, ProducerRun(number, 1, 2 * number), now_us)


def test_what_is_held_is_counted_and_given_back() -> None:
    memory = ProducerMemory(1 << 20)
    one, two = make(memory), make(memory)
    interleave(one, b"a", 10, 1)
    interleave(two, b"a", 1, 1)
    interleave(two, b"b", 3, 1)
    assert memory.bytes_held == 3 * PRODUCER_BYTES + 14 * RUN_BYTES
    one.release()
    interleave(one, b"a", 5, 2, start=10)
    assert memory.bytes_held == 2 * PRODUCER_BYTES + 4 * RUN_BYTES


def test_streams_idle_for_long_lose_their_older_runs_first() -> None:
    memory = ProducerMemory(3 * PRODUCER_BYTES + 300 * RUN_BYTES)
    old, middle, young = (make(memory) for _ in range(3))
    for now_us, producers in enumerate((old, middle, young), start=1):
        interleave(producers, b"a", 100, now_us)
    assert memory.bytes_held == memory.bytes_max
    interleave(young, b"a", 1, 4, start=100)
    assert (
        old.judge(b"a", 50, 1, 4).kind is NumberVerdict.OLD and old.judge(b"a", 99, 1, 4).kind is NumberVerdict.REPEAT
    )
    assert old.judge(b"a", 100, 1, 4).kind is NumberVerdict.NEW, "it can go on"
    assert middle.judge(b"a", 50, 1, 4).seq == young.judge(b"a", 50, 1, 4).seq == 100
    assert memory.bytes_held == 3 * PRODUCER_BYTES + 202 * RUN_BYTES


def test_then_producers_idle_for_long_are_forgotten_whatever_their_stream() -> None:
    count = 128
    memory = ProducerMemory(count * (PRODUCER_BYTES + RUN_BYTES))
    streams = [make(memory) for _ in range(2)]
    for number in range(count):
        interleave(streams[number % 2], b"%d" % number, 1, 1 + number)
    interleave(streams[0], b"new", 1, 1_000)
    known = [
        number
        for number in range(count)
        if streams[number % 2].judge(b"%d" % number, 1, 1, 1_000).kind is NumberVerdict.NEW
    ]
    assert known == list(range(3, count)), "a 64th of the bound, and what was too much"
    assert memory.bytes_held <= memory.bytes_max - memory.bytes_max // 64
    assert streams[0].judge(b"new", 1, 1, 1_000).kind is NumberVerdict.NEW


def test_one_that_is_forgotten_while_it_publishes_harms_nobody() -> None:
    memory = ProducerMemory(PRODUCER_BYTES)
    producers = make(memory)
    interleave(producers, b"a", 3, 1)
    interleave(producers, b"b", 3, 2)
    producers.go_on(1, 100, 3)
    assert memory.bytes_held == producers.bytes_held == 0 and len(producers) == 0


@pytest.mark.parametrize(("names", "runs"), [(20, 1_024), (5_000, 1)])
def test_what_is_counted_is_about_what_it_takes(names: int, runs: int) -> None:
    memory = ProducerMemory(1 << 30)
    streams = [make(memory) for _ in range(-(-names // 4_000))]
    tracemalloc.start()
    try:
        for name in range(names):
            interleave(streams[name % len(streams)], b"%016d" % name, runs, 10**15 + name)
        taken, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 * taken < memory.bytes_held < 2 * taken
