"""Peers that send anything, or do not read: no worker ends, no other client notices, and memory stays flat.

Each kind of misbehaviour is played in rounds. What the first round leaves in memory is warm-up (buffers, caches, the
allocator's own stock); after the second the workers may hold no more than a stated margin above it. How many of the
peers a worker meets at once is chance, so a later round may be the one that needs the most: if one round leaves more,
another must not. What leaks does so each time.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.streams import lives, name_of, rss_bytes

pytestmark = pytest.mark.system

WORKERS = 2
MIB = 1 << 20
MARGIN_BYTES = 6 * MIB  # of all workers together, between the end of one round and the end of the next
MORE_ROUNDS_MAX = 2  # where memory has not stayed
CONFIG = """
[limits]
max_address_accepts = 0  # these tests connect faster than one address may, and the last are refused
max_open_streams = 8
chunk_cache_bytes = 1048576
chunk_bytes = 65536
[timing]
stall_timeout_s = 60
"""
NOBODY = b"127.0.0.1 9"  # and not the port of a broker that somebody runs beside the tests
COMMANDS = [
    b"pub fuzz |hello", b"sub fuzz 0 wait", b"sub fuzz new wait", b"sub fuzz #12",
    b"sub fuzz 1700000000000000 3 wait", b"unsub fuzz",
    b"ack on", b"ack off", b"ping", b"help", b"stat fuzz", b"trim fuzz #3", b"master fuzz", b"unmaster fuzz2",
    b"slave %s fuzz 0" % NOBODY, b"unslave fuzz", b"streams f", b"workers", b"conns", b"close",
    b"\xff\xf4\xff\xfd\x06",
]  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("garbage") / "data", workers=WORKERS, config=CONFIG) as node:
        yield node


@pytest.fixture(autouse=True)
def unharmed(node: Node) -> Iterator[None]:
    """After each test the same workers serve, and have given every connection back."""
    before = lives(node)
    yield
    wait_for(lambda: connections(node) <= 1, "the connections are gone")
    assert lives(node) == before, "a worker has ended"
    for slot in range(WORKERS):
        with node.client() as client:
            name = name_of(slot, WORKERS, "after")
            client.send("ack on", f"pub {name} |x", f"sub {name} 0 wait")
            assert client.read_messages(1)[0].payload == b"x"
            client.send("close")
            client.read_to_end()


def connections(node: Node) -> int:
    return sum(int(row["connections"]) for row in node.workers())


def stays_flat(node: Node, play: Callable[[int], None], rounds: int = 2) -> None:
    """Play the rounds; from the end of the first on, memory and descriptors stay."""
    pids = node.worker_pids()

    def play_one(number: int) -> int:
        """Memory after it."""
        play(number)
        wait_for(lambda: connections(node) <= 1, "the connections are gone")
        return rss_bytes(pids)

    before_bytes, before_sockets = play_one(0), open_sockets(pids)
    after_bytes = [play_one(number) for number in range(1, rounds)][-1]
    for number in range(rounds, rounds + MORE_ROUNDS_MAX):
        if after_bytes - before_bytes < MARGIN_BYTES:
            break
        before_bytes, after_bytes = after_bytes, play_one(number)
    grown_bytes = after_bytes - before_bytes
    assert grown_bytes < MARGIN_BYTES, f"{grown_bytes / MIB:.1f} MiB more after another round"
    wait_for(lambda: open_sockets(pids) <= before_sockets, "the sockets are given back")


def open_sockets(pids: list[int]) -> int:
    """Those of the links and listeners too."""
    count = 0
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(path).startswith("socket:")
    return count


def reset(sock: socket.socket) -> None:
    """Close without a word and without waiting: the kernel sends a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def throw(node: Node, data: bytes, pieces: random.Random | None = None) -> None:
    """Sends all, in random pieces, reads until the broker is done, in either way."""
    with node.client() as client, contextlib.suppress(ConnectionError):
        view = memoryview(data)
        while view:
            size = len(view) if pieces is None else pieces.randrange(1, len(view) + 1)
            client.sock.sendall(view[:size])
            view = view[size:]
        client.sock.shutdown(socket.SHUT_WR)
        client.sock.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            while client.sock.recv(1 << 18):
                pass
        reset(client.sock)


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_random_bytes(node: Node) -> None:
    def play(number: int) -> None:
        rng = random.Random(number)
        for _ in range(150):
            throw(node, rng.randbytes(rng.choice((1, 10, 1_000, 50_000))), rng)

    stays_flat(node, play)


def test_random_lines(node: Node) -> None:
    """Lines of random printable words, so that more of it reaches the commands."""

    def play(number: int) -> None:
        rng = random.Random(number)
        words = [word for command in COMMANDS for word in command.split()]
        words += [b"|", b"#", b"0", b"-1", b"\0", b"$x", b""]
        for _ in range(40):
            lines = [b" ".join(rng.choices(words, k=rng.randrange(1, 6))) for _ in range(200)]
            throw(node, b"\r\n".join(line for line in lines if not line.lower().startswith(b"shutdown")), rng)

    stays_flat(node, play)


