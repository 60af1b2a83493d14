"""The row of the rollup, over a server that only notes what it is asked. The answers: ../load/test_rollup.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.load.limits import LoadError
from bench.peers.spark import SparkSession
from bench.rows import rollup
from bench.rows.rollup import RollupRow
from tests.bench.rows.conftest import TINY


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

    monkeypatch.setattr(rollup, "ask", note(1.5))
    monkeypatch.setattr(rollup, "repeated", note((2.0, 0.25)))
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
    row = RollupRow(50)
    peer = row.suited(SparkSession(kind, frozenset({"rollup"}), (8, 1_000, 100)))
    measured = row.measure(peer, NoServer(), TINY)  # type: ignore[arg-type]
    assert asked == questions
    assert (measured.value, measured.cpu_us, measured.peak_rss_bytes) == (500.0, 0.25, 7)
    assert measured.extras.get("all_levels_s") == (2.0 if kind == "polars" else None)
    assert row.name == "rollup-50"


def test_other_data_is_refused(asked: list[str]) -> None:
    peer = SparkSession("files", frozenset({"rollup"}), (8, 1_000, 100))
    with pytest.raises(LoadError, match="has the data of 8 streams"):
        RollupRow(50).measure(peer, NoServer(), TINY)  # type: ignore[arg-type]
    assert not asked
