"""Nodes that a test plays itself, word by word: an upstream for a real slave, a slave for a real master.

An upstream is played behind a `Gate`, an address of its own, which otherwise leads to a real node: so the same address
is good, then hostile, then good again.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgpack

from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.messages import (
    CHUNK_HEAD,
    HANDLE_BYTES,
    VERSION,
    AnyMessage,
    Hello,
    Op,
    Ping,
    Pong,
    Welcome,
    pack,
)
from tailrace.protocol.places import From
from tailrace.protocol.replication import FEATURE, Follow, Followed
from tailrace.shard.directory import open_data_dir
from tailrace.shard.epochs import EpochStart, History
from tailrace.shard.errors import StorageError
from tailrace.shard.frame import MAX_FRAME_BYTES, pack_frame
from tailrace.shard.leaves import load
from tests.protocol.plain_codec import PlainCodec
from tests.system.binary_peer import BinaryPeer
from tests.system.node import PATIENCE_S, RECEIVE_BYTES, Node, rows
from tests.system.streams import name_of
from tests.system.tree_check import Logged, read_log

MESSAGE_MAX_BYTES = 1 << 20
PIECE_BYTES = 1 << 16
CUT_S = 8.0  # longer than the slave takes to find that nobody is there
WAITED_S = 2.0  # before a slave gives up an upstream that does not answer
EVIL = "!evil"  # the id of the node that is played; it is before those of real nodes
AHEAD_US = 1_800_000_000  # of the clock: a timestamp that no other frame of a test has, and that a slave believes
TERM_ONE: History = (EpochStart(1, 0, EVIL),)

stamp = load("tailrace.shard.frame_cy").stamp
Kind = TypeVar("Kind")


def frames(payloads: Sequence[bytes], seq: int, *, at_us: int | None = None, epoch: int = 1) -> bytearray:
    """Frames as a master has stamped them: whole and right."""
    made = bytearray(b"".join(map(pack_frame, payloads)))
    stamp(made, seq, time.time_ns() // 1_000 + AHEAD_US if at_us is None else at_us, epoch, 0)
    return made


def chunk(number: int, content: bytes | bytearray) -> bytes:
    """The envelope of a CHUNK."""
    return CHUNK_HEAD.pack(Op.CHUNK, HANDLE_BYTES + len(content), number) + content


def messages_of(node: Node, stream: str) -> list[Logged]:
    """Nothing where the stream is not there yet, or just begins anew."""
    with contextlib.suppress(StorageError):
        return list(read_log(node.data, stream))
    return []


def serves_others(node: Node, workers: int) -> None:
    """Each worker takes and gives messages of the streams it is itself the master of."""
    for slot in range(workers):
        name = name_of(slot, workers, "others")
        with node.client() as client:
            client.send("ack on", f"sub {name} new wait", f"pub {name} |x")
            assert client.read_messages(1)[0].payload == b"x"


def id_of(node: Node) -> str:
    return open_data_dir(node.data).node_id


def streams_of(node: Node) -> list[str]:
    with node.client() as client:
        return [row["stream"] for row in rows(client.ask_table("streams"))]


def followed(number: int, start_seq: int, **fields: object) -> bytes:
    """A FOLLOWED with any fields."""
    body = {
        "id": number, "state": "following", "start_seq": start_seq, "first_seq": 0, "next_seq": start_seq,
        "role": "master", "history": [[1, 0, EVIL]], "path": [EVIL],
    }  # fmt: skip
    return pack_envelope(Op.FOLLOWED, msgpack.packb({**body, **fields}))


class Upstream:
    """The other end of a slave's connection. PINGs are answered unless `mute`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.mute = False
        self.ended = False
        self.heard: list[object] = []  # not asked for by the test yet
        self._codec = PlainCodec(MAX_FRAME_BYTES, MESSAGE_MAX_BYTES)
        self._buffer = bytearray(RECEIVE_BYTES)

    # --- sending ----------------------------------------------------------------------------------------------------

    def say(self, *messages: AnyMessage) -> None:
        self.send(b"".join(map(pack, messages)))

    def send(self, data: bytes | bytearray | memoryview) -> None:
        self.sock.settimeout(PATIENCE_S)
        self.sock.sendall(data)

    def send_until_cut(self, data: bytes | bytearray) -> None:
        """All of it, or as much as the other side reads before it closes the connection."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(data)

    @contextlib.contextmanager
    def pouring(self, data: bytes, nbytes: int) -> Iterator[None]:
        """While the block runs, and until `nbytes` are sent, send the same again and again, and read nothing."""
        done = threading.Event()
        poured = 0

        def pour() -> None:
            nonlocal poured
            with contextlib.suppress(OSError):  # the slave has cut this off
                while poured < nbytes or not done.is_set():
                    self.send(data)
                    poured += len(data)

        thread = threading.Thread(target=pour, name="pour", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"after {poured} bytes the slave takes no more"

    def welcome(self, node: str = EVIL, features: tuple[str, ...] = (FEATURE,)) -> Hello:
        """Receives HELLO and answers it."""
        hello = self.next(Hello)
        self._codec.features = frozenset({FEATURE})
        self.say(Welcome(VERSION, features, "evil/1", node, 0, {}))
        return hello

    def follow(
        self, *, history: History = TERM_ONE, path: tuple[str, ...] = (EVIL,), state: str = "following"
    ) -> Follow:
        """Be polite, up to the answer to the first FOLLOW; the slave then expects frames from its next_seq on."""
        self.welcome()
        asked = self.next(Follow)
        self.answer(asked, history=history, path=path, state=state)
        return asked

    def answer(
        self,
        asked: Follow,
        *,
        state: str = "following",
        start_seq: int | None = None,
        history: History = TERM_ONE,
        path: tuple[str, ...] = (EVIL,),
    ) -> None:
        start = asked.next_seq if start_seq is None else start_seq
        self.say(Followed(asked.id, state, start, 0, start, "master", history, path))  # type: ignore[arg-type]

    # --- receiving --------------------------------------------------------------------------------------------------

    def next(self, kind: type[Kind]) -> Kind:
        """The next message of this kind; others before it are forgotten."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            while self.heard:
                message = self.heard.pop(0)
                if isinstance(message, kind):
                    return message
            assert self._read(deadline_s - time.monotonic()), f"the slave left before it said {kind.__name__}"

    def is_cut(self) -> bool:
        """Whether the slave closes the connection, in time."""
        deadline_s = time.monotonic() + CUT_S
        while not self.ended and time.monotonic() < deadline_s:
            self._read(max(deadline_s - time.monotonic(), 0.001))
        return self.ended

    def _read(self, patience_s: float) -> bool:
        """Whether the connection lives. Fails when nothing comes in time."""
        assert patience_s > 0, "the slave says nothing, and has not closed"
        self.sock.settimeout(patience_s)
        try:
            count = self.sock.recv_into(self._buffer)
        except ConnectionError:
            count = 0
        except TimeoutError:
            return True
        self.ended = not count
        for message in self._codec.feed(self._buffer, count):
            if isinstance(message, Ping) and not self.mute:
                with contextlib.suppress(OSError):
                    self.say(Pong())
            self.heard.append(message)
        return not self.ended

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Upstream:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Slave(BinaryPeer):
    """The other end of a master's connection."""

    def __init__(
        self,
        port: int,
        node: str | None = EVIL,
        address: str | None = "127.0.0.1:1",
        *,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(port, hello=None, host=host)
        self._codec = ClientCodec(features=frozenset({FEATURE}))
        self.welcome = self.ask(Hello(VERSION, (FEATURE,), "evil/1", None, node, address), Welcome)

    def __enter__(self) -> Slave:
        return self

    def follow(self, number: int, stream: str, *, next_seq: int = 0, term: int = 0, master: str = "") -> Followed:
        """Follow with a copy that has no message."""
        start = From("seq", next_seq)
        return self.ask(Follow(number, stream.encode(), next_seq, term, master, None, start), Followed)


class Gate:
    """An address that leads to a real node, or to the test."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open = True
        self._closed = False
        self._passing: list[socket.socket] = []
        self._arrived: queue.Queue[tuple[socket.socket, float]] = queue.Queue()
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def play(self) -> Upstream:
        """From now on who comes meets the test; the first who does."""
        self.shut()
        return self.next()

    def shut(self) -> None:
        """Cut what leads to the real node; who comes waits for the test."""
        with self._lock:
            self._open = False
            for sock in self._passing:
                _end(sock)
                sock.close()
            self._passing.clear()

    def next(self) -> Upstream:
        """The next who comes to the test. One that has waited is about to give up, and comes again."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            sock, since_s = self._arrived.get(timeout=max(deadline_s - time.monotonic(), 0.001))
            if time.monotonic() - since_s < WAITED_S:
                return Upstream(sock)
            sock.close()

    def open(self) -> None:
        """From now on who comes is let through to the real node, who waits too."""
        with self._lock:
            self._open = True
            self._send_away()

    def close(self) -> None:
        self.shut()
        _end(self._listener)
        self._listener.close()
        with self._lock:
            self._closed = True
            self._send_away()

    def _send_away(self) -> None:
        while not self._arrived.empty():
            self._arrived.get_nowait()[0].close()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = self._listener.accept()[0]
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    if self._closed:  # it came in the very moment in which the gate was closed
                        sock.close()
                    elif self._open:
                        self._let_through(sock)
                    else:
                        self._arrived.put((sock, time.monotonic()))

    def _let_through(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:  # the real node is away: who came comes again
            near.close()
            return
        self._passing += (near, far)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=_pass, args=pair, name="gate", daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    """Until either end is closed; then both are."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            target.sendall(data)
    for sock in (source, target):
        _end(sock)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
