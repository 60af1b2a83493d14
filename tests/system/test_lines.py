"""Commands, their answers and the answers' order, over real sockets and several workers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.system.node import LineClient, Node, rows, running, wait_for
from tests.system.streams import lives, name_of, names_of

pytestmark = pytest.mark.system

WORKERS = 4
STAY = "[node]\naffinity = false\n"  # connections stay with the worker that took them


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("lines") / "data", workers=WORKERS, config=STAY) as node:
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


@pytest.fixture
def client(node: Node) -> Iterator[LineClient]:
    with node.client() as client:
        yield client


BAD_LINES: list[tuple[bytes, str]] = [
    (b"frobnicate", "command"),
    (b"publish a |x", "command"),
    (b"\0", "command"),
    (b"\xc3\xa9", "command"),
    (b"|", "command"),
    (b"pub", "usage"),
    (b"pub x", "usage"),
    (b"pub |x", "usage"),
    (b"sub x", "usage"),
    (b"sub x 0 0 0 wait", "usage"),
    (b"sub x #1 3 wait", "usage"),
    (b"sub x 0 few wait", "usage"),
    (b"ack", "usage"),
    (b"ack maybe", "usage"),
    (b"ping now", "usage"),
    (b"close all", "usage"),
    (b"stat", "usage"),
    (b"slave 127.0.0.1 port x 0", "usage"),
    (b"slave 127.0.0.1 70000 x 0", "usage"),
    (b"slave not/a/host 5050 x 0", "usage"),
    (b"pub a b |x", "name"),
    (b"pub a\x01b |x", "name"),
    (b"pub \xfe\xfd |x", "name"),
    (b"pub " + b"n" * 201 + b" |x", "name"),
    (b"sub a\x7fb 0", "name"),
    (b"sub \xc3 0", "name"),
    (b"unsub a|b", "name"),
    (b"master a\x85b", "name"),
    (b"pub $sys |x", "reserved"),
    (b"sub $sys 0 wait", "reserved"),
    (b"master $sys", "reserved"),
    (b"sub x yesterday wait", "from"),
    (b"sub x -one wait", "from"),
    (b"sub x # wait", "from"),
    (b"sub x #-1 wait", "from"),
    (b"sub x 1e6 wait", "from"),
    (b"sub x 9223372036854775808 wait", "from"),
    (b"sub x " + b"9" * 3_000, "from"),
    (b"trim x new", "from"),
    (b"unsub nothing", "unsubscribed"),
    (b"stat nothing", "unknown"),
    (b"trim nothing #0", "unknown"),
    (b"unmaster nothing", "unknown"),
    (b"unslave x", "unknown"),
    (b"promote x", "unknown"),
]


@pytest.mark.parametrize(("line", "code"), BAD_LINES, ids=[repr(line[:30]) for line, _ in BAD_LINES])
def test_a_bad_line_has_its_code_and_the_connection_lives(client: LineClient, line: bytes, code: str) -> None:
    client.send_raw(b"ping\r\n" + line + b"\r\n" + b"ping\r\n")
    client.read_until(lambda: len(client.answers) == 3)
    assert [client.answers[0], client.answers[2]] == ["ok pong", "ok pong"]
    assert client.answers[1].split(" ")[:2] == ["err", code]
    assert len(client.answers[1].split(" ", 2)[2]) > 10, "an error says what was wrong"


def test_bad_lines_make_no_streams(node: Node, client: LineClient) -> None:
    names = {row["stream"] for row in rows(client.ask_table("streams"))}
    assert not names & {"x", "a", "nothing"}


def test_commands_are_taken_in_any_case_and_with_any_blanks(client: LineClient) -> None:
    client.send_raw(b"PING\r\nPing\n  pInG \t \r\n\r\n\n   \r\nACK ON\r\n")
    client.send_raw(b"PuB   cases\t|x\r\nPUB cases|y\r\nSub cases #0\r\n")
    assert client.read_messages(2)[0].payload == b"x"
    assert client.answers == ["ok pong"] * 3 + ["ok ack on", "ok pub cases 0", "ok pub cases 1", "ok sub cases 0"]


def test_payloads_come_back_whatever_is_in_them(client: LineClient) -> None:
    payloads = [b"", b" ", b"|", b"a|b", b"\0" * 9, b"cr at the end\r", b"\xff\xff", "å→".encode()]
    payloads.append(bytes(set(range(256)) - {10}))
    client.send(*(b"pub payloads |" + payload for payload in payloads), "sub payloads 0 wait")
    assert [message.payload for message in client.read_messages(len(payloads))] == payloads
    assert [message.seq for message in client.messages] == list(range(len(payloads)))


@pytest.mark.parametrize("slot", range(WORKERS))
def test_answers_keep_the_order_of_their_commands(node: Node, slot: int) -> None:
    """With `ack on` over streams of all owners, mixed with errors and other commands."""
    names = [name_of(owner, WORKERS, f"order{slot}-") for owner in range(WORKERS)]
    expected = ["ok ack on"]
    lines = ["ack on"]
    for round_number in range(200):
        for name in names:
            lines.append(f"pub {name} |{round_number}")
            expected.append(f"ok pub {name} {round_number}")
        if round_number % 10 == 0:
            lines += ["ping", "nonsense", f"unsub {names[0]}", "pub $no |x"]
            expected += ["ok pong", "err command", "err unsubscribed", "err reserved"]
        if round_number % 50 == 0:
            lines.append(f"sub {names[3]} new wait")
            expected.append(f"ok sub {names[3]} {round_number + 1}")
            lines.append(f"unsub {names[3]}")
            expected.append(f"ok unsub {names[3]}")
    with node.client_of(slot) as client:
        client.send(*lines)
        client.read_until(lambda: len(client.answers) >= len(expected))
        assert [shortened(answer) for answer in client.answers] == expected


def shortened(answer: str) -> str:
    return " ".join(answer.split(" ")[:2]) if answer.startswith("err ") else answer


def test_a_ping_comes_after_the_errors_of_the_publishes_before_it(node: Node) -> None:
    """The barrier of those that do not ask for acknowledgements, with any owner of the stream."""
    names = [name_of(owner, WORKERS, "refusing") for owner in range(WORKERS)]
    with node.client() as client:
        for name in names:
            assert client.ask(f"master {name}") == f"ok master {name} 1"
            assert client.ask(f"unmaster {name}") == f"ok unmaster {name} 1"
        client.answers.clear()
        client.send(*(f"pub {name} |x" for name in names for _ in range(3)), "ping")
        client.read_until(lambda: "ok pong" in client.answers)
        assert client.answers[-1] == "ok pong"
        errors = client.answers[:-1]
        assert {error.split(" ")[2].rstrip(":") for error in errors} == set(names)
        assert all(error.startswith("err disabled ") for error in errors)
        assert client.ask("ping") == "ok pong", "nothing comes after the barrier"


# --- the end of a connection ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(WORKERS))
def test_half_close_gets_every_answer(node: Node, slot: int) -> None:
    names = [name_of(owner, WORKERS, f"half{slot}-") for owner in range(WORKERS)]
    with node.client_of(slot) as client:
        client.send("ack on", *(f"pub {name} |{i}" for i in range(1_000) for name in names), f"stat {names[0]}")
        client.sock.shutdown(socket.SHUT_WR)
        client.read_to_end()
        assert client.answers[0] == "ok ack on"
        assert client.answers[1:4_001] == [f"ok pub {name} {i}" for i in range(1_000) for name in names]
        assert client.answers[4_001] == "ok field value"
        assert client.answers[-1] == "."


@pytest.mark.parametrize("slot", range(WORKERS))
def test_half_close_within_a_line_says_that_the_line_was_lost(node: Node, slot: int) -> None:
    name = name_of((slot + 1) % WORKERS, WORKERS, f"cut{slot}-")
    with node.client_of(slot) as client:
        client.send_raw(b"ack on\r\npub %s |whole\r\npub %s |half" % (name.encode(), name.encode()))
        client.sock.shutdown(socket.SHUT_WR)
        client.read_to_end()
        assert client.answers[:2] == ["ok ack on", f"ok pub {name} 0"]
        assert client.answers[2].startswith("err incomplete ")
        assert len(client.answers) == 3
    with node.client() as reader:
        reader.send(f"sub {name} 0 wait")
        assert [message.payload for message in reader.read_messages(1)] == [b"whole"]
        assert reader.ask("ping") == "ok pong"
        assert len(reader.messages) == 1


def test_half_close_keeps_a_subscription(node: Node) -> None:
    with node.client() as reader, node.client() as publisher:
        reader.send("sub kept 0 wait")
        reader.read_until(lambda: len(reader.answers) == 1)
        reader.sock.shutdown(socket.SHUT_WR)
        publisher.send(*(f"pub kept |{i}" for i in range(100)))
        assert [message.seq for message in reader.read_messages(100)] == list(range(100))


@pytest.mark.parametrize("word", ["quit", "exit", "bye", "close"])
def test_a_session_ends_behind_the_answers_to_everything_before_it(node: Node, word: str) -> None:
    """As in Redis, SMTP and FTP: the session ends, the node goes on."""
    with node.client() as client:
        names = [f"{word}ing{i}" for i in range(100)]
        client.send("ack on", *(f"pub {name} |x" for name in names), word, "ping", f"pub {names[0]} |late")
        client.read_to_end()
        assert client.answers == ["ok ack on", *(f"ok pub {name} 0" for name in names), f"ok {word}"]
    with node.client() as client:
        assert client.ask("ping") == "ok pong"


def test_close_in_the_middle_of_a_backlog_ends_the_connection(node: Node) -> None:
    """A chunk has begun and cannot be cut; what follows it is the answer, then the end."""
    with node.client() as client:
        payload = b"x" * 1_000
        client.send(*(b"pub backlog |" + payload for _ in range(20_000)))
        assert client.ask("ping") == "ok pong"
        client.send("sub backlog 0 wait")
        wait_for(lambda: is_blocked(node, client), "the socket is full in the middle of a chunk")
        client.send("close")
        client.read_to_end()
        assert client.ended
        assert client.answers[-1] == "ok close"
        assert [message.seq for message in client.messages] == list(range(len(client.messages)))


def is_blocked(node: Node, client: LineClient) -> bool:
    """Whether a subscriber that reads nothing is sent nothing more for now: its lag stays."""
    lags = {conn(node, client)["lag_messages"] for _ in range(5)}
    return len(lags) == 1 and lags != {"0"}


def conn(node: Node, client: LineClient) -> dict[str, str]:
    """The row that `conns` has of a client."""
    me = "{}:{}".format(*client.sock.getsockname())
    with node.client() as admin:
        return next(row for row in rows(admin.ask_table("conns")) if row["peer"] == me)


@pytest.mark.parametrize(
    ("first", "refusal"),
    [
        (b"\x02abc", b"err protocol "),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x15\x03\x03\x00\x02\x02\x28"),
        (b"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x00", b"\x20\x02\x00\x01"),
    ],
    ids=["unknown", "TLS", "MQTT 3.1"],
)
def test_other_protocols_are_refused_in_their_own_words(node: Node, first: bytes, refusal: bytes) -> None:
    with node.client() as client:
        client.send_raw(first)
        received = read_all(client.sock)
        assert received.startswith(refusal)


@pytest.mark.parametrize("first", [b"\x02", b"\x16\x03\x01"], ids=["unknown", "TLS"])
def test_the_reason_arrives_although_more_input_is_in_flight(node: Node, first: bytes) -> None:
    """Closing with unread input makes the kernel send a reset, which may overtake the answer."""
    for _ in range(10):
        with node.client() as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.send_raw(first + b"x" * (1 << 20))
            assert read_all(client.sock), "the connection was closed without a reason"


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while data := sock.recv(65_536):
        received += data
    return received


# --- administration ---------------------------------------------------------------------------------------------------


def test_tables_name_their_fields(node: Node, client: LineClient) -> None:
    for name in names_of(0, WORKERS, 2, "table") + names_of(3, WORKERS, 2, "table"):
        client.send(f"pub {name} |12345")
    assert client.ask("ping") == "ok pong"
    client.answers.clear()
    streams = rows(client.ask_table("streams table"))
    assert [row["stream"] for row in streams] == sorted(row["stream"] for row in streams)
    assert len(streams) == 4
    assert {(row["role"], row["epoch"]) for row in streams} == {("master", "1")}
    client.answers.clear()
    stat = {row["field"]: row["value"] for row in rows(client.ask_table(f"stat {streams[0]['stream']}"))}
    assert (stat["first_seq"], stat["next_seq"], stat["messages"], stat["content_bytes"]) == ("0", "1", "1", "37")
    assert stat["first_timestamp_us"] == stat["last_timestamp_us"]
    assert int(stat["disk_bytes"]) > 0
    client.answers.clear()
    workers = rows(client.ask_table("workers"))
    assert [(row["worker"], row["state"]) for row in workers] == [(str(slot), "ready") for slot in range(WORKERS)]
    client.answers.clear()
    me = "{}:{}".format(*client.sock.getsockname())
    assert [row["subscriptions"] for row in rows(client.ask_table("conns")) if row["peer"] == me] == ["0"]


def test_help_names_every_command(client: LineClient) -> None:
    lines = client.ask_table("help")
    assert lines[0] == "ok command meaning"
    assert {line.split(" ")[0] for line in lines[1:-1]} == {
        "pub", "ack", "sub", "unsub", "ping", "help", "quit", "master", "unmaster", "slave", "unslave", "promote",
        "fence", "trim", "delete", "streams", "grown", "stat", "workers", "space", "conns", "shutdown",
        "consume", "unconsume", "leave", "get", "nack", "reset", "consumers", "auth", "last", "sessions", "forget",
        "lease", "isr", "promises", "groups", "pull",
    }  # fmt: skip
