"""Filters over several streams, while streams are made: nothing is missed, and nothing comes twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tailrace.broker.topics.rules import TopicRule
from tests.broker.connection.test_patterns import seconds_later
from tests.broker.topics import naive
from tests.broker.world import Peer, World, world
from tests.thorough import examples

FIRST_LEVEL = (TopicRule("#", "{1}"),)
INTERLEAVINGS = 10
"""In one node, one after the other."""


class Interleaving:
    """Publishers that make streams, and subscribers of filters over them, in random order on two workers."""

    def __init__(self, node: World, chance: random.Random, number: int) -> None:
        self.node = node
        self.chance = chance
        self.number = number
        self.publishers = [node.connect(slot) for slot in (0, 1)]
        self.sent: list[tuple[str, str]] = []
        self.readers: list[tuple[Peer, str, int]] = []

    def publish(self) -> None:
        peer = self.chance.choice(self.publishers)
        for _ in range(self.chance.choice((1, 1, 4))):
            name = f"s{self.number}-{self.chance.randrange(8)}/{self.chance.choice('ab')}/{self.number}"
            payload = str(len(self.sent))
            peer.send(f"pub {name} |{payload}")
            self.sent.append((name, payload))
        if self.chance.random() < 0.5:
            self.node.settle()

    def subscribe(self) -> None:
        """From the beginning at any moment; to new messages when all that was sent before is logged."""
        topic_filter = self.chance.choice(("+/a/{}", "+/+/{}", "+/b/#", "#", "+/b/{}")).format(self.number)
        start = self.chance.choice(("0", "new"))
        if start == "new":
            self.node.settle()
        peer = self.node.connect(self.chance.randrange(2))
        peer.send(f"sub {topic_filter} {start}")
        self.readers.append((peer, topic_filter, len(self.sent) if start == "new" else 0))
        if start == "new":
            self.node.settle()

    def turn(self) -> None:
        self.node.workers[self.chance.randrange(2)].turn()

    def look(self) -> None:
        for worker in self.node.workers:
            worker._seldom()

    def run(self) -> None:
        steps = (self.publish, self.publish, self.subscribe, self.turn, self.look)
        for _ in range(self.chance.randint(4, 14)):
            self.chance.choice(steps)()
        self.node.settle()
        seconds_later(self.node)
        for peer, topic_filter, first in self.readers:
            lines = [line.split(" ", 5) for line in peer.lines if line.startswith("msg ")]
            found = sorted(line[5].split(" |")[0].lstrip("|") + " " + line[5].partition("|")[2] for line in lines)
            ours = [each for each in found if each.split("/")[0].startswith(f"s{self.number}-")]
            wanted = [f"{name} {payload}" for name, payload in self.sent[first:] if naive.matches(topic_filter, name)]
            assert ours == sorted(wanted), (topic_filter, first)
        for peer in (*self.publishers, *(peer for peer, *_rest in self.readers)):
            peer.close()
        self.node.settle()


@pytest.mark.few(6)
@pytest.mark.parametrize("rules", [FIRST_LEVEL, (TopicRule("+/a/#", "all-{hash:3}"), *FIRST_LEVEL)], ids=["1", "2"])
@pytest.mark.parametrize("seed", range(examples(100) // 2))
def test_random_interleavings(tmp_path: Path, seed: int, rules: tuple[TopicRule, ...]) -> None:
    chance = random.Random(seed)
    with world(tmp_path, workers=2, affinity=False, topics=rules) as node:
        node.stop_timers()
        for number in range(INTERLEAVINGS):
            Interleaving(node, chance, number).run()
