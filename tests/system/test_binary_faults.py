"""Misbehaving binary peers on a real node: each error and its code, which connections survive; the bounds.

For all their input, no worker ends and memory stays flat.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest

from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.messages import (
    CONTROL_BODY_MAX_BYTES,
    PUBLISH_HEAD,
    Ack,
    Close,
    Failed,
    Hello,
    Op,
    Open,
    Ping,
    Pong,
    Published,
    Subscribe,
    Unsubscribe,
    Welcome,
    pack,
    pack_publish,
)
from tailrace.protocol.places import FROM_NEW
from tailrace.shard.frame import HEADER, pack_frame
from tests.system.binary_peer import FROM_START, HELLO, BinaryPeer, peer, peer_of
from tests.system.networks import in_namespace
from tests.system.node import PATIENCE_S, LineClient, Node, running, wait_for
from tests.system.streams import lives, name_of, names_of, rss_bytes

pytestmark = pytest.mark.system

WORKERS = 2
MIB = 1 << 20
MARGIN_BYTES = 6 * MIB
MAX_MESSAGE_BYTES = 100_000
CONFIG = f"""
[node]
affinity = false
[limits]
max_line_bytes = {2 * MAX_MESSAGE_BYTES}
max_message_bytes = {MAX_MESSAGE_BYTES}
max_envelope_bytes = {MIB}
max_handles = 20
max_subscriptions = 3
max_streams_connection = 16
max_partial_bytes = 4194304
chunk_bytes = 65536
chunk_cache_bytes = 1048576
[timing]
heartbeat_s = 600
"""
SEED_VARIABLE = "TAILRACE_TEST_SEED"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("faults") / "data", workers=WORKERS, config=CONFIG) as node:
        yield node


@pytest.fixture(autouse=True)
def unharmed(node: Node) -> Iterator[None]:
    """After each test the same workers serve, and have given every connection back."""
    before = lives(node)
    yield
    wait_for(lambda: connections(node) <= 1, "the connections are gone")
    assert lives(node) == before, "a worker has ended"
    for slot in range(WORKERS):
        with peer_of(node, slot) as client:
            name = name_of(slot, WORKERS, "after")
            client.publish(name, [b"x"])
            client.subscribe(1, name)
            assert client.read_messages(1, 1)[0].payload == b"x"


@pytest.fixture
def client(node: Node) -> Iterator[BinaryPeer]:
    with peer(node) as client:
        yield client


def connections(node: Node) -> int:
    return sum(int(row["connections"]) for row in node.workers())


def seed() -> int:
    """A new one each time; printed, so that a failure shows it, and taken back from the environment."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen


# --- every error ------------------------------------------------------------------------------------------------------


def envelope(opcode: int, fields: object) -> bytes:
    return pack_envelope(opcode, msgpack.packb(fields))


def publish_body(request: int, ack: int, replicas: int, handles: list[int], frames: bytes, streams: int = -1) -> bytes:
    """A PUBLISH of any parts; `streams` as given, by default as many as there are handles."""
    head = PUBLISH_HEAD.pack(request, ack, replicas, len(handles) if streams < 0 else streams)
    return pack_envelope(Op.PUBLISH, head + struct.pack(f"<{len(handles)}I", *handles) + frames)


def frame(length: int, flags: int = 0, metadata_bytes: int = 0, rest: bytes = b"") -> bytes:
    return HEADER.pack(length, 0, 0, 0, 0, flags, metadata_bytes) + rest


