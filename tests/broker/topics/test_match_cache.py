"""The cache of matches: it finds what the trie finds, within its bound, and forgets when the trie changes."""

from __future__ import annotations

import pytest

from tailrace.broker.topics.match_cache import MatchCache
from tailrace.broker.topics.trie import FilterTrie
from tests.broker.topics.agreement import MEBIBYTE


@pytest.fixture
def trie() -> FilterTrie:
    trie = FilterTrie(MEBIBYTE)
    trie.add(b"a/+")
    return trie


@pytest.fixture
def looked_up(trie: FilterTrie, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The topics for which the trie was asked."""
    topics: list[bytes] = []
    match = FilterTrie.match

    def counted(self: FilterTrie, topic: bytes) -> tuple[int, ...]:
        topics.append(topic)
        return match(self, topic)

    monkeypatch.setattr(FilterTrie, "match", counted)
    return topics


def test_a_topic_is_looked_up_once(trie: FilterTrie, looked_up: list[bytes]) -> None:
    cache = MatchCache(trie, MEBIBYTE)
    assert [cache.match(topic) for topic in (b"a/b", b"c", b"a/b", b"c")] == [(0,), (), (0,), ()]
    assert looked_up == [b"a/b", b"c"]


def test_a_change_of_the_trie_empties_it(trie: FilterTrie) -> None:
    cache = MatchCache(trie, MEBIBYTE)
    assert cache.match(b"a/b") == (0,)
    number = trie.add(b"#")
    assert sorted(cache.match(b"a/b")) == [0, number]
    trie.remove(b"a/+")
    assert cache.match(b"a/b") == (number,) and len(cache) == 1


def test_it_is_bounded(trie: FilterTrie) -> None:
    cache = MatchCache(trie, 10_000)
    for number in range(1_000):
        cache.match(b"a/%d" % number)
        assert len(cache) <= 10_000 // 200
    assert len(cache) > 20


def test_a_topic_in_use_stays(trie: FilterTrie, looked_up: list[bytes]) -> None:
    cache = MatchCache(trie, 10_000)
    for number in range(1_000):
        assert cache.match(b"a/in use") == (0,)
        cache.match(b"a/%d" % number)
    assert looked_up.count(b"a/in use") == 1


def test_more_filters_than_there_is_room_for_are_not_kept() -> None:
    trie = FilterTrie(MEBIBYTE)
    for number in range(60):
        trie.add(b"a/" + b"+/" * number + b"#")
    cache = MatchCache(trie, 1_000)
    assert len(cache.match(b"a/" * 100 + b"a")) == 60 and len(cache) == 0
