from __future__ import annotations

from pathlib import Path

import pytest

from bench.chart import NoChart, axis_range, draw
from bench.rows.base import Measurement
from tests.bench.conftest import MakeResults


def test_an_axis_is_linear_from_zero_unless_bars_would_vanish() -> None:
    begin, end, logarithmic = axis_range([10, 100])
    assert (begin, round(end), logarithmic) == (0, 115, False)
    assert axis_range([0, 100])[2] is False
    begin, end, logarithmic = axis_range([90_000, 30_000_000])
    assert (begin, logarithmic) == (10_000, True)
    assert end > 30_000_000


@pytest.mark.thorough
def test_a_picture_is_drawn(tmp_path: Path, make_results: MakeResults) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra `bench`")
    results = make_results(
        {
            ("ingest-1", "tailrace"): [Measurement(3e6, 1, 1)],
            ("ingest-1", "redis"): [],
            ("latency-1000", "tailrace"): [Measurement(50, 1, 1, {"p99_us": 99.0})],
            ("fanout-100", "nats"): [Measurement(2e6, 1, 1)],
        }
    )
    draw(tmp_path / "new" / "chart.png", results, "a caption")
    assert (tmp_path / "new" / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_there_is_no_picture_of_nothing(tmp_path: Path, make_results: MakeResults) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra `bench`")
    with pytest.raises(NoChart, match="nothing was measured"):
        draw(tmp_path / "chart.png", make_results({("ingest-1", "redis"): []}), "a caption")
