"""Whether the broker's matching agrees with the naive one, over random pairs of a filter and a topic: that of one
filter, which scans use, and that of many at once, by the trie and its cache, which finds the subscriptions to be woken.

    python -m tests.broker.topics.agreement --pairs 10000000 --seed 18

prints how many pairs were compared and how many of them match, or the first pair over which the two differ.
"""

from __future__ import annotations

import argparse
import random
from typing import Final

from tailrace.broker.topics.match_cache import MatchCache
from tailrace.broker.topics.trie import FilterTrie
from tailrace.protocol.topics import filter_fault, topic_fault
from tailrace.shard.leaves import load
from tests.broker.topics import naive

FILTERS: Final = 50
TOPICS: Final = 200
"""Of a round; each filter is compared with each topic."""
CHANGED: Final = 10
"""Filters that give way to others in the middle of a round."""
LEVELS: Final = ("", "", "a", "a", "b", "ab", "$", "$SYS", "$dead", " ", "é", "\n", "𝄞", "a.b", "[a]", "A")
MEBIBYTE: Final = 1 << 20

_matches = load("tailrace.broker.topics.pick_cy").matches


class Disagreement(AssertionError):
    """The text has the filter and the topic."""


def random_topic(chance: random.Random) -> str:
    while True:
        topic = "/".join(chance.choices(LEVELS, k=chance.randint(1, 5)))
        if topic:
            assert topic_fault(topic.encode()) == ""
            return topic


def random_filter(chance: random.Random) -> str:
    while True:
        levels = chance.choices((*LEVELS, "+", "+", "+", "+"), k=chance.randint(0, 5))
        if chance.random() < 0.3:
            levels.append("#")
        topic_filter = "/".join(levels)
        if topic_filter:
            assert filter_fault(topic_filter.encode()) == ""
            return topic_filter


def compare(seed: int, pairs: int) -> int:
    """How many of about `pairs` random pairs match. Raises Disagreement."""
    chance = random.Random(seed)
    return sum(_compare_round(chance) for _ in range(-(-pairs // (FILTERS * TOPICS))))


def _compare_round(chance: random.Random) -> int:
    """One trie, part of whose filters are removed again, and its cache, which is too small for all topics."""
    trie = FilterTrie(MEBIBYTE)
    cache = MatchCache(trie, 20_000)
    filters = [random_filter(chance) for _ in range(FILTERS)]
    for topic_filter in filters:
        trie.add(topic_filter.encode())
    topics = [random_topic(chance) for _ in range(TOPICS)]
    matching = _compare_all(trie, cache, filters, topics[: TOPICS // 2])
    for place in chance.sample(range(FILTERS), CHANGED):
        trie.remove(filters[place].encode())
        filters[place] = random_filter(chance)
        trie.add(filters[place].encode())
    return matching + _compare_all(trie, cache, filters, topics[TOPICS // 2 :])


def _compare_all(trie: FilterTrie, cache: MatchCache, filters: list[str], topics: list[str]) -> int:
    matching = 0
    for topic in topics:
        numbers = cache.match(topic.encode())
        found = {trie[number].decode() for number in numbers}
        if len(found) != len(numbers):
            raise Disagreement(f"a filter is found twice for the topic {topic!r}: {sorted(found)}")
        for topic_filter in filters:
            wanted = naive.matches(topic_filter, topic)
            alone = _matches(topic_filter.encode(), topic.encode())
            if (topic_filter in found, alone) != (wanted, wanted):
                text = (
                    f"the filter {topic_filter!r} and the topic {topic!r}: {topic_filter in found}, {alone}, {wanted}"
                )
                raise Disagreement(text)
            matching += topic_filter in found
    return matching


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=18)
    wanted = parser.parse_args()
    matching = compare(wanted.seed, wanted.pairs)
    print(f"{wanted.pairs} pairs with seed {wanted.seed}: all agree; {matching} of them match")


if __name__ == "__main__":
    main()
