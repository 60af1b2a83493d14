"""One file a peer; `make_peers` gives them all, in the order of the report."""

from __future__ import annotations

from bench.peers.base import Peer
from bench.peers.jetstream import JetStream
from bench.peers.mosquitto import Mosquitto
from bench.peers.nats import Nats
from bench.peers.plain import BareSendfile, Plain
from bench.peers.redis import Redis, RedisPubSub
from bench.peers.tailrace import Tailrace


def make_peers(*, interpreted: bool, workers: int, payload_bytes: int, replay_messages: int) -> list[Peer]:
    """Every contestant, ours first and the generator's ceilings last."""
    ours = [Tailrace(acked=acked, interpreted=interpreted, workers=workers) for acked in (False, True)]
    replay_bytes = ours[0].delivered_bytes("b.000000", replay_messages, payload_bytes)
    return [
        *ours,
        Nats(),
        JetStream(),
        Redis(),
        Redis(acked=False),
        RedisPubSub(),
        Mosquitto(),
        Mosquitto(qos=1),
        Plain(payload_bytes),
        Plain(payload_bytes, acked=True),
        BareSendfile(replay_bytes),
    ]
