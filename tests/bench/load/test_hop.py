"""A relay stands for both nodes: its two subscribers get every message."""

from __future__ import annotations

import socket
import threading

import pytest

from bench.load.hop import hop
from bench.load.limits import Deadline, LoadError
from bench.peers.base import make_payload
from bench.peers.plain import Plain
from bench.server import Server

NAME, PAYLOAD = "b.000000", make_payload(100)


def test_every_message_is_timed_at_both(silent_server: Server, silent: Plain) -> None:
    target = silent_server.target
    timed = hop(silent, target, target.port, NAME, PAYLOAD, 2_000, 300, Deadline(20))
    assert len(timed.master_ns) == len(timed.slave_ns) == 300
    assert all(0 < latency_ns < 20e9 for latency_ns in (*timed.master_ns, *timed.slave_ns))
    assert timed.spent.wall_s >= 298 / 2_000  # the first goes alone, and the second at once


def test_what_only_one_gets_ends_in_a_timeout(silent_server: Server, silent: Plain) -> None:
    """The other subscribes to a relay that nobody publishes to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def mute() -> None:
            sock, _ = listener.accept()
            with sock:
                while data := sock.recv(10):
                    if data == b"S":
                        sock.sendall(b"s")

        thread = threading.Thread(target=mute, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(LoadError, match=r"\[1, 0\] have come"):
            hop(silent, silent_server.target, port, NAME, PAYLOAD, 1_000, 10, Deadline(0.5))
        thread.join(10)
