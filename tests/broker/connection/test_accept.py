"""How connections come in: accepted, counted, passed on, refused; and what counts as this machine."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import termios
import time
from pathlib import Path

import pytest

from tailrace.broker.connection import accept as acceptor_module
from tailrace.broker.connection.accept import format_peer
from tailrace.broker.process.scoreboard import STATE_DRAINING
from tailrace.broker.replication.roles.peers import is_loopback
from tests.broker.world import Peer, World, world


def dial(node: World, slot: int = 0) -> Peer:
    """A connection through the worker's listener."""
    peer = Peer(socket.create_connection(node.listeners[slot].getsockname()))
    node.peers.append(peer)
    node.settle()
    return peer


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("128.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::1", True),
        ("::2", False),
        ("::ffff:127.0.0.1", True),
        ("::ffff:127.9.9.9", True),
        ("::ffff:192.0.2.1", False),
        ("::127.0.0.1", False),
        ("fe80::1%lo", False),
        ("fe80::1%eth0", False),
    ],
)
def test_what_counts_as_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_peers_as_they_are_shown() -> None:
    assert format_peer(("192.0.2.1", 5050)) == "192.0.2.1:5050"
    assert format_peer(("2001:db8::1", 5050, 0, 0)) == "[2001:db8::1]:5050"


