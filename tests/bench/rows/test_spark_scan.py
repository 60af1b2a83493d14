from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.load.limits import LoadError
from bench.load.spark_server import Answers, Context, serve
from bench.peers.spark import SparkSession
from bench.rows.spark_scan import HOUR_REPEATS, HOUR_WARM, REPEATS, SparkScanRow, ask, repeated
from bench.server import Server
from tests.bench.rows.conftest import TINY


class FakeServer:
    """Answers in this process; looks as the harness's server does."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.site = SimpleNamespace(port=self._listener.getsockname()[1])
        self.target = SimpleNamespace(pid=1)
        questions = {name: self._note(name) for name in ("export", "hour", "scan")}
        answers = Answers(questions, lambda: Context(None, Path(), Path(), 1, 1))
        self._thread = threading.Thread(target=self._serve, args=(answers,), daemon=True)
        self._thread.start()

    def _note(self, name: str) -> Any:
        return lambda _context: self.asked.append(name)

    def _serve(self, answers: Answers) -> None:
        try:
            serve(self._listener, answers)
        except OSError:
            pass  # it was closed

    def peak_rss_bytes(self) -> int:
        return 1

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    found = FakeServer()
    yield found
    found.close()


def test_the_first_time_is_not_counted(server: FakeServer) -> None:
    ask(cast(Server, server), "prepare", 5)
    seconds, cpu_us = repeated(cast(Server, server), "scan", 5, 10)
    assert 0 <= seconds < 5
    assert cpu_us >= 0
    assert server.asked == ["scan"] * 4


def test_what_goes_wrong_is_told(server: FakeServer) -> None:
    with pytest.raises(LoadError, match="scan: ValueError: 'scan' cannot be asked"):
        ask(cast(Server, server), "scan", 5)
    server.close()
    with pytest.raises(LoadError, match="scan: "):
        ask(cast(Server, server), "scan", 5)


@pytest.mark.parametrize("kind", ["files", "parquet"])
def test_a_row_asks_for_all_it_shows(server: FakeServer, kind: str) -> None:
    """What Spark answers to these questions is in tests/spark/test_datasource.py."""
    peer = SparkSession(kind, frozenset({"spark-scan"}), (2, 1_000, 100))
    measured = SparkScanRow().measure(peer, cast(Server, server), TINY)
    assert measured.extras["messages_per_s"] == pytest.approx(measured.value * 1e6 / 156)
    asked = ["scan"] * (1 + REPEATS) + ["hour"] * (HOUR_WARM + HOUR_REPEATS)
    assert server.asked == ["export"] * (kind == "parquet") + asked
    assert ("export_s" in measured.extras) == (kind == "parquet")
