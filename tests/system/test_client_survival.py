"""Through the client library: connections cut at any byte, workers killed, a node started again.

A subscriber yields every seq once, in order. A publisher that waits for acknowledgements loses nothing, and has nothing
logged twice, however often it was sent.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import tailrace
from tailrace import NOW, START, Seq
from tests.system.binary_peer import peer
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.processes import worker_pid
from tests.system.proxy import Cut, Proxy, Route, Way
from tests.system.test_rolling import replace_all
from tests.thorough import only_thorough, places

pytestmark = pytest.mark.system

WORKERS = 2
SEED_VARIABLE = "TAILRACE_TEST_SEED"
AT_ONCE = 24  # sessions; most of their time they wait before they connect again
FEW = 10  # messages of a short session
CUTS = 120  # places at which a session is cut


def seed() -> int:
    """A new one each time; printed, so that a failure shows it, and taken back from the environment."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("survival") / "data", workers=WORKERS) as node:
        with peer(node) as publisher:
            publisher.publish("short", [b"message %d" % number for number in range(FEW)])
        yield node


@pytest.fixture
def proxy(node: Node) -> Iterator[Proxy]:
    with Proxy(node.port) as proxy:
        yield proxy


# --- any byte ---------------------------------------------------------------------------------------------------------


def read_short(route: Route) -> list[tuple[int, bytes]]:
    """What a subscriber sees: the first messages, from their position to a seq that has its own end."""
    with tailrace.connect(f"127.0.0.1:{route.port}") as client:
        return [(message.seq, message.payload) for message in client.subscribe("short", START, Seq(FEW), wait=True)]


async def read_short_async(route: Route) -> list[tuple[int, bytes]]:
    async with tailrace.connect_async(f"127.0.0.1:{route.port}") as client:
        return [
            (message.seq, message.payload) async for message in client.subscribe("short", START, Seq(FEW), wait=True)
        ]


SHORT = [(number, b"message %d" % number) for number in range(FEW)]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["sync", *only_thorough("asyncio")])
def test_a_subscriber_whose_connection_is_cut_at_any_byte(proxy: Proxy, kind: str) -> None:
    """The first connection ends after that many bytes from the broker, within CHUNK and everything before it."""
    whole = proxy.route()
    assert read_short(whole) == SHORT
    end_bytes = whole.passed[Way.TO_CLIENT]
    assert end_bytes > FEW * 40
    routes = cut_routes(proxy, Way.TO_CLIENT, end_bytes)
    if kind == "sync":
        with ThreadPoolExecutor(AT_ONCE) as pool:
            seen = list(pool.map(read_short, routes))
    else:
        seen = asyncio.run(all_short(routes))
    wrong = [route.after_bytes for route, messages in zip(routes, seen, strict=True) if messages != SHORT]
    assert not wrong, f"cut after {wrong} bytes"
    again = sum(route.connections == 2 for route in routes)
    early = sum(route.after_bytes <= FEW * 40 for route in routes)
    assert again >= early > 0, "those that were cut before they had everything have connected again"


def cut_routes(proxy: Proxy, way: Way, end_bytes: int) -> list[Route]:
    """Routes that end after one number of bytes or another below `end_bytes`."""
    cuts = places(range(1, end_bytes), CUTS, random.Random(seed()))
    return [proxy.route(way, cut, Cut.RESET if cut % 2 else Cut.END) for cut in cuts]


async def all_short(routes: list[Route]) -> list[list[tuple[int, bytes]]]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(route: Route) -> list[tuple[int, bytes]]:
        async with limit:
            return await read_short_async(route)

    return await asyncio.gather(*map(one, routes))


def publish_few(stream: str, route: Route) -> list[tuple[int, bytes]]:
    """(seq, payload) of each message, as it was acknowledged. Some in one request, some after each other."""
    receipts = []
    with tailrace.connect(f"127.0.0.1:{route.port}") as client:
        for number in range(3):
            payload = b"%d one %d" % (route.after_bytes, number)
            receipts.append((client.publish(stream, payload).seq, payload))
        many = [b"%d many %d" % (route.after_bytes, number) for number in range(3)]
        first_seq = client.publish_many(stream, many).seq
        receipts += [(first_seq + place, payload) for place, payload in enumerate(many)]
    return receipts


