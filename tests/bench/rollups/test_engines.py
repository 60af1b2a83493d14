"""The engines count the same messages into as many rows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("polars", reason="needs the extra `bench` (pip install -e '.[bench,spark]')")
pytest.importorskip("pyspark", reason="needs the extra `spark` (pip install -e '.[bench,spark]')")

from bench.rollups.data import BURST, Shape, make_day
from bench.rollups.engines import MINUTES, Kernel, Polars, read_columns
from spark.rollup.kernel import LEVELS

SHAPE = Shape(3, 3 * 50 * BURST)


def test_the_kernel_and_polars_have_the_same_rows(tmp_path: Path) -> None:
    make_day(tmp_path / "data", SHAPE)
    kernel, polars, minutes = Kernel(), Polars(LEVELS), Polars(MINUTES)
    for engine in (kernel, polars, minutes):
        engine.prepare(tmp_path / "data", tmp_path)
        engine.run()
    assert kernel.rows == polars.rows > minutes.rows > 100


def test_all_messages_are_in_the_columns(tmp_path: Path) -> None:
    make_day(tmp_path / "data", SHAPE)
    table = read_columns(tmp_path / "data")
    assert table.num_rows == SHAPE.messages
    assert set(table["size"].to_pylist()) == {100}
    assert table["gap_us"].to_pylist().count(0) == 3 * (50 * (BURST - 1) + 1)
