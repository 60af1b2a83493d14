"""The facts of the tables that the report is given."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tailrace.spark.rollup.store import Store
from tailrace.spark.rollup.summary import GROWTH_DAYS, STREAMS_SHOWN, read_day_bytes, summarize
from tests.spark.rollup.directories import DAY
from tests.spark.rollup.made import row, write


def test_a_day(tmp_path: Path) -> None:
    minutes = [
        row("a", 5, messages=3, bytes=30, gap_max_us=7),
        row("b", 5, messages=1, bytes=2, gap_max_us=None),
        row("a", 2, messages=1, bytes=1, gap_max_us=None),
    ]
    write(tmp_path, "minutes", minutes)
    days = [
        row("a", messages=4, bytes=31, gap_max_us=7, missing=2),
        row("b", messages=1, bytes=2, gap_max_us=None, damaged=1),
    ]
    store = write(tmp_path, "days", days)
    for back, nbytes in ((1, 50), (3, 60), (GROWTH_DAYS, 70)):
        write(tmp_path, "days", [row("a", bytes=nbytes)], DAY - timedelta(days=back))
    found = summarize(store, DAY)
    assert [(each.start.minute, *each[1:]) for each in found.minutes] == [(2, 1, 1, 1, None), (5, 4, 32, 2, 7)]
    assert found.minutes[0].start.utcoffset() == timedelta(0)
    assert (found.total.messages, found.total.bytes, found.total.streams) == (5, 33, 2)
    assert (found.missing, found.damaged) == (2, 1)
    assert [each.stream for each in found.by_bytes] == ["a", "b"]
    assert [each.stream for each in found.by_gap] == ["a"]
    assert [each.bytes for each in found.growth] == [60, 50, 33]
    assert read_day_bytes(store, DAY) == [("a", 4, 31), ("b", 1, 2)]


def test_the_busiest_are_a_few_of_many(tmp_path: Path) -> None:
    store = write(tmp_path, "days", [row(f"s{i}", bytes=i, gap_max_us=100 - i) for i in range(50)])
    write(tmp_path, "minutes", [row("s0")])
    found = summarize(store, DAY)
    assert [each.bytes for each in found.by_bytes] == list(range(49, 49 - STREAMS_SHOWN, -1))
    assert [each.gap_max_us for each in found.by_gap][:2] == [100, 99]


def test_a_day_without_messages(tmp_path: Path) -> None:
    found = summarize(Store(tmp_path), DAY)
    assert (found.total.messages, found.minutes, found.by_bytes, found.by_gap) == (0, [], [], [])
    assert [each.day for each in found.growth] == [DAY]
