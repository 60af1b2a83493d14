"""The binary protocol against a real node: how it begins and ends, publishing, and both protocols on one stream."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import msgpack
import pytest

from tailrace.protocol.messages import (
    Ack,
    Close,
    Ended,
    Failed,
    Hello,
    Open,
    Opened,
    Ping,
    Pong,
    Published,
    Subscribe,
    Subscribed,
    Welcome,
    pack,
    pack_publish,
)
from tailrace.protocol.places import FROM_NEW
from tailrace.shard.frame import pack_frame
from tests.system.binary_peer import FROM_START, HELLO, BinaryPeer, peer, peer_of
from tests.system.node import Node, rows, running, wait_for
from tests.system.streams import lives, name_of, names_of

pytestmark = pytest.mark.system

WORKERS = 2
CONFIG = """
[node]
affinity = false
[limits]
chunk_bytes = 65536
[[stream]]
pattern = "always*"
durability = "always"
[[stream]]
pattern = "interval*"
durability = "interval"
interval_ms = 200
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("binary") / "data", workers=WORKERS, config=CONFIG) as node:
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


@pytest.fixture
def client(node: Node) -> Iterator[BinaryPeer]:
    with peer(node) as client:
        yield client


# --- the beginning and the end ----------------------------------------------------------------------------------------


def test_welcome_says_who_this_is_and_what_it_takes(node: Node) -> None:
    welcomes = []
    for slot in range(WORKERS):
        with peer_of(node, slot) as client:
            assert client.welcome is not None
            welcomes.append(client.welcome)
    first, second = welcomes
    assert (first.version, first.features) == (1, ())
    assert first.software.startswith("tailrace/")
    assert first.node == second.node != ""
    assert [welcome.worker for welcome in welcomes] == [0, 1]
    assert first.limits["max_message_bytes"] == 8 << 20 < first.limits["max_envelope_bytes"]
    assert set(first.limits) == {"max_message_bytes", "max_envelope_bytes", "max_handles", "max_subscriptions"}


def test_features_that_nobody_knows_are_not_agreed_on(node: Node) -> None:
    with BinaryPeer(node.port, hello=Hello(1, ("teleport", "telepathy"), "")) as client:
        assert client.welcome is not None and client.welcome.features == ()


TWO_FRAMES = pack_frame(b"one") + pack_frame(b"two")
CONVERSATION = b"".join(
    (
        pack(HELLO),
        pack(Open(7, b"talk")),
        pack_publish(1, Ack.APPENDED, [7], TWO_FRAMES) + TWO_FRAMES,
        pack(Subscribe(9, b"talk", FROM_START, end=("now", 0), wait=True)),
        pack(Ping()),
        pack(Close()),
    )
)


@pytest.mark.parametrize("piece_bytes", [len(CONVERSATION), 1, 7])
def test_everything_may_be_said_before_anything_is_heard(node: Node, piece_bytes: int) -> None:
    name = b"t%03d" % piece_bytes
    said = CONVERSATION.replace(b"talk", name)
    with BinaryPeer(node.port, hello=None) as client:
        for start in range(0, len(said), piece_bytes):
            client.send_raw(said[start : start + piece_bytes])
        client.read_to_end()
        kinds = {type(answer) for answer in client.answers}
        assert kinds - {Ended} == {Welcome, Opened, Published, Subscribed, Pong}
        # Whether the subscription comes to its own end before CLOSE ends it, which is not answered, is a matter of
        # time. Its end is `now`: behind both messages, which have come then.
        ended = [answer for answer in client.answers if isinstance(answer, Ended)]
        seqs = [message.seq for message in client.messages.get(9, [])]
        assert (ended, seqs) == ([Ended(9, 2)], [0, 1]) or (not ended and seqs in ([], [0], [0, 1]))
        assert isinstance(client.answers[0], Welcome)
        assert Published(1, ((0, 2, 0),)) in client.answers


def test_what_was_asked_is_answered_before_a_close(client: BinaryPeer) -> None:
    requests = [client.send_publish(f"closing{number % 9}", [b"x"] * 3) for number in range(200)]
    client.say(Ping(), Close(), Ping())
    client.read_to_end()
    assert sorted(each.request for each in client.answers if isinstance(each, Published)) == requests
    assert sum(isinstance(each, Pong) for each in client.answers) == 1, "what comes after CLOSE is not heard"


