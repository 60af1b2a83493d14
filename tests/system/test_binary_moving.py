"""Binary peers whose worker changes under them: workers replaced, connections moved to their streams. Nobody notices.

A publisher never waits for an answer before it sends the next request, so every change happens in the middle.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.protocol.messages import Ack, Credit, Ended, Failed, Open, Published, pack, pack_publish
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tests.system.binary_peer import HELLO, BinaryPeer, peer, peer_of, worker_of
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.streams import name_of, names_of
from tests.system.test_rolling import replace_all, watching

pytestmark = pytest.mark.system

WORKERS = 2
IN_FLIGHT_MAX = 200  # requests of a publisher that are not answered yet
SEED_VARIABLE = "TAILRACE_TEST_SEED"


@pytest.fixture
def chance() -> random.Random:
    """Printed, so that a failure shows it, and taken back from the environment."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{SEED_VARIABLE}={chosen}")
    return random.Random(chosen)


class Party(threading.Thread):
    """A thread with one connection, until stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            self.play()
        except BaseException as failure:
            self.failure = failure
            raise

    def play(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.ending.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} hangs"
        assert self.failure is None, f"{self.name}: {self.failure!r}"


class PipeliningPublisher(Party):
    """Requests to one stream, or to several at once, of one to five messages, as fast as they are answered."""

    def __init__(self, node: Node, name: str, streams: list[str]) -> None:
        super().__init__(name)
        self._client = peer(node)
        self._streams = streams
        self._chance = random.Random(name)
        self.sent: dict[int, tuple[list[str], list[bytes]]] = {}
        self.answered = 0

    def play(self) -> None:
        client = self._client
        while not self.ending.is_set():
            for _ in range(20):
                streams = self._chance.sample(self._streams, self._chance.choice((1, 1, 1, 2, len(self._streams))))
                payloads = [
                    b"%s/%d/%d" % (self.name.encode(), len(self.sent), n) for n in range(len(self.sent) % 5 + 1)
                ]
                self.sent[client.send_publish(streams, payloads)] = streams, payloads
            client.read_until(lambda: len(client.answers) - 1 > len(self.sent) - IN_FLIGHT_MAX)
            self.answered = len(client.answers)
        client.read_until(lambda: len(client.answers) - 1 == len(self.sent))
        client.close()

    def check(self, logs: dict[str, list[bytes]]) -> None:
        """Every request was answered once; its messages have the seqs of the answer, in the order of sending."""
        answers = self._client.answers[1:]
        assert not self._client.errors(), self._client.errors()[:3]
        results = {each.request: each.results for each in answers if isinstance(each, Published)}
        assert len(results) == len(answers) == len(self.sent)
        last_seq = dict.fromkeys(self._streams, -1)
        for request, (streams, payloads) in self.sent.items():
            for stream, (first_seq, count, _subscribers) in zip(streams, results[request], strict=True):
                assert count == len(payloads)
                assert logs[stream][first_seq : first_seq + count] == payloads, f"request {request} in {stream}"
                assert first_seq > last_seq[stream], "its requests to a stream keep their order"
                last_seq[stream] = first_seq


class Reader(Party):
    """Follows all of the streams on one connection, some of them by credit."""

    def __init__(self, node: Node, streams: list[str]) -> None:
        super().__init__("reader")
        self.client = peer(node)
        self.streams = streams
        for number, stream in enumerate(streams):
            self.client.subscribe(number, stream, credit=50_000 if number % 2 else None)
        self._granted = 0
        self.counts: dict[str, int] = {}  # set by the test: how many messages to wait for

    def play(self) -> None:
        client = self.client
        while not self.ending.is_set() or any(
            len(client.messages.get(number, ())) < self.counts[stream] for number, stream in enumerate(self.streams)
        ):
            if client.read_once(0.02) == 0:
                raise ConnectionError(f"closed: {client.answers[-3:]}")
            self._grant()

    def _grant(self) -> None:
        taken = len(self.client.chunks)
        for chunk in self.client.chunks[self._granted :]:
            if chunk.id % 2:
                self.client.say(Credit(chunk.id, chunk.nbytes))
        self._granted = taken

    def check(self, logs: dict[str, list[bytes]]) -> None:
        assert not self.client.errors() and not any(isinstance(each, Ended) for each in self.client.answers)
        for number, stream in enumerate(self.streams):
            assert self.client.seqs(number) == list(range(len(logs[stream])))
            assert self.client.payloads(number) == logs[stream]
        self.client.close()


def logs_of(node: Node, streams: list[str]) -> dict[str, list[bytes]]:
    with peer(node) as client:
        for number, stream in enumerate(streams):
            client.subscribe(number, stream, end=("now", 0))
        for number in range(len(streams)):
            client.wait_ended(number)
        return {stream: client.payloads(number) for number, stream in enumerate(streams)}


@contextmanager
def traffic(node: Node, streams: list[str], publishers: int = 3) -> Iterator[list[PipeliningPublisher]]:
    """Pipelining publishers and readers for the length of a block; in the end everything is compared."""
    readers = [Reader(node, streams) for _ in range(2)]
    parties = [PipeliningPublisher(node, f"p{number}", streams) for number in range(publishers)]
    for party in (*readers, *parties):
        party.start()
    yield parties
    for party in parties:
        party.finish()
    logs = logs_of(node, streams)
    for reader in readers:
        reader.counts = {stream: len(log) for stream, log in logs.items()}
        reader.finish()
        reader.check(logs)
    for party in parties:
        party.check(logs)
    total = sum(len(payloads) * len(streams) for party in parties for streams, payloads in party.sent.values())
    assert total == sum(map(len, logs.values())), "nothing is in the log that nobody sent"


def wait_for_progress(parties: list[PipeliningPublisher], requests: int = 300) -> None:
    goals = [party.answered + requests for party in parties]
    wait_for(
        lambda: all(party.answered >= goal or party.failure for party, goal in zip(parties, goals, strict=True)),
        "publishes are answered",
    )


# --- workers are replaced ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_nobody_notices_that_all_workers_are_replaced(tmp_path: Path) -> None:
    streams = [f"s{number}" for number in range(6)]
    with running(tmp_path / "data", workers=WORKERS) as node, traffic(node, streams) as parties:
        wait_for_progress(parties)
        with watching(node):
            for _ in range(2):
                replace_all(node)
                wait_for_progress(parties)


def test_quiet_subscribers_and_half_requests_move_along(tmp_path: Path) -> None:
    """Handles, subscriptions and the received part of a request; also of a connection that has not sent a byte."""
    publish = pack_publish(5, Ack.APPENDED, [3], frame := pack_frame(b"half")) + frame
    with running(tmp_path / "data", workers=WORKERS) as node:
        clients = [peer(node) for _ in range(40)]
        for number, client in enumerate(clients):
            client.say(Open(3, b"half%d" % number))
            client.subscribe(1, f"half{number}", From("seq", 0), end=("seq", 2), credit=40)
            client.send_raw(publish[: number % len(publish)])
        fresh = [BinaryPeer(node.port, hello=None) for _ in range(10)]
        for number, client in enumerate(fresh):
            client.send_raw(pack(HELLO)[:number])
        replace_all(node)
        for number, client in enumerate(clients):
            client.send_raw(publish[number % len(publish) :])
            answer = client.answer_to(5)
            assert isinstance(answer, Published) and answer.results[0][0] == 0
            client.read_messages(1, 1)
            client.send_publish(f"half{number}", [b"more"])
            client.read_messages(1, 2)
            assert client.wait_ended(1).next_seq == 2
            client.close()
        for number, client in enumerate(fresh):
            client.send_raw(pack(HELLO)[number:])
            client.read_until(lambda client=client: bool(client.answers))  # type: ignore[misc]
            assert not isinstance(client.answers[0], Failed)
            client.close()


@pytest.mark.thorough
def test_slow_readers_in_the_middle_of_a_chunk_move_along(tmp_path: Path) -> None:
    """Chunks that go straight from the file, cut by a full socket; the rest comes from the next worker."""
    payloads = [b"%04d" % number + bytes([number % 251]) * 20_000 for number in range(800)]
    with running(tmp_path / "data", workers=WORKERS) as node:
        with peer(node) as publisher:
            for start in range(0, 800, 40):
                publisher.publish("big", payloads[start : start + 40])
        readers = [peer_of(node, slot, receive_buffer_bytes=16_384) for slot in range(WORKERS)]
        for reader in readers:
            reader.subscribe(1, "big")
            reader.read_messages(1, 3)
        for _ in range(2):
            replace_all(node)
            for reader in readers:
                reader.read_messages(1, len(reader.messages[1]) + 50)
        for reader in readers:
            reader.read_messages(1, 800)
            assert reader.seqs(1) == list(range(800)) and reader.payloads(1) == payloads
            reader.close()


# --- connections move to their streams --------------------------------------------------------------------------------

PUBLISHES = 600
SESSIONS = 20


def cut_up(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """In pieces of random sizes: a few bytes, some requests, or all that is left."""
    start = 0
    while start < len(data):
        size = chance.choice((1, 2, 9, 40, 300, 300, 2_000, len(data)))
        yield data[start : start + size]
        start += size


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", ["line", "binary"])
def test_publishers_that_never_wait_move_to_their_streams(tmp_path: Path, protocol: str, chance: random.Random) -> None:
    """In the middle of their requests, in pieces that end anywhere; every publish is answered, in its order."""
    with running(tmp_path / "data", workers=WORKERS) as node:
        movers = 0
        for number in range(SESSIONS):
            slot = number % WORKERS
            names = names_of(1 - slot, WORKERS, 2, f"away{number}-")
            send_all = line_publishes if protocol == "line" else binary_publishes
            movers += send_all(node, slot, names, chance)
        assert movers >= SESSIONS // 2, "most of them have moved"


def line_publishes(node: Node, slot: int, names: Sequence[str], chance: random.Random) -> bool:
    """Publish as a line client; whether it was moved."""
    data = b"ack on\r\n" + b"".join(b"pub %s |%d\r\n" % (names[n % 2].encode(), n) for n in range(PUBLISHES))
    with node.client_of(slot) as client:
        for piece in cut_up(data, chance):
            client.send_raw(piece)
        client.read_answers(PUBLISHES + 1)
        assert client.answers[1:] == [f"ok pub {names[n % 2]} {n // 2}" for n in range(PUBLISHES)]
        client.answers.clear()
        moved = node.slot_of(client) != slot
        client.send(f"sub {names[0]} 0 wait")
        client.read_messages(PUBLISHES // 2)
        assert [message.payload for message in client.messages] == [b"%d" % n for n in range(0, PUBLISHES, 2)]
        client.send("close")
        return moved


def binary_publishes(node: Node, slot: int, names: Sequence[str], chance: random.Random) -> bool:
    frames = [pack_frame(b"%d" % n) for n in range(PUBLISHES)]
    data = pack(Open(0, names[0].encode())) + pack(Open(1, names[1].encode()))
    data += b"".join(pack_publish(n, Ack.APPENDED, [n % 2], frames[n]) + frames[n] for n in range(PUBLISHES))
    with peer_of(node, slot) as client:
        for piece in cut_up(data, chance):
            client.send_raw(piece)
        client.read_until(lambda: len(client.answers) == 3 + PUBLISHES)
        assert not client.errors()
        places = {each.request: each.results[0][0] for each in client.answers if isinstance(each, Published)}
        assert places == {n: n // 2 for n in range(PUBLISHES)}
        moved = worker_of(node, client) != slot
        client.subscribe(1, names[1], end=("now", 0))
        client.wait_ended(1)
        assert client.payloads(1) == [b"%d" % n for n in range(1, PUBLISHES, 2)]
        return moved


def test_a_subscriber_moves_to_its_stream_and_gets_everything(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node, peer(node) as publisher:
        for slot in range(WORKERS):
            name = name_of(1 - slot, WORKERS, f"to{slot}-")
            publisher.publish(name, [b"%d" % number for number in range(500)])
            with peer_of(node, slot) as client:
                client.subscribe(1, name)
                for number in range(500, 600):
                    publisher.send_publish(name, [b"%d" % number])
                client.read_messages(1, 600)
                wait_for(lambda client=client, slot=slot: worker_of(node, client) != slot, "it has moved")  # type: ignore[misc]
                publisher.publish(name, [b"600"])
                client.read_messages(1, 601)
                assert client.payloads(1) == [b"%d" % number for number in range(601)]