GOOD = pack_frame(b"payload")
TOO_LONG = pack_frame(b"x" * (MAX_MESSAGE_BYTES + 1))
# The bytes sent after HELLO and OPEN 1 and SUBSCRIBE 1, and (code, op, id) of the error. The connection lives on.
SURVIVED: dict[str, tuple[bytes, tuple[str, int, int]]] = {
    "opcode 0": (pack_envelope(0), ("protocol", 0, 0)),
    "opcode 200": (pack_envelope(200, b"whatever"), ("protocol", 200, 0)),
    "a second HELLO": (pack(HELLO), ("protocol", Op.HELLO, 0)),
    "WELCOME": (envelope(Op.WELCOME, {}), ("protocol", Op.WELCOME, 0)),
    "OPENED": (envelope(Op.OPENED, {"id": 1}), ("protocol", Op.OPENED, 0)),
    "PUBLISHED": (pack_envelope(Op.PUBLISHED, bytes(20)), ("protocol", Op.PUBLISHED, 0)),
    "SUBSCRIBED": (envelope(Op.SUBSCRIBED, {"id": 1}), ("protocol", Op.SUBSCRIBED, 0)),
    "ERROR": (pack(Failed("usage", "you")), ("protocol", Op.ERROR, 0)),
    "CHUNK": (pack_envelope(Op.CHUNK, bytes(36)), ("protocol", Op.CHUNK, 0)),
    "ENDED": (envelope(Op.ENDED, {"id": 1}), ("protocol", Op.ENDED, 0)),
    "OPEN of no map": (pack_envelope(Op.OPEN, b"\x93\x01\x02\x03"), ("usage", Op.OPEN, 0)),
    "OPEN of nothing": (pack_envelope(Op.OPEN), ("usage", Op.OPEN, 0)),
    "OPEN of no msgpack": (pack_envelope(Op.OPEN, b"\xc1" * 9), ("usage", Op.OPEN, 0)),
    "OPEN without a stream": (envelope(Op.OPEN, {"id": 9}), ("usage", Op.OPEN, 9)),
    "OPEN with an id that is none": (envelope(Op.OPEN, {"id": 1 << 32, "stream": "x"}), ("usage", Op.OPEN, 0)),
    "OPEN with a text for an id": (envelope(Op.OPEN, {"id": "9", "stream": "x"}), ("usage", Op.OPEN, 0)),
    "OPEN of a handle in use": (pack(Open(1, b"other")), ("usage", Op.OPEN, 1)),
    "OPEN of a name that is none": (envelope(Op.OPEN, {"id": 9, "stream": "a b"}), ("name", Op.OPEN, 9)),
    "OPEN of no name": (envelope(Op.OPEN, {"id": 9, "stream": ""}), ("name", Op.OPEN, 9)),
    "OPEN of the broker's own": (envelope(Op.OPEN, {"id": 9, "stream": "$x"}), ("reserved", Op.OPEN, 9)),
    "OPEN of a name of 201 bytes": (envelope(Op.OPEN, {"id": 9, "stream": "x" * 201}), ("name", Op.OPEN, 9)),
    "PUBLISH of nothing": (pack_envelope(Op.PUBLISH), ("usage", Op.PUBLISH, 0)),
    "PUBLISH of half a head": (pack_envelope(Op.PUBLISH, bytes(7)), ("usage", Op.PUBLISH, 0)),
    "PUBLISH to nobody": (publish_body(5, 1, 0, [], GOOD), ("usage", Op.PUBLISH, 5)),
    "PUBLISH without a message": (publish_body(5, 1, 0, [1], b""), ("usage", Op.PUBLISH, 5)),
    "PUBLISH to more than it names": (publish_body(5, 1, 0, [1], GOOD, 500), ("usage", Op.PUBLISH, 5)),
    "PUBLISH to an unknown handle": (publish_body(5, 1, 0, [2], GOOD), ("usage", Op.PUBLISH, 5)),
    "PUBLISH to one that is unknown": (publish_body(5, 1, 0, [1, 2, 1], GOOD), ("usage", Op.PUBLISH, 5)),
    "PUBLISH with another ack": (publish_body(5, 4, 0, [1], GOOD), ("usage", Op.PUBLISH, 5)),
    "PUBLISH appended and replicas": (publish_body(5, 1, 1, [1], GOOD), ("usage", Op.PUBLISH, 5)),
    "PUBLISH of a message too large": (publish_body(5, 1, 0, [1], GOOD + TOO_LONG), ("size", Op.PUBLISH, 5)),
    "PUBLISH with a byte behind": (publish_body(5, 1, 0, [1], GOOD + b"x"), ("usage", Op.PUBLISH, 5)),
    "PUBLISH with half a message": (publish_body(5, 1, 0, [1], GOOD + GOOD[:-1]), ("usage", Op.PUBLISH, 5)),
    "PUBLISH of length 0": (publish_body(5, 1, 0, [1], GOOD + frame(0)), ("usage", Op.PUBLISH, 5)),
    "PUBLISH of length 31": (publish_body(5, 1, 0, [1], frame(31)), ("usage", Op.PUBLISH, 5)),
    "PUBLISH of length 4 GiB": (publish_body(5, 1, 0, [1], frame((1 << 32) - 1)), ("usage", Op.PUBLISH, 5)),
    "PUBLISH of metadata beyond it": (publish_body(5, 1, 0, [1], frame(32, 0, 1)), ("usage", Op.PUBLISH, 5)),
    "PUBLISH of metadata no map": (publish_body(5, 1, 0, [1], frame(33, 0, 1, b"\x01")), ("usage", Op.PUBLISH, 5)),
    "PUBLISH with flags": (publish_body(5, 1, 0, [1], frame(32, 1)), ("usage", Op.PUBLISH, 5)),
    "SUBSCRIBE of nothing": (envelope(Op.SUBSCRIBE, {}), ("usage", Op.SUBSCRIBE, 0)),
    "SUBSCRIBE without a place": (envelope(Op.SUBSCRIBE, {"id": 8, "stream": "s"}), ("usage", Op.SUBSCRIBE, 8)),
    "SUBSCRIBE from no place": (
        envelope(Op.SUBSCRIBE, {"id": 8, "stream": "s", "from": ["yesterday", 0]}),
        ("from", Op.SUBSCRIBE, 8),
    ),
    "SUBSCRIBE from below 0": (
        envelope(Op.SUBSCRIBE, {"id": 8, "stream": "s", "from": ["seq", -1]}),
        ("from", Op.SUBSCRIBE, 8),
    ),
    "SUBSCRIBE to no place": (
        envelope(Op.SUBSCRIBE, {"id": 8, "stream": "s", "from": ["seq", 0], "end": ["new", 0]}),
        ("from", Op.SUBSCRIBE, 8),
    ),
    "SUBSCRIBE with skip and a seq": (
        envelope(Op.SUBSCRIBE, {"id": 8, "stream": "s", "from": ["seq", 0], "skip": 1}),
        ("usage", Op.SUBSCRIBE, 8),
    ),
    "SUBSCRIBE with credit below 0": (
        envelope(Op.SUBSCRIBE, {"id": 8, "stream": "s", "from": ["seq", 0], "credit": -1}),
        ("usage", Op.SUBSCRIBE, 8),
    ),
    "SUBSCRIBE of an id in use": (pack(Subscribe(1, b"s", FROM_START, wait=True)), ("usage", Op.SUBSCRIBE, 1)),
    "UNSUBSCRIBE of nothing": (pack(Unsubscribe(44)), ("unsubscribed", Op.UNSUBSCRIBE, 44)),
    "CREDIT of a wrong size": (pack_envelope(Op.CREDIT, bytes(11)), ("usage", Op.CREDIT, 0)),
    "CREDIT beyond all numbers": (pack_envelope(Op.CREDIT, b"\xff" * 12), ("usage", Op.CREDIT, 0)),
    "PING with a body": (pack_envelope(Op.PING, b"x"), ("usage", Op.PING, 0)),
    "CLOSE with a body": (pack_envelope(Op.CLOSE, b"x"), ("usage", Op.CLOSE, 0)),
}


