"""The metrics process: its pages, its end."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.process.metric_cells import RowWriter
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.scoreboard import STATE_READY, Board
from tailrace.broker.process.settings import Settings
from tailrace.supervisor import http
from tailrace.supervisor.listeners import open_metrics_listener
from tests.supervisor.http_peer import DEADLINE_S, Address, ask, get


class MetricsProcess:
    """`http.run` in a child, with this process for its supervisor."""

    def __init__(self, settings: Settings, board: Board) -> None:
        listener = open_metrics_listener("127.0.0.1", 0)
        self.address: Address = listener.getsockname()[:2]
        lifeline_read, self.lifeline = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:  # pragma: no cover - another process
            os.close(self.lifeline)
            code = 1
            try:
                http.run(settings, board, listener, lifeline_read)
                code = 0
            finally:
                os._exit(code)
        listener.close()
        os.close(lifeline_read)

    def exit_code(self) -> int:
        """The code it leaves with, within the deadline."""
        pidfd = os.pidfd_open(self.pid)
        try:
            left = bool(select.select([pidfd], [], [], DEADLINE_S)[0])
        finally:
            os.close(pidfd)
        if not left:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close_lifeline(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1


@pytest.fixture
def board() -> Board:
    board = Board(2)
    for view in board:
        view.pid, view.state = os.getpid(), STATE_READY
        view.beat()
    return board


@pytest.fixture
def started(tmp_path: Path, board: Board) -> Iterator[MetricsProcess]:
    process = MetricsProcess(Settings(data=tmp_path), board)
    yield process
    process.close_lifeline()
    if process.pid:
        process.exit_code()


def test_pages_of_a_node(started: MetricsProcess, board: Board) -> None:
    assert get(started.address, "/") == (200, "tailrace\n/metrics\n/healthz\n/readyz\n")
    assert get(started.address, "/healthz") == (200, "alive\n")
    assert get(started.address, "/readyz") == (200, "ready\n")
    board.slot(1).state = 0
    assert get(started.address, "/readyz") == (503, "worker 1: down\n")
    assert get(started.address, "/healthz") == (200, "alive\n")


def test_another_host_is_refused_on_a_loopback_address(started: MetricsProcess) -> None:
    assert get(started.address, "/metrics", "rebound.example")[0] == 421
    assert get(started.address, "/healthz", "127.0.0.1:5051")[0] == 200


def test_a_scrape_shows_workers_processes_and_disk(started: MetricsProcess, board: Board) -> None:
    assert board.take_row(1)
    metrics = WorkerMetrics()
    metrics.line.messages_in += 42
    metrics.connections = 7
    RowWriter(board.row_of(1)).store(metrics)
    head, body = ask(started.address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    text = body.decode()
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8" in head
    assert 'tailrace_received_messages_total{protocol="line"} 42.0\n' in text
    assert "tailrace_connections 7.0\n" in text
    assert 'tailrace_worker_ready{worker="1"} 1.0\n' in text
    assert 'tailrace_process_resident_memory_bytes{role="worker",worker="0"}' in text
    assert "tailrace_data_free_bytes " in text
    board.free_row(1)
    assert "tailrace_connections 7" not in get(started.address, "/metrics")[1]  # the worker is gone, its gauges too
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))
    assert all(name.startswith("tailrace_") for name in names)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say_of_a_scrape(started: MetricsProcess, board: Board) -> None:
    board.take_row(1)
    text = get(started.address, "/metrics")[1]
    told = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_it_ends_when_the_supervisor_is_gone(started: MetricsProcess) -> None:
    assert get(started.address, "/healthz")[0] == 200
    started.close_lifeline()
    assert started.exit_code() == 0
    started.pid = 0
    with pytest.raises(ConnectionRefusedError):
        get(started.address, "/healthz")


def test_it_ends_on_sigterm_and_on_no_other_signal(started: MetricsProcess) -> None:
    assert get(started.address, "/healthz")[0] == 200
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(started.pid, number)
    assert get(started.address, "/healthz")[0] == 200
    os.kill(started.pid, signal.SIGTERM)
    assert started.exit_code() == 0
    started.pid = 0