def test_who_stops_sending_still_gets_its_answers(client: BinaryPeer) -> None:
    client.subscribe(1, "halfclosed")
    requests = [client.send_publish("halfclosed", [b"%d" % number]) for number in range(50)]
    client.sock.shutdown(socket.SHUT_WR)
    client.read_until(lambda: sum(isinstance(each, Published) for each in client.answers) == len(requests))
    client.read_to_end()


def test_pings(client: BinaryPeer) -> None:
    client.say(*[Ping()] * 1_000)
    client.read_until(lambda: client.answers == [*[client.welcome], *[Pong()] * 1_000])
    client.say(Pong())
    client.settle()
    assert len(client.answers) == 1_002, "an answer that nobody asked for is passed over"


# --- publishing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(WORKERS))
@pytest.mark.parametrize("owner", range(WORKERS))
def test_a_publish_is_answered_with_its_place(node: Node, slot: int, owner: int) -> None:
    name = name_of(owner, WORKERS, f"place{slot}-")
    with peer_of(node, slot) as client:
        assert client.publish(name, [b"a"]).results == ((0, 1, 0),)
        assert client.publish(name, [b"b", b"c", b"d"]).results == ((1, 3, 0),)
        requests = [client.send_publish(name, [b"%d" % number] * (number % 5 + 1)) for number in range(300)]
        client.read_until(lambda: len(client.answers) == 1 + 2 + len(requests))
        answers = {each.request: each.results for each in client.answers if isinstance(each, Published)}
        seq = 4
        for number, request in enumerate(requests):
            assert answers[request] == ((seq, number % 5 + 1, 0),), "publishes to one stream keep their order"
            seq += number % 5 + 1
        client.subscribe(1, name, end=("now", 0))
        client.wait_ended(1)
        expected = [b"a", b"b", b"c", b"d", *(b"%d" % n for n in range(300) for _ in range(n % 5 + 1))]
        assert client.payloads(1) == expected


def test_one_request_for_several_streams(node: Node) -> None:
    """The same messages to each, with any owner, and the results in the order of the request."""
    names = [*names_of(0, WORKERS, 3, "several"), *names_of(1, WORKERS, 3, "several")]
    first_seqs = [0] * len(names)
    for slot in range(WORKERS):
        with peer_of(node, slot) as client:
            client.publish(names[slot + 2], [b"before"])
            first_seqs[slot + 2] += 1
            answer = client.publish(names, [b"x%d" % slot, b"y"])
            assert answer.results == tuple((seq, 2, 0) for seq in first_seqs)
            first_seqs = [seq + 2 for seq in first_seqs]
    with peer(node) as reader:
        for number, name in enumerate(names):
            reader.subscribe(number, name, end=("now", 0))
            reader.wait_ended(number)
        assert reader.payloads(0) == reader.payloads(5) == [b"x0", b"y", b"x1", b"y"]
        assert reader.payloads(2) == [b"before", b"x0", b"y", b"x1", b"y"]
        assert reader.payloads(3) == [b"x0", b"y", b"before", b"x1", b"y"]


def test_a_stream_named_twice_gets_the_messages_twice(client: BinaryPeer) -> None:
    results = client.publish(["twice", "once", "twice"], [b"a", b"b"]).results
    assert results[1] == (0, 2, 0)
    assert sorted(seq for seq, _count, _subscribers in (results[0], results[2])) == [0, 2]


@pytest.mark.parametrize("owner", range(WORKERS))
def test_without_acknowledgement_only_errors_are_told(node: Node, owner: int) -> None:
    name = name_of(owner, WORKERS, "silent")
    with peer_of(node, 0) as client:
        for number in range(100):
            client.send_publish(name, [b"%d" % number], Ack.NONE)
        client.settle()
        assert [type(each) for each in client.answers] == [Welcome, Pong]
        client.subscribe(1, name, end=("now", 0))
        client.wait_ended(1)
        assert client.payloads(1) == [b"%d" % number for number in range(100)]
        with node.client() as admin:
            admin.ask(f"unmaster {name}")
        request = client.send_publish(name, [b"refused"], Ack.NONE)
        refusal = client.answer_to(request)
        assert isinstance(refusal, Failed)
        assert (refusal.code, refusal.op, refusal.id, refusal.fatal) == ("disabled", 5, request, False)


