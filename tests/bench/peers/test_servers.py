"""Each peer's description against its real server: were one byte count wrong, the generator would never finish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.load.base import Stop
from bench.load.crowd import gather
from bench.load.fanout import fan_out
from bench.load.latency import latency
from bench.load.publishing import ingest, turns
from bench.load.reading import consume, replay
from bench.peers.base import Contestant, Unavailable, make_feed, stream_names
from bench.peers.jetstream import JetStream
from bench.peers.kafka import Kafka
from bench.peers.mqtt import Mosquitto, NatsMqtt, Rumqttd
from bench.peers.nats import Nats
from bench.peers.redis import Redis, RedisPubSub
from bench.peers.secure import secure_peers
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.peers.tailrace_mqtt import TailraceMqtt
from bench.rows.base import RowRun
from bench.scale import FULL
from bench.server import PeerServer, fresh_site
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.load.conftest import PAYLOAD, load_on
from tests.thorough import only_thorough

OURS = [
    kind(acked=acked, interpreted=interpreted_wanted())
    for kind in (Tailrace, TailraceBinary)
    for acked in (False, True)
]
PEERS = [
    *OURS, *secure_peers(interpreted=interpreted_wanted(), workers=2),
    Nats(), JetStream(), Redis(), Redis(acked=False), RedisPubSub(), Mosquitto(), Mosquitto(qos=1), Kafka(),
]  # fmt: skip
NAME, *NAMES = stream_names(6)


def _ingest_and_replay(peer: Contestant, server: PeerServer) -> None:
    feed = make_feed(peer, [NAME], PAYLOAD, 0, 2_500)
    pushed = ingest(load_on(server, peer), [NAME], feed, Stop(messages=12_000))
    assert pushed.messages == 12_500
    RowRun(peer, server, FULL).check_stored(NAME, pushed.messages)
    if "replay" in peer.kinds:
        done = replay(load_on(server, peer), NAME, pushed.messages, 2)
        assert done.messages == 2 * pushed.messages
        assert done.wire_bytes > done.messages * len(PAYLOAD)


def _consume(peer: Contestant, server: PeerServer) -> None:
    feed = make_feed(peer, [NAME], PAYLOAD, 0, 2_500)
    pushed = ingest(load_on(server, peer), [NAME], feed, Stop(messages=12_000))
    consume(load_on(server, peer), NAME, pushed.messages)


def _turns(peer: Contestant, server: PeerServer) -> None:
    pushed = turns(load_on(server, peer), NAMES, 2 * len(NAMES), Stop(messages=1_000))
    assert pushed.messages == 1_000
    RowRun(peer, server, FULL).check_stored(NAMES[-1], pushed.stored // len(NAMES))


def _fan_out(peer: Contestant, server: PeerServer) -> None:
    done = fan_out(load_on(server, peer), NAME, 5, Stop(messages=2_000))
    assert done.deliveries == done.messages * 5


def _latency(peer: Contestant, server: PeerServer) -> None:
    timed = latency(load_on(server, peer), NAME, 1_000, 200)
    assert len(timed.latencies_ns) == 200


def _crowd(peer: Contestant, server: PeerServer) -> None:
    done = gather(load_on(server, peer), NAME, 200, 3, 0.0)
    assert len(done.heard_s) == 3


CHECKS: dict[str, Callable[[Contestant, PeerServer], None]] = {
    "ingest": _ingest_and_replay,
    "consume": _consume,
    "turns": _turns,
    "fanout": _fan_out,
    "fanout-qos1": _fan_out,
    "latency": _latency,
    "connections": _crowd,
    "connections-qos1": _crowd,
}
CASES = [(peer, kind) for peer in PEERS for kind in CHECKS if kind in peer.kinds]
CASES += [
    (peer, "fanout-qos1")
    for peer in (TailraceMqtt(qos=1, interpreted=interpreted_wanted()), Rumqttd(qos=1), NatsMqtt(qos=1))
]
ALWAYS = ("tailrace-binary", "nats")
"""The peers that are started in an ordinary run, too."""
CASES_OF_RUN = [case if case[0].name in ALWAYS else only_thorough(case)[0] for case in CASES]


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(("peer", "kind"), CASES_OF_RUN, ids=[f"{peer.name}-{kind}" for peer, kind in CASES])
def test_a_real_server_sends_what_was_counted(peer: Contestant, kind: str, tmp_path: Path) -> None:
    try:
        peer.version()
    except Unavailable as error:
        pytest.skip(str(error))
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site) as server:
        CHECKS[kind](peer, server)