def test_errors_that_a_connection_survives(node: Node) -> None:
    """Each alone, and then all of them in one go on one connection, in pieces; none logs a message."""
    with peer(node) as client:
        client.say(Open(1, b"errors"))
        client.subscribe(1, "errors")
        for what, (said, expected) in SURVIVED.items():
            before = len(client.answers)
            client.send_raw(said)
            error = client.next_answer(Failed, before)
            assert (error.code, error.op, error.id) == expected, f"{what}: {error}"
            assert not error.fatal and error.text, what
            client.ask(Ping(), Pong)
        client.send_raw(publish_body(6, 1, 0, [1], GOOD))
        answer = client.answer_to(6)
        assert isinstance(answer, Published) and answer.results == ((0, 1, 1),), "nothing of the others was logged"
    with peer(node) as client:
        client.say(Open(1, b"errors"))
        client.subscribe(1, "errors", FROM_NEW)
        said = b"".join(said for said, _expected in SURVIVED.values())
        for start in range(0, len(said), 997):
            client.send_raw(said[start : start + 997])
        client.read_until(lambda: len(client.errors()) == len(SURVIVED))
        assert sorted((each.code, each.op, each.id) for each in client.errors()) == sorted(
            expected for _said, expected in SURVIVED.values()
        )


# The first message, or the first after HELLO, and the code of the error. The connection is closed after it.
FIRST: dict[str, tuple[bytes, str]] = {
    "another version": (pack(Hello(2, (), "")), "unsupported"),
    "no map": (pack_envelope(Op.HELLO, b"\x01"), "usage"),
    "nothing": (pack_envelope(Op.HELLO), "usage"),
    "no version": (envelope(Op.HELLO, {"features": [], "client": ""}), "usage"),
    "a great length": (b"\x01\xff\xff\xff\xff", "size"),
    "more than is taken": (pack_envelope(Op.HELLO, bytes(CONTROL_BODY_MAX_BYTES + 1)), "size"),
}
LATER: dict[str, tuple[bytes, str]] = {
    "a PUBLISH over the limit": (b"\x05" + struct.pack("<I", MIB), "size"),
    "a PUBLISH of 4 GiB": (b"\x05\xff\xff\xff\xff", "size"),
    "a SUBSCRIBE over the limit": (b"\x07" + struct.pack("<I", CONTROL_BODY_MAX_BYTES + 1), "size"),
    "an unknown opcode of 4 GiB": (b"\xee\xff\xff\xff\xff", "size"),
}


