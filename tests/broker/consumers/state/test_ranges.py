"""Runs of messages, against sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.consumers.state.ranges import DeliveryRun, DeliveryRuns, flat, merged, unflat

ranges = st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda each: (each[0], each[0] + each[1]))
steps = st.lists(st.tuples(st.sampled_from(("add", "cut", "overlap")), ranges, st.integers(0, 1)), max_size=40)


def seqs(runs: list[DeliveryRun]) -> dict[int, int]:
    found = {seq: run.deliveries for run in runs for seq in range(run.first, run.last + 1)}
    assert len(found) == sum(map(len, runs)), "a message is there twice"
    return found


@given(steps)
def test_runs_are_what_was_put_in_and_not_taken_out(steps: list[tuple[str, tuple[int, int], int]]) -> None:
    runs = DeliveryRuns()
    model: dict[int, int] = {}
    for step, (first, last), deliveries in steps:
        there = {seq: model[seq] for seq in range(first, last + 1) if seq in model}
        if step == "overlap":
            assert seqs(runs.overlap(first, last)) == there
        elif step == "cut":
            assert seqs(runs.cut(first, last)) == there
            for seq in there:
                del model[seq]
        elif not there:
            runs.add(DeliveryRun(first, last, deliveries))
            model.update(dict.fromkeys(range(first, last + 1), deliveries))
        each = list(runs)
        assert seqs(each) == model and runs.count == len(model)
        assert [run.first for run in each] == sorted(run.first for run in each)
        assert not any(one.goes_on_as(other) for one, other in pairwise(each))
        assert runs.first_seq(-1) == min(model, default=-1) and len(runs) == len(each)


def test_what_differs_stays_apart() -> None:
    runs = DeliveryRuns()
    for run in (
        DeliveryRun(0, 1, 0, b"a", 5),
        DeliveryRun(2, 2, 0, b"b", 5),
        DeliveryRun(3, 3, 0, b"b", 6),
        DeliveryRun(4, 4, 1, b"b", 6),
    ):
        runs.add(run)
    assert len(runs) == 4
    runs.add(DeliveryRun(5, 9, 1, b"b", 6))
    assert repr(list(runs)[-1]) == "Run(4, 9, 1, b'b', 6)"


@given(st.lists(ranges, max_size=12))
def test_ranges_that_are_merged_are_the_same_messages_with_gaps_between(each: list[tuple[int, int]]) -> None:
    found = merged(each)
    assert {seq for first, last in found for seq in range(first, last + 1)} == {
        seq for first, last in each for seq in range(first, last + 1)
    }
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))
    assert unflat(flat(each)) == found