@pytest.mark.parametrize("slot", range(WORKERS))
@pytest.mark.parametrize("durability", ["always", "interval", "async"])
def test_what_is_acknowledged_as_synced_is_on_the_disk(node: Node, durability: str, slot: int) -> None:
    for owner in range(WORKERS):
        name = name_of(owner, WORKERS, f"{durability}{slot}-")
        with peer_of(node, slot) as client:
            for number in range(5):
                client.publish(name, [b"plain"])
                ((seq, count, _subscribers),) = client.publish(name, [b"%d" % number] * 3, Ack.SYNCED).results
                assert synced_seq(node, name) >= seq + count
            requests = [client.send_publish(name, [b"x"], Ack.SYNCED) for _ in range(50)]
            for request in requests:
                assert isinstance(client.answer_to(request), Published)
            assert synced_seq(node, name) == 5 * 4 + 50


def test_where_durability_is_always_appended_is_synced(node: Node, client: BinaryPeer) -> None:
    for owner in range(WORKERS):
        name = name_of(owner, WORKERS, "always-appended")
        for number in range(5):
            client.publish(name, [b"x"], Ack.APPENDED)
            assert synced_seq(node, name) == number + 1


def synced_seq(node: Node, name: str) -> int:
    with node.client() as admin:
        table = {row["field"]: row["value"] for row in rows(admin.ask_table(f"stat {name}"))}
        return int(table["synced_seq"])


def test_some_streams_of_a_request_refuse(node: Node) -> None:
    names = [*names_of(0, WORKERS, 2, "partly"), *names_of(1, WORKERS, 2, "partly")]
    with peer_of(node, 0) as client, node.client() as admin:
        client.publish(names, [b"first"])
        assert admin.ask(f"unmaster {names[1]}").startswith("ok")
        assert admin.ask(f"unmaster {names[2]}").startswith("ok")
        request = client.send_publish(names, [b"a", b"b"])
        answer = client.answer_to(request)
        assert isinstance(answer, Failed) and answer.results is not None
        assert (answer.code, answer.op, answer.id, answer.fatal) == ("disabled", 5, request, False)
        assert [row[:2] if not row[3] else row[3] for row in answer.results] == [(1, 2), "disabled", "disabled", (1, 2)]
        assert all((row[3] == "") == (row[4] == "") for row in answer.results)
        client.subscribe(1, names[1], end=("now", 0))
        client.wait_ended(1)
        assert client.payloads(1) == [b"first"], "nothing of a refused publish is in the log"


def test_headers_go_where_the_message_goes(node: Node, client: BinaryPeer) -> None:
    """A binary subscriber gets the metadata as it was published; a line has only room for the payload."""
    metadata = msgpack.packb({"h": {"colour": "blau", "raw": b"\x00\xff"}, "k": b"key"})
    client.publish("headers", [b"with", b""], metadata=metadata)
    client.publish("headers", [b"without"])
    client.subscribe(1, "headers", end=("now", 0))
    client.wait_ended(1)
    assert [(each.metadata, each.payload) for each in client.messages[1]] == [
        (metadata, b"with"), (metadata, b""), (b"", b"without"),
    ]  # fmt: skip
    with node.client() as line:
        line.send("sub headers 0 wait")
        assert [message.payload for message in line.read_messages(3)] == [b"with", b"", b"without"]


def test_a_publisher_learns_how_many_subscribers_the_node_has(node: Node) -> None:
    """Those of the stream, of both protocols, on every worker; gone ones are not counted."""
    name = name_of(0, WORKERS, "audience")
    publishers = [peer_of(node, slot) for slot in range(WORKERS)]
    binary = [peer_of(node, slot) for slot in range(WORKERS)]
    lines = [node.client_of(slot) for slot in range(WORKERS)]

    def told() -> list[int]:
        return [each.publish([name, "elsewhere"], [b"x"]).results[0][2] for each in publishers]

    assert told() == [0, 0]
    for client in binary:
        client.subscribe(1, name)
        client.subscribe(2, name, FROM_NEW)
    wait_for(lambda: told() == [4, 4], "two subscriptions on each worker are counted")
    for line in lines:
        assert line.ask(f"sub {name} new wait").startswith("ok")
    wait_for(lambda: told() == [6, 6], "so are those of lines")
    binary[1].close()
    wait_for(lambda: told() == [4, 4], "those of a connection that is gone are not")
    lines[0].send(f"unsub {name}")
    wait_for(lambda: told() == [3, 3], "nor is one that was given up")
    for client in (*publishers, *binary):
        client.close()
    for line in lines:
        line.close()