@pytest.mark.parametrize("said", [*FIRST, *LATER])
def test_fatal_errors_reach_the_peer_before_the_end(node: Node, said: str) -> None:
    """Also when it goes on sending without looking, for longer than anybody would read it."""
    data, code = FIRST[said] if said in FIRST else LATER[said]
    for more in (b"", b"\0" * 300_000):
        with BinaryPeer(node.port, hello=None) as client:
            before = 0
            if said in LATER:
                client.say(HELLO)
                requests = [client.send_publish("fatal", [b"x"]) for _ in range(20)]
                before = 1 + len(requests)
            client.send_raw(data)
            with contextlib.suppress(ConnectionError):
                client.send_raw(more)
            client.read_to_end()
            assert len(client.answers) == before + 1, "what came before it is answered"
            (error,) = client.errors()
            assert (error.code, error.fatal) == (code, True) and error.text


def test_a_first_byte_that_is_no_protocol(node: Node) -> None:
    for first in (0, 5, 11, 0x16, 0x1F):
        with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as sock:
            sock.sendall(bytes([first]) + bytes(50))
            heard = b""
            while data := sock.recv(4_096):
                heard += data
            assert heard, f"first byte {first}: a refusal comes before the end"


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_limits_are_told_and_held(node: Node) -> None:
    with peer(node) as client:
        assert client.welcome is not None
        assert client.welcome.limits == {
            "max_message_bytes": MAX_MESSAGE_BYTES, "max_envelope_bytes": MIB, "max_handles": 20,
            "max_subscriptions": 3,
        }  # fmt: skip


def test_handles(client: BinaryPeer) -> None:
    client.say(*(Open(number, b"handles") for number in range(25)))
    client.settle()
    errors = client.errors()
    assert [error.id for error in errors] == list(range(20, 25))
    assert {(error.code, error.op, error.fatal) for error in errors} == {("handles", Op.OPEN, False)}


@pytest.mark.parametrize("slot", range(WORKERS))
def test_subscriptions(node: Node, slot: int) -> None:
    """Counted as they are asked for, although some streams' owner is asked first."""
    with peer_of(node, slot) as client:
        client.say(*(Subscribe(number, b"limited%d" % number, FROM_NEW, wait=True) for number in range(5)))
        client.read_until(lambda: len(client.answers) == 6)
        errors = client.errors()
        assert {(error.code, error.op) for error in errors} == {("subscriptions", Op.SUBSCRIBE)}
        assert [error.id for error in errors] == [3, 4]
        client.say(Unsubscribe(1))
        client.wait_ended(1)
        client.subscribe(7, "limited7")


@pytest.mark.parametrize("slot", range(WORKERS))
def test_streams_of_a_connection(node: Node, slot: int) -> None:
    here, there = (names_of(owner, WORKERS, 30, f"made{slot}-") for owner in (slot, 1 - slot))
    with peer_of(node, slot) as client:
        client.say(Open(1, b"made"))
        for name in (*here[:8], *there[:8]):
            client.publish(name, [b"x"])
        for name in (here[9], there[9]):
            answer = client.ask(Subscribe(2, name.encode(), FROM_START), Failed)
            assert (answer.code, answer.op, answer.id) == ("unknown", Op.SUBSCRIBE, 2)
            request = client.send_publish(name, [b"x"])
            refusal = client.answer_to(request)
            assert isinstance(refusal, Failed) and refusal.code == "streams"
        client.publish(here[0], [b"those that are there go on"])