def test_commands_with_flipped_bytes(node: Node) -> None:
    def play(number: int) -> None:
        rng = random.Random(number)
        for _ in range(60):
            data = bytearray(b"\r\n".join(rng.choices(COMMANDS, k=60)) + b"\r\n")
            for _flip in range(rng.randrange(1, 30)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if b"shutdown" not in data.lower():
                throw(node, bytes(data), rng)

    stays_flat(node, play)


def test_every_first_byte(node: Node) -> None:
    for first in range(256):
        throw(node, bytes([first]) + b"ello\r\n")


def test_half_lines(node: Node) -> None:
    """Every place at which a command may be cut off, by an end or by a reset."""

    def play(_number: int) -> None:
        for command in COMMANDS:
            for length in range(1, len(command) + 1, 3):
                throw(node, command[:length])
                with node.client() as client:
                    client.sock.sendall(command[:length])
                    reset(client.sock)

    stays_flat(node, play)


LONG_LINES = (
    b"x" * (24 * MIB),
    b"pub long |" + b"y" * (24 * MIB),
    b"pub " + b"n" * (24 * MIB) + b" |x",
    b"ping" + bytes(24 * MIB),
)


def test_lines_of_many_megabytes_and_of_nothing_but_nul(node: Node) -> None:
    def play(_number: int) -> None:
        for slot, line in product(range(WORKERS), LONG_LINES):
            with node.client_of(slot) as client:
                client.send(line, "ping")
                client.read_until(lambda client=client: len(client.answers) == 2)  # type: ignore[misc]
                assert [answer.split(" ")[1] for answer in client.answers] == ["line", "pong"]
                client.send("close")

    stays_flat(node, play, rounds=3)


def test_empty_lines(node: Node) -> None:
    def play(_number: int) -> None:
        with node.client() as client:
            client.send_raw(b"\r\n" * 50_000 + b" \n" * 50_000)
            assert client.ask("ping") == "ok pong"

    stays_flat(node, play)


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
def test_five_thousand_connections_come_and_go(node: Node) -> None:
    """Publishers, subscribers, silent ones, half lines; ended by close, by a half-close, by a reset, at any moment."""

    def play(number: int) -> None:
        rng = random.Random(number)
        for _batch in range(10):
            clients = [node.client() for _ in range(250)]
            for client in clients:
                with contextlib.suppress(ConnectionError):
                    client.sock.sendall(rng.choice(MANNERS))
            rng.shuffle(clients)
            for client in clients:
                if rng.random() < 0.5:
                    reset(client.sock)
                else:
                    with contextlib.suppress(ConnectionError):
                        client.send_raw(b"\r\nclose\r\n")
                    client.close()

    stays_flat(node, play)


MANNERS = (
    b"",
    b"ping\r\n",
    b"ack on\r\npub crowd |x\r\npub crowd2 |y\r\n",
    b"pub crowd |" + b"x" * 5_000,
    b"sub crowd new\r\nsub crowd2 0\r\n",
    b"sub crowd 0 wait\r\n",
    b"conns\r\n",
    b"\x16\x03\x01",
    b"\xff\xfd\x06ping\r\n",
)


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
def test_readers_that_stop_reading(node: Node) -> None:
    """Each a place in a file: neither memory nor the one who reads on notices fifty that do not."""
    payload = b"x" * 1_000
    count = 20_000

    def play(number: int) -> None:
        names = [name_of(slot, WORKERS, f"deaf{number}-") for slot in range(WORKERS)]
        with contextlib.ExitStack() as held:
            deaf = [held.enter_context(node.client()) for _ in range(50)]
            for client in deaf:
                client.send(*(f"sub {name} 0 wait" for name in names), "ping")
                client.read_until(lambda client=client: "ok pong" in client.answers)  # type: ignore[misc]
            reader = held.enter_context(node.client())
            reader.send(*(f"sub {name} 0 wait" for name in names))
            publisher = held.enter_context(node.client())
            before_bytes = rss_bytes(node.worker_pids())
            for _ in range(10):
                lines = [b"pub %s |%s" % (name.encode(), payload) for name in names]
                publisher.send(*(lines * (count // 20)))
                assert publisher.ask("ping") == "ok pong"
                publisher.answers.clear()
            reader.read_messages(count)
            for name in names:
                assert [each.seq for each in reader.messages if each.stream == name] == list(range(count // 2))
            if number:
                held_bytes = rss_bytes(node.worker_pids()) - before_bytes
                assert held_bytes < MARGIN_BYTES, f"{held_bytes / MIB:.1f} MiB for 50 readers that lag by 20 MB"
            for client in (*deaf, reader, publisher):
                reset(client.sock)

    stays_flat(node, play)


@pytest.mark.thorough
def test_who_reads_no_answers_is_not_read_either(node: Node) -> None:
    """Its own sending stops, others go on; and when it reads, every answer is there."""

    def play(_number: int) -> None:
        with node.client() as client:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                client.sock.setsockopt(socket.SOL_SOCKET, option, 64 << 10)
            client.sock.settimeout(0.5)
            asked = memoryview(b"help\r\n" * 500_000)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < len(asked):
                    sent += client.sock.send(asked[sent : sent + 60_000])
            assert sent < len(asked), "3 MB, to be answered with 800 MB, were read from one who reads nothing"
            with node.client() as other:
                assert other.ask("ping") == "ok pong"
            client.sock.shutdown(socket.SHUT_WR)
            client.sock.settimeout(PATIENCE_S)
            answers = bytearray()
            while data := client.sock.recv(1 << 20):
                answers += data
            assert answers.count(b"ok command meaning\r\n") == answers.count(b"\r\n.\r\n") == sent // 6

    stays_flat(node, play)
