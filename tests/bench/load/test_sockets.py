from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from bench.load.limits import Deadline, LoadError, LoadTimeout, PeerClosed
from bench.load.sockets import administer, dialled, drain, read, send_some, steps_succeed
from bench.peers.base import RequestStep
from bench.peers.plain import Plain
from bench.server import PeerServer
from tests.bench.load.conftest import PATIENCE_S, StuckAt
from tests.bench.load.serving import serving


def test_many_connections_go_through_their_steps(silent_server: PeerServer, silent: Plain) -> None:
    with dialled(silent_server.site.port, [silent.ready()] * 300, Deadline(PATIENCE_S)) as socks:
        assert len(socks) == 300
        assert not any(sock.getblocking() for sock in socks)
    assert all(sock.fileno() == -1 for sock in socks)


def test_steps_follow_one_another() -> None:
    def behave(sock: socket.socket) -> None:
        assert sock.recv(10) == b"one"
        sock.sendall(b"..1")
        assert sock.recv(10) == b"two"
        sock.sendall(b"2")

    with serving(behave) as port:
        assert steps_succeed(port, [RequestStep(b"one", b"1"), RequestStep(b"two", b"2"), RequestStep(b"three")], 5)


def _read_to_the_end(sock: socket.socket) -> None:
    while sock.recv(100):
        pass


def test_a_step_that_is_not_answered_says_what_it_waited_for() -> None:
    with (
        serving(_read_to_the_end) as port,
        pytest.raises(LoadTimeout, match=r"wait.*b'never'"),
        dialled(port, [[RequestStep(b"hello", b"never")]], StuckAt("b'never'")),
    ):
        pass


def test_a_server_that_hangs_up_says_what_was_waited_for() -> None:
    with (
        serving(lambda sock: None) as port,
        pytest.raises(LoadError, match=r"waited for b'never'"),
        dialled(port, [[RequestStep(b"", b"never")]], Deadline(PATIENCE_S)),
    ):
        pass


def test_steps_fail_where_nobody_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert not steps_succeed(sock.getsockname()[1], [RequestStep(b"", b"")], 1.0)


def test_drained_bytes_are_counted_and_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert drain(ours) == 0
    theirs.sendall(b"x" * 10_000)
    got, deadline = 0, Deadline(PATIENCE_S)
    while got < 10_000:
        deadline.check("draining")
        got += drain(ours)
    assert (got, drain(ours), read(ours)) == (10_000, 0, b"")


def test_no_more_is_drained_or_read_than_was_asked_for(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"abcdefghij")
    deadline = Deadline(PATIENCE_S)
    while not drain(ours, 3):
        deadline.check("draining")
    assert read(ours, 2) == b"de"
    assert read(ours) == b"fghij"


def test_the_end_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.shutdown(socket.SHUT_WR)
    ours.settimeout(60)
    with pytest.raises(PeerClosed):
        drain(ours)
    with pytest.raises(PeerClosed):
        read(ours)


def test_a_full_socket_takes_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    view = memoryview(bytes(1 << 20))
    for _ in range(1_000):
        if not send_some(ours, view):
            return
    raise AssertionError("a socket that nobody reads took a gigabyte")


def test_a_command_at_a_socket_of_administration_is_over_with_its_answer(tmp_path: Path) -> None:
    path, step = tmp_path / "admin.sock", RequestStep(b"isr *\r\n", b"ok isr")
    with pytest.raises(LoadError, match=r"admin\.sock"):
        administer(path, step, Deadline(PATIENCE_S))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            for text in (b"ok isr *", b"err usage"):
                sock, _ = listener.accept()
                with sock:
                    if sock.recv(100) == step.send:
                        sock.sendall(text)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        administer(path, step, Deadline(PATIENCE_S))
        with pytest.raises(LoadError, match=r"waited for b'ok isr' .*err usage"):
            administer(path, step, Deadline(PATIENCE_S))
        thread.join(60)