def test_envelopes_that_have_begun_are_bounded_over_all_connections(node: Node) -> None:
    """The one that exceeds the bound is notified and closed, and gives its memory back at once."""
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(peer(node)) for _ in range(20)]
        before = node.metric("tailrace_refused_commands_total")
        for client in clients:
            client.send_raw(b"\x05" + struct.pack("<I", MIB - 5) + bytes(600_000))
        # A worker that is busy may read all of some before it reads anything of others.
        wait_for(lambda: node.metric("tailrace_refused_commands_total") > before, "the bound is passed")
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.send_raw(bytes(MIB - 5 - 600_000))
                client.say(Close())
        for client in clients:
            client.read_to_end()
        refused = [client for client in clients if client.errors()[-1].code == "overloaded"]
        assert 1 <= len(refused) <= len(clients) - 6
        assert all(client.errors()[-1].fatal for client in refused)
        assert {client.errors()[-1].code for client in clients if client not in refused} == {"usage"}
    wait_for(lambda: node.metric("tailrace_partial_request_bytes") == 0, "nothing is held any more")


def test_connections_over_the_limit_hear_so_in_their_protocol(tmp_path: Path) -> None:
    config = "[limits]\nmax_connections = 5\n"
    with running(tmp_path / "data", workers=WORKERS, config=config) as node, contextlib.ExitStack() as held:
        clients = [held.enter_context(peer(node)) for _ in range(5)]
        with BinaryPeer(node.port, hello=None) as late:
            late.say(HELLO)
            late.read_to_end()
            error = late.answers[-1]
            assert isinstance(error, Failed) and (error.code, error.fatal) == ("connections", True)
        clients[0].close()
        wait_for(lambda: can_connect(node), "there is room again")


def can_connect(node: Node) -> bool:
    with BinaryPeer(node.port, hello=None) as client:
        client.say(HELLO, Close())
        client.read_to_end()
        return isinstance(client.answers[0], Welcome)


# --- garbage ----------------------------------------------------------------------------------------------------------


def stays_flat(node: Node, play: Callable[[int], None], rounds: int = 2) -> None:
    """Play the rounds; from the end of the first on, memory stays."""
    pids = node.worker_pids()
    play(0)
    wait_for(lambda: connections(node) <= 1, "the connections are gone")
    before_bytes = rss_bytes(pids)
    for number in range(1, rounds):
        play(number)
        wait_for(lambda: connections(node) <= 1, "the connections are gone")
    grown_bytes = rss_bytes(pids) - before_bytes
    assert grown_bytes < MARGIN_BYTES, f"{grown_bytes / MIB:.1f} MiB more after another round"


def throw(node: Node, data: bytes, pieces: random.Random) -> None:
    """Send all, in random pieces, read the answers for a moment, and reset."""
    with (
        socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as sock,
        contextlib.suppress(ConnectionError),
    ):
        view = memoryview(data)
        while view:
            size = pieces.randrange(1, len(view) + 1)
            sock.sendall(view[:size])
            view = view[size:]
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            while sock.recv(1 << 18):
                pass
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


SAYINGS = [
    *(pack(Open(number, b"fuzz%d" % number)) for number in range(3)),
    pack_publish(1, Ack.APPENDED, [0], GOOD) + GOOD,
    pack_publish(2, Ack.SYNCED, [0, 1, 2], GOOD * 3) + GOOD * 3,
    pack_publish(3, Ack.NONE, [1], GOOD) + GOOD,
    pack(Subscribe(1, b"fuzz0", FROM_START, credit=500, wait=True)),
    pack(Subscribe(2, b"fuzz1", FROM_NEW, wait=True)),
    pack(Subscribe(3, b"fuzz2", FROM_START, end=("now", 0), wait=True)),
    pack(Unsubscribe(1)),
    pack(Ping()),
    *(said for said, _expected in SURVIVED.values()),
]


def test_random_bytes_after_a_first_byte_of_this_protocol(node: Node) -> None:
    chance = random.Random(seed())

    def play(_number: int) -> None:
        for _ in range(100):
            hello = chance.choice((b"\x01", pack(HELLO)))
            throw(node, hello + chance.randbytes(chance.choice((1, 10, 1_000, 50_000))), chance)

    stays_flat(node, play)