@pytest.mark.thorough
@pytest.mark.parametrize("way", [Way.TO_BROKER, *only_thorough(Way.TO_CLIENT)])
def test_a_publisher_whose_connection_is_cut_at_any_byte(node: Node, proxy: Proxy, way: Way) -> None:
    stream = f"published {way.name}".replace(" ", "-")
    whole = proxy.route()
    publish_few(stream, whole)
    routes = cut_routes(proxy, way, whole.passed[way])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        receipts = [row for rows in pool.map(partial(publish_few, stream), routes) for row in rows]
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        log = [message.payload for message in client.subscribe(stream, START, NOW, wait=True)][6:]
    assert all(log[seq - 6] == payload for seq, payload in receipts), "each is where its receipt says"
    assert Counter(log) == Counter({payload for _seq, payload in receipts}), "each is there once, and nothing else"
    sent = defaultdict(list)
    for payload in log:
        after_bytes, what = payload.split(b" ", 1)
        sent[int(after_bytes)].append(what)
    for route in routes:
        assert sent[route.after_bytes] == [
            b"one 0", b"one 1", b"one 2", b"many 0", b"many 1", b"many 2",
        ], f"{way.value}, cut after {route.after_bytes} bytes"  # fmt: skip


# --- under load -------------------------------------------------------------------------------------------------------


