"""A whole rollup without a JVM: planned, read, put through the kernel, and held against the plain pass."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailrace.shard.directory import open_data_dir
from tailrace.shard.frame import INDEX_ENTRY_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.stream_files import stream_paths
from tailrace.spark import directory_source
from tailrace.spark.rollup import reading
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.frame_view import frame_views
from tailrace.spark.rollup.reading import index_reader, run_task
from tailrace.spark.rollup.table import NOTE, parse_note
from tailrace.spark.rollup.units import Task
from tailrace.spark.rollup.verify import frame_reader
from tailrace.spark.source import SourceOptions, open_source
from tests.shard.helpers import flip
from tests.spark.data import Sent, make_directory, plain, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, Made, directories, make
from tests.thorough import examples

QUICK = settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plan(data: Path, **bounds: Any) -> list[Task]:
    return plan_day(open_source(SourceOptions(str(data))), DAY, **bounds).tasks


def run(data: Path, tasks: Iterable[Task], verify: bool = False, **bounds: int) -> list[dict[str, Any]]:
    by_frames = frame_reader(open_data_dir(data))
    by_index = by_frames if verify else index_reader(open_source(SourceOptions(str(data))))
    batches = [batch for task in tasks for batch in run_task(task, by_index, by_frames, **bounds)]
    rows = pa.Table.from_batches(batches).to_pylist() if batches else []
    for row in rows:
        if row["level"] == NOTE:
            row["stream"], row["note"] = parse_note(row["stream"])
    return rows


def keyed(rows: Iterable[dict[str, Any]]) -> dict[reference.Key, reference.Row]:
    """Without the node and the averages, which Spark adds."""
    found = {}
    for row in rows:
        key = row.pop("level"), row.pop("stream"), row.pop("start")
        assert key not in found
        found[key] = row
    return found


def expected(data: Path, *, verify: bool = False) -> dict[reference.Key, reference.Row]:
    rows = reference.roll_up(data, DAY_START_US, verify=verify)
    left_out = ("node", "size_avg", "gap_avg_us")
    return {key: {name: row[name] for name in row if name not in left_out} for key, row in rows.items()}


@QUICK
@given(directories, st.booleans())
def test_every_number_is_that_of_the_plain_pass(made: dict[str, Made], verify: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = make(Path(folder) / "data", made)
        assert keyed(run(data, plan(data), verify)) == expected(data)


@QUICK
@given(directories, st.integers(1, 12), st.integers(1, 5_000), st.booleans())
def test_however_the_work_is_cut(made: dict[str, Made], whole: int, task_rows: int, verify: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory_source, "INDEX_BLOCK_ENTRIES", 3)
        patch.setattr(reading, "PACK_ROWS", 10)
        data = make(Path(folder) / "data", made)
        tasks = plan(data, whole_rows_max=whole, task_rows=task_rows)
        assert keyed(run(data, tasks, verify, whole_rows_max=whole)) == expected(data)


def test_what_is_trimmed_after_planning_is_told(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": plain(100, DAY_START_US, 1_000_000)})
    tasks = plan(tmp_path / "data")
    trim(tmp_path / "data", "a", 70)
    rows = run(tmp_path / "data", tasks)
    notes = [row for row in rows if row["level"] == NOTE]
    assert [(note["stream"], note["missing"]) for note in notes] == [("a", 70)]
    day = next(row for row in rows if row["level"] == "day")
    assert (day["messages"], day["first_seq"], day["missing"]) == (30, 70, 70)


def test_a_day_that_is_trimmed_whole_after_planning_is_only_told(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": plain(100, DAY_START_US, 1_000_000), "b": plain(2, DAY_START_US)})
    tasks = plan(tmp_path / "data")
    trim(tmp_path / "data", "a", 100)
    rows = run(tmp_path / "data", tasks)
    assert {(row["level"], row["stream"]) for row in rows} == {
        (NOTE, "a"),
        ("minute", "b"),
        ("hour", "b"),
        ("day", "b"),
    }


def test_a_row_of_many_messages_says_what_was_trimmed_meanwhile(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": plain(100, DAY_START_US, 1_000_000)})
    tasks = plan(tmp_path / "data", whole_rows_max=50)
    trim(tmp_path / "data", "a", 70)
    days = [row for row in run(tmp_path / "data", tasks, whole_rows_max=50) if row["level"] == "day"]
    assert [(day["messages"], day["missing"]) for day in days] == [(30, 70)]


@pytest.mark.parametrize("verify", [False, True])
def test_a_stream_with_a_wrong_index_is_read_from_its_frames(tmp_path: Path, verify: bool) -> None:
    data = make_directory(tmp_path / "data", {"a": plain(100, DAY_START_US, 1_000_000)})
    before = keyed(run(tmp_path / "data", plan(tmp_path / "data")))
    tasks = plan(tmp_path / "data")
    paths = stream_paths(data.stream_directory("a"), "a")
    flip(paths.index_file, HEADER_PAGE_BYTES + INDEX_ENTRY_BYTES * 50 + 16)  # a length
    rows = run(tmp_path / "data", tasks, verify)
    notes = [row for row in rows if row["level"] == NOTE]
    assert len(notes) == (0 if verify else 1)
    assert all("its frames were read instead" in note["note"] for note in notes)
    assert keyed(row for row in rows if row["level"] != NOTE) == before


def test_damaged_frames_are_counted_where_they_are(tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {"a": plain(180, DAY_START_US, 1_000_000)})
    paths = stream_paths(data.stream_directory("a"), "a")
    content = Path(paths.content_file).read_bytes()
    for damaged in (b"message 70", b"message 71", b"message 179"):
        flip(paths.content_file, content.index(damaged))
    rows = run(tmp_path / "data", plan(tmp_path / "data"), verify=True)
    minutes = [row for row in rows if row["level"] == "minute"]
    assert [(row["messages"], row["damaged"], row["missing"]) for row in minutes] == [
        (60, 0, 0),
        (58, 2, 0),
        (59, 1, 0),
    ]
    # The message behind damage has no gap: when the one before it came is not known.
    assert [row["gaps"] for row in minutes] == [59, 57, 59]
    assert "3 messages are damaged" in next(row["note"] for row in rows if row["level"] == NOTE)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from((0, 1, 59, 60, 3_599)), min_size=1, max_size=12),
    st.sets(st.integers(0, 11), max_size=6),
    st.integers(1, 12),
)
def test_damaged_frames_are_counted_in_the_same_rows_however_the_work_is_cut(
    gaps_s: list[int], damaged: set[int], whole: int
) -> None:
    times_us = [DAY_START_US + second * 1_000_000 for second in accumulate(gaps_s)]
    sent = [Sent(time_us, f"message {number};".encode(), b"\x80") for number, time_us in enumerate(times_us)]
    assume(len(damaged & set(range(len(sent)))) < len(sent))
    with tempfile.TemporaryDirectory() as folder:
        data = make_directory(Path(folder) / "data", {"a": sent})
        file = stream_paths(data.stream_directory("a"), "a").content_file
        content = Path(file).read_bytes()
        for number in damaged & set(range(len(sent))):
            flip(file, content.index(b"message %d;" % number))
        tasks = plan(data.path, frame_views=frame_views(data), verify=True, whole_rows_max=whole)
        rows = keyed(row for row in run(data.path, tasks, verify=True, whole_rows_max=whole) if row["level"] != NOTE)
        assert rows == expected(data.path, verify=True)


def test_a_stream_that_cannot_be_opened_does_not_stop_the_others(tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {"a": plain(3, DAY_START_US), "b": plain(3, DAY_START_US)})
    tasks = plan(tmp_path / "data")
    flip(stream_paths(data.stream_directory("a"), "a").index_file, 8)
    rows = run(tmp_path / "data", tasks)
    assert {(row["level"], row["stream"]) for row in rows if row["stream"] == "a"} == {(NOTE, "a")}
    assert sum(row["level"] == "day" and row["stream"] == "b" for row in rows) == 1


def test_metadata_counts_as_size(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": [Sent(DAY_START_US, b"12345", b"\x80")]})
    days = [row for row in run(tmp_path / "data", plan(tmp_path / "data")) if row["level"] == "day"]
    assert [day["bytes"] for day in days] == [6]
