"""Records as bytes, and bytes that are not records."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.consumers.state.records import (
    BadRecord,
    CheckpointBegun,
    CheckpointEnded,
    ConsumerCreated,
    ConsumerDeleted,
    ConsumerReset,
    ConsumerRow,
    ConsumerRows,
    FlightReturned,
    HistoryChanged,
    LetterPublished,
    LettersCut,
    LettersRemoved,
    Progress,
    Record,
    RemovedRows,
    UnfinishedRows,
    pack,
    unpack,
)
from tailrace.shard.epochs import EPOCHS_MAX, EpochStart

HISTORY = (EpochStart(1, 0, "a"), EpochStart(3, 17, ""))
EACH: list[Record] = [
    ConsumerCreated(b"billing", 1_700_000_000_000_000, 5, 30_000_000, 0),
    ConsumerCreated(b"billing", 1_700_000_000_000_000, 5, 30_000_000, 0, 1_000_000, 60_000_000),
    ConsumerReset(b"billing", 7, 0),
    ConsumerDeleted(b"billing"),
    Progress(b"billing", b"m", 9),
    Progress(b"billing", b"m", 9, 3, (0, 3, 9, 1), ((4, 1, "no"), (5, 2, "")), (6, 1), (20, 100)),
    Progress(b"billing", b"m", 9, failed=((4, 1, "no"), (5, 2, "")), delays=(0, 1)),
    FlightReturned(b"billing", b"m", "late", (1, 2), (7, 1), 9),
    LetterPublished(b"billing", 3),
    HistoryChanged(HISTORY, 2**63 - 1),
    CheckpointBegun(()),
    ConsumerCreated(b"billing", 1_700_000_000_000_000, 5, 30_000_000, 0, 1_000_000, 60_000_000, b"a/+/#"),
    ConsumerRows((ConsumerRow(b"billing", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, b"a/#"),)),
    ConsumerRows(
        (ConsumerRow(b"billing", 1, 2, 3, 4, 5, 6, 7, 8, 9), ConsumerRow(b"audit", 0, 0, 0, 0, 0, 0, 0, 0, 0))
    ),
    UnfinishedRows(b"billing", ((1, 2, 0, 0), (5, 1, 2, 7)), ((3, 1, 1, b"m", 5),), ((0, 9, 1, 5, "no"),)),
    CheckpointEnded(2),
    LettersRemoved((0, 3, 9, 1)),
    LettersCut(7),
    RemovedRows((0, 3, 9, 1)),
]


@pytest.mark.parametrize("record", EACH, ids=lambda each: type(each).__name__)
def test_a_record_and_its_bytes(record: Record) -> None:
    found = unpack(pack(record))
    assert found == record and type(found) is type(record)
    assert unpack(memoryview(bytearray(pack(record)))) == record


def test_terms_and_rows_are_what_they_were() -> None:
    line = unpack(pack(HistoryChanged(HISTORY, 1)))
    assert isinstance(line, HistoryChanged) and isinstance(line.history[0], EpochStart)
    kept = unpack(pack(next(each for each in EACH if isinstance(each, ConsumerRows))))
    assert isinstance(kept, ConsumerRows) and isinstance(kept.rows[0], ConsumerRow)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([1, b"c", b"m", 9, 0, [], [[4, 1, "no"]], [], []], Progress(b"c", b"m", 9, failed=((4, 1, "no"),))),
        ([2, b"c", b"m", "late", [1, 2], [7, 1]], FlightReturned(b"c", b"m", "late", (1, 2), (7, 1))),
        ([3, b"c", 7, 5, 30, 2], ConsumerCreated(b"c", 7, 5, 30, 2)),
        ([9, [[b"c", 1, 2, 3, 4, 5, 6, 7, 8, 9]]], ConsumerRows((ConsumerRow(b"c", 1, 2, 3, 4, 5, 6, 7, 8, 9),))),
        ([10, b"c", [[1, 2, 1]], [], []], UnfinishedRows(b"c", ((1, 2, 1, 0),))),
    ],
)
def test_records_from_before_failed_messages_waited(fields: object, expected: Record) -> None:
    """Their consumers have no wait, and failed messages may be delivered at once."""
    assert unpack(msgpack.packb(fields)) == expected


def test_what_a_get_leaves_is_small() -> None:
    assert len(pack(Progress(b"billing", b"member-1", 2**50, finished=(2**33, 100), given=(2**33 + 100, 100)))) < 64


@pytest.mark.parametrize(
    "fields",
    [
        None,
        7,
        [],
        [0],
        [99, b"x"],
        ["1", b"x"],
        [True, b"x"],
        [5],
        [5, "text"],
        [5, b""],
        [5, b"x" * 101],
        [5, b"x", 1],
        [4, b"x", -1, 0],
        [4, b"x", 2**63, 0],
        [4, b"x", 1.0, 0],
        [4, b"x", True, 0],
        [2, b"x", b"m", "r" * 1_001, [], []],
        [2, b"x", b"m", "r", [1], []],
        [2, b"x", b"m", "r", [1, 0], []],
        [2, b"x", b"m", "r", [-1, 1], []],
        [2, b"x", b"m", "r", [1, 1, 2, 1], []],
        [2, b"x", b"m", "r", [5, 1, 2, 1], []],
        [2, b"x", b"m", "r", [1, 2**63 - 1], []],
        [2, b"x", b"m", "r", [1, "1"], []],
        [2, b"x", b"m", "r", {}, []],
        [7, [[1, 0]], 0],
        [7, [[0, 0, "a"]], 0],
        [7, [[2, 0, "a"], [1, 5, "a"]], 0],
        [7, [[each + 1, each, "a"] for each in range(EPOCHS_MAX + 1)], 0],
        [9, [[b"x"]]],
        [10, b"x", [[1, 1]], [], []],
        [10, b"x", [[1, 1, 0, 0, 0]], [], []],
        [10, b"x", [[1, 1, 0, -1]], [], []],
        [1, b"c", b"m", 9, 0, [], [], [], [], [-1]],
        [1, b"c", b"m", 9, 0, [], []],
        [3, b"c", 7, 5, 30, 2, 0],
    ],
)
def test_what_is_no_record_is_said(fields: object) -> None:
    with pytest.raises(BadRecord) as caught:
        unpack(msgpack.packb(fields))
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=60))
def test_garbage_is_a_record_or_said_not_to_be(payload: bytes) -> None:
    try:
        record = unpack(payload)
    except BadRecord:
        return
    assert unpack(pack(record)) == record


@given(st.sampled_from(EACH), st.data())
def test_so_are_records_with_a_byte_changed(record: Record, data: st.DataObject) -> None:
    payload = bytearray(pack(record))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    test_garbage_is_a_record_or_said_not_to_be.hypothesis.inner_test(bytes(payload))  # type: ignore[attr-defined]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", pack(EACH[0]) + b"\x00", b"\x91" * 2_000])
def test_bytes_that_are_no_msgpack(payload: bytes) -> None:
    with pytest.raises(BadRecord, match="no record"):
        unpack(payload)