@pytest.mark.thorough
def test_requests_with_flipped_bytes(node: Node) -> None:
    chance = random.Random(seed())

    def play(_number: int) -> None:
        for _ in range(100):
            data = bytearray(b"".join(chance.choices(SAYINGS, k=40)))
            for _flip in range(chance.randrange(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            throw(node, pack(HELLO) + bytes(data), chance)

    stays_flat(node, play)


def test_requests_that_are_cut_off(node: Node) -> None:
    """At every place within each; a peer that only stops sending receives the error about incomplete input."""
    chance = random.Random(seed())
    for said in SAYINGS[:12]:
        for length in range(1, min(len(said), 60), 5):
            throw(node, pack(HELLO) + said[:length], chance)
    for length in (1, 4, 5, 20):
        with peer(node) as client:
            client.send_raw(SAYINGS[3][:length])
            client.sock.shutdown(socket.SHUT_WR)
            client.read_to_end()
            (error,) = client.errors()
            assert error.code == "incomplete"


@pytest.mark.slow
def test_lengths_that_promise_more_than_comes(node: Node) -> None:
    """Memory is held for the bytes received, not for the length promised."""

    def play(_number: int) -> None:
        with contextlib.ExitStack() as held:
            clients = [held.enter_context(peer(node)) for _ in range(100)]
            before_bytes = rss_bytes(node.worker_pids())
            for client in clients:
                client.send_raw(b"\x05" + struct.pack("<I", MIB - 5) + bytes(100))
            with peer(node) as other:
                other.settle()
            assert rss_bytes(node.worker_pids()) - before_bytes < MARGIN_BYTES

    stays_flat(node, play)


def test_who_reads_no_answers_is_not_read_either(node: Node) -> None:
    def play(_number: int) -> None:
        with BinaryPeer(node.port, receive_buffer_bytes=16_384) as client:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
            client.sock.settimeout(0.5)
            asked = memoryview(pack(Unsubscribe(44)) * 2_000_000)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < len(asked):
                    sent += client.sock.send(asked[sent : sent + 60_000])
            assert sent < len(asked), "20 MB of requests for 200 MB of answers were read from one who reads nothing"
            with peer(node) as other:
                other.settle()
            client.sock.shutdown(socket.SHUT_WR)
            client.read_to_end()
            assert len(client.errors()) >= sent // len(pack(Unsubscribe(44)))

    stays_flat(node, play)


# --- the token --------------------------------------------------------------------------------------------------------


# In a network namespace of its own, loopback gets a second address that is not of 127.0.0.0/8.
WITH_TOKEN = """
import pathlib, subprocess, sys
sys.path.insert(0, {root!r})
from tests.system.node import running
from tests.system.test_binary_faults import check_token
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
with running(pathlib.Path({data!r}), "--host", "0.0.0.0", config={config!r}) as node:
    check_token(node, "192.0.2.1")
"""


@pytest.mark.thorough
def test_a_token_is_asked_of_other_machines(tmp_path: Path) -> None:
    config = '[listen]\ntoken = "open sesame"\n'
    root = str(Path(__file__).parents[2])
    done = in_namespace(WITH_TOKEN.format(root=root, data=str(tmp_path / "data"), config=config))
    assert done.returncode == 0, done.stdout + done.stderr


def check_token(node: Node, other: str) -> None:
    for token in (None, "", "open", "open sesame ", "Open sesame", "\u00fc"):
        with BinaryPeer(node.port, hello=None, host=other) as client:
            client.say(Hello(1, (), "", token), Open(1, b"x"), Ping())
            client.read_to_end()
            (error,) = client.answers
            assert isinstance(error, Failed), token
            assert (error.code, error.fatal) == ("denied", True)
            assert "sesame" not in error.text
    with BinaryPeer(node.port, hello=Hello(1, (), "", "open sesame"), host=other) as client:
        client.publish("x", [b"in"])
    with BinaryPeer(node.port) as client:
        client.publish("x", [b"from here"])
    with LineClient(node.port, other) as line:
        line.send("ping")
        line.read_to_end()
        assert [answer.split()[:2] for answer in line.answers] == [["err", "denied"]]
    with node.client() as line:
        assert line.ask("ping") == "ok pong"
    assert "sesame" not in node.log()
