"""The session through random lives: cut anywhere, refused for a while, read slowly; in the end everything is right."""

from __future__ import annotations

import random

import pytest

from tailrace.core.places import NOW, Seq
from tailrace.core.publications import PendingPublication
from tailrace.core.subscription_state import Arrived, SubscriptionState
from tailrace.errors import TailraceError
from tailrace.protocol import messages as m
from tests.client.model import ModelConnection
from tests.client.pair import Pair
from tests.thorough import examples

SEEDS = examples(90)
STEPS = 60
STREAMS = ("a", "b")


class Life:
    """One client with publishes and subscriptions, and what must be true of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        piece_bytes = self.chance.choice([5, 40, 1 << 20])
        self.pair = Pair(piece_bytes=piece_bytes, heartbeat_s=5.0, max_in_flight=20, idempotent=seed % 4 > 0)
        self.pair.model.chunk_messages = self.chance.choice([1, 3, 10])
        self.pair.model.on_message = self.refuse_sometimes
        self.refusals = self.chance.choice([0.0, 0.1])
        self.published: dict[str, list[tuple[bytes, PendingPublication]]] = {stream: [] for stream in STREAMS}
        self.subscriptions: list[tuple[SubscriptionState, list[int]]] = []
        self.given: dict[SubscriptionState, Arrived] = {}

    def refuse_sometimes(self, connection: ModelConnection, message: m.AnyMessage) -> bool:
        if self.chance.random() < self.refusals:
            if isinstance(message, m.Publish):
                connection.fail("unavailable", op=m.Op.PUBLISH, id=message.request)
                return True
            if isinstance(message, m.Subscribe):
                connection.fail("overloaded", op=m.Op.SUBSCRIBE, id=message.id)
                return True
        return False

    def step(self) -> None:
        choice = self.chance.randrange(13)
        stream = self.chance.choice(STREAMS)
        if choice < 4 and self.pair.session.is_open:
            payload = b"%s %d" % (stream.encode(), len(self.published[stream]))
            self.published[stream].append((payload, self.pair.publish(payload, to=(stream,), timeout_s=1e6)))
        elif choice == 4:
            subscription = self.pair.subscribe(
                Seq(0),
                self.chance.choice([None, NOW]),
                stream=stream,
                credit_bytes=self.chance.choice([1, 90, 1 << 20]),
            )
            subscription.deadline_s = 1e9
            self.subscriptions.append((subscription, []))
        elif choice < 7:
            self.take()
        elif choice == 7:
            self.pair.cut_after = self.chance.randrange(1, 300)
        elif choice == 8:
            self.pair.cut()
        elif choice == 9:
            self.pair.wait(self.chance.random() * 3)
        elif choice == 10:
            self.pair.session.recover(self.pair.now_s)
        else:
            self.pair.run()

    def take(self) -> None:
        for subscription, seqs in self.subscriptions:
            given = self.given.get(subscription)
            arrived = self.pair.session.next_arrived(subscription, given)
            if arrived is not None:
                self.given[subscription] = arrived
                seqs += [message.seq for message in arrived.messages]

    def finish(self) -> None:
        """No more faults; everything comes to its end."""
        self.refusals = 0.0
        self.pair.cut_after = None
        for _ in range(40):
            self.pair.wait(10.0)
            for _ in range(100):
                self.take()
                self.pair.run()

    def check(self) -> None:
        for stream, published in self.published.items():
            logged = self.pair.model.stream(stream.encode()).payloads()
            for payload, publication in published:
                [receipt] = publication.outcome()
                assert logged[receipt.seq] == payload
            if self.pair.session.options.idempotent:
                assert logged == [payload for payload, _ in published]  # once, and in order
        for subscription, seqs in self.subscriptions:
            end_seq = subscription.end_seq
            if end_seq is None:
                end_seq = self.pair.model.stream(subscription.stream.encode()).next_seq
            assert seqs == list(range(end_seq))
        assert not self.pair.session.publications
        assert self.pair.session.publications.nbytes == 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_the_end_everything_is_right(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.finish()
    life.check()


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_broker_sends_the_session_goes_on_or_ends(seed: int) -> None:
    """Nothing but errors of the tree, for any bytes; the connection is made again."""
    chance = random.Random(seed)
    pair = Pair()
    for _ in range(200):
        pair.run()
        subscription = pair.subscribe(timeout_s=1.0)
        pair.publish(b"payload", timeout_s=1.0)
        noise = bytearray(m.pack(chance.choice(_SAID)))
        for _ in range(chance.randrange(3)):
            noise[chance.randrange(len(noise))] = chance.randrange(256)
        pair.peer.out += noise
        pair.wait(chance.random() * 2)
        try:
            pair.read(subscription)
        except TailraceError:
            pass
        pair.session.cancel(subscription)
        pair.wait(10.0)
        assert not pair.session.is_over


_SAID: list[m.AnyMessage] = [
    m.Published(1, ((0, 1, 1),)),
    m.Published(5, ((0, 1, 1), (0, 1, 1))),
    m.Subscribed(1, 5, 0, None),
    m.Opened(1),
    m.Ended(1, 99),
    m.Ended(2, 0, "unknown", ""),
    m.Failed("trimmed", "", False, m.Op.SUBSCRIBE, 1),
    m.Failed("full", "", False, m.Op.PUBLISH, 1, ((0, 1, 1, "", ""),)),
    m.Failed("handles", "", False, m.Op.OPEN, 1),
    m.Failed("novel", "", True),
    m.Chunk(1, memoryview(bytes(40))),
    m.Ping(),
    m.Pong(),
    m.Welcome(1, (), "", "", 0, {}),
]
