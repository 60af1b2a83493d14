"""The parts of a scrape."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tailrace.broker.process.metric_cells import RowWriter
from tailrace.broker.process.metrics import (
    MAX_CONSUMERS,
    MAX_STREAMS,
    ConsumerMeasures,
    SlaveMeasures,
    StreamMeasures,
    WorkerMetrics,
)
from tailrace.broker.process.scoreboard import STATE_DRAINING, STATE_READY, STATE_STARTING, Board
from tailrace.supervisor.collectors import (
    BoardCollector,
    BuildCollector,
    DiskCollector,
    ProcessCollector,
    WorkerCollector,
    find_unready,
)


def samples(collector: Collector) -> dict[tuple[str, ...], float]:
    """Samples by name and label values."""
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def two_slots() -> Board:
    board = Board(2)
    serving, other = board
    serving.pid, serving.state, serving.restarts = os.getpid(), STATE_READY, 3
    serving.beat()
    other.state = STATE_STARTING
    return board


def worker_of(board: Board, generation: int) -> tuple[RowWriter, WorkerMetrics]:
    assert board.take_row(generation)
    return RowWriter(board.row_of(generation)), WorkerMetrics()


def test_workers() -> None:
    board = Board(2)
    for generation, lag in ((1, 7), (2, 900)):
        writer, metrics = worker_of(board, generation)
        metrics.connections, metrics.lag_bytes_max = 10, lag
        metrics.line.messages_in = generation
        metrics.dropped.add("handed over")
        metrics.slaves = {'node "b"\n': SlaveMeasures(3, lag_s=0.5)}
        for seconds in (0.000_01, 0.000_02, 0.3, 99.0):
            metrics.append.observe(seconds)
        writer.store(metrics)
    shown = samples(WorkerCollector(board))
    assert shown["tailrace_connections",] == 20
    assert shown["tailrace_lag_bytes",] == 900
    assert shown["tailrace_received_messages_total", "line"] == 3
    assert shown["tailrace_closed_connections_total", "handed over"] == 2
    assert shown["tailrace_refused_commands_total", "size"] == 0
    assert shown["tailrace_slave_streams", 'node "b"\n'] == 6
    assert shown["tailrace_slave_lag_seconds", 'node "b"\n'] == 0.5
    bounds = {
        bound: shown["tailrace_append_seconds_bucket", bound] for bound in ("1e-05", "2.5e-05", "0.5", "10.0", "+Inf")
    }
    assert bounds == {"1e-05": 2, "2.5e-05": 4, "0.5": 6, "10.0": 6, "+Inf": 8}
    assert shown["tailrace_append_seconds_count",] == 8
    assert shown["tailrace_append_seconds_sum",] == pytest.approx(198.600_06)
    board.free_row(2)
    assert samples(WorkerCollector(board))["tailrace_lag_bytes",] == 7


def test_board() -> None:
    shown = samples(BoardCollector(two_slots()))
    assert shown["tailrace_worker_ready", "0"] == 1
    assert shown["tailrace_worker_ready", "1"] == 0
    assert {key: number for key, number in shown.items() if key[0] == "tailrace_worker_state" and number} == {
        ("tailrace_worker_state", "ready", "0"): 1,
        ("tailrace_worker_state", "starting", "1"): 1,
    }
    assert shown["tailrace_worker_restarts_total", "0"] == 3
    assert 0 <= shown["tailrace_worker_beat_age_seconds", "0"] < 60
    assert ("tailrace_worker_beat_age_seconds", "1") not in shown  # it has not beaten yet


def test_processes() -> None:
    shown = samples(ProcessCollector(two_slots(), os.getppid()))
    for role, worker in (("supervisor", ""), ("metrics", ""), ("worker", "0")):
        assert shown["tailrace_process_resident_memory_bytes", role, worker] > 1 << 20
        assert shown["tailrace_process_cpu_seconds_total", role, worker] >= 0
        assert 0 < shown["tailrace_process_open_fds", role, worker] <= shown["tailrace_process_max_fds", role, worker]
        assert abs(shown["tailrace_process_start_time_seconds", role, worker] - time.time()) < 10 * 365 * 86_400
    assert ("tailrace_process_open_fds", "worker", "1") not in shown


def test_a_process_that_is_gone_has_no_line() -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os._exit(0)
    os.waitpid(child, 0)
    shown = samples(ProcessCollector(Board(1), child))
    assert ("tailrace_process_open_fds", "supervisor", "") not in shown
    assert ("tailrace_process_open_fds", "metrics", "") in shown


def test_disk(tmp_path: Path) -> None:
    shown = samples(DiskCollector(tmp_path))
    assert 0 < shown["tailrace_data_free_bytes",] <= shown["tailrace_data_size_bytes",]
    assert ("tailrace_data_free_inodes",) in shown
    assert samples(DiskCollector(tmp_path / "gone")) == {}


def test_build() -> None:
    assert samples(BuildCollector("1.2.3", "compiled")) == {("tailrace_build_info", "compiled", "1.2.3"): 1}


def test_who_is_not_ready_and_why() -> None:
    board = Board(4)
    down, starting, silent, ready = board
    for view in (starting, silent, ready):
        view.pid = 1
        view.beat()
    starting.state, silent.state, ready.state, down.state = STATE_STARTING, STATE_READY, STATE_READY, STATE_READY
    silent.beat_ns -= 40 * 10**9
    assert find_unready(board, 15) == ["worker 0: down", "worker 1: starting", "worker 2: silent for 40 s"]
    assert find_unready([ready], 15) == []
    ready.state = STATE_DRAINING
    assert find_unready([ready], 15) == ["worker 3: draining"]


def test_a_stream_that_is_no_longer_measured_vanishes() -> None:
    """It has moved to another worker, or was deleted. Figures read from files do not add up over workers."""
    board = Board(1)
    old, metrics = worker_of(board, 1)
    metrics.measured_streams = {"orders": StreamMeasures(messages=7), "gone": StreamMeasures(messages=5)}
    metrics.measured_consumers = {"orders\0billing": ConsumerMeasures(redelivered=2)}
    old.store(metrics)
    new, metrics_of_new = worker_of(board, 2)
    metrics_of_new.measured_streams = {"orders": StreamMeasures(messages=9)}
    new.store(metrics_of_new)
    del metrics.measured_streams["gone"]
    metrics.measured_consumers = {}
    old.store(metrics)
    shown = samples(WorkerCollector(board))
    assert shown["tailrace_stream_messages_total", "orders"] == 9
    assert not any("gone" in key or "billing" in key for key in shown)
    metrics.measured_streams["gone"] = StreamMeasures(messages=6)
    metrics.measured_consumers = {"orders\0billing": ConsumerMeasures(redelivered=3)}
    old.store(metrics)
    shown = samples(WorkerCollector(board))
    assert shown["tailrace_stream_messages_total", "gone"] == 6
    assert shown["tailrace_stream_consumer_redelivered_total", "billing", "orders"] == 3
    board.free_row(1)
    assert not any("gone" in key for key in samples(WorkerCollector(board)))


def test_more_streams_than_have_a_place_are_shown_together() -> None:
    """Others get the places of those that are gone."""
    board = Board(1)
    writer, metrics = worker_of(board, 1)
    for generation in range(3):
        names = [f"{generation}.{'x' * 190}.{number}" for number in range(MAX_STREAMS + 9)]
        metrics.measured_streams = {name: StreamMeasures(kept_messages=1) for name in names}
        metrics.measured_consumers = {f"{name}\0{'y' * 100}": ConsumerMeasures(1) for name in names}
        writer.store(metrics)
        writer.store(metrics)  # a place that was another's has its value from now on
        shown = samples(WorkerCollector(board))
        assert shown["tailrace_stream_kept_messages", names[0]] == 1
        assert shown["tailrace_stream_kept_messages", "other"] == 9
    assert shown["tailrace_stream_consumer_lag_messages", "other", "other"] == MAX_STREAMS + 9 - MAX_CONSUMERS
