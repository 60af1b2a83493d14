"""Connecting, timed and as noise, against a server that answers a ping."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from bench.load.base import Load, ServerProcess
from bench.load.connecting import connecting, timed_connects
from bench.load.limits import Deadline, LoadError
from bench.peers.tailrace import Tailrace


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    sources: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, address = listener.accept()
                except OSError:
                    return
                sources.append(address[0])
                try:
                    with sock:
                        if sock.recv(64):
                            sock.sendall(b"ok pong\r\n" if len(sources) != 4 else b"err connections\r\n")
                except OSError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], sources
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_each_connect_is_timed_and_must_be_served(server: tuple[int, list[str]]) -> None:
    port, sources = server
    load = Load(Tailrace(), ServerProcess(port, 1), b"", Deadline(60))
    times_ns = timed_connects(load, "127.0.0.3", 3, 1_000)
    assert len(times_ns) == 3 and min(times_ns) > 0 and set(sources) == {"127.0.0.3"}
    with pytest.raises(LoadError, match="not served"):
        timed_connects(load, "127.0.0.3", 1, 1_000)


def test_noise_counts_its_connections(server: tuple[int, list[str]]) -> None:
    port, sources = server
    with connecting(port, "127.0.0.2", 1_000, Deadline(60)) as noise:
        assert noise.nbytes >= 1
    assert set(sources) == {"127.0.0.2"}
