"""An uplink over real sockets, and the upstream at its other end, which follows the test's script."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tailrace.broker.process.poller import Poller
from tailrace.broker.process.settings import Settings
from tailrace.broker.replication.upstream.choice import DIAL_MAX_S
from tailrace.broker.replication.upstream.connection import (
    UpstreamConnection,
    UpstreamContext,
    UpstreamPhase,
)
from tailrace.broker.replication.upstream.login import NodeLogins
from tailrace.broker.replication.upstream.socket import ResolvedAddress
from tailrace.broker.sharing.session import ShareSessions
from tailrace.broker.sharing.wants import NodeWants
from tailrace.broker.streams.owner import OpenStream
from tailrace.broker.streams.syncer import SyncJob
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.messages import Op, pack
from tailrace.shard.epochs import EpochStart
from tailrace.shard.meta import Role, StreamMeta, Upstream
from tests.broker.owning import Clock, Sink, around, batch, make_owner
from tests.broker.replication.upstream_node import Ears

S = b"s"
UP = "node-up"
PATIENCE_S = 60.0
TIMEOUT_S = 9.0
HISTORY = (EpochStart(1, 0, UP),)


class Far:
    """The upstream: listens, receives, sends the test's messages."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.listening = True
        self.sock: socket.socket | None = None
        self._ears = Ears()
        self.heard: list[Any] = []
        self.ended = False

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def read(self) -> None:
        if self.sock is None and self.listening:
            with contextlib.suppress(BlockingIOError):
                self.sock, _ = self.listener.accept()
                self.sock.setblocking(False)
                self._codec()
        if self.sock is None or self.ended:
            return
        with contextlib.suppress(BlockingIOError):
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            self.ended = not data
            if data[:1] == bytes([Op.HELLO]):
                self.hello, data = data, b""
            self.heard += self._ears.hear(data)

    def _codec(self) -> None:
        self._ears, self.ended, self.hello = Ears(), False, b""

    def say(self, *messages: Any) -> None:
        assert self.sock is not None
        self.sock.sendall(b"".join(map(pack, messages)))

    def hang_up(self, *, reset: bool = False) -> None:
        assert self.sock is not None
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()
        self.sock = None

    def stop_listening(self) -> None:
        self.listening = False
        self.listener.close()

    def take(self) -> list[Any]:
        heard, self.heard = self.heard, []
        return heard

    def close(self) -> None:
        self.listener.close()
        if self.sock is not None:
            self.sock.close()


class Near:
    """An uplink over real files and sockets, with a clock that the test moves."""

    def __init__(self, path: Path, host: str = "127.0.0.1", **settings: object) -> None:
        self.far = Far()
        self.clock = Clock()
        self.owner = make_owner(path)
        self.poller = Poller()
        self.lookups: list[tuple[str, int, Callable[[ResolvedAddress | None, str], None]]] = []
        self.cuts: list[tuple[OpenStream, int]] = []
        self.found: list[bytes] = []
        self.touched = False
        self.answered: Callable[[], None] = lambda: None
        self.wants = NodeWants()
        self.shared: list[tuple[bytes, bytes]] = []
        self.jobs: list[tuple[Any, SyncJob]] = []
        own = Settings(data=path, upstream_timeout_s=TIMEOUT_S, **settings)  # type: ignore[arg-type]
        context = UpstreamContext(
            owner=self.owner,
            poller=self.poller,
            settings=own,
            address=":6060",
            worker=(1, 4),
            tls=None,
            logins=NodeLogins(own, lambda job, token: self.jobs.append((job, token))),
            clock=self.clock.seconds,
            resolve=lambda host, port, done: self.lookups.append((host, port, done)),
            set_aside=lambda stream, seq, _done: self.cuts.append((stream, seq)),
            later=lambda _name, step: step(),
            found=lambda _uplink, names: self.found.extend(names),
            touch=lambda _uplink: self._touch(),
            answer=lambda: self.answered(),
            shares=ShareSessions(self.wants, [(host, self.far.port)], self._take_shared),
            on_ready=lambda _name: None,
        )
        self.uplink = UpstreamConnection(context, (host, self.far.port))
        self.upstream = Upstream(host, self.far.port)
        around(self.owner).send_up = self.uplink.send_up

    def _take_shared(self, name: bytes, frames: Sequence[bytes | memoryview]) -> None:
        self.shared.append((name, b"".join(frames)))

    def do_jobs(self) -> None:
        """What a helper thread does."""
        while self.jobs:
            job, token = self.jobs.pop(0)
            job.sync()
            token.done()

    def _touch(self) -> None:
        self.touched = True

    def at(self, phase: UpstreamPhase) -> bool:
        return self.uplink.phase is phase

    def needed(self) -> bool:
        return self.uplink.needed

    def turn(self) -> None:
        for fd, mask in self.poller.poll(0.001):
            handler = self.poller.handlers.get(fd)
            if handler is not None:
                handler(mask)
        while self.touched:
            self.touched = False
            self.uplink.flush()
        self.far.read()

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, (self.uplink.phase, self.uplink.why, self.far.heard[-10:])
            self.turn()

    def settle(self) -> None:
        """Until all messages sent have been received: the answer to a PING comes behind everything."""
        self.far.say(m.Ping())
        self.until(lambda: m.Pong() in self.far.heard)
        self.far.heard.remove(m.Pong())

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.now_s += seconds
        self.uplink.tick(self.clock.now_s)

    def greet(self) -> None:
        self.tick(DIAL_MAX_S)
        self.until(lambda: self.far.sock is not None and self.far.hello)

    def up(self, node: str = UP, features: Sequence[str] = (r.FEATURE,)) -> None:
        self.greet()
        self.far.say(m.Welcome(1, tuple(features), "test", node, 0, {}))
        self.until(lambda: not self.at(UpstreamPhase.GREETING))
        for _ in range(2):
            self.turn()

    def slave(self, name: bytes = S) -> None:
        if name not in self.owner.catalog.names:
            self.owner.create(name)
        self.owner.roles.set_meta(StreamMeta(name.decode(), Role.SLAVE, 1, self.upstream, HISTORY))
        self.uplink.copies.add(name)

    def follow(self) -> None:
        """A copy of S that follows."""
        self.slave()
        self.tick()
        self.until(lambda: self.far.heard)
        (asked,) = self.far.take()
        self.far.say(r.Followed(asked.id, "following", 0, 0, 0, "master", HISTORY, (UP,)))
        self.settle()
        self.far.take()

    def publish(self, *payloads: bytes) -> Sink:
        sink = Sink()
        self.uplink.send_up(batch(S, *payloads, sink=sink))
        return sink

    def fails(self, *messages: Any) -> str:
        """The upstream sends these messages, which end the connection; returns the reason."""
        self.far.say(*messages)
        self.until(lambda: self.at(UpstreamPhase.DOWN))
        self.until(lambda: self.far.ended)
        return self.uplink.why

    def close(self) -> None:
        self.uplink.close("the test is over")
        self.poller.close()
        self.far.close()
        self.owner.release()


def raw(message: Any) -> bytes:
    if isinstance(message, m.Chunk):
        return m.CHUNK_HEAD.pack(Op.CHUNK, 4 + len(message.frames), message.id) + bytes(message.frames)
    if isinstance(message, m.Published):
        return m.pack_published(message.request, message.results)
    return pack(message)
