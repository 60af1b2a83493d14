from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.base import Stop
from bench.load.packets import BURST, pour, spread
from bench.peers.base import Contestant
from bench.peers.tailrace_mqtt import TailraceMqtt
from bench.peers.udp import DatagramPeer, PlainUdp, TailraceUdp
from bench.server import PeerServer, fresh_site
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.load.conftest import PAYLOAD, load_on

NAME = "b.000000"
PEERS = [
    TailraceUdp(interpreted=interpreted_wanted()),
    TailraceMqtt(interpreted=interpreted_wanted()),
    PlainUdp(len(PAYLOAD)),
]


@pytest.mark.system
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_messages_come_in_and_go_out(peer: Contestant, tmp_path: Path) -> None:
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site) as server:
        pushed = pour(load_on(server, peer), NAME, Stop(seconds=0.05))
        assert 0 < pushed.messages <= pushed.stored
        if isinstance(peer, DatagramPeer):
            assert peer.taken(site.port) == pushed.stored
        done = spread(load_on(server, peer), "b.000001" if peer is PEERS[1] else NAME, 3, Stop(seconds=0.05))
        assert done.deliveries > 0
        assert done.published % BURST == 0
        assert done.deliveries + done.lost == 3 * done.published
