"""Readers of stored streams: replays from the beginning, and durable consumers that acknowledge each batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket

from bench.load.base import Load
from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.load.receiving import make_counter
from bench.load.sockets import SocketPoller, read, send_some
from bench.peers.base import Puller
from bench.peers.consuming import TailraceConsumers
from bench.peers.tailrace_binary import TailraceBinary

CONSUMERS_PER_CONNECTION = 1_000
LANES_PER_CONNECTION = 8
"""GETs that wait at the broker at one time."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """All readers together; the bytes are those on the wire (of CHUNK envelopes: of the frames in them)."""

    messages: int
    wire_bytes: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class ManyConsumed:
    """`made_s`: the seconds to make the consumers, one after the other on each connection."""

    messages: int
    made_s: float
    spent: Spent


def replay(load: Load, name: str, messages: int, readers: int) -> Replayed:
    """Let `readers` connections read the first `messages` of the stream at once."""
    peer = load.peer
    with load.connected(*(peer.replayer(name, client) for client in range(readers))) as socks:
        lanes = [_replay_lane(load, sock, name, client, messages) for client, sock in enumerate(socks)]
        meter = load.meter()
        _run_lanes(load, lanes)
        return Replayed(messages * readers, sum(lane.got_bytes for lane in lanes), meter.stop())


def _replay_lane(load: Load, sock: socket, name: str, client: int, messages: int) -> ReaderLane:
    puller = load.peer.replay_puller(name, client, messages)
    return PushedLane(load, sock, name, messages) if puller is None else PulledLane(sock, puller, messages)


def consume(load: Load, name: str, messages: int) -> Spent:
    """Let one durable consumer take and acknowledge the first `messages` of the stream."""
    with load.connected(load.peer.consumer(name, 0)) as (sock,):
        lane = PulledLane(sock, load.peer.consuming_puller(name, 0, messages), messages)
        meter = load.meter()
        _run_lanes(load, [lane])
        return meter.stop()


def consume_many(load: Load, name: str, consumers: int, messages: int, batch: int) -> ManyConsumed:
    """Let each of `consumers` of one stream take `messages` in batches, on several connections."""
    peer = load.peer
    assert isinstance(peer, TailraceBinary)
    names = [b"many-%d" % number for number in range(consumers)]
    starts = range(0, consumers, CONSUMERS_PER_CONNECTION)
    groups = [names[start : start + CONSUMERS_PER_CONNECTION] for start in starts]
    begin = time.perf_counter()
    with load.connected(*(peer.consumers(name, group) for group in groups)) as socks:
        made_s = time.perf_counter() - begin
        pullers = [TailraceConsumers(name, group, messages, LANES_PER_CONNECTION, batch) for group in groups]
        dues = [len(group) * messages for group in groups]
        lanes = [PulledLane(*lane) for lane in zip(socks, pullers, dues, strict=True)]
        meter = load.meter()
        _run_lanes(load, lanes)
        return ManyConsumed(consumers * messages, made_s, meter.stop())


def _run_lanes(load: Load, readers: Sequence[ReaderLane]) -> None:
    """Run until every lane has all of its messages."""
    lanes = {lane.sock.fileno(): lane for lane in readers}
    with SocketPoller(load.deadline, [lane.sock for lane in readers]) as poller:
        for lane in readers:
            lane.start()
        while lanes:
            first = next(iter(lanes.values()))
            for fd, _ in poller.wait(f"{len(lanes)} readers wait, one of them has {first.got_bytes} bytes"):
                if lanes[fd].take():
                    poller.remove(fd)
                    del lanes[fd]


class PushedLane:
    """A reader that sends one request and receives a known number of bytes, which it does not look at."""

    def __init__(self, load: Load, sock: socket, name: str, messages: int) -> None:
        payload_bytes = len(load.payload)
        self.sock = sock
        self.got_bytes = 0
        self._request = load.peer.replay_request(name)
        self._due_bytes = load.peer.replay_bytes(name, messages, payload_bytes)
        self._take = make_counter(load.peer, payload_bytes, sock, self._due_bytes).take

    def start(self) -> None:
        send_some(self.sock, memoryview(self._request))

    def take(self) -> bool:
        """Receive; True once all has come."""
        self.got_bytes += self._take()
        if self.got_bytes > self._due_bytes:
            raise LoadError(f"{self.got_bytes} bytes replayed where {self._due_bytes} were due")
        return self.got_bytes == self._due_bytes


class PulledLane:
    """A reader that sends request after request and counts the messages."""

    def __init__(self, sock: socket, puller: Puller, due_messages: int) -> None:
        self.sock = sock
        self.got_bytes = 0
        self._puller = puller
        self._due_messages = due_messages

    def start(self) -> None:
        send_some(self.sock, memoryview(self._puller.open()))

    def take(self) -> bool:
        """Receive, and send the next request; True once all has come."""
        data = read(self.sock)
        self.got_bytes += len(data)
        request = self._puller.feed(data)
        if self._puller.messages > self._due_messages:
            raise LoadError(f"{self._puller.messages} messages came where {self._due_messages} were due")
        if request:
            send_some(self.sock, memoryview(request))
        return self._puller.messages == self._due_messages


ReaderLane = PushedLane | PulledLane
