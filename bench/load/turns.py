"""Many connections that send one message each in turn, as many small devices would.

After each turn the generator waits until that turn has been executed, so that no server gets several messages of one
connection to read at once: the cost of the single message is what is measured. Servers that answer are waited for by
their answers; of the silent ones, one connection after the other is asked (its barrier), and at the end all.
"""

from __future__ import annotations

import select
import socket
import time

from bench.load.dial import dialled
from bench.load.drain import drain, read
from bench.load.ingest import Pushed, Stop, Target
from bench.load.limits import Deadline, LoadError, PeerClosed
from bench.load.meter import Meter
from bench.peers.base import Peer, Step

_WAIT_S = 0.25


def turns(
    peer: Peer, target: Target, names: list[str], payload: bytes, connections: int, stop: Stop, deadline: Deadline
) -> Pushed:
    """Connection i publishes to names[i % len(names)], a fresh stream, once a turn."""
    scripts = [peer.publisher(client, [names[client % len(names)]]) for client in range(connections)]
    publishes = [peer.publish(names[client % len(names)], payload, client, client) for client in range(connections)]
    with dialled(target.port, scripts, deadline) as socks, select.epoll() as poller:
        for sock in socks:
            poller.register(sock.fileno(), select.EPOLLIN)
        barriers = [peer.barrier(names[client % len(names)]) for client in range(connections)]
        ring = _Ring(peer, socks, publishes, barriers, poller, deadline)
        # The first turn makes the streams and is not timed.
        ring.turn(names)
        ring.finish()
        before = ring.messages
        meter = Meter(target.pid)
        end = time.perf_counter() + stop.seconds
        while ring.messages - before < stop.messages or time.perf_counter() < end:
            ring.turn(names)
        ring.finish()
        return Pushed(ring.messages - before, ring.messages, meter.stop())


class _Ring:
    def __init__(
        self,
        peer: Peer,
        socks: list[socket.socket],
        publishes: list[bytes],
        barriers: list[Step],
        poller: select.epoll,
        deadline: Deadline,
    ) -> None:
        self.messages = 0
        self._peer = peer
        self._barriers = list(zip(socks, barriers, strict=True))
        self._socks = {sock.fileno(): sock for sock in socks}
        self._sends = [(sock.send, publish) for sock, publish in zip(socks, publishes, strict=True)]
        self._poller = poller
        self._deadline = deadline
        self._next_asked = 0
        self._units = 0

    def turn(self, names: list[str]) -> None:
        try:
            for send, publish in self._sends:
                send(publish)
        except OSError as error:
            raise PeerClosed(f"a connection did not take its {self.messages}th message: {error}") from error
        self.messages += len(self._sends)
        if self._peer.acked:
            self._await_answers(names)
        else:
            self._await_barriers([self._barriers[self._next_asked]])
            self._next_asked = (self._next_asked + 1) % len(self._barriers)

    def finish(self) -> None:
        if not self._peer.acked:
            self._await_barriers(self._barriers)

    def _await_answers(self, names: list[str]) -> None:
        mark = self._peer.answer_mark
        due = self.messages if mark else self._peer.answers_bytes(names, self.messages)
        while self._units < due:
            for sock in self._readable(f"{self._units} of {due} of the answers have come"):
                self._units += read(sock).count(mark) if mark else drain(sock)
        if self._units > due:
            raise LoadError(f"{self._units} came as answers where {due} were due: something else was said")

    def _await_barriers(self, asked: list[tuple[socket.socket, Step]]) -> None:
        for sock, step in asked:
            sock.send(step.send)
        waiting = {sock: step.until for sock, step in asked}
        while waiting:
            for sock in self._readable(f"{len(waiting)} connections wait for their barriers' answers"):
                until, seen = waiting.get(sock, b""), read(sock)
                if not until.startswith(seen):
                    raise LoadError(f"the server should have said nothing but {until!r}, but said {seen[:200]!r}")
                waiting[sock] = until[len(seen) :]
                if not waiting[sock]:
                    del waiting[sock]

    def _readable(self, doing: str) -> list[socket.socket]:
        self._deadline.check(doing)
        return [self._socks[fd] for fd, _ in self._poller.poll(self._deadline.left_s(_WAIT_S))]
