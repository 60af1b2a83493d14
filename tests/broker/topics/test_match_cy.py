"""The leaf that finds the filters of a topic: the examples of MQTT 5, and that its two builds do the same."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from tailrace.broker.topics.trie import FilterTrie
from tailrace.shard.leaves import load, load_source
from tests.broker.topics import naive
from tests.broker.topics.agreement import MEBIBYTE, random_filter, random_topic

LEAF = "tailrace.broker.topics.match_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
# MQTT 5, sections 4.7.1 and 4.7.2, and the corners that they leave to the reader.
EXAMPLES = {
    "sport/tennis/player1/#": (
        ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"],
        ["sport/tennis", "sport/tennis/player11", "sport/tennis/player2/ranking"],
    ),
    "sport/#": (["sport", "sport/", "sport/a"], ["sports", "/sport", "Sport"]),
    "#": (["a", "/", "a/b", "a/$x", " "], ["$", "$SYS", "$SYS/a"]),
    "sport/tennis/+": (["sport/tennis/player1", "sport/tennis/"], ["sport/tennis", "sport/tennis/player1/ranking"]),
    "sport/+": (["sport/", "sport/a"], ["sport", "sport/a/"]),
    "+": (["a", "a$"], ["/a", "a/", "$SYS"]),
    "+/+": (["/finance", "a/", "/"], ["finance", "$SYS/a"]),
    "/+": (["/finance", "/"], ["finance", "//"]),
    "+/tennis/#": (["a/tennis", "/tennis/", "a/tennis/b/c"], ["tennis", "$a/tennis"]),
    "+/monitor/Clients": (["a/monitor/Clients"], ["$SYS/monitor/Clients"]),
    "$SYS/#": (["$SYS", "$SYS/a/b"], ["$", "$SYSTEM", "SYS"]),
    "$SYS/monitor/+": (["$SYS/monitor/Clients"], ["$SYS/monitor", "$SYS/monitor/Clients/a"]),
    "a/+": (["a/$dead"], ["a"]),
    "/": (["/"], ["", "//", "a/"]),
    "/#": (["/", "/a", "//"], ["a/b"]),
    "a//b": (["a//b"], ["a/b", "a///b"]),
}
PAIRS = [
    (topic_filter, topic, wanted)
    for topic_filter, both in EXAMPLES.items()
    for topics, wanted in zip(both, (True, False), strict=True)
    for topic in topics
    if topic
]


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def trie_of(*filters: str) -> FilterTrie:
    trie = FilterTrie(MEBIBYTE)
    for topic_filter in filters:
        trie.add(topic_filter.encode())
    return trie


@pytest.mark.parametrize(("topic_filter", "topic", "wanted"), PAIRS)
def test_the_examples_of_mqtt(leaf: ModuleType, topic_filter: str, topic: str, wanted: bool) -> None:
    assert leaf.match(trie_of(topic_filter)._root, topic.encode()) == ((0,) if wanted else ())
    assert naive.matches(topic_filter, topic) is wanted


def test_all_filters_of_a_topic_are_found_at_once(leaf: ModuleType) -> None:
    filters = ["a/b/c", "a/+/c", "+/b/+", "a/#", "#", "a/b/c/#", "+/+/+/#", "a/b", "a/b/c/+", "b/#"]
    trie = trie_of(*filters)
    assert sorted(leaf.match(trie._root, b"a/b/c")) == list(range(7))


def test_both_builds_find_the_same() -> None:
    chance = random.Random(7)
    for _ in range(20):
        root = trie_of(*(random_filter(chance) for _ in range(40)))._root
        topics = [random_topic(chance).encode() for _ in range(100)]
        assert [LOADED.match(root, topic) for topic in topics] == [SOURCE.match(root, topic) for topic in topics]


def test_an_empty_trie_matches_nothing(leaf: ModuleType) -> None:
    assert leaf.match(trie_of()._root, b"a") == ()
