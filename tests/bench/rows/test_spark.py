"""Rows of Spark. What Spark answers is tested in tests/spark/test_datasource.py and ../load/test_rollup.py."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

import pytest

from bench.load.limits import Deadline, LoadError
from bench.load.live import Lived
from bench.load.spark_server import Answers, Context, serve
from bench.peers.plain import Plain
from bench.peers.spark import SparkSession
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows import spark
from bench.rows.base import RowRun
from bench.rows.spark import (
    HOUR_REPEATS,
    HOUR_WARM,
    LIVE_STREAMS,
    REPEATS,
    ROUND_MESSAGES,
    WARM_BATCHES,
    ask,
    live_row,
    repeated,
    rollup_row,
    spark_scan_row,
)
from bench.server import PeerServer
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import TINY, MeasureRow


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
    ask(cast(PeerServer, server), "prepare", 5)
    seconds, cpu_us = repeated(cast(PeerServer, server), "scan", 5, 10)
    assert 0 <= seconds < 5
    assert cpu_us >= 0
    assert server.asked == ["scan"] * 4


def test_what_goes_wrong_is_told(server: FakeServer) -> None:
    with pytest.raises(LoadError, match="scan: ValueError: 'scan' cannot be asked"):
        ask(cast(PeerServer, server), "scan", 5)
    server.close()
    with pytest.raises(LoadError, match="scan: "):
        ask(cast(PeerServer, server), "scan", 5)


@pytest.mark.parametrize("kind", ["files", "parquet"])
def test_a_row_asks_for_all_it_shows(server: FakeServer, kind: str) -> None:
    """What Spark answers to these questions is in tests/spark/test_datasource.py."""
    peer = SparkSession(kind, frozenset({"spark-scan"}), (2, 1_000, 100))
    measured = spark_scan_row().measure(RowRun(peer, cast(PeerServer, server), TINY))
    assert measured.extras["messages_per_s"] == pytest.approx(measured.value * 1e6 / 156)
    asked = ["scan"] * (1 + REPEATS) + ["hour"] * (HOUR_WARM + HOUR_REPEATS)
    assert server.asked == ["export"] * (kind == "parquet") + asked
    assert ("export_s" in measured.extras) == (kind == "parquet")


class NoServer:
    def peak_rss_bytes(self) -> int:
        return 7


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def note(answer: Any) -> Callable[..., Any]:
        def ask(_server: object, question: str, *_: object) -> Any:
            found.append(question)
            return answer

        return ask

    monkeypatch.setattr(spark, "ask", note(1.5))
    monkeypatch.setattr(spark, "repeated", note((2.0, 0.25)))
    return found


@pytest.mark.parametrize(
    ("kind", "questions"),
    [
        ("files", ["prepare", "rollup"]),
        ("parquet", ["prepare", "export", "rollup"]),
        ("polars", ["prepare", "export", "rollup", "rollup-all"]),
    ],
)
def test_what_is_asked(asked: list[str], kind: str, questions: list[str]) -> None:
    row = rollup_row(50)
    peer = row.suited(SparkSession(kind, frozenset({"rollup"}), (8, 1_000, 100)))
    measured = row.measure(RowRun(peer, cast(PeerServer, NoServer()), TINY))
    assert asked == questions
    assert (measured.value, measured.cpu_us, measured.peak_rss_bytes) == (500.0, 0.25, 7)
    assert measured.extras.get("all_levels_s") == (2.0 if kind == "polars" else None)
    assert row.name == "rollup-50"


def test_other_data_is_refused(asked: list[str]) -> None:
    peer = SparkSession("files", frozenset({"rollup"}), (8, 1_000, 100))
    with pytest.raises(LoadError, match="has the data of 8 streams"):
        rollup_row(50).measure(RowRun(peer, cast(PeerServer, NoServer()), TINY))
    assert not asked


SECONDS = 0.15  # of publishing: two rounds, after the one before the query begins
Finish = Callable[[Path], Lived]


class FakeQuery:
    """Ends as the test demands. Spark's behaviour is tried in tests/spark/test_datasource.py."""

    finishes: Finish

    def __init__(self, data: Path, _scratch: Path, _deadline: Deadline) -> None:
        self._data = data

    def __enter__(self) -> Self:
        assert len(list(self._data.glob("shard-*/*.indx"))) == LIVE_STREAMS
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass

    def finish(self) -> Lived:
        return type(self).finishes(self._data)


@pytest.fixture
def measure_live(measure_row: MeasureRow, monkeypatch: pytest.MonkeyPatch) -> Callable[[Finish], Any]:
    monkeypatch.setattr(spark, "LiveQuery", FakeQuery)
    monkeypatch.setattr("tests.bench.rows.conftest.TINY", replace(TINY, live_seconds=SECONDS))

    def run(finish: Finish) -> Any:
        monkeypatch.setattr(FakeQuery, "finishes", staticmethod(finish), raising=False)
        return measure_row(live_row(), TailraceBinary(acked=True, interpreted=interpreted_wanted()))

    return run


def test_only_who_has_files_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no files"):
        measure_row(live_row(), Plain(100))


def test_the_first_batches_are_not_counted(measure_live: Callable[[Finish], Any]) -> None:
    counted = [0.5] * 18 + [0.9, 0.7]
    measured = measure_live(lambda _: Lived(3 * ROUND_MESSAGES, [9.0] * WARM_BATCHES + counted))
    assert measured.value == 0.9
    assert (measured.extras["batch_median_s"], measured.extras["batch_p95_s"]) == (0.5, 0.9)
    assert measured.extras["batches"] == len(counted)


@pytest.mark.parametrize(
    ("lived", "told"),
    [
        (Lived(3 * ROUND_MESSAGES - 1, [0.5] * 10), "has read 14999 messages of 15000"),
        (Lived(3 * ROUND_MESSAGES, [0.5] * WARM_BATCHES), "only 5 batches"),
    ],
)
def test_what_is_no_measurement_is_told(measure_live: Callable[[Finish], Any], lived: Lived, told: str) -> None:
    with pytest.raises(LoadError, match=told):
        measure_live(lambda _: lived)
