"""Cached chunks: by place, the oldest dropped, never more than the bound."""

from __future__ import annotations

import random
from typing import NamedTuple

from tailrace.broker.delivery.chunk_cache import DROPPED_A_CALL, DROPPED_A_KEEP, ENTRY_BYTES, ChunkCache

KILO = 1_024 - ENTRY_BYTES  # a chunk that costs 1 KiB


class Held(NamedTuple):
    held_bytes: int
    name: str = ""


def test_a_chunk_is_found_at_its_place_only() -> None:
    cache: ChunkCache[Held] = ChunkCache(10_000)
    chunk = Held(100)
    cache.keep((b"a", 5), chunk)
    assert cache.get((b"a", 5)) is chunk
    assert cache.get((b"a", 6)) is None and cache.get((b"b", 5)) is None


def test_the_oldest_go_first_however_often_they_are_asked_for() -> None:
    cache: ChunkCache[Held] = ChunkCache(3 * 1_024)
    for seq in range(4):
        cache.get((b"a", 0))
        cache.keep((b"a", seq), Held(KILO))
    assert [seq for seq in range(4) if cache.get((b"a", seq))] == [1, 2, 3]
    assert len(cache) == 3 and cache.held_bytes == 3 * 1_024


def test_one_that_is_larger_than_the_bound_is_kept_alone() -> None:
    cache: ChunkCache[Held] = ChunkCache(3 * 1_024)
    for seq, held_bytes in enumerate((KILO, KILO, 100_000)):
        cache.keep((b"a", seq), Held(held_bytes))
    assert len(cache) == 1 and cache.get((b"a", 2)) == Held(100_000)
    cache.keep((b"a", 3), Held(0))
    assert len(cache) == 1 and cache.held_bytes == ENTRY_BYTES, "and goes when another comes"


def test_chunks_of_no_bytes_are_bounded_too() -> None:
    cache: ChunkCache[Held] = ChunkCache(10 * ENTRY_BYTES)
    for seq in range(1_000):
        cache.keep((b"a", seq), Held(0))
    assert len(cache) == 10


def test_another_at_the_same_place_takes_its_stead() -> None:
    cache: ChunkCache[Held] = ChunkCache(3 * 1_024)
    cache.keep((b"a", 0), Held(KILO, "former"))
    cache.keep((b"a", 1), Held(KILO))
    cache.keep((b"a", 0), Held(KILO, "latter"))
    assert cache.get((b"a", 0)) == Held(KILO, "latter")
    assert len(cache) == 2 and cache.held_bytes == 2 * 1_024
    cache.keep((b"a", 2), Held(KILO))
    cache.keep((b"a", 3), Held(KILO))
    assert cache.get((b"a", 1)) is None and cache.get((b"a", 0)) is not None, "it counts as new"


def test_what_nobody_has_made_for_a_while_is_dropped() -> None:
    cache: ChunkCache[Held] = ChunkCache(1 << 20)
    for seq in range(10):
        cache.keep((b"a", seq), Held(KILO))
    cache.drop_old()
    assert len(cache) == 10, "no time has passed yet"
    cache.keep((b"a", 3), Held(KILO))
    cache.keep((b"a", 10), Held(KILO))
    cache.drop_old()
    assert [seq for seq in range(11) if cache.get((b"a", seq))] == [3, 10], "those that came since the last time stay"
    assert cache.held_bytes == 2 * 1_024
    cache.drop_old()
    assert len(cache) == cache.held_bytes == 0


def test_many_are_not_dropped_at_once() -> None:
    """A message a millisecond for a subscriber: the chunks of a second took four milliseconds to drop."""
    cache: ChunkCache[Held] = ChunkCache(1 << 20)
    count = 3 * DROPPED_A_CALL
    for seq in range(count):
        cache.keep((b"a", seq), Held(0))
    cache.drop_old()
    assert len(cache) == count
    for called in range(1, 4):
        cache.drop_old()
        assert len(cache) == count - called * DROPPED_A_CALL
    assert cache.held_bytes == 0


def test_each_that_comes_drops_old_ones() -> None:
    cache: ChunkCache[Held] = ChunkCache(1 << 20)
    count = 3 * DROPPED_A_CALL
    for start in (0, count, 2 * count):
        for seq in range(start, start + count):
            cache.keep((b"a", seq), Held(0))
        cache.drop_old()
    for seq in range(3 * count, 4 * count):
        before = len(cache)
        cache.keep((b"a", seq), Held(0))
        assert len(cache) >= before + 1 - DROPPED_A_KEEP
    assert cache.get((b"a", count - 1)) is None, "those of the first part"
    assert all(cache.get((b"a", seq)) for seq in range(2 * count, 4 * count))


def test_what_is_cleared_is_gone_and_the_cache_goes_on() -> None:
    cache: ChunkCache[Held] = ChunkCache(3 * 1_024)
    cache.keep((b"a", 0), Held(KILO))
    cache.clear()
    assert cache.get((b"a", 0)) is None and len(cache) == cache.held_bytes == 0
    cache.keep((b"a", 0), Held(KILO))
    assert cache.get((b"a", 0)) == Held(KILO)


def test_the_account_is_right_after_anything() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bytes_max = 20_000
    cache: ChunkCache[Held] = ChunkCache(bytes_max)
    for _ in range(2_000):
        if rng.random() < 0.01:
            cache.drop_old()
        cache.keep((b"ab"[rng.randrange(2) :], rng.randrange(30)), Held(rng.choice((0, 100, 3_000, 30_000))))
        kept = [cache.get((name, seq)) for name in (b"ab", b"b") for seq in range(30)]
        costs = [ENTRY_BYTES + each.held_bytes for each in kept if each is not None]
        assert cache.held_bytes == sum(costs) and len(cache) == len(costs)
        assert sum(costs) <= bytes_max or len(costs) == 1
