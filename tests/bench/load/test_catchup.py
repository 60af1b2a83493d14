from __future__ import annotations

import os
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from bench.load.base import Load, ServerProcess
from bench.load.catchup import catch_up, touch_memory
from bench.load.limits import Deadline, LoadTimeout
from bench.peers.base import RequestStep
from bench.peers.plain import Plain
from tests.bench.load.conftest import PATIENCE_S, StuckAt
from tests.bench.load.serving import serving

LAST = [RequestStep(b"last", b"held")]


def load(port: int, deadline: Deadline) -> Load:
    return Load(Plain(100), ServerProcess(port, os.getpid()), b"", deadline)


def test_the_slave_is_told_to_follow_before_the_last_publish() -> None:
    heard: list[bytes] = []

    def slave(sock: socket.socket) -> None:
        heard.append(sock.recv(100))
        sock.sendall(b"ok slave b.000000 127.0.0.1:1\r\n")

    def master(sock: socket.socket) -> None:
        heard.append(sock.recv(100))
        sock.sendall(b"held")

    with serving(master) as port, serving(slave) as slave_port:
        spent = catch_up(load(port, Deadline(PATIENCE_S)), slave_port, "b.000000", LAST)
    assert heard == [b"slave 127.0.0.1 %d b.000000 0\r\n" % port, b"last"]
    assert spent.wall_s > 0


def test_a_slave_that_refuses_ends_in_a_timeout() -> None:
    def slave(sock: socket.socket) -> None:
        sock.sendall(b"err denied\r\n")
        while sock.recv(100):
            pass

    with serving(slave) as port, pytest.raises(LoadTimeout, match="err denied"):
        catch_up(load(port, StuckAt("err denied")), port, "b.000000", LAST)


def test_touched_memory_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[int, list[tuple[int, int]]] = {}

    def note(fd: int, data: memoryview, place: int) -> int:
        written.setdefault(fd, []).append((place, len(data)))
        return len(data)

    monkeypatch.setattr("bench.load.catchup.os.pwrite", note)
    touch_memory(tmp_path, 3_000_000, 700_001)
    assert list(tmp_path.iterdir()) == []
    for size, pieces in zip((3_000_000, 700_001), written.values(), strict=True):
        assert len(pieces) == 3 and pieces[0][0] == 4096
        assert all(place + length == behind for (place, length), (behind, _) in pairwise(pieces))
        assert sum(length for _, length in pieces) == size