def test_connections_are_accepted_tuned_and_counted(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peers = [dial(node) for _ in range(5)]
        for peer in peers:
            assert node.ask(peer, "ping") == ["ok pong"]
        clients = list(node.workers[0].services.clients.values())
        assert {client.identity.local for client in clients} == {True}
        host, port = peers[0].sock.getsockname()
        assert clients[0].peer == f"{host}:{port}"
        sock = clients[0].sock
        assert isinstance(sock, socket.socket)
        for option in (socket.TCP_NODELAY, socket.TCP_KEEPIDLE):
            assert sock.getsockopt(socket.IPPROTO_TCP, option)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert node.workers[0].metrics.accepted == node.board.total_connections() == 5


def test_more_connections_than_the_node_may_have_are_told(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, max_connections=3) as node:
        kept = [dial(node, slot) for slot in (0, 1, 1)]
        late, silent = dial(node, 0), dial(node, 0)
        assert [line.split()[1] for line in node.ask(late, "ping")] == ["connections"] and late.ended
        assert silent.lines == [], "what it speaks is not known yet"
        node.workers[0].services.now_s += acceptor_module.SILENCE_S + 0.1
        node.workers[0].acceptor.tick()
        node.settle()
        assert [line.split()[1] for line in silent.lines] == ["connections"] and silent.ended
        late.close()
        silent.close()
        kept[1].close()
        node.settle()
        assert node.ask(dial(node, 0), "ping") == ["ok pong"]
        assert node.workers[0].metrics.refused.counts == {"connections": 2}


def test_a_crowded_worker_passes_a_fresh_connection_on(tmp_path: Path) -> None:
    with world(tmp_path, workers=3) as node:
        crowd = [dial(node, 0) for _ in range(17)]
        assert [len(worker.services.clients) for worker in node.workers] == [17, 0, 0]
        passed = [dial(node, 0) for _ in range(2)]
        assert [len(worker.services.clients) for worker in node.workers] == [17, 1, 1], "each time to the least crowded"
        for peer in crowd + passed:
            assert node.ask(peer, "ping") == ["ok pong"]
        assert node.workers[0].metrics.handed_over == 2


def test_those_on_their_way_to_a_sibling_count(tmp_path: Path) -> None:
    """A burst that one worker accepts before the others have had a turn is shared, not passed to one of them whole."""
    with world(tmp_path, workers=3) as node:
        burst = [socket.create_connection(node.listeners[0].getsockname()) for _ in range(100)]
        for _ in range(3):
            node.workers[0].turn()
        for _ in range(100):
            node.workers[1].turn()
            node.workers[2].turn()
        counts = [len(worker.services.clients) for worker in node.workers]
        assert sum(counts) == 100 and max(counts[1:]) - min(counts[1:]) <= 30 and counts[0] < 60, counts
        for sock in burst:
            sock.close()


def test_a_worker_that_is_not_ready_gets_none(tmp_path: Path) -> None:
    with world(tmp_path, workers=3) as node:
        for slot in (1, 2):
            node.board.slot(slot).state = STATE_DRAINING
        for _ in range(20):
            dial(node, 0)
        assert [len(worker.services.clients) for worker in node.workers] == [20, 0, 0]


def test_one_that_sent_something_already_is_passed_on_with_it(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        for _ in range(17):
            dial(node, 0)
        peer = Peer(socket.create_connection(node.listeners[0].getsockname()))
        node.peers.append(peer)
        peer.send("ack on", "pub a |x")
        node.settle()
        assert peer.lines == ["ok ack on", "ok pub a 0"] and len(node.workers[1].services.clients) == 1


class FailingListener:
    """A listener whose `accept` fails a few times, with one error number."""

    def __init__(self, listener: socket.socket, refusals: int, number: int = errno.EMFILE) -> None:
        self._listener = listener
        self.refusals = refusals
        self.number = number

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(self.number, os.strerror(self.number))
        return self._listener.accept()

    def fileno(self) -> int:
        return self._listener.fileno()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("number", sorted(acceptor_module.CONNECTION_GONE), ids=errno.errorcode.__getitem__)
def test_a_pending_network_error_of_one_connection_does_not_end_the_worker(tmp_path: Path, number: int) -> None:
    """As often as it comes, in one turn and in the next."""
    with world(tmp_path) as node:
        acceptor = node.workers[0].acceptor
        failing = FailingListener(acceptor._listener, acceptor_module.ACCEPTS_A_TURN + 3, number)
        acceptor._listener = failing  # type: ignore[assignment]
        peer = dial(node)
        assert node.ask(peer, "ping") == ["ok pong"]
        assert failing.refusals == 0


def test_accept_2_names_no_pending_error_that_is_missing_here() -> None:
    named = {errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH}
    assert named | {errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ECONNABORTED} <= acceptor_module.CONNECTION_GONE


def test_any_other_error_of_accept_is_one_of_this_program(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        acceptor = node.workers[0].acceptor
        failing = FailingListener(acceptor._listener, 1, errno.EINVAL)
        acceptor._listener = failing  # type: ignore[assignment]
        with pytest.raises(OSError, match="Invalid argument"):
            acceptor._on_event(0)


def test_when_descriptors_run_out_it_waits_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor_module, "RETRY_S", 3_600.0)  # a turn of the loop here may take any time
    with world(tmp_path) as node:
        acceptor = node.workers[0].acceptor
        short = FailingListener(acceptor._listener, 2)
        acceptor._listener = short  # type: ignore[assignment]
        peer = dial(node)
        assert node.workers[0].services.clients == {} and short.refusals == 1, "it does not try in a circle"
        for _ in range(2):
            acceptor._retry_at_s = time.monotonic()
            acceptor.tick()
            node.settle()
        assert node.ask(peer, "ping") == ["ok pong"]
        assert caplog.text.count("cannot accept: Too many open files") == 2


def test_a_worker_that_stops_accepting_leaves_the_queue_to_its_successor(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.workers[0].acceptor.stop()
        node.workers[0].acceptor.stop()
        sock = socket.create_connection(node.listeners[0].getsockname())
        node.settle()
        assert node.workers[0].services.clients == {}
        node.listeners[0].setblocking(False)
        waiting, _address = node.listeners[0].accept()
        waiting.close()
        sock.close()


def test_the_kernel_holds_little_for_a_peer_that_reads_nothing(tmp_path: Path) -> None:
    """By default it would take some megabytes of each subscriber's backlog."""
    with world(tmp_path, notsent_bytes=64 << 10) as node:
        for _ in range(100):
            node.fill("big", [b"x" * 80_000])
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 10)
            sock.connect(node.listeners[0].getsockname())
            sock.sendall(b"sub big 0 wait\r\n")
            client = None
            while client is None or not client.blocked:
                node.workers[0].turn()
                client = next(iter(node.workers[0].services.clients.values()), None)
            unsent = array.array("i", [0])
            fcntl.ioctl(client.fd, termios.TIOCOUTQ, unsent)
            assert unsent[0] < 256 << 10
