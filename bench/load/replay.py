"""Reading a stored stream from its beginning, by one or several connections at once."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load.counting import make_counter
from bench.load.dial import dialled
from bench.load.drain import read, send_some
from bench.load.ingest import Target
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Meter, Spent
from bench.peers.base import Peer, Puller

_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class Replayed:
    """All readers together; the bytes are those on the wire (of CHUNK envelopes: of the frames in them)."""

    messages: int
    wire_bytes: int
    spent: Spent


def replay(
    peer: Peer, target: Target, name: str, messages: int, payload_bytes: int, readers: int, deadline: Deadline
) -> Replayed:
    scripts = [peer.replayer(name, client) for client in range(readers)]
    with dialled(target.port, scripts, deadline) as socks:
        pullers = [peer.replay_puller(name, client, messages) for client in range(readers)]
        lanes = [
            PulledLane(sock, puller, messages)
            if puller is not None
            else PushedLane(peer, sock, name, messages, payload_bytes)
            for sock, puller in zip(socks, pullers, strict=True)
        ]
        meter = Meter(target.pid)
        run_lanes(lanes, deadline)
        return Replayed(messages * readers, sum(lane.got_bytes for lane in lanes), meter.stop())


def run_lanes(readers: Sequence[_Lane], deadline: Deadline) -> None:
    """Until every lane has all of its messages."""
    lanes = {lane.sock.fileno(): lane for lane in readers}
    with select.epoll() as poller:
        for fd, lane in lanes.items():
            poller.register(fd, select.EPOLLIN)
            lane.start()
        while lanes:
            deadline.check(f"{len(lanes)} readers wait, one of them has {next(iter(lanes.values())).got_bytes} bytes")
            for fd, _ in poller.poll(deadline.left_s(_WAIT_S)):
                if lanes[fd].take():
                    poller.unregister(fd)
                    del lanes[fd]


class PushedLane:
    """One request; a known number of bytes comes, unread."""

    def __init__(self, peer: Peer, sock: socket.socket, name: str, messages: int, payload_bytes: int) -> None:
        self.sock = sock
        self.got_bytes = 0
        self._request = peer.replay_request(name)
        self._due_bytes = peer.replay_bytes(name, messages, payload_bytes)
        self._take = make_counter(peer, payload_bytes, sock).take

    def start(self) -> None:
        send_some(self.sock, memoryview(self._request))

    def take(self) -> bool:
        """Whether it is through."""
        self.got_bytes += self._take()
        if self.got_bytes > self._due_bytes:
            raise LoadError(f"{self.got_bytes} bytes replayed where {self._due_bytes} were due")
        return self.got_bytes == self._due_bytes


class PulledLane:
    """Request after request; the messages are counted."""

    def __init__(self, sock: socket.socket, puller: Puller, due_messages: int) -> None:
        self.sock = sock
        self.got_bytes = 0
        self._puller = puller
        self._due_messages = due_messages

    def start(self) -> None:
        send_some(self.sock, memoryview(self._puller.open()))

    def take(self) -> bool:
        """Whether it is through."""
        data = read(self.sock)
        self.got_bytes += len(data)
        request = self._puller.feed(data)
        if self._puller.messages > self._due_messages:
            raise LoadError(f"{self._puller.messages} messages came where {self._due_messages} were due")
        if request:
            send_some(self.sock, memoryview(request))
        return self._puller.messages == self._due_messages


_Lane = PushedLane | PulledLane
