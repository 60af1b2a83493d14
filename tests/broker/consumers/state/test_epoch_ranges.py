"""Seqs and epochs of a stream's line, held against one that knows the epoch of each message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.consumers.state.epoch_ranges import seqs_of_epoch, spans
from tailrace.shard.epochs import NEVER_SEQ, EpochStart, History

END = 40


@st.composite
def histories(draw: st.DrawFn) -> History:
    epochs = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=5)))
    seqs = sorted(draw(st.lists(st.integers(0, END - 5), min_size=len(epochs), max_size=len(epochs))))
    return tuple(EpochStart(epoch, seq) for epoch, seq in zip(epochs, seqs, strict=True))


def epochs_of(history: History) -> list[int]:
    """The epochs of messages 0 to END - 1; 0 before the beginning of the history."""
    return [max((start.epoch for start in history if start.first_seq <= seq), default=0) for seq in range(END)]


@given(histories(), st.integers(1, 10))
def test_the_messages_of_an_epoch(history: History, epoch: int) -> None:
    truth, known_seq = epochs_of(history), history[0].first_seq
    first, last = seqs_of_epoch(history, epoch)
    for seq in range(END):
        may_be = truth[seq] == epoch if seq >= known_seq else epoch <= history[0].epoch
        assert (first <= seq <= last) == may_be, seq


@given(histories(), st.integers(0, END - 1), st.integers(0, END - 1))
def test_messages_in_spans_of_one_epoch(history: History, one: int, other: int) -> None:
    low, high, truth = min(one, other), max(one, other), epochs_of(history)
    found = list(spans(history, low, high))
    assert [epoch for first, last, epoch in found for _ in range(first, last + 1)] == truth[low : high + 1]
    assert [seq for first, last, _ in found for seq in range(first, last + 1)] == list(range(low, high + 1))
    assert len(found) <= len(history) + 1


def test_of_a_stream_without_a_history_everything_may_be() -> None:
    assert seqs_of_epoch((), 5) == (0, NEVER_SEQ)
    assert list(spans((), 3, 4)) == [(3, 4, 0)]
