"""A scrape: what the workers counted, the board, the processes and the file system of the data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tailrace.broker.process.metric_cells import sum_up
from tailrace.broker.process.metrics import BUCKETS, LABELS_SEPARATOR, OTHER, SUM, TABLE, MetricFamily, MetricKind
from tailrace.broker.process.scoreboard import STATE_EMPTY, STATE_NAMES, STATE_READY, Board, SlotView

_PROCESS_LABELS = ("role", "worker")


class WorkerCollector(Collector):
    """The sums over all workers, dead ones included, of everything in the table of metrics."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        for family in TABLE:
            values = sum_up(self._board.metric_rows, family)
            if family.kind is MetricKind.HISTOGRAM:
                yield _histogram(family, values)
                continue
            made = GaugeMetricFamily if family.is_gauge else CounterMetricFamily
            shown = made(family.name, family.help, labels=family.labels)
            for value, number in values.items():
                shown.add_metric(_label_values(family, value), number)
            yield shown


def _label_values(family: MetricFamily, value: str) -> list[str]:
    """A value for each label; OTHER stands for all of them."""
    if value == OTHER:
        return [value] * len(family.labels)
    return value.split(LABELS_SEPARATOR) if family.labels else []


def _histogram(family: MetricFamily, values: dict[str, float]) -> HistogramMetricFamily:
    shown = HistogramMetricFamily(family.name, family.help)
    counts = accumulate(values[bucket] for bucket in BUCKETS)
    shown.add_metric([], list(zip(BUCKETS, counts, strict=True)), values[SUM])
    return shown


class BoardCollector(Collector):
    """The workers as the board shows them."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        ready = GaugeMetricFamily(
            "tailrace_worker_ready", "Whether the worker serves (1) or not (0).", labels=["worker"]
        )
        state = GaugeMetricFamily(
            "tailrace_worker_state", "1 for the state the worker is in.", labels=["worker", "state"]
        )
        age = GaugeMetricFamily(
            "tailrace_worker_beat_age_seconds", "Time since the worker's loop last moved.", labels=["worker"]
        )
        restarts = CounterMetricFamily("tailrace_worker_restarts", "Times the worker was restarted.", labels=["worker"])
        for view in self._board:
            worker = str(view.index)
            ready.add_metric([worker], int(view.state == STATE_READY))
            for number, name in enumerate(STATE_NAMES):
                state.add_metric([worker, name], int(view.state == number))
            if view.beat_ns:
                age.add_metric([worker], max(0.0, view.beat_age_s()))
            restarts.add_metric([worker], view.restarts)
        yield from (ready, state, age, restarts)


class ProcessCollector(Collector):
    """Memory, processor time and descriptors of the supervisor, the workers and the metrics process."""

    def __init__(self, board: Board, supervisor_pid: int) -> None:
        self._board = board
        self._supervisor_pid = supervisor_pid

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        families = _process_families()
        for role, worker, pid in self._processes():
            # A process may end between any two of these: it then has no line in this scrape.
            try:
                numbers = _read_process(pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            for family, number in zip(families, numbers, strict=True):
                family.add_metric([role, worker], number)
        yield from families

    def _processes(self) -> Iterator[tuple[str, str, int]]:
        yield "supervisor", "", self._supervisor_pid
        yield "metrics", "", os.getpid()
        for view in self._board:
            if view.pid:
                yield "worker", str(view.index), view.pid


def _process_families() -> tuple[GaugeMetricFamily | CounterMetricFamily, ...]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"tailrace_process_{name}", text, labels=_PROCESS_LABELS)

    return (
        gauge("resident_memory_bytes", "Resident memory of the process."),
        CounterMetricFamily("tailrace_process_cpu_seconds", "Processor time of the process.", labels=_PROCESS_LABELS),
        gauge("open_fds", "Open file descriptors of the process."),
        gauge("max_fds", "File descriptors the process may open."),
        gauge("start_time_seconds", "When the process started, in seconds since the Unix epoch."),
    )


def _read_process(pid: int) -> tuple[float, ...]:
    process = psutil.Process(pid)
    with process.oneshot():
        times = process.cpu_times()
        return (
            process.memory_info().rss,
            times.user + times.system,
            process.num_fds(),
            process.rlimit(psutil.RLIMIT_NOFILE)[0],
            process.create_time(),
        )


class DiskCollector(Collector):
    """The file system that holds the data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            found = os.statvfs(self._data)
        except OSError:
            return  # the disk is gone, and with it its numbers; the workers report errors
        yield _gauge(
            "tailrace_data_size_bytes", "Size of the file system of the data.", found.f_blocks * found.f_frsize
        )
        yield _gauge(
            "tailrace_data_free_bytes",
            "Bytes that the node may still use on the file system of the data.",
            found.f_bavail * found.f_frsize,
        )
        yield _gauge(
            "tailrace_data_free_inodes", "Files that may still be made on the file system of the data.", found.f_favail
        )


class BuildCollector(Collector):
    """The running program: a constant 1 with its labels."""

    def __init__(self, version: str, leaves: str) -> None:
        self._labels = (version, leaves)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "tailrace_build_info", "1; the version and how the hot leaves were built.", labels=["version", "leaves"]
        )
        family.add_metric(self._labels, 1)
        yield family


def _gauge(name: str, text: str, number: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=number)


def find_unready(slots: Iterable[SlotView], beat_timeout_s: float) -> list[str]:
    """One line for each worker that is not serving; empty when the node is ready."""
    lines = []
    for view in slots:
        if view.pid == 0 or view.state == STATE_EMPTY:
            lines.append(f"worker {view.index}: down")
        elif view.state != STATE_READY:
            lines.append(f"worker {view.index}: {view.state_name}")
        elif view.beat_age_s() > beat_timeout_s:
            lines.append(f"worker {view.index}: silent for {view.beat_age_s():.0f} s")
    return lines
