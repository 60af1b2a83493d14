"""A plain client of the binary protocol for the system tests: a blocking socket and the codec, nothing clever.

Received messages are kept apart: those of subscriptions by their ids, everything else in one list.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self, TypeVar

from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.messages import (
    VERSION,
    Ack,
    AnyMessage,
    Chunk,
    Ended,
    Failed,
    Hello,
    Op,
    Open,
    Opened,
    Ping,
    Pong,
    Published,
    Response,
    Subscribe,
    Subscribed,
    Welcome,
    WirePlace,
    pack,
    pack_publish,
)
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tests.system.node import PATIENCE_S, RECEIVE_BYTES, Node, rows

FROM_START = From("seq", 0)
HANDLES_FROM = 1 << 31  # streams opened by `handle` are not among the answers
HELLO = Hello(VERSION, (), "test/1")

_parse = load("tailrace.shard.frame_cy").parse
Kind = TypeVar("Kind", bound=Response)


class Received(NamedTuple):
    seq: int
    timestamp_us: int
    metadata: bytes
    payload: bytes


class Taken(NamedTuple):
    """One CHUNK: its subscription, the bytes of its frames, how many those were."""

    id: int
    nbytes: int
    messages: int


class BinaryPeer:
    def __init__(
        self,
        port: int,
        *,
        hello: Hello | None = HELLO,
        host: str = "127.0.0.1",
        receive_buffer_bytes: int = 0,
    ) -> None:
        """Sends `hello` and awaits its answer, unless it is None. `receive_buffer_bytes`: of the socket."""
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.settimeout(PATIENCE_S)
        sock.connect((host, port))
        self._begin(sock, hello)

    @classmethod
    def over(cls, sock: socket.socket, hello: Hello | None = HELLO) -> BinaryPeer:
        """A client of a connection that is there, such as one under TLS."""
        peer = cls.__new__(cls)
        sock.settimeout(PATIENCE_S)
        peer._begin(sock, hello)
        return peer

    def _begin(self, sock: socket.socket, hello: Hello | None) -> None:
        self.sock = sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers: list[Response] = []  # all but chunks, and pings that were answered
        self.messages: dict[int, list[Received]] = {}
        self.chunks: list[Taken] = []
        self.pings = 0
        self.mute = False  # leaves pings unanswered
        self.ended = False
        self._codec = ClientCodec(features=frozenset(hello.features if hello is not None else ()))
        self._requests = itertools.count(1)
        self._handles: dict[str, int] = {}
        self.welcome: Welcome | None = None
        if hello is not None:
            self.welcome = self.ask(hello, Welcome)

    # --- sending ----------------------------------------------------------------------------------------------------

    def say(self, *messages: AnyMessage) -> None:
        self.send_raw(b"".join(map(pack, messages)))

    def send_raw(self, data: bytes | memoryview) -> None:
        self.sock.sendall(data)

    def handle(self, stream: str) -> int:
        """The handle of a stream, opened if needed, without waiting."""
        if stream not in self._handles:
            self._handles[stream] = HANDLES_FROM + len(self._handles)
            self.say(Open(self._handles[stream], stream.encode()))
        return self._handles[stream]

    def send_publish(
        self, streams: str | Sequence[str], payloads: Sequence[bytes], ack: Ack = Ack.APPENDED, metadata: bytes = b""
    ) -> int:
        """Publish and do not wait. Returns the number of the request."""
        names = [streams] if isinstance(streams, str) else streams
        handles = [self.handle(name) for name in names]
        request = next(self._requests)
        frames = b"".join(pack_frame(payload, metadata=metadata) for payload in payloads)
        self.send_raw(pack_publish(request, ack, handles, frames) + frames)
        return request

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(self, message: AnyMessage, kind: type[Kind]) -> Kind:
        """Sends a message, and returns the next answer, which must be of this kind."""
        before = len(self.answers)
        self.say(message)
        return self.next_answer(kind, before)

    def next_answer(self, kind: type[Kind], index: int | None = None) -> Kind:
        """The answer at `index`, or the next that comes, waited for."""
        place = len(self.answers) if index is None else index
        self.read_until(lambda: len(self.answers) > place)
        answer = self.answers[place]
        assert isinstance(answer, kind), f"{answer}, not {kind.__name__}"
        return answer

    def answer_to(self, request: int) -> Published | Failed:
        """The answer to a publish, waited for."""

        def found() -> list[Published | Failed]:
            return [
                each
                for each in self.answers
                if (isinstance(each, Published) and each.request == request)
                or (isinstance(each, Failed) and (each.op, each.id) == (Op.PUBLISH, request))
            ]

        self.read_until(lambda: bool(found()))
        (answer,) = found()
        return answer

    def publish(
        self, streams: str | Sequence[str], payloads: Sequence[bytes], ack: Ack = Ack.APPENDED, metadata: bytes = b""
    ) -> Published:
        answer = self.answer_to(self.send_publish(streams, payloads, ack, metadata))
        assert isinstance(answer, Published), answer
        return answer

    def subscribe(
        self,
        number: int,
        stream: str,
        start: From = FROM_START,
        *,
        skip: int = 0,
        end: WirePlace | None = None,
        credit: int | None = None,
    ) -> Subscribed:
        """Subscribe and wait for the answer to that; messages may have come already."""
        self.say(Subscribe(number, stream.encode(), start, skip, end, credit, wait=True))

        def answer() -> Subscribed | Failed | None:
            for each in reversed(self.answers):
                if isinstance(each, Subscribed) and each.id == number:
                    return each
                if isinstance(each, Failed) and (each.op, each.id) == (Op.SUBSCRIBE, number):
                    return each
            return None

        before = answer()
        self.read_until(lambda: answer() is not before)
        found = answer()
        assert isinstance(found, Subscribed), found
        return found

    def wait_ended(self, number: int) -> Ended:
        """The end of a subscription, waited for and taken away, so that the next one of this id can be waited for."""

        def ends() -> list[Ended]:
            return [each for each in self.answers if isinstance(each, Ended) and each.id == number]

        self.read_until(lambda: bool(ends()))
        (end,) = ends()
        self.answers.remove(end)
        return end

    def errors(self) -> list[Failed]:
        return [each for each in self.answers if isinstance(each, Failed)]

    def settle(self) -> None:
        """Waits until all earlier messages are answered: a PING's answer follows a chunk at least."""
        before = sum(isinstance(each, Pong) for each in self.answers)
        self.say(Ping())
        self.read_until(lambda: sum(isinstance(each, Pong) for each in self.answers) > before)

    # --- receiving --------------------------------------------------------------------------------------------------

    def read_until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + patience_s
        while not condition():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise AssertionError(f"timed out; {self._state()}")
            if self.ended or not self.read_once(left_s):
                raise ConnectionError(f"the broker closed; {self._state()}")

    def read_once(self, patience_s: float = PATIENCE_S, nbytes: int = RECEIVE_BYTES) -> int:
        """Reads at most `nbytes` within the time; returns how many were read, -1 for a time-out."""
        self.sock.settimeout(patience_s)
        try:
            data = self.sock.recv(nbytes)
        except TimeoutError:
            return -1
        self.ended = not data
        for message in self._codec.feed(data):
            self._take(message)
        return len(data)

    def read_messages(self, number: int, count: int, patience_s: float = PATIENCE_S) -> list[Received]:
        """Until a subscription has `count` messages in all."""
        row = self.messages.setdefault(number, [])
        self.read_until(lambda: len(row) >= count, patience_s)
        return row

    def read_to_end(self) -> None:
        """Until the broker closes, whichever way."""
        with contextlib.suppress(ConnectionError):
            self.read_until(lambda: False)

    def seqs(self, number: int) -> list[int]:
        return [message.seq for message in self.messages.get(number, [])]

    def payloads(self, number: int) -> list[bytes]:
        return [message.payload for message in self.messages.get(number, [])]

    def close(self) -> None:
        """With a reset: an end alone would look like that of a peer that only stops sending, and keep the
        subscriptions.
        """
        with contextlib.suppress(OSError):  # closed already
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _take(self, message: Response) -> None:
        if isinstance(message, Chunk):
            found = _parse(message.frames, 0, len(message.frames), True)
            row = self.messages.setdefault(message.id, [])
            row += [Received(seq, at_us, metadata, payload) for seq, at_us, _epoch, _flags, metadata, payload in found]
            self.chunks.append(Taken(message.id, len(message.frames), len(found)))
        elif isinstance(message, Ping):
            self.pings += 1
            if not self.mute:
                self.say(Pong())
        elif not isinstance(message, Opened) or message.id < HANDLES_FROM:
            self.answers.append(message)

    def _state(self) -> str:
        counts = {number: len(row) for number, row in self.messages.items()}
        return f"answers {self.answers[-5:]}, messages {counts}"


def peer(node: Node) -> BinaryPeer:
    return BinaryPeer(node.port)


def peer_of(node: Node, slot: int, *, receive_buffer_bytes: int = 0) -> BinaryPeer:
    """A connection that the worker of this slot took: connect until the kernel's hash agrees."""
    for _ in range(500):
        found = BinaryPeer(node.port, receive_buffer_bytes=receive_buffer_bytes)
        if found.welcome is not None and found.welcome.worker == slot:
            return found
        found.close()
    raise AssertionError(f"no connection came to worker {slot}")


def worker_of(node: Node, found: BinaryPeer) -> int:
    """Which worker serves a connection now."""
    me = "{}:{}".format(*found.sock.getsockname()[:2])
    with node.client() as admin:
        return next(int(row["worker"]) for row in rows(admin.ask_table("conns")) if row["peer"] == me)
