"""The leaf that picks frames by a filter of topics, and that its two bodies do the same."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.frame import FAULT_CRC, FAULT_LENGTH, FAULT_SEQ, FLAG_PRODUCER, HEADER, pack_frame
from tailrace.shard.leaves import load, load_source
from tailrace.shard.numbering import write_numbering
from tests.broker.topics import naive
from tests.broker.topics.agreement import random_filter, random_topic
from tests.broker.topics.test_match_cy import PAIRS

LEAF = "tailrace.broker.topics.pick_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
STAMP = load("tailrace.shard.frame_cy").stamp
NO_LIMIT = 1 << 62
Picked = tuple[bytes, int, int, int, str]


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stamped(*topics: str | None, seq: int = 0, nbytes: int = 1) -> bytearray:
    packed = [b"" if topic is None else msgpack.packb({"t": topic}) for topic in topics]
    frames = bytearray(b"".join(pack_frame(b"x" * nbytes, metadata=each) for each in packed))
    STAMP(frames, seq, 1_000, 1, 0)
    return frames


def pick(leaf: ModuleType, content: bytes | bytearray, topics: bytes, seq: int = 0, **named: Any) -> Picked:
    limits = {"size": len(content), "limit_seq": NO_LIMIT, "limit_bytes": NO_LIMIT} | named
    picked: Picked = leaf.pick(
        content, limits["size"], seq, limits["limit_seq"], b"stream", topics, limits["limit_bytes"]
    )
    return picked


@pytest.mark.parametrize(("topic_filter", "topic", "wanted"), PAIRS)
def test_the_examples_of_mqtt(leaf: ModuleType, topic_filter: str, topic: str, wanted: bool) -> None:
    assert leaf.matches(topic_filter.encode(), topic.encode()) is wanted


def test_both_bodies_match_as_the_naive_implementation() -> None:
    chance = random.Random(4)
    topics = [random_topic(chance) for _ in range(200)]
    for topic_filter in [random_filter(chance) for _ in range(100)]:
        wanted = [naive.matches(topic_filter, topic) for topic in topics]
        for leaf in (LOADED, SOURCE):
            assert [leaf.matches(topic_filter.encode(), topic.encode()) for topic in topics] == wanted, topic_filter


def test_the_frames_that_match_are_copied(leaf: ModuleType) -> None:
    content = stamped("a/b", "c", None, "a/d", seq=7)
    a, d = stamped("a/b", seq=7), stamped("a/d", seq=10)
    assert pick(leaf, content, b"a/+", 7) == (bytes(a + d), 2, 4, len(content), "")
    assert pick(leaf, content, b"nothing", 7) == (b"", 0, 4, len(content), "")
    assert pick(leaf, content, b"stream", 7)[1] == 1, "without a topic it has the name of its stream"
    assert pick(leaf, b"", b"#") == (b"", 0, 0, 0, "")


def test_the_topic_of_a_numbered_message_is_behind_its_number(leaf: ModuleType) -> None:
    metadata = write_numbering(msgpack.packb({"t": "a/b", "h": {}}), b"me", 300)
    content = bytearray(pack_frame(b"x", flags=FLAG_PRODUCER, metadata=metadata))
    STAMP(content, 0, 1_000, 1, 0)
    assert pick(leaf, content, b"a/b") == (bytes(content), 1, 1, len(content), "")


def test_it_ends_at_limits(leaf: ModuleType) -> None:
    content = stamped("a", "b", "a", "a")
    size = len(content) // 4
    assert pick(leaf, content, b"a", limit_seq=3)[1:4] == (2, 3, 3 * size)
    assert pick(leaf, content, b"a", limit_bytes=0)[1:4] == (1, 2, 2 * size), "one at least"
    assert pick(leaf, content, b"a", limit_bytes=2 * size)[1:4] == (2, 3, 3 * size)
    assert pick(leaf, content, b"b", limit_bytes=0)[1:4] == (1, 4, 4 * size)
    for cut in (1, size - 1):
        assert pick(leaf, content, b"a", size=len(content) - cut)[1:] == (2, 3, 3 * size, "")
    with pytest.raises(ValueError, match="of a buffer of"):
        pick(leaf, content, b"a", size=len(content) + 1)


def test_faults_end_it(leaf: ModuleType) -> None:
    content = stamped("a", "a")
    size = len(content) // 2
    flipped = bytearray(content)
    flipped[size + 36] ^= 1
    assert pick(leaf, flipped, b"a")[1:] == (1, 1, size, FAULT_CRC)
    assert pick(leaf, content, b"a", 1)[1:] == (0, 0, 0, FAULT_SEQ)
    for length, metadata_bytes in ((31, 0), (2**32 - 1, 0), (40, 9)):
        wrong = content[:size] + HEADER.pack(length, 0, 1, 0, 0, 0, metadata_bytes) + bytes(100)
        assert pick(leaf, wrong, b"a")[1:] == (1, 1, size, FAULT_LENGTH)


@given(st.integers(0, 1 << 32), st.integers(0, 2_000), st.integers(0, 2_000), st.integers(0, 60))
def test_both_bodies_give_the_same(seed: int, limit_bytes: int, cut: int, limit_seq: int) -> None:
    chance = random.Random(seed)
    topics = [random_topic(chance) if chance.random() < 0.9 else None for _ in range(40)]
    content = stamped(*topics, seq=5, nbytes=chance.randrange(50))
    options = {"limit_bytes": limit_bytes, "size": max(len(content) - cut, 0), "limit_seq": limit_seq}
    topic_filter = random_filter(chance).encode()
    assert pick(LOADED, content, topic_filter, 5, **options) == pick(SOURCE, content, topic_filter, 5, **options)


@given(st.binary(max_size=30) | st.binary(max_size=20).map(lambda rest: b"\x82\xa1p\xc4" + rest))
def test_both_bodies_read_any_metadata(metadata: bytes) -> None:
    content = bytearray(pack_frame(b"", metadata=metadata))
    STAMP(content, 0, 1_000, 1, 0)
    for topics in (b"stream", b"+/#"):
        assert pick(LOADED, content, topics) == pick(SOURCE, content, topics)


Walked = tuple[list[tuple[tuple[int, ...], int, int]], int, int, str]


def walk(leaf: ModuleType, content: bytes | bytearray, seq: int = 0, **named: Any) -> Walked:
    """With the filters a (0), a/+ (1) and stream (2), of which `known` has those of "a" already."""
    known = {b"a": (0,)}
    found = {b"a/b": (1,), b"a/d": (1,), b"stream": (2,)}
    limits = {"size": len(content), "limit_seq": NO_LIMIT, "is_checked": False} | named

    def find(topic: bytes) -> tuple[int, ...]:
        return found.get(topic, ())

    walked: Walked = leaf.walk(
        content, limits["size"], seq, limits["limit_seq"], b"stream", known, find, limits["is_checked"]
    )
    return walked


def test_a_walk_finds_the_filters_of_each_frame(leaf: ModuleType) -> None:
    content = stamped("a/b", "c", None, "a", seq=7)
    sizes = [len(stamped(topic)) for topic in ("a/b", "c", None, "a")]
    at = [sum(sizes[:place]) for place in range(4)]
    hits = [((1,), at[0], sizes[0]), ((2,), at[2], sizes[2]), ((0,), at[3], sizes[3])]
    assert walk(leaf, content, 7) == (hits, 4, len(content), "")
    assert walk(leaf, content, 7, limit_seq=9) == (hits[:1], 2, at[2], "")
    assert walk(leaf, content, 7, size=len(content) - 1) == (hits[:2], 3, at[3], "")
    assert walk(leaf, content, 8) == ([], 0, 0, FAULT_SEQ)
    with pytest.raises(ValueError, match="of a buffer of"):
        walk(leaf, content, 7, size=len(content) + 1)


def test_faults_end_a_walk(leaf: ModuleType) -> None:
    content = stamped("a", "a")
    size = len(content) // 2
    flipped = bytearray(content)
    flipped[-1] ^= 1
    assert walk(leaf, flipped)[1:] == (1, size, FAULT_CRC)
    assert walk(leaf, flipped, is_checked=True)[1:] == (2, 2 * size, "")
    wrong = content[:size] + HEADER.pack(31, 0, 1, 0, 0, 0, 0) + bytes(100)
    assert walk(leaf, wrong)[1:] == (1, size, FAULT_LENGTH)


@given(st.integers(0, 1 << 32), st.integers(0, 2_000), st.integers(0, 60), st.booleans())
def test_both_bodies_walk_the_same(seed: int, cut: int, limit_seq: int, is_checked: bool) -> None:
    chance = random.Random(seed)
    topics = [chance.choice((None, "a", "a/b", "a/d", random_topic(chance))) for _ in range(40)]
    content = stamped(*topics, seq=5, nbytes=chance.randrange(50))
    if chance.random() < 0.3:
        content[chance.randrange(len(content))] ^= 1
    options = {"size": max(len(content) - cut, 0), "limit_seq": limit_seq, "is_checked": is_checked}
    assert walk(LOADED, content, 5, **options) == walk(SOURCE, content, 5, **options)


def test_runs_of_matches_are_found(leaf: ModuleType) -> None:
    content = stamped("a", "a", "b", None, "a", "b", seq=7)
    find = leaf.match_runs
    assert find(content, len(content), 7, b"stream", b"a", 9) == ([(7, 8), (11, 11)], 6)
    assert find(content, len(content), 7, b"stream", b"stream", 9) == ([(10, 10)], 6)
    assert find(content, len(content), 7, b"stream", b"a", 1) == ([(7, 8)], 4), "before a match of another run"
    assert find(content, len(content) - 1, 7, b"stream", b"b", 9) == ([(9, 9)], 5)
    assert find(content, 0, 7, b"stream", b"#", 9) == ([], 0)
    with pytest.raises(ValueError, match="of a buffer of"):
        find(content, len(content) + 1, 7, b"stream", b"a", 9)
    with pytest.raises(ValueError, match="of a buffer of"):
        find(content, -1, 7, b"stream", b"a", 9)


@given(st.integers(0, 1 << 32), st.integers(0, 2_000), st.integers(0, 20))
def test_both_bodies_find_the_same_runs(seed: int, cut: int, runs_max: int) -> None:
    chance = random.Random(seed)
    topics = [chance.choice((None, "a", "a/b", random_topic(chance))) for _ in range(40)]
    content = stamped(*topics, seq=5, nbytes=chance.randrange(50))
    if chance.random() < 0.3:
        content[chance.randrange(len(content))] ^= 1
    size, topic_filter = max(len(content) - cut, 0), chance.choice((b"a", b"a/+", b"#", b"+", b"stream"))
    args = (content, size, 5, b"stream", topic_filter, runs_max)
    assert LOADED.match_runs(*args) == SOURCE.match_runs(*args)
