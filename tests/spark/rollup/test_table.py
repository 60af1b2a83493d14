"""Arrow batches of rows."""

from __future__ import annotations

import numpy as np

from tailrace.spark.rollup.kernel import NO_GAP, Segment, roll_up
from tailrace.spark.rollup.table import FILE_SCHEMA, NOTE, RAW_SCHEMA, note_batch, parse_note, to_batch, to_file_rows
from tailrace.spark.slices import Slice


def test_rows_have_the_names_and_shards_of_their_streams() -> None:
    one = Segment(1, 5, np.array([120_000_001]), np.array([7]), NO_GAP)
    batch = to_batch(
        "minute", roll_up([one])[0]["minute"], [Slice("a", 3, 0, 1, (1, 0)), Slice("ö", 9, 0, 1, (255, 0))]
    )
    assert batch.schema == RAW_SCHEMA
    (row,) = batch.to_pylist()
    assert (row["level"], row["stream"], row["shard"], row["start"].minute) == ("minute", "ö", 9, 2)
    assert row["stream_id"] == "00000000000000ff"
    assert (row["messages"], row["gaps"], row["gap_min_us"], row["gap_p99_us"], row["size_p99"]) == (
        1,
        0,
        None,
        None,
        7,
    )
    batch.validate(full=True)


def test_a_note() -> None:
    batch = note_batch("ключ", 3, "what:\nthis", 5)
    assert batch.schema == RAW_SCHEMA
    (row,) = batch.to_pylist()
    assert (row["level"], parse_note(row["stream"]), row["missing"]) == (NOTE, ("ключ", "what:\nthis"), 5)


def test_rows_of_the_tables_have_their_averages() -> None:
    one, two = Segment(0, 5, np.array([1, 4]), np.array([7, 8]), NO_GAP), Segment(1, 0, np.array([1]), np.array([9]))
    batch = to_batch("day", roll_up([one, two])[0]["day"], [Slice("a", 3, 0, 1, (1, 0)), Slice("b", 3, 0, 1)])
    rows = to_file_rows(batch)
    assert rows.schema == FILE_SCHEMA
    assert [(row["size_avg"], row["gap_avg_us"]) for row in rows.to_pylist()] == [(7.5, 3.0), (9.0, None)]
