from __future__ import annotations

import socket

import pytest

from bench.load.forwarding import publish_by_turns
from bench.load.limits import LoadError
from bench.peers.plain import ANSWER_BYTES, Plain
from bench.server import PeerServer
from tests.bench.load.conftest import load_on
from tests.bench.load.serving import serving

NAME = "b.000000"


@pytest.fixture
def plain() -> Plain:
    return Plain(100, acked=True)


def test_each_publish_is_timed_at_both(plain_server: PeerServer, plain: Plain) -> None:
    found = publish_by_turns(load_on(plain_server, plain), plain_server.target.port, NAME, 2_000, 100)
    for found_ns in (found.leader_ns, found.other_ns, found.bare_ns, found.relayed_ns):
        assert len(found_ns) == 100 and all(0 < each_ns < 20e9 for each_ns in found_ns)
    assert found.spent.wall_s >= 199 / 2_000


@pytest.mark.parametrize(
    ("answer", "text"),
    [(b"", "closed a connection instead of an answer"), (bytes(ANSWER_BYTES + 1), "the server sent something else")],
    ids=["none", "another one"],
)
def test_an_answer_that_is_none_is_an_error(plain_server: PeerServer, plain: Plain, answer: bytes, text: str) -> None:
    def behave(sock: socket.socket) -> None:
        assert sock.recv(10) == b"P"
        sock.sendall(b"p")
        sock.recv(10_000)
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(10_000):
            pass

    with serving(behave) as port, pytest.raises(LoadError, match=text):
        publish_by_turns(load_on(plain_server, plain), port, NAME, 2_000, 10)
