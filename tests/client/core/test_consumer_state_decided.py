"""Members of the client and the broker's own decisions about them, joined without sockets: random lives.

Each member does one message after the other, as a loop does. Connections are cut, answers lost, members gone for longer
than the broker waits, messages fail and take too long.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.lookahead import MatchedPiece
from tailrace.broker.consumers.state.stream_state import ConsumerTable, DeadLetter
from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import ConsumerOptions
from tailrace.core.headers import pack_headers
from tailrace.errors import StaleAck
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.shard.epochs import EpochStart, History
from tailrace.shard.frame import unpack_header
from tailrace.shard.leaves import load
from tests.client.model import Model, ModelConnection, Stream
from tests.client.pair import Pair
from tests.thorough import examples

STREAM, NAME = b"s", b"billing"
MESSAGES, KEYS, MEMBERS = 60, 4, 3
ACK_WAIT_S, DELIVERIES_MAX = 20.0, 6
US = 1_000_000


class Look:
    """The model's stream as decisions look at it. `keys_of`: by seq."""

    history: History = (EpochStart(1, 0, "a"),)

    def __init__(self, stream: Stream, keys_of: list[bytes | None]) -> None:
        self.stream = stream
        self.keys_of = keys_of

    @property
    def first_seq(self) -> int:
        return self.stream.first_seq

    @property
    def next_seq(self) -> int:
        return self.stream.next_seq

    def fit(self, first_seq: int, last_seq: int, max_bytes: int) -> tuple[int, int]:
        return last_seq - first_seq + 1, 0

    def keys(self, first_seq: int, last_seq: int) -> Sequence[bytes | None]:
        return self.keys_of[first_seq : last_seq + 1]

    def matching(self, first_seq: int, topics: bytes, ranges_max: int) -> MatchedPiece:
        raise NotImplementedError


class Deciding:
    """Answers GET as the broker's owner decides. `now_s` is everybody's clock."""

    def __init__(self, model: Model, keys_of: list[bytes | None]) -> None:
        self.model = model
        self.now_s = 1_000.0
        self.consumers = ConsumerTable()
        self.look = Look(model.stream(STREAM), keys_of)
        self.dead: set[int] = set()
        self.waiting: list[tuple[ModelConnection, c.Get, float, list[c.MessageRange]]] = []
        self.members: dict[bytes, ModelConnection] = {}
        wait_us = int(ACK_WAIT_S * US)
        decide.create(self.consumers, NAME, 0, self.look, self.now_us, wait_us, DELIVERIES_MAX)
        model.features.add(c.FEATURE)
        model.on_message = self.take
        model.on_pump = self.serve

    @property
    def now_us(self) -> int:
        return int(self.now_s * US)

    @property
    def is_done(self) -> bool:
        consumer = self.consumers.by_name[NAME]
        return consumer.floor_seq == self.look.next_seq

    def take(self, connection: ModelConnection, message: m.AnyMessage) -> bool:
        if not isinstance(message, c.Get):
            return False
        for each in [each for each in self.waiting if each[1].member == message.member]:
            self.waiting.remove(each)
            self.say(each[0], each[1], (), each[3])
        self.members[message.member] = connection
        given = self.decide(message, message.finished, message.failed)
        self.bury(given.dead)
        stale = [(first, last) for first, last in given.value.stale]
        if message.max_messages and message.wait_ms and not given.value.runs:
            self.waiting.append((connection, message, self.now_s + message.wait_ms / 1_000, stale))
        else:
            self.say(connection, message, given.value.runs, stale)
        return True

    def decide(
        self, get: c.Get, finished: Sequence[c.FinishedRow], failed: Sequence[c.FailedRow]
    ) -> decide.Decision[decide.GetResult]:
        wanted = replace(get, finished=tuple(finished), failed=tuple(failed))
        return decide.get(self.consumers, wanted, self.look, self.now_us)

    def serve(self) -> None:
        """Waiting gets receive the present messages, or time out."""
        for each in list(self.waiting):
            connection, get, until_s, stale = each
            given = self.decide(get, (), ()) if not connection.closed else None
            if given is None or given.value.runs or self.now_s >= until_s:
                self.waiting.remove(each)
                self.say(connection, get, () if given is None else given.value.runs, stale)

    def tick(self) -> None:
        for member, connection in list(self.members.items()):
            if connection.closed:
                decide.away(self.consumers, NAME, member, self.now_us)
                del self.members[member]
        self.bury(decide.expire(self.consumers, self.look, self.now_us).dead)
        self.model.driver()

    def bury(self, dead: Sequence[DeadLetter]) -> None:
        for letter in dead:
            self.dead.add(letter.seq)
            decide.bury(self.consumers, letter)

    def say(
        self, connection: ModelConnection, get: c.Get, runs: Sequence[c.DeliveredRun], stale: Sequence[c.MessageRange]
    ) -> None:
        if not connection.closed:
            frames = b"".join(
                self.look.stream.frames[seq] for first, count, *_ in runs for seq in range(first, first + count)
            )
            connection.say(c.Got(get.id, tuple(runs), tuple(stale), 0, memoryview(frames)))


