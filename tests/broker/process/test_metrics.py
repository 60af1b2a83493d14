"""The plain numbers of a worker."""

from __future__ import annotations

import sys
from dataclasses import fields

import pytest

from tailrace.broker.process.metrics import (
    MAX_LABEL_VALUES,
    OTHER,
    PROTOCOLS,
    SUM,
    TABLE,
    TIME_BOUNDS_S,
    ConsumerMeasures,
    LabelCounts,
    SlaveMeasures,
    StreamMeasures,
    Timing,
    Traffic,
    WorkerMetrics,
    _declared,
)


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
    tally = LabelCounts()
    for number in range(MAX_LABEL_VALUES * 2):
        tally.add(f"code{number}", 2)
    tally.add("code0")
    assert len(tally.counts) == MAX_LABEL_VALUES + 1
    assert tally.counts["code0"] == 3
    assert tally.counts[OTHER] == MAX_LABEL_VALUES * 2


def test_every_field_of_a_worker_is_shown() -> None:
    """A number that is counted and never shown is a number nobody sees."""
    metrics = WorkerMetrics()
    shown = {name for name, _family in _declared(WorkerMetrics)}
    assert {each.name for each in fields(WorkerMetrics)} - shown == {
        *PROTOCOLS,
        "slaves",
        "measured_streams",
        "measured_consumers",
    }
    for owner in (Traffic, SlaveMeasures, StreamMeasures, ConsumerMeasures):
        assert {name for name, _family in _declared(owner)} == {each.name for each in fields(owner)}
    assert len({family.name for family in TABLE}) == len(TABLE)
    for family, read in TABLE.items():
        assert family.name.startswith("tailrace_") and family.help.endswith(".")
        assert set(read(metrics)) <= {*family.known}


def test_reading_them_leaves_no_memory_behind() -> None:
    metrics, reads = WorkerMetrics(), 100

    def blocks_after_reads() -> int:
        for _ in range(reads):
            for read in TABLE.values():
                read(metrics)
        return sys.getallocatedblocks()

    before = blocks_after_reads()
    assert blocks_after_reads() - before < reads


def test_each_value_is_read_from_its_field() -> None:
    metrics = WorkerMetrics()
    metrics.binary.bytes_in = 1
    metrics.append.observe(0.3)
    metrics.refused.add("size", 3)
    metrics.parked = {"turn": 4}
    metrics.slaves = {"b": SlaveMeasures(lag_s=5.5)}
    metrics.measured_streams = {"orders": StreamMeasures(messages=7)}
    metrics.measured_consumers = {"orders\0billing": ConsumerMeasures(lag_s=8.5)}
    metrics.lag_bytes_max = 6
    values = {family.name: read(metrics) for family, read in TABLE.items()}
    assert values["tailrace_received_bytes"] == {"line": 0, "binary": 1, "mqtt": 0, "udp": 0}
    assert {label for label, number in values["tailrace_append_seconds"].items() if number} == {"0.5", SUM}
    assert values["tailrace_refused_commands"] == {"size": 3}
    assert values["tailrace_parked_cursors"] == {"turn": 4}
    assert values["tailrace_slave_lag_seconds"] == {"b": 5.5}
    assert values["tailrace_lag_bytes"] == {"": 6}
    assert values["tailrace_stream_messages"] == {"orders": 7}
    assert values["tailrace_stream_consumer_lag_seconds"] == {"orders\0billing": 8.5}