class Party(threading.Thread):
    """A thread with a client of its own."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.connections = 0
        self.ending = threading.Event()
        self.address = f"127.0.0.1:{node.port}"

    def run(self) -> None:
        try:
            with tailrace.connect(self.address) as client:
                self.play(client)
                self.connections = client.connections
        except BaseException as failure:
            self.failure = failure
            raise

    def play(self, client: tailrace.Client) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.ending.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} hangs"
        assert self.failure is None, f"{self.name}: {self.failure!r}"


class Subscriber(Party):
    """Iterates over one stream, until it sees the message `last`."""

    def __init__(self, node: Node, stream: str) -> None:
        super().__init__(node, f"subscriber of {stream}")
        self.stream = stream
        self.log: list[bytes] = []

    def play(self, client: tailrace.Client) -> None:
        for message in client.subscribe(self.stream, credit_bytes=100_000, wait=True):
            assert message.seq == len(self.log), f"{self.stream}: seq {message.seq}, not {len(self.log)}"
            self.log.append(message.payload)
            if message.payload == b"last":
                return


class Publisher(Party):
    """One message after the other, each waited for; every third to two streams at once."""

    def __init__(self, node: Node, name: str, streams: list[str]) -> None:
        super().__init__(node, name)
        self.streams = streams
        self.acknowledged: list[tuple[str, int, bytes]] = []

    def play(self, client: tailrace.Client) -> None:
        number = 0
        while not self.ending.is_set():
            payload = b"%s/%d" % (self.name.encode(), number)
            number += 1
            if number % 3:
                receipts = [client.publish(self.streams[number % len(self.streams)], payload)]
            else:
                receipts = self._publish_to_two(client, payload)
            self.acknowledged += [(receipt.stream, receipt.seq, payload) for receipt in receipts]

    def _publish_to_two(self, client: tailrace.Client, payload: bytes) -> list[tailrace.Receipt]:
        """The exception names the streams that did not take the message; this publishes it again to those."""
        streams = self.streams[:2]
        try:
            return client.publish_to(streams, payload)
        except tailrace.PartlyPublished as partly:
            return [
                outcome if isinstance(outcome, tailrace.Receipt) else client.publish(stream, payload)
                for stream, outcome in zip(streams, partly.outcomes, strict=True)
            ]


class Batching(Publisher):
    """Many batches under way at once, to one stream."""

    def play(self, client: tailrace.Client) -> None:
        stream, number = self.streams[0], 0

        def note(result: tailrace.BatchResult) -> None:
            assert result.error is None, result.error
            receipt = result.receipt
            assert receipt is not None
            self.acknowledged.append((receipt.stream, receipt.last_seq, b""))

        with client.batcher(stream, max_messages=20, on_result=note) as batcher:
            while not self.ending.is_set():
                batcher.add(b"%s/%d" % (self.name.encode(), number))
                number += 1
                if not number % 500:
                    time.sleep(0.005)
        self.sent = number
        self.was_acknowledged = batcher.acknowledged


class Load:
    """For the length of a block there are publishers, and a subscriber of each stream; then all of it is compared."""

    def __init__(self, node: Node, streams: list[str]) -> None:
        self.node = node
        self.streams = streams
        self.subscribers = [Subscriber(node, stream) for stream in streams]
        self.publishers = [Publisher(node, f"p{number}", streams) for number in range(3)]
        self.batching = Batching(node, "batching", streams)
        self.connections: list[int] = []  # that each made, in the end

    def __enter__(self) -> Load:
        for party in (*self.subscribers, *self.publishers, self.batching):
            party.start()
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        for party in (*self.publishers, self.batching):
            party.ending.set()
        if kind is None:
            self._finish()

    def progress(self, messages: int = 100) -> None:
        """Until each publisher has that many more acknowledgements, and each subscriber a message."""
        parties = [*self.publishers, self.batching]
        goals = [len(party.acknowledged) + messages // (20 if party is self.batching else 1) for party in parties]

        def reached() -> bool:
            return all(
                len(party.acknowledged) >= goal or party.failure for party, goal in zip(parties, goals, strict=True)
            )

        wait_for(reached, "publishes are acknowledged")
        wait_for(lambda: all(each.log or each.failure for each in self.subscribers), "subscribers have messages")

    def _finish(self) -> None:
        for party in (*self.publishers, self.batching):
            party.finish()
        with tailrace.connect(f"127.0.0.1:{self.node.port}") as client:
            for stream in self.streams:
                client.publish(stream, b"last")
        for subscriber in self.subscribers:
            subscriber.finish()
        logs = {subscriber.stream: subscriber.log[:-1] for subscriber in self.subscribers}
        self.connections = [party.connections for party in (*self.subscribers, *self.publishers, self.batching)]
        for publisher in self.publishers:
            assert publisher.acknowledged
            for stream, seq, payload in publisher.acknowledged:
                assert logs[stream][seq] == payload, f"acknowledged and lost: {payload!r} at {stream} {seq}"
        batched = [payload for payload in logs[self.streams[0]] if payload.startswith(b"batching/")]
        assert batched == [b"batching/%d" % number for number in range(self.batching.sent)]
        assert self.batching.was_acknowledged == self.batching.sent
        for stream, log in logs.items():
            assert len(log) == len(set(log)), f"{stream} has messages twice"
        print(f"{sum(map(len, logs.values()))} messages")


STREAMS = [f"s{number}" for number in range(4)]


def busiest(node: Node) -> int:
    """The slot of the worker that has the most connections."""
    return int(max(node.workers(), key=lambda row: int(row["connections"]))["worker"])


@pytest.mark.thorough
def test_workers_are_killed(tmp_path: Path) -> None:
    """In any order, but each of them once at least, and once the one that has the most of the connections: they move
    away from a worker that dies, and to the worker of their streams, so that any other may have none of them.
    """
    chance = random.Random(seed())
    slots = [*range(WORKERS), *(chance.randrange(WORKERS) for _ in range(4 - WORKERS)), None]
    chance.shuffle(slots)
    with running(tmp_path / "data", workers=WORKERS) as node:
        with Load(node, STREAMS) as load:
            load.progress()
            for slot in slots:
                os.kill(worker_pid(node, busiest(node) if slot is None else slot), signal.SIGKILL)
                load.progress()
        assert max(load.connections) > 1, "some have lost their worker"


@pytest.mark.thorough
def test_the_node_is_killed_and_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node:
        with Load(node, STREAMS) as load:
            for _ in range(2):
                load.progress()
                node.kill()
                node.start()
            load.progress()
        assert min(load.connections) >= 2, "3, but for who was still waiting to connect when it was killed again"


@pytest.mark.thorough
def test_the_node_is_stopped_and_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node:
        with Load(node, STREAMS) as load:
            load.progress()
            assert node.stop() == 0
            node.start()
            load.progress()
        assert min(load.connections) >= 2


@pytest.mark.thorough
def test_all_workers_are_replaced(tmp_path: Path) -> None:
    """Nobody need connect again, and nothing is sent twice."""
    with running(tmp_path / "data", workers=WORKERS) as node:
        with Load(node, STREAMS) as load:
            load.progress()
            replace_all(node)
            load.progress()
        assert set(load.connections) == {1}


# --- in the middle of a chunk -----------------------------------------------------------------------------------------


def test_a_connection_cut_again_and_again_in_the_middle_of_large_chunks(node: Node) -> None:
    """At random bytes of 4 MB, each connection but the last; the iteration has no seam."""
    chance = random.Random(seed())
    payloads = [b"%d " % number + bytes(chance.randrange(20_000)) for number in range(400)]
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        for start in range(0, 400, 50):
            client.publish_many("large", payloads[start : start + 50])
    for _ in range(5):
        with Proxy(node.port) as proxy:
            routes = [
                proxy.route(Way.TO_CLIENT, chance.randrange(1_500_000), chance.choice(list(Cut))) for _ in range(6)
            ]
            addresses = [f"127.0.0.1:{route.port}" for route in routes]
            with tailrace.connect(addresses) as client:
                seen = [(message.seq, message.payload) for message in client.subscribe("large", START, NOW, wait=True)]
            assert seen == list(enumerate(payloads))
            assert sum(route.connections for route in routes) > 1
