"""Each peer's description against its real server: were one byte count wrong, the generator would never finish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.load.consume import consume
from bench.load.crowd import gather
from bench.load.fanout import fan_out
from bench.load.ingest import Stop, ingest
from bench.load.latency import latency
from bench.load.limits import Deadline
from bench.load.replay import replay
from bench.load.turns import turns
from bench.peers.base import Peer, Unavailable, make_feed, make_payload, stream_names
from bench.peers.jetstream import JetStream
from bench.peers.mosquitto import Mosquitto
from bench.peers.nats import Nats
from bench.peers.redis import Redis, RedisPubSub
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.base import check_stored
from bench.server import Server, fresh_site
from tailrace.shard.leaves import interpreted_wanted

OURS = [
    kind(acked=acked, interpreted=interpreted_wanted())
    for kind in (Tailrace, TailraceBinary)
    for acked in (False, True)
]
PEERS = [*OURS, Nats(), JetStream(), Redis(), Redis(acked=False), RedisPubSub(), Mosquitto(), Mosquitto(qos=1)]
PAYLOAD = make_payload(100)
NAME, *NAMES = stream_names(6)
TIMEOUT_S = 30.0


def _ingest_and_replay(peer: Peer, server: Server) -> None:
    feed = make_feed(peer, [NAME], PAYLOAD, 0, 2_500)
    pushed = ingest(peer, server.target, [NAME], feed, Stop(messages=12_000), Deadline(TIMEOUT_S))
    assert pushed.messages == 12_500
    check_stored(peer, server, NAME, pushed.messages)
    if "replay" in peer.kinds:
        done = replay(peer, server.target, NAME, pushed.messages, len(PAYLOAD), 2, Deadline(TIMEOUT_S))
        assert done.messages == 2 * pushed.messages
        assert done.wire_bytes > done.messages * len(PAYLOAD)


def _consume(peer: Peer, server: Server) -> None:
    feed = make_feed(peer, [NAME], PAYLOAD, 0, 2_500)
    pushed = ingest(peer, server.target, [NAME], feed, Stop(messages=12_000), Deadline(TIMEOUT_S))
    consume(peer, server.target, NAME, pushed.messages, Deadline(TIMEOUT_S))


def _turns(peer: Peer, server: Server) -> None:
    stop, deadline = Stop(messages=1_000), Deadline(TIMEOUT_S)
    pushed = turns(peer, server.target, NAMES, PAYLOAD, 2 * len(NAMES), stop, deadline)
    assert pushed.messages == 1_000
    check_stored(peer, server, NAMES[-1], pushed.stored // len(NAMES))


def _fan_out(peer: Peer, server: Server) -> None:
    done = fan_out(peer, server.target, NAME, PAYLOAD, 5, Stop(messages=2_000), Deadline(TIMEOUT_S))
    assert done.deliveries == done.messages * 5


def _latency(peer: Peer, server: Server) -> None:
    timed = latency(peer, server.target, NAME, PAYLOAD, 1_000, 200, Deadline(TIMEOUT_S))
    assert len(timed.latencies_ns) == 200


def _crowd(peer: Peer, server: Server) -> None:
    done = gather(peer, server.target, NAME, PAYLOAD, 200, 3, 0.0, Deadline(TIMEOUT_S))
    assert len(done.heard_s) == 3


CHECKS: dict[str, Callable[[Peer, Server], None]] = {
    "ingest": _ingest_and_replay,
    "consume": _consume,
    "turns": _turns,
    "fanout": _fan_out,
    "latency": _latency,
    "connections": _crowd,
}
CASES = [(peer, kind) for peer in PEERS for kind in CHECKS if kind in peer.kinds]


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(("peer", "kind"), CASES, ids=[f"{peer.name}-{kind}" for peer, kind in CASES])
def test_a_real_server_sends_what_was_counted(peer: Peer, kind: str, tmp_path: Path) -> None:
    try:
        peer.version()
    except Unavailable as error:
        pytest.skip(str(error))
    with fresh_site(tmp_path, peer.name) as site, Server(peer, site) as server:
        CHECKS[kind](peer, server)
