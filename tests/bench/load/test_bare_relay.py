from __future__ import annotations

from bench.load.bare_relay import bare_relay


def test_both_answer_as_long_as_the_connections_last() -> None:
    with bare_relay(25) as socks:
        for _ in range(2):
            for sock in socks:
                sock.settimeout(20)
                sock.sendall(b"x" * 149)
                assert sock.recv(100) == bytes(25)
