from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from bench.load.limits import Deadline, LoadError
from bench.load.live import Lived
from bench.peers.plain import Plain
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows import live
from bench.rows.live import ROUND_MESSAGES, WARM_BATCHES, LiveRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import TINY, MeasureRow

SECONDS = 0.15  # of publishing: two rounds, after the one before the query begins
Finish = Callable[[Path], Lived]


class FakeQuery:
    """Ends as it is told to. What Spark does is tried in tests/spark/test_datasource.py."""

    finishes: Finish

    def __init__(self, data: Path, _scratch: Path, _deadline: Deadline) -> None:
        self._data = data

    def __enter__(self) -> Self:
        assert len(list(self._data.glob("shard-*/*.indx"))) == live.STREAMS
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass

    def finish(self) -> Lived:
        return type(self).finishes(self._data)


@pytest.fixture
def measure_live(measure_row: MeasureRow, monkeypatch: pytest.MonkeyPatch) -> Callable[[Finish], Any]:
    monkeypatch.setattr(live, "LiveQuery", FakeQuery)
    monkeypatch.setattr("tests.bench.rows.conftest.TINY", replace(TINY, live_seconds=SECONDS))

    def run(finish: Finish) -> Any:
        monkeypatch.setattr(FakeQuery, "finishes", staticmethod(finish), raising=False)
        return measure_row(LiveRow(), TailraceBinary(acked=True, interpreted=interpreted_wanted()))

    return run


def test_only_who_has_files_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no files"):
        measure_row(LiveRow(), Plain(100))


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
