"""Durable consumers that take a stored stream, and say of each batch that it is finished."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.load.dial import dialled
from bench.load.ingest import Target
from bench.load.limits import Deadline
from bench.load.meter import Meter, Spent
from bench.load.replay import PulledLane, run_lanes
from bench.peers.base import Peer
from bench.peers.consuming import TailraceConsumers
from bench.peers.tailrace_binary import TailraceBinary

CONSUMERS_A_CONNECTION = 1_000
LANES_A_CONNECTION = 8
"""GETs that stand at the broker at one time."""


@dataclass(frozen=True, slots=True)
class ManyConsumed:
    """`made_s`: the seconds that it took to make the consumers, one after the other on each connection."""

    messages: int
    made_s: float
    spent: Spent


def consume(peer: Peer, target: Target, name: str, messages: int, deadline: Deadline) -> Spent:
    """One consumer takes and finishes the first so many messages of the stream."""
    with dialled(target.port, [peer.consumer(name, 0)], deadline) as (sock,):
        lane = PulledLane(sock, peer.consuming_puller(name, 0, messages), messages)
        meter = Meter(target.pid)
        run_lanes([lane], deadline)
        return meter.stop()


def consume_many(
    peer: TailraceBinary, target: Target, name: str, consumers: int, messages: int, batch: int, deadline: Deadline
) -> ManyConsumed:
    """Each of so many consumers of one stream takes so many messages in such batches, on several connections."""
    names = [b"many-%d" % number for number in range(consumers)]
    groups = [names[start : start + CONSUMERS_A_CONNECTION] for start in range(0, consumers, CONSUMERS_A_CONNECTION)]
    begin = time.perf_counter()
    with dialled(target.port, [peer.consumers(name, group) for group in groups], deadline) as socks:
        made_s = time.perf_counter() - begin
        lanes = [
            PulledLane(sock, TailraceConsumers(name, group, messages, LANES_A_CONNECTION, batch), len(group) * messages)
            for sock, group in zip(socks, groups, strict=True)
        ]
        meter = Meter(target.pid)
        run_lanes(lanes, deadline)
        return ManyConsumed(consumers * messages, made_s, meter.stop())
