from __future__ import annotations

import socket
import threading

import pytest

from bench.load.base import Load
from bench.load.latency import hop, latency
from bench.load.limits import Deadline, LoadError
from bench.peers.base import make_payload
from bench.peers.plain import Plain
from bench.server import PeerServer
from tests.bench.load.conftest import PATIENCE_S, StuckAt, load_on

NAME = "b.000000"


def test_every_message_is_timed(silent_server: PeerServer, silent: Plain) -> None:
    timed = latency(load_on(silent_server, silent), NAME, 2_000, 400)
    assert len(timed.latencies_ns) == 400
    assert all(0 < latency_ns < 20e9 for latency_ns in timed.latencies_ns)
    assert timed.spent.wall_s >= 400 / 2_000


def test_a_payload_without_room_for_the_stamp_is_refused(silent_server: PeerServer, silent: Plain) -> None:
    with pytest.raises(ValueError, match="no room for a stamp"):
        latency(Load(silent, silent_server.target, make_payload(10), Deadline(PATIENCE_S)), NAME, 1_000, 1)


def test_every_message_is_timed_at_both(silent_server: PeerServer, silent: Plain) -> None:
    timed = hop(load_on(silent_server, silent), silent_server.target.port, NAME, 2_000, 300)
    assert len(timed.master_ns) == len(timed.slave_ns) == 300
    assert all(0 < latency_ns < 20e9 for latency_ns in (*timed.master_ns, *timed.slave_ns))
    assert timed.spent.wall_s >= 298 / 2_000  # the first goes alone, and the second at once


def test_what_only_one_gets_ends_in_a_timeout(silent_server: PeerServer, silent: Plain) -> None:
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
        come = r"\[1, 0\] have come"
        with pytest.raises(LoadError, match=come):
            hop(load_on(silent_server, silent, StuckAt(come)), port, NAME, 1_000, 10)
        thread.join(60)
