from __future__ import annotations

import socket

from bench.server import PeerServer


def test_subscribers_get_the_bytes_as_they_came(silent_server: PeerServer) -> None:
    address = ("127.0.0.1", silent_server.site.port)
    with (
        socket.create_connection(address, timeout=60) as publisher,
        socket.create_connection(address, timeout=60) as subscriber,
    ):
        publisher.sendall(b"P")
        subscriber.sendall(b"S")
        assert (publisher.recv(1), subscriber.recv(1)) == (b"p", b"s")
        publisher.sendall(b"hello!")
        assert publisher.recv(10) == b"done"
        assert subscriber.recv(100) == b"hello"


def test_a_connection_of_no_known_kind_is_closed(silent_server: PeerServer) -> None:
    with socket.create_connection(("127.0.0.1", silent_server.site.port), timeout=60) as sock:
        sock.sendall(b"x")
        assert sock.recv(10) == b""
