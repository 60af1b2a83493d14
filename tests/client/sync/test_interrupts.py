"""Control-C at any moment: the client continues, and its promises hold.

A timer's signal raises KeyboardInterrupt in the main thread after random times, at any point of the client.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest

import tailrace
from tests.client.model_consumers import Groups
from tests.client.model_server import ModelServer

# A socket that was made and not yet stored is closed by the collector, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RUN_S = 0.7
LONGEST_S = 0.0008
COUNT_LEAST = 50
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def alarm_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


class Interrupts:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.count = 0

    def during(self, work: Callable[[], None]) -> None:
        """Interrupt `work` sometime, unless it ends before."""
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.00001 + self._chance.random() * LONGEST_S)
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self.count += 1

    def keep_on(self, work: Callable[[], None], done: Sequence[object] = (True,)) -> None:
        """The same again and again, for RUN_S, or longer until a slow machine has interrupted it often enough and
        something is in `done`.
        """
        end_s = time.monotonic() + RUN_S
        late_s = end_s + PATIENCE_S
        while (now_s := time.monotonic()) < end_s or (not (self.count > COUNT_LEAST and done) and now_s < late_s):
            self.during(work)


@pytest.mark.parametrize("seed", range(2))
def test_publishing_and_reading(server: ModelServer, seed: int) -> None:
    interrupts, chance = Interrupts(seed), random.Random(seed)
    numbers = count()
    receipts: list[tuple[int, bytes]] = []
    seen: list[int] = []
    with tailrace.connect(server.address) as client:
        subscription = client.subscribe("s")

        def work() -> None:
            if chance.random() < 0.5:
                payload = b"%d" % next(numbers)
                receipts.append((client.publish("s", payload).seq, payload))
            elif len(seen) < len(receipts) - interrupts.count:
                seen.append(next(subscription).seq)

        interrupts.keep_on(work)
        client.publish("s", b"end", timeout_s=PATIENCE_S)
        while (message := subscription.receive(PATIENCE_S)) is not None and message.payload != b"end":
            seen.append(message.seq)
    assert interrupts.count > COUNT_LEAST
    logged = server.payloads(b"s")
    assert all(logged[seq] == payload for seq, payload in receipts)
    assert seen == sorted(set(seen))  # never twice
    assert len(logged) - 1 - len(seen) <= interrupts.count  # except messages between the iterator and the list


@pytest.mark.parametrize("seed", range(2))
def test_batches(server: ModelServer, seed: int) -> None:
    """Nothing that `add` has taken is lost, and leaving the context does not hang."""
    interrupts = Interrupts(seed)
    numbers = count()
    added: list[bytes] = []
    with tailrace.connect(server.address) as client, client.batcher("s", max_messages=5, linger_s=0.001) as batch:

        def work() -> None:
            payload = b"%d" % next(numbers)
            for _ in range(20):
                batch.add(payload)
            added.append(payload)

        interrupts.keep_on(work)
    assert interrupts.count > COUNT_LEAST
    logged = server.payloads(b"s")
    assert {*added} <= {*logged}
    places = {payload: place for place, payload in reversed(list(enumerate(logged)))}
    first = [places[payload] for payload in added]
    assert first == sorted(first)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(2))
def test_consuming(server: ModelServer, seed: int) -> None:
    """Acknowledged messages are finished; those between the iterator and the program come again."""
    interrupts, chance = Interrupts(seed), random.Random(seed)
    groups = Groups(server.model)
    server.publish(b"s", *[b"x"] * 50_000)
    acknowledged: list[int] = []
    with tailrace.connect(server.address) as client:
        consumer = client.consumer("s", "billing", linger_s=0.001)
        group = groups.group(b"s", b"billing")

        def work() -> None:
            for _ in range(chance.randrange(40)):
                message = next(consumer)
                message.ack()
                acknowledged.append(message.seq)

        interrupts.keep_on(work, acknowledged)
        consumer.flush(PATIENCE_S)
        server.call(group.give_back_all)
        left = {*range(max(acknowledged))} - group.finished
        while left:
            message = next(consumer)
            message.ack()
            left.discard(message.seq)
        consumer.flush(PATIENCE_S)
        assert group.finished >= {*range(max(acknowledged))}
    assert interrupts.count > COUNT_LEAST
    assert group.finished >= {*acknowledged}


def test_closing(server: ModelServer) -> None:
    """An interrupted call can be repeated."""
    interrupts = Interrupts(7)
    for _ in range(100):
        client = tailrace.connect(server.address)
        client.publish("s", b"x")
        interrupts.during(client.close)
        before_s = time.monotonic()
        client.close()
        assert time.monotonic() - before_s < PATIENCE_S / 4
        assert not client.is_connected
    assert interrupts.count > 20
