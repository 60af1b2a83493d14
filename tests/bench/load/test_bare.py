from __future__ import annotations

import socket
from pathlib import Path

from bench.peers.plain import BareSendfile
from bench.server import PeerServer, fresh_site


def test_the_file_comes_once_and_whole(tmp_path: Path) -> None:
    peer = BareSendfile(1_500_000)
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site):
        expected = (site.directory / "file").read_bytes()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", site.port), timeout=60) as sock:
                sock.sendall(b"G")
                got = bytearray()
                while data := sock.recv(1 << 16):
                    got += data
            assert got == expected


def test_it_says_that_it_is_there(tmp_path: Path) -> None:
    peer = BareSendfile(10)
    with (
        fresh_site(tmp_path, peer.name) as site,
        PeerServer(peer, site),
        socket.create_connection(("127.0.0.1", site.port), timeout=60) as sock,
    ):
        sock.sendall(b"?")
        assert sock.recv(10) == b"!"
