"""Members of one consumer do anything in any order, over both workers and real owners; each message is finished once.

Every run has its own seed and prints it; TAILRACE_TEST_SEED replays it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.broker.connection import handover
from tailrace.protocol import consuming as c
from tailrace.protocol.places import From
from tests.broker.consumers.owning import Member
from tests.broker.world import World, world

SEED_VARIABLE = "TAILRACE_TEST_SEED"
STEPS = 250
MEMBERS = 4
DRAINS_MAX = 200


class Worker:
    """A member, on any connection. `has`: messages it was given and has not reported as finished."""

    def __init__(self, party: Party, name: bytes) -> None:
        self.party = party
        self.name = name
        self.has: set[int] = set()
        self.finishing: dict[int, set[int]] = {}  # by get, until it is answered
        self.failing: dict[int, set[int]] = {}
        self.connect()

    def connect(self) -> None:
        self.peer = Member(self.party.node, self.party.chance.randrange(2))

    def get(self, count: int, *, fresh: bool = False, wait_ms: int = 0, share: float = 0.6) -> None:
        """Finish some of its messages, fail some, ask for more."""
        chance, number = self.party.chance, self.party.number()
        done = {seq for seq in self.has if chance.random() < share}
        failed = {seq for seq in self.has - done if chance.random() < 0.2}
        self.has -= done | failed
        self.finishing[number], self.failing[number] = done, failed
        ranges = tuple((seq, seq, 1) for seq in sorted(done))
        rows = tuple((seq, 1, "why") for seq in sorted(failed))
        self.peer.say(c.Get(number, self.party.stream, b"n", self.name, ranges, rows, count, 5_000, wait_ms, fresh))

    def hear(self) -> None:
        for answer in self.peer.take():
            if isinstance(answer, c.Consumed):
                self.has.clear()  # messages given to it before it had left
                continue
            assert isinstance(answer, c.Got), answer
            assert answer.stale == (), "nobody is so late here that another has it"
            self.party.finished |= self.finishing.pop(answer.id)
            self.failing.pop(answer.id, None)
            given = {seq for first, count, _deliveries, _epoch in answer.runs for seq in range(first, first + count)}
            assert not given & self.party.finished, "given after it was finished"
            self.has |= given.difference(*self.finishing.values(), *self.failing.values())  # reported since then

    def reconnect(self) -> None:
        """Its connection ends in the middle: its reports may have been received or not, so it repeats them."""
        self.peer.peer.close()
        self.party.node.settle()
        unsure = set().union(*self.finishing.values()) if self.finishing else set()
        self.finishing.clear()
        self.failing.clear()
        self.connect()
        number = self.party.number()
        self.finishing[number] = unsure
        ranges = tuple((seq, seq, 1) for seq in sorted(unsure))
        self.has.clear()
        self.peer.say(c.Get(number, self.party.stream, b"n", self.name, ranges, (), 1_000))

    def leave(self) -> None:
        """The others get its unfinished messages at once; it may come back."""
        self.has.clear()
        self.peer.say(c.Consume(self.party.number(), "leave", self.party.stream, b"n", member=self.name))

    def move(self) -> None:
        self.party.settle()  # so that no worker has begun to move it
        client = self.party.node.binary_client_of(self.peer.peer)
        worker = self.party.node.worker_of(client)
        link = worker.links.link_to(1 - worker.slot)
        if handover.possible(client) and link is not None:
            worker.links.hand_over(link, *handover.detach(client))


class Clock:
    """The owners': so slow that nothing comes too late, but failed messages have their waits."""

    def __init__(self, node: World) -> None:
        self.now_us = node.workers[0].owner.clock_us()
        for worker in node.workers:
            worker.owner.clock_us = lambda: self.now_us


class Party:
    def __init__(self, node: World, chance: random.Random) -> None:
        self.node = node
        self.clock = Clock(node)
        self.chance = chance
        self.name = node.name(chance.randrange(2))
        self.stream = self.name.encode()
        self.published = 0
        self.finished: set[int] = set()
        self._numbers = 0
        node.ask(node.connect(), f"master {self.name}")
        owner = Member(node)
        retry_s = chance.choice((0, 1))
        create = c.Consume(1, "create", self.stream, b"n", From("seq", 0), deliveries_max=0, retry_s=retry_s)
        assert owner.ask(create) == [c.Consumed(1, 0, True)]
        self.workers: list[Worker] = []
        self.workers += [Worker(self, b"m%d" % number) for number in range(MEMBERS)]

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def publish(self) -> None:
        count = self.chance.randrange(1, 30)
        self.node.fill(self.name, [b"x" * self.chance.randrange(300) for _ in range(count)])
        self.published += count

    def step(self) -> None:
        chance = self.chance
        worker = chance.choice(self.workers)
        acts: list[Callable[[], None]] = [
            lambda: worker.get(chance.randrange(20)),
            lambda: worker.get(chance.randrange(20)),
            lambda: worker.get(chance.randrange(20), fresh=True),
            lambda: worker.get(5, wait_ms=chance.choice((1, 60_000))),
            self.publish,
            worker.move,
            worker.reconnect,
            worker.leave,
        ]
        chance.choice(acts)()
        self.clock.now_us += 20_000
        if chance.random() < 0.8:
            self.settle()

    def settle(self) -> None:
        self.node.settle()
        for worker in self.workers:
            worker.hear()
        held = [seq for worker in self.workers for seq in worker.has]
        assert len(held) == len(set(held)), "two have it"

    def drain(self) -> None:
        """Until everything is finished, the failed ones too."""
        for _ in range(DRAINS_MAX):
            if len(self.finished) == self.published:
                return
            self.clock.now_us += 100_000  # failed messages wait
            for worker in self.workers:
                worker.get(1_000, share=1.0)
            self.settle()
        raise AssertionError(f"{len(self.finished)} of {self.published} messages are finished")


@pytest.fixture
def chance() -> random.Random:
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{SEED_VARIABLE}={chosen}")
    return random.Random(chosen)


def test_every_message_is_finished_once(tmp_path: Path, chance: random.Random) -> None:
    with world(tmp_path, workers=2, affinity=False) as node:
        party = Party(node, chance)
        for _ in range(STEPS):
            party.step()
        party.settle()
        party.drain()
        (told,) = Member(node).ask(c.Consume(1, "list", party.stream))
        assert isinstance(told, c.Consumed) and told.consumers is not None
        (standing,) = told.consumers
        assert (standing.next_seq, standing.lag_messages, standing.in_flight) == (party.published, 0, 0)
