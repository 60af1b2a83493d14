from __future__ import annotations

from pathlib import Path

from bench.peers.base import Site
from bench.peers.nats import Nats


def test_nats_lines() -> None:
    assert Nats().publish("b.1", b"@hello") == b"PUB b.1 6\r\n@hello\r\n"
    assert Nats().delivered_bytes("b.1", 10, 6) == 10 * len(b"MSG b.1 1 6\r\n@hello\r\n")


def test_nothing_is_dropped_for_being_a_little_behind() -> None:
    lines = Nats().configuration(Site(Path("/nowhere"), 4222, 0))
    assert "max_pending: 1GB" in lines
    assert 'listen: "127.0.0.1:4222"' in lines


def test_a_listener_asks_for_everything_at_once() -> None:
    (step,) = Nats().listener("b.1", 0)
    assert step.send.startswith(b"CONNECT {")
    assert step.send.endswith(b"}\r\nSUB b.1 1\r\nPING\r\n")
    assert Nats().chatter == {b"PING\r\n": b"PONG\r\n"}
