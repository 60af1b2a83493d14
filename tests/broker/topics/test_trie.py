"""The trie of topic filters: numbers, how often a filter is held, its bound; and it matches as the naive one does."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.topics.trie import FilterTrie, TooManyFilters
from tests.broker.topics import naive
from tests.broker.topics.agreement import LEVELS, MEBIBYTE, compare

LEVEL = st.sampled_from(sorted(set(LEVELS)))
TOPIC = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)
LEVELS_OF_FILTER = st.lists(st.one_of(LEVEL, st.just("+")), max_size=5)
FILTER = st.tuples(LEVELS_OF_FILTER, st.booleans()).map(lambda both: "/".join(both[0] + ["#"] * both[1])).filter(bool)


@given(st.lists(FILTER, min_size=1, max_size=12), st.data())
def test_it_matches_as_the_naive_implementation(filters: list[str], data: st.DataObject) -> None:
    trie = FilterTrie(MEBIBYTE)
    for topic_filter in filters:
        trie.add(topic_filter.encode())
    removed = data.draw(st.lists(st.sampled_from(sorted(set(filters))), unique=True))
    for topic_filter in removed:
        for _ in range(filters.count(topic_filter)):
            trie.remove(topic_filter.encode())
    kept = set(filters) - set(removed)
    assert len(trie) == len(kept)
    for topic in data.draw(st.lists(TOPIC, min_size=1, max_size=12)):
        found = [trie[number].decode() for number in trie.match(topic.encode())]
        assert sorted(found) == sorted(each for each in kept if naive.matches(each, topic)), topic


@pytest.mark.parametrize("seed", range(2))
def test_it_agrees_over_random_pairs(seed: int) -> None:
    assert compare(seed, 60_000) > 1_000


def test_a_filter_is_held_as_often_as_it_was_added() -> None:
    trie = FilterTrie(MEBIBYTE)
    number = trie.add(b"a/+")
    assert trie.add(b"a/+") == number and len(trie) == 1
    trie.remove(b"a/+")
    assert trie.match(b"a/b") == (number,) and trie[number] == b"a/+"
    trie.remove(b"a/+")
    assert trie.match(b"a/b") == () and len(trie) == 0
    with pytest.raises(KeyError):
        trie.remove(b"a/+")


def test_the_version_changes_with_the_set_of_filters_alone() -> None:
    trie = FilterTrie(MEBIBYTE)
    versions = [trie.version]
    for change in (trie.add, trie.add, trie.remove, trie.remove):
        change(b"a")
        versions.append(trie.version)
    assert versions[1] == versions[2] == versions[3]
    assert len({versions[0], versions[1], versions[4]}) == 3


def test_numbers_and_nodes_are_given_back() -> None:
    trie = FilterTrie(MEBIBYTE)
    empty = str(trie._root)
    for _ in range(3):
        assert sorted(trie.add(each) for each in (b"a/b/#", b"a/+/c", b"#", b"a")) == [0, 1, 2, 3]
        for each in (b"a", b"#", b"a/b/#", b"a/+/c"):
            trie.remove(each)
        assert str(trie._root) == empty and len(trie) == 0


SHAPES = {
    "devices": [b"d/%05d" % number for number in range(3_000)],
    "below each": [b"d/%05d/#" % number for number in range(3_000)],
    "one level each": [b"d/%05d/+/state" % number for number in range(3_000)],
    "nothing in common": [b"%05d/a/b/%d" % (number, number) for number in range(3_000)],
    "long levels": [b"d/%05d" % number + b"x" * 1_000 for number in range(3_000)],
    "ends and ways": [b"d/%03d" % (number // 3) + (b"", b"/a", b"/#")[number % 3] for number in range(3_000)],
}


@pytest.mark.few(3)
@pytest.mark.parametrize("filters", SHAPES.values(), ids=SHAPES)
def test_it_takes_no_more_memory_than_it_counts(filters: list[bytes]) -> None:
    tracemalloc.start()
    try:
        trie = FilterTrie(64 * MEBIBYTE)
        for each in filters:
            trie.add(bytes(bytearray(each)))
        taken, counted = tracemalloc.get_traced_memory()[0], trie._nbytes
        assert taken < counted < 4 * taken
    finally:
        tracemalloc.stop()
    random.Random(18).shuffle(filters)
    for each in filters:
        trie.remove(each)
    assert trie._nbytes == 0 and len(trie) == 0


def test_it_is_bounded_in_bytes() -> None:
    trie = FilterTrie(20_000)
    held = 0
    with pytest.raises(TooManyFilters, match=r"\d+ topic filters take all of the 20000 bytes"):
        for held in range(1_000):
            trie.add(b"a/%d" % held)
    assert 60 < held < 100 and len(trie) == held  # they have a node in common
    assert trie.match(b"a/%d" % held) == ()
    trie.add(b"a/1")  # one that is held already takes no room
    for number in range(2, 6):
        trie.remove(b"a/%d" % number)
    trie.add(b"b/0")
    with pytest.raises(TooManyFilters):
        trie.add(b"c/0")
    with pytest.raises(TooManyFilters):  # its nodes count
        FilterTrie(20_000).add(b"/" * 100)
