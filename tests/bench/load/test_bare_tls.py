from __future__ import annotations

import socket
from pathlib import Path

from bench.load.tls import client_context
from bench.peers.secure import BareTLS
from bench.server import PeerServer, fresh_site

FILE_BYTES = 700_001


def test_the_file_comes_once_and_whole_under_tls(tmp_path: Path) -> None:
    peer, context = BareTLS(FILE_BYTES), client_context()
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site):  # which has asked whether it is there
        expected = (site.directory / "file").read_bytes()
        for _ in range(2):
            with context.wrap_socket(socket.create_connection(("127.0.0.1", site.port), timeout=60)) as sock:
                sock.sendall(b"G")
                got = bytearray()
                while len(got) < FILE_BYTES:
                    got += sock.recv(1 << 16)
            assert got == expected and len(got) == FILE_BYTES