# --- both protocols ---------------------------------------------------------------------------------------------------

AWKWARD = [b"", b"\r\n", b"a\nb", b"\0", bytes(range(256)), b"msg x 0 0 0 |", "Grüße".encode(), b"x" * 70_000]


@pytest.mark.parametrize("owner", range(WORKERS))
def test_each_protocol_sees_what_the_other_publishes(node: Node, owner: int) -> None:
    name = name_of(owner, WORKERS, "both")
    binary = [peer_of(node, slot) for slot in range(WORKERS)]
    lines = [node.client_of(slot) for slot in range(WORKERS)]
    for client in binary:
        client.subscribe(1, name)
    for line in lines:
        line.send(f"sub {name} 0 wait", "ack on")
        line.read_answers(2)
    expected: list[bytes] = []
    for number, (client, line) in enumerate(product(binary, lines)):
        client.publish(name, [b"binary %d" % number, *AWKWARD])
        line.ask(f"pub {name} |line {number}")
        expected += [b"binary %d" % number, *AWKWARD, b"line %d" % number]
    for client in binary:
        client.read_messages(1, len(expected))
        assert client.payloads(1) == expected
        assert client.seqs(1) == list(range(len(expected)))
        stamps = [message.timestamp_us for message in client.messages[1]]
        assert stamps == sorted(stamps)
    for line in lines:
        line.read_messages(len(expected))
        assert [message.payload for message in line.messages] == expected
        assert [message.timestamp_us for message in line.messages] == stamps
    for client in binary:
        client.close()
    for line in lines:
        line.close()


def test_messages_up_to_the_limit(node: Node, client: BinaryPeer) -> None:
    """Larger than a chunk, larger than a read; the metadata counts."""
    most = 8 << 20
    metadata = msgpack.packb({"h": {"x": "y" * 1_000}})
    payloads = [b"a" * most, b"", b"b" * (65_536 - 32), b"c" * (65_536 - 31), b"d", b"e" * (most - len(metadata))]
    for payload in payloads[:-1]:
        client.publish("large", [payload])
    client.publish("large", payloads[-1:], metadata=metadata)
    for slot in range(WORKERS):
        with peer_of(node, slot) as reader:
            reader.subscribe(1, "large")
            reader.read_messages(1, len(payloads))
            assert reader.payloads(1) == payloads
            assert all(chunk.nbytes <= 4 * 65_536 or chunk.messages == 1 for chunk in reader.chunks)
    for payload, head in ((b"x" * (most + 1), b""), (b"x" * most, metadata)):
        answer = client.answer_to(client.send_publish("large", [b"fits", payload], metadata=head))
        assert isinstance(answer, Failed) and (answer.code, answer.fatal) == ("size", False)
    assert client.publish("large", [b"next"]).results[0][0] == len(payloads), "nothing of a refused one is logged"


def test_many_streams_on_one_connection(client: BinaryPeer) -> None:
    names = [f"wide{number}" for number in range(500)]
    for number, name in enumerate(names):
        client.say(Subscribe(number, name.encode(), FROM_START, wait=True))
    client.publish(names, [b"to all"])
    for name in names:
        client.send_publish(name, [name.encode()])
    for number, name in enumerate(names):
        client.read_messages(number, 2)
        assert client.payloads(number) == [b"to all", name.encode()]
    assert not client.errors()


# --- a stop -----------------------------------------------------------------------------------------------------------


def test_a_node_that_stops_says_so(tmp_path: Path) -> None:
    """Earlier publishes are answered, then comes the reason, then the end."""
    with running(tmp_path / "data", workers=WORKERS) as node:
        clients = [peer_of(node, slot) for slot in range(WORKERS)]
        for client in clients:
            client.subscribe(1, "stopping")
            requests = [client.send_publish(f"stopping{number % 5}", [b"x"]) for number in range(200)]
            client.answer_to(requests[0])
        assert node.process is not None
        node.process.terminate()
        for client in clients:
            client.read_to_end()
            assert sum(isinstance(each, Published) for each in client.answers) == 200
            (error,) = client.errors()
            assert (error.code, error.fatal, error.op) == ("closing", True, 0) and client.answers[-1] is error
            client.close()
