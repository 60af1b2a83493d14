"""The plain numbers of a worker."""

from __future__ import annotations

import pytest

from tailrace.broker.process.metrics import MAX_LABEL_VALUES, OTHER, TIME_BOUNDS_S, Tally, Timing, WorkerMetrics


class Sink:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.closed = False

    def take(self, metrics: WorkerMetrics) -> None:
        self.taken.append(metrics.line.messages_in)

    def close(self) -> None:
        self.closed = True


def test_without_a_sink_numbers_are_kept_and_flush_is_nothing() -> None:
    metrics = WorkerMetrics()
    metrics.line.messages_in += 3
    metrics.flush()
    metrics.close()
    assert metrics.line.messages_in == 3


def test_timing_puts_a_bound_into_the_bucket_below_it() -> None:
    timing = Timing()
    for seconds in (0.0, TIME_BOUNDS_S[0], TIME_BOUNDS_S[0] * 1.01, TIME_BOUNDS_S[-1], TIME_BOUNDS_S[-1] * 2):
        timing.observe(seconds)
    assert timing.counts[0] == 2
    assert timing.counts[1] == 1
    assert timing.counts[-2] == 1
    assert timing.counts[-1] == 1
    assert timing.sum_s == pytest.approx(TIME_BOUNDS_S[0] * 2.01 + TIME_BOUNDS_S[-1] * 3)


def test_tally_is_bounded_whatever_it_is_told() -> None:
    tally = Tally()
    for number in range(MAX_LABEL_VALUES * 2):
        tally.add(f"code{number}", 2)
    tally.add("code0")
    assert len(tally.counts) == MAX_LABEL_VALUES + 1
    assert tally.counts["code0"] == 3
    assert tally.counts[OTHER] == MAX_LABEL_VALUES * 2


def test_closing_flushes_once_more_and_only_once() -> None:
    sink = Sink()
    metrics = WorkerMetrics(sink)
    metrics.line.messages_in = 1
    metrics.flush()
    metrics.line.messages_in = 2
    metrics.close()
    metrics.close()
    metrics.flush()
    assert sink.taken == [1, 2]
    assert sink.closed
