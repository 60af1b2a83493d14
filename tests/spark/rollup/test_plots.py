"""The plots are pieces of SVG with the expected content."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tailrace.spark.rollup.plots import plot_bytes, plot_gaps, plot_growth, plot_messages, plot_streams, show_seconds
from tailrace.spark.rollup.summary import DayTotal, Minute
from tests.spark.rollup.directories import DAY

START = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
MINUTES = [Minute(START + timedelta(minutes=i), i, i * 100, 2, i * 1_000 or None) for i in range(0, 1_440, 7)]


def texts(svg: str) -> list[str]:
    return [
        "".join(each.itertext()).strip() for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")
    ]


@pytest.mark.parametrize("plot", [plot_messages, plot_bytes, plot_streams, plot_gaps])
def test_the_day_is_all_there(plot: Callable[[Sequence[Minute]], str]) -> None:
    assert [text for text in texts(plot(MINUTES)) if ":" in text] == [
        *(f"{hour:02}:00" for hour in range(0, 24, 3)),
        "00:00",
    ]
    assert plot(MINUTES) == plot(MINUTES)


@pytest.mark.parametrize("plot", [plot_messages, plot_bytes, plot_streams, plot_gaps])
def test_a_single_message_makes_a_plot(plot: Callable[[Sequence[Minute]], str]) -> None:
    assert texts(plot([Minute(START, 1, 0, 1, None)]))


@pytest.mark.parametrize(
    ("first", "last", "times"),
    [
        (843, 845, ["14:00", "14:10", "14:20", "14:30", "14:40", "14:50", "15:00"]),
        (1_439, 1_439, ["23:00", "23:10", "23:20", "23:30", "23:40", "23:50", "00:00"]),
        (0, 200, ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30", "03:00", "03:30"]),
        (10, 1_000, ["00:00", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00"]),
    ],
)
def test_a_short_day_is_enlarged(first: int, last: int, times: list[str]) -> None:
    minutes = [Minute(START + timedelta(minutes=each), 5_000, 1, 1, 1) for each in sorted({first, last})]
    for plot in (plot_messages, plot_gaps):
        assert [text for text in texts(plot(minutes)) if ":" in text] == times


def test_growth() -> None:
    days = [DayTotal(DAY - timedelta(days=back), 1, 1_000 * back, 1) for back in range(29, -1, -1)]
    assert texts(plot_growth(days)).count(f"{DAY:%d %b}") == 1
    assert texts(plot_growth(days[-1:]))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-6, "5 µs"),
        (0.25, "250 ms"),
        (59.4, "59.4 s"),
        (59.99, "1 min"),
        (5_400, "1.5 h"),
        (200_000, "2.31 d"),
    ],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text
