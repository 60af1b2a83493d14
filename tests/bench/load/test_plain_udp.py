from __future__ import annotations

import socket
from pathlib import Path

from bench.peers.udp import PlainUdp, ask
from bench.server import PeerServer, fresh_site


def test_it_counts_what_comes_and_sends_as_many_to_each_subscriber(tmp_path: Path) -> None:
    peer = PlainUdp(100)
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site):
        kind = socket.AF_INET, socket.SOCK_DGRAM
        with socket.socket(*kind) as one, socket.socket(*kind) as other:
            for number, sock in enumerate((one, other), 1):
                sock.connect(("127.0.0.1", site.port))
                sock.settimeout(60)
                assert ask(site.port, b"subscribe %d" % sock.getsockname()[1]) == b"ok %d" % number
            for _ in range(3):
                one.send(b"anything")
            for sock in (one, other):
                assert {len(sock.recv(1_000)) for _ in range(3)} == {peer.delivered_datagram_bytes("b.000000", 100)}
            assert ask(site.port, b"count") == b"ok 3"
