"""Single acknowledged publishes at a steady rate, by turns to the leader of a stream and to a node that passes them on.

The next one waits for the answer to the one before, so each is alone on its way. Work of other nodes after the answer,
such as copying it, is over before the next if the rate is low enough; both kinds follow each other, so they are alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from socket import socket

from bench.load.base import Load
from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.load.publishing import require_no_more
from bench.load.sockets import READ_BYTES, dialled

_WAIT_S = 5.0
"""For an answer."""


@dataclass(frozen=True, slots=True)
class ByTurns:
    """From `send` to the end of the answer, of each publish to the leader and to the other node."""

    leader_ns: list[int]
    other_ns: list[int]
    spent: Spent


def publish_by_turns(load: Load, other_port: int, name: str, rate: int, pairs: int) -> ByTurns:
    """Send `pairs` messages to either node, all to the new stream `name`; `rate`: messages per second to both."""
    script = load.peer.publisher(0, [name])
    with load.connected(script) as (leader,), dialled(other_port, [script], load.deadline) as (other,):
        request, answer_bytes = load.peer.publish(name, load.payload), load.peer.answers_bytes([name], 1)
        leader_ns: list[int] = []
        other_ns: list[int] = []
        meter, next_s = load.meter(), time.perf_counter()
        for _ in range(pairs):
            for sock, found_ns in ((leader, leader_ns), (other, other_ns)):
                time.sleep(max(0.0, next_s - time.perf_counter()))
                next_s = max(next_s, time.perf_counter()) + 1 / rate
                load.deadline.check(f"{len(leader_ns)} of {pairs} publishes were answered")
                found_ns.append(_answered_ns(sock, request, answer_bytes))
        return ByTurns(leader_ns, other_ns, meter.stop())


def _answered_ns(sock: socket, request: bytes, answer_bytes: int) -> int:
    """LoadError if no answer of this length comes in time."""
    sock.settimeout(_WAIT_S)
    begin_ns, got = time.perf_counter_ns(), 0
    try:
        sock.sendall(request)
        while got < answer_bytes:
            data = sock.recv(READ_BYTES)
            if not data:
                raise LoadError("the server closed a connection instead of an answer")
            got += len(data)
    except OSError as error:
        raise LoadError(f"a publish was not answered: {error}") from error
    end_ns = time.perf_counter_ns()
    require_no_more(got, answer_bytes)
    return end_ns - begin_ns
