from __future__ import annotations

import numpy as np
import pytest

from tailrace.shard.frame import INDEX_ENTRY
from tailrace.spark.entries import ENTRY, Entries, Fault, find_fault, no_entries

LENGTHS = (40, 32, 100)


def table(*rows: tuple[int, int, int, int]) -> Entries:
    return Entries(7, np.frombuffer(b"".join(INDEX_ENTRY.pack(*row) for row in rows), ENTRY).copy())


def right() -> Entries:
    return table((10, 4096, 40, 1), (10, 4136, 32, 1), (12, 4168, 100, 2))


def test_columns_are_those_of_the_index() -> None:
    entries = right()
    assert entries.messages == 3
    assert (entries.first_seq, entries.end_seq) == (7, 10)
    assert entries.seq.tolist() == [7, 8, 9]
    assert entries.timestamp_us.tolist() == [10, 10, 12]
    assert entries.size.tolist() == [length - 32 for length in LENGTHS]
    assert entries.nbytes == sum(LENGTHS)
    assert entries.table["epoch"].tolist() == [1, 1, 2]


@pytest.mark.parametrize(("seq", "left"), [(0, [7, 8, 9]), (7, [7, 8, 9]), (9, [9]), (10, []), (99, [])])
def test_since_leaves_out_what_is_before(seq: int, left: list[int]) -> None:
    entries = right().since(seq)
    assert entries.seq.tolist() == left
    assert entries.end_seq == 10


def test_right_entries_have_no_fault() -> None:
    assert find_fault(right().table) is None
    assert find_fault(no_entries(3).table) is None


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        (0, "length", 31),
        (2, "length", (64 << 20) + 1),
        (0, "offset", 4095),
        (1, "offset", 4137),
        (2, "offset", 0),
        (2, "timestamp_us", 9),
        (2, "timestamp_us", 2**63),
    ],
)
def test_faults_are_found_where_they_are(place: int, field: str, value: int) -> None:
    entries = right()
    entries.table[field][place] = value
    fault = find_fault(entries.table)
    assert fault is not None
    assert fault.place == place


def test_zeros_are_no_entries() -> None:
    assert find_fault(np.zeros(5, ENTRY)) == Fault(0, "a frame cannot begin in the header page")
