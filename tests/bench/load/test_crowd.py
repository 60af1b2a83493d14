from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from bench.load.base import Load, ServerProcess
from bench.load.crowd import (
    HEARTBEAT_S,
    IDLE_SLOT_S,
    QUIET_SLOTS,
    Crowd,
    gather,
    quiet_after_s,
    settled_share,
)
from bench.load.limits import Deadline, LoadError, LoadTimeout, PeerClosed
from bench.peers.base import Contestant, make_payload
from bench.peers.plain import Plain
from bench.server import PeerServer
from tests.bench.load.conftest import PATIENCE_S, StuckAt, load_on
from tests.bench.load.serving import serving

NAME, PAYLOAD = "b.000000", make_payload(100)
MESSAGE = Plain(100).publish(NAME, PAYLOAD)


def test_everybody_joins_and_hears_everything(silent_server: PeerServer, silent: Plain) -> None:
    done = gather(load_on(silent_server, silent), NAME, 60, 3, 2 * IDLE_SLOT_S)
    assert len(done.heard_s) == 3
    assert all(0 < seconds < 20 for seconds in done.heard_s)
    assert len(done.idle_shares) == 2
    assert all(0 <= share < 0.5 for share in done.idle_shares)
    assert done.joined_per_s > 0
    assert done.spent.wall_s >= sum(done.heard_s)
    assert done.spent.cpu_s > 0


class _Promising(Plain):
    """Claims that each message is delivered with one byte more, or less, than it is."""

    def __init__(self, error_bytes: int) -> None:
        super().__init__(100)
        self._error_bytes = error_bytes

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return super().delivered_bytes(name, messages, payload_bytes) + self._error_bytes * messages


def test_a_byte_too_few_ends_in_a_timeout(silent_server: PeerServer) -> None:
    unheard = "20 of 20 have not heard message 0"
    with pytest.raises(LoadTimeout, match=unheard):
        gather(load_on(silent_server, _Promising(1), StuckAt(unheard)), NAME, 20, 1, 0)


def test_a_byte_too_many_is_an_error(silent_server: PeerServer) -> None:
    with pytest.raises(LoadError, match="bytes were due"):
        gather(load_on(silent_server, _Promising(-1)), NAME, 20, 1, 0)


class _Other(Plain):
    """Publishes something else than it is asked to."""

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return super().publish(name, payload.replace(b"abc", b"cba"), serial, client)


def test_another_payload_is_an_error(silent_server: PeerServer) -> None:
    with pytest.raises(LoadError, match="no delivery of the payload"):
        gather(load_on(silent_server, _Other(100)), NAME, 20, 1, 0)


class _Chatting(Plain):
    chatter: Mapping[bytes, bytes] = {b"how are you\r\n": b"fine\r\n"}


@contextmanager
def _crowd_of_one(peer: Contestant, say: Callable[[socket.socket], None]) -> Iterator[tuple[Crowd, socket.socket]]:
    """A crowd of one, to which the server sends that once it has joined; and a publisher to which nobody listens."""
    joined = threading.Event()

    def behave(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.recv(1)
        sock.sendall(b"s")
        assert joined.wait(60)
        say(sock)

    ours, theirs = socket.socketpair()
    with serving(behave) as port, ours, theirs, _crowd(peer, port) as crowd:
        crowd.join(1)
        joined.set()
        yield crowd, ours


def _crowd(peer: Contestant, port: int, deadline: Deadline | None = None) -> Crowd:
    return Crowd(Load(peer, ServerProcess(port, os.getpid()), PAYLOAD, deadline or Deadline(PATIENCE_S)), NAME)


def test_chatter_is_answered() -> None:
    answers: list[bytes] = []

    def say(sock: socket.socket) -> None:
        sock.sendall(b"how are you\r\n")
        answers.append(sock.recv(100))
        sock.sendall(MESSAGE)
        sock.recv(1)

    with _crowd_of_one(_Chatting(100), say) as (crowd, publisher):
        assert crowd.hear(publisher, 0) > 0
    assert answers == [b"fine\r\n"]


@pytest.mark.parametrize("said", [b"how are you\r\n" + MESSAGE, MESSAGE + b"how are you\r\n"])
def test_chatter_may_come_with_a_message(said: bytes) -> None:
    answers: list[bytes] = []

    def say(sock: socket.socket) -> None:
        sock.sendall(said)
        answers.append(sock.recv(100))
        sock.recv(1)

    with _crowd_of_one(_Chatting(100), say) as (crowd, publisher):
        assert crowd.hear(publisher, 0) > 0
    assert answers == [b"fine\r\n"]


def test_what_is_said_unasked_is_an_error() -> None:
    with (
        _crowd_of_one(Plain(100), lambda sock: sock.sendall(b"what?")) as (crowd, _),
        pytest.raises(LoadError, match=r"left alone .* b'what"),
    ):
        crowd.rest(5)


def test_a_connection_that_is_closed_is_told() -> None:
    with _crowd_of_one(Plain(100), lambda sock: sock.sendall(MESSAGE)) as (crowd, publisher):
        assert crowd.hear(publisher, 0) > 0
        with pytest.raises(PeerClosed):
            crowd.hear(publisher, 1)


def test_a_message_in_pieces_counts_once_it_is_whole() -> None:
    def say(sock: socket.socket) -> None:
        for byte in MESSAGE:
            sock.send(bytes((byte,)))
        sock.recv(1)

    with _crowd_of_one(Plain(100), say) as (crowd, publisher):
        assert crowd.hear(publisher, 0) > 0


def test_nobody_there_is_told() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with _crowd(Plain(100), sock.getsockname()[1]) as crowd, pytest.raises(LoadError, match="connection 1: "):
            crowd.join(1)


def test_a_server_that_never_answers_ends_in_a_timeout() -> None:
    def behave(sock: socket.socket) -> None:
        while sock.recv(1):
            pass

    waiting = "1 of 1 have connected, 1 have not joined"
    with (
        serving(behave) as port,
        _crowd(Plain(100), port, StuckAt(waiting)) as crowd,
        pytest.raises(LoadTimeout, match=waiting),
    ):
        crowd.join(1)


def test_quiet_begins_with_several_slots_of_next_to_nothing() -> None:
    quiet = [0.0] * QUIET_SLOTS
    assert quiet_after_s([0.5, 0.0, 0.02, *quiet, 0.3]) == 3 * IDLE_SLOT_S
    assert quiet_after_s(quiet) == 0
    assert quiet_after_s([*quiet[1:], 1.0]) == QUIET_SLOTS * IDLE_SLOT_S


def test_idle_use_is_that_of_one_heartbeat_if_there_was_time_for_it() -> None:
    beat = round(HEARTBEAT_S / IDLE_SLOT_S)
    assert settled_share([1.0, *[0.5] * beat]) == 0.5
    assert settled_share([1.0, 1.0, 0.25, 0.75]) == 0.5
    assert settled_share([0.5]) == 0.5
