"""A client of the metrics port that sends any bytes."""

from __future__ import annotations

import socket

DEADLINE_S = 10.0

Address = tuple[str, int]

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def ask(address: Address, request: bytes = GET) -> tuple[bytes, bytes]:
    """Send `request`, read to the end: (head, body)."""
    with socket.create_connection(address, timeout=DEADLINE_S) as peer:
        peer.sendall(request)
        return read_answer(peer)


def read_answer(peer: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while piece := peer.recv(1 << 16):
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


def get(address: Address, path: str, host: str = "localhost") -> tuple[int, str]:
    head, body = ask(address, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return int(head.split()[1]), body.decode()
