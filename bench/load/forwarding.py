"""Single acknowledged publishes at a steady rate, by turns to the leader of a stream and to a node that passes them on.

The next one waits for the answer to the one before, so each is alone on its way. Work of other nodes after the answer,
such as copying it, is over before the next if the rate is low enough; both kinds follow each other, so they are alike.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from socket import socket

from bench.load.bare_relay import bare_relay
from bench.load.base import Load
from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.load.publishing import require_no_more
from bench.load.sockets import READ_BYTES, dialled

_WAIT_S = 5.0
"""For an answer."""


@dataclass(frozen=True, slots=True)
class ByTurns:
    """From `send` to the end of the answer: of each publish to the leader and to the other node, and of bare requests
    to a process that answers, and to one that passes on to it.
    """

    leader_ns: list[int]
    other_ns: list[int]
    bare_ns: list[int]
    relayed_ns: list[int]
    spent: Spent


def publish_by_turns(load: Load, other_port: int, name: str, rate: int, pairs: int) -> ByTurns:
    """Send `pairs` messages to either node, all to the new stream `name`; `rate`: messages per second to both. Each two
    are followed by two bare requests.
    """
    request, answer_bytes = load.peer.publish(name, load.payload), load.peer.answers_bytes([name], 1)
    with ExitStack() as stack:
        bare, relayed = stack.enter_context(bare_relay(answer_bytes))
        script = load.peer.publisher(0, [name])
        (leader,) = stack.enter_context(load.connected(script))
        (other,) = stack.enter_context(dialled(other_port, [script], load.deadline))
        found: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        meter, next_s = load.meter(), time.perf_counter()
        for _ in range(pairs):
            for sock, found_ns in zip((leader, other, bare, relayed), found, strict=True):
                time.sleep(max(0.0, next_s - time.perf_counter()))
                next_s = max(next_s, time.perf_counter()) + 0.5 / rate
                load.deadline.check(f"{len(found[0])} of {pairs} publishes were answered")
                found_ns.append(_answered_ns(sock, request, answer_bytes))
        return ByTurns(*found, meter.stop())


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