class Worker:
    """A program with one loop. `hand`: the message it works at."""

    def __init__(self, deciding: Deciding, name: str) -> None:
        self.deciding = deciding
        self.pair = Pair(deciding.model, reconnect_s=1e9)
        self.pair.now_s = deciding.now_s
        self.pair.ready()
        chosen = ConsumerOptions("s", "billing", name, ack_wait_s=ACK_WAIT_S, linger_s=0.2, batch=20)
        self.state = self.pair.session.consume(chosen, self.pair.now_s)
        self.state.settle = lambda message, reason, delay_s: self.state.record(
            message, reason, self.pair.now_s, delay_s
        )
        self.hand: ConsumedMessage | None = None

    def take(self) -> ConsumedMessage | None:
        try:
            return self.state.take(self.pair.now_s)
        except StaleAck:
            return None


class Life:
    def __init__(self, seed: int, *, faults: bool) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        model = Model()
        self.keys_of = [self.chance.choice([None, *(b"%d" % key for key in range(KEYS))]) for _ in range(MESSAGES)]
        for number, key in enumerate(self.keys_of):
            metadata = pack_headers(None, None if key is None else key.decode())
            model.stream(STREAM).append(bytes(load("tailrace.shard.frame_cy").pack_frames([b"%d" % number], metadata)))
        assert unpack_header(model.stream(STREAM).frames[-1]).seq == MESSAGES - 1
        self.deciding = Deciding(model, self.keys_of)
        self.workers = [Worker(self.deciding, name) for name in "abc"[:MEMBERS]]
        self.done: list[int] = []
        self.given: list[tuple[int, int]] = []

    def wait(self, seconds: float) -> None:
        self.deciding.now_s += seconds
        self.deciding.tick()
        for worker in self.workers:
            worker.pair.run(self.deciding.now_s)

    def step(self) -> None:
        worker, choice = self.chance.choice(self.workers), self.chance.randrange(20)
        if choice < 12:
            self.work(worker)
        elif choice < 15:
            self.wait(self.chance.random())
        elif not self.faults:
            return
        elif choice == 15:
            worker.pair.cut_after = self.chance.randrange(1, 600)
        elif choice == 16:
            worker.pair.cut()
        elif choice == 17:
            worker.pair.session.recover(worker.pair.now_s)
        elif choice == 18:
            self.wait(self.chance.choice([3.0, 8.0, 25.0]))
        else:
            worker.pair.unreachable ^= set(worker.pair.addresses)  # gone for a while, or back

    def work(self, worker: Worker) -> None:
        """Settles its message, or takes the next."""
        message, worker.hand = worker.hand, None
        if message is None:
            worker.hand = self.take(worker)
        elif self.faults and self.chance.random() < 0.15:
            message.nack("because of the test")
        else:
            self.done.append(message.seq)
            message.ack()
        worker.pair.run()

    def take(self, worker: Worker) -> ConsumedMessage | None:
        message = worker.take()
        if message is not None:
            self.given.append((message.seq, message.deliveries))
            assert message.deliveries <= DELIVERIES_MAX
            key = self.keys_of[message.seq]
            before = {seq for seq in range(message.seq) if key is not None and self.keys_of[seq] == key}
            assert before <= {*self.done} | self.deciding.dead, (message.seq, before)
        return message

    def finish(self) -> None:
        self.faults = False
        for worker in self.workers:
            worker.pair.cut_after = None
            worker.pair.unreachable.clear()
        for _ in range(3_000):
            if self.deciding.is_done:
                return
            for worker in self.workers:
                self.work(worker)
            self.wait(0.5)


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(examples(90)))
def test_each_is_finished_and_those_of_a_key_in_their_order(seed: int) -> None:
    life = Life(seed, faults=True)
    for _ in range(250):
        life.step()
    life.finish()
    assert life.deciding.is_done
    assert {*life.done} | life.deciding.dead == {*range(MESSAGES)}


@pytest.mark.parametrize("seed", range(10))
def test_in_quiet_times_each_is_given_once(seed: int) -> None:
    life = Life(seed, faults=False)
    for _ in range(250):
        life.step()
    life.finish()
    assert sorted(life.given) == [(seq, 1) for seq in range(MESSAGES)]
    assert sorted(life.done) == [*range(MESSAGES)]
