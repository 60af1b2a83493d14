"""A plain process to put load on, silent or answering; and two ends of one connection."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load.base import Load
from bench.load.limits import Deadline
from bench.peers.base import Contestant, make_payload
from bench.peers.plain import Plain
from bench.server import PeerServer, fresh_site

PAYLOAD = make_payload(100)
PATIENCE_S = 60.0
STUCK_S = 0.3


class StuckAt(Deadline):
    """Passes STUCK_S after a wait for `doing` has begun, however long the way there took."""

    def __init__(self, doing: str) -> None:
        super().__init__(PATIENCE_S)
        self._doing = re.compile(doing)
        self._there = False

    def check(self, doing: str) -> None:
        if not self._there and self._doing.search(doing):
            self._there = True
            self._end = time.monotonic() + STUCK_S
        super().check(doing)


def load_on(server: PeerServer, peer: Contestant, deadline: Deadline | None = None) -> Load:
    return Load(peer, server.target, PAYLOAD, deadline or Deadline(PATIENCE_S))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, which does not block, and theirs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.fixture(params=[False, True], ids=["silent", "acks"])
def plain(request: pytest.FixtureRequest) -> Plain:
    return Plain(100, acked=bool(request.param))


@pytest.fixture
def silent() -> Plain:
    return Plain(100)


@pytest.fixture
def plain_server(tmp_path: Path, plain: Plain) -> Iterator[PeerServer]:
    with fresh_site(tmp_path, plain.name) as site, PeerServer(plain, site) as server:
        yield server


@pytest.fixture
def silent_server(tmp_path: Path, silent: Plain) -> Iterator[PeerServer]:
    with fresh_site(tmp_path, silent.name) as site, PeerServer(silent, site) as server:
        yield server
