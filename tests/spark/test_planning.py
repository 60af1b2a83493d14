from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.epochs import DEFAULT_HISTORY, History
from tailrace.spark.planning import (
    ROWS_PER_TASK,
    ROWS_PER_TASK_MIN,
    STREAM_ROWS,
    cut,
    cut_aligned,
    make_tasks,
    pack,
    rows_for,
)
from tailrace.spark.slices import NO_IDENTITY, Identity, Slice

MINUTE_US = 60_000_000


class FakeView:
    """A stream of these times, the first of which has the seq 100."""

    stream = "news"
    shard = 0
    first_seq = 100
    identity: Identity = NO_IDENTITY
    stream_id: int = 0
    exists: bool = True

    def __init__(self, times_us: list[int]) -> None:
        self.times_us = times_us
        self.next_seq = 100 + len(times_us)

    def seq_at(self, timestamp_us: int) -> int:
        return 100 + bisect_left(self.times_us, timestamp_us)

    def timestamp_at(self, seq: int) -> int:
        return self.times_us[seq - 100]

    def history(self) -> History:
        return DEFAULT_HISTORY


def seqs(slices: list[Slice]) -> list[int]:
    return [seq for slice_ in slices for seq in range(slice_.first_seq, slice_.end_seq)]


@given(st.integers(0, 500), st.integers(1, 60))
def test_parts_are_even_and_whole(messages: int, rows: int) -> None:
    parts = cut(Slice("news", 3, 10, 10 + messages), rows)
    assert seqs(parts) == list(range(10, 10 + messages))
    sizes = [part.messages for part in parts]
    assert all(0 < size <= rows for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(0, 6 * MINUTE_US), max_size=60).map(sorted), st.integers(1, 20))
def test_no_minute_is_in_two_parts(times_us: list[int], rows: int) -> None:
    view = FakeView(times_us)
    whole = Slice("news", 0, 100, view.next_seq)
    parts = cut_aligned(view, whole, rows, MINUTE_US)
    assert seqs(parts) == seqs([whole])
    minutes = [{view.timestamp_at(seq) // MINUTE_US for seq in seqs([part])} for part in parts]
    assert sum(map(len, minutes)) == len(set().union(*minutes))
    assert all(part.messages >= rows for part in parts[:-1])


class Trimmed(FakeView):
    """All of it was dropped, and given back, since it was opened: times are zeros."""

    def timestamp_at(self, seq: int) -> int:
        return 0

    def seq_at(self, timestamp_us: int) -> int:
        return self.first_seq


def test_a_stream_that_is_trimmed_meanwhile_is_cut_all_the_same() -> None:
    whole = Slice("news", 0, 100, 150)
    assert seqs(cut_aligned(Trimmed([1] * 50), whole, 7, MINUTE_US)) == seqs([whole])


@given(st.lists(st.integers(1, 50_000), max_size=80), st.integers(1_000, 100_000))
def test_tasks_are_filled_and_nothing_is_lost(sizes: list[int], rows: int) -> None:
    slices = [Slice(f"s{i}", 0, 0, size) for i, size in enumerate(sizes)]
    tasks = pack(slices, rows)
    assert [slice_ for task in tasks for slice_ in task] == slices
    weights = [sum(slice_.messages + STREAM_ROWS for slice_ in task) for task in tasks]
    assert all(weight <= rows + STREAM_ROWS or len(task) == 1 for weight, task in zip(weights, tasks, strict=True))


@given(st.lists(st.integers(1, 3_000_000), max_size=30), st.integers(1, 64))
def test_tasks_are_for_all_processors_but_never_tiny_or_huge(sizes: list[int], processors: int) -> None:
    slices = [Slice(f"s{i}", 0, 0, size) for i, size in enumerate(sizes)]
    rows = rows_for(slices, processors)
    assert ROWS_PER_TASK_MIN <= rows <= ROWS_PER_TASK
    if ROWS_PER_TASK_MIN < rows < ROWS_PER_TASK:
        weight = sum(slice_.messages + STREAM_ROWS for slice_ in slices)
        assert rows * processors >= weight > (rows - 1) * processors


def test_an_hour_of_eight_streams_is_a_task_for_each_of_two_processors() -> None:
    slices = [Slice(f"s{i}", 0, 0, 208_333) for i in range(8)]
    rows = rows_for(slices, 2)
    assert [len(task) for task in pack(slices, rows)] == [4, 4]


def test_many_small_streams_share_few_tasks() -> None:
    tasks = pack([Slice(f"s{i}", 0, 0, 1) for i in range(100_000)], 2_000_000)
    assert 100 < len(tasks) < 300


def test_very_many_small_streams_are_not_as_many_tasks() -> None:
    """A task for each processor; of 100,000 streams 2,000 in each."""
    small = [Slice(f"s{i}", 0, 0, 1) for i in range(100_000)]
    assert 45 <= len(make_tasks(small, None, 2)) <= 55
    assert [len(task) for task in make_tasks(small[:1_000], None, 2)] == [500, 500]
    assert len(make_tasks(small[:1_000], 10_000, 2)) > 300, "as the option wants it"


@given(st.lists(st.integers(1, 5_000_000), max_size=40), st.integers(1, 16), st.none() | st.integers(1_000, 10**6))
def test_tasks_have_all_messages_and_no_more_than_the_bound(
    sizes: list[int], processors: int, rows: int | None
) -> None:
    tasks = make_tasks([Slice(f"s{i}", 0, 0, size) for i, size in enumerate(sizes)], rows, processors)
    assert sum(slice_.messages for task in tasks for slice_ in task) == sum(sizes)
    assert all(sum(slice_.messages for slice_ in task) <= (rows or ROWS_PER_TASK) for task in tasks)


def test_a_giant_stream_is_many_tasks() -> None:
    assert len(pack(cut(Slice("giant", 0, 0, 40_000_000), 2_000_000), 2_000_000)) == 20
