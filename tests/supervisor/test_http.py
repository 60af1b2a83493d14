"""The metrics process: its pages, its bounds, its end."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from tailrace.broker.process.metric_cells import RowWriter
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.scoreboard import STATE_READY, Board
from tailrace.broker.process.settings import Settings
from tailrace.supervisor import http
from tailrace.supervisor.http_request import Page, text_page

DEADLINE_S = 10.0
FREE = Settings(metrics_port=0)

Address = tuple[str, int]


def ask(address: Address, request: bytes = b"GET / HTTP/1.1\r\n\r\n") -> tuple[bytes, bytes]:
    """Send `request`, read to the end: (head, body)."""
    with socket.create_connection(address, timeout=DEADLINE_S) as peer:
        peer.sendall(request)
        return read_answer(peer)


def read_answer(peer: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while piece := peer.recv(1 << 16):
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


def get(address: Address, path: str) -> tuple[int, str]:
    head, body = ask(address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return int(head.split()[1]), body.decode()


# --- the server -------------------------------------------------------------------------------------------------------


class Clock:
    """Moves only on command."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def serving(pages: http.Pages, clock: Callable[[], float] = time.monotonic) -> Iterator[Address]:
    listener = http.bind(FREE)
    address: Address = listener.getsockname()[:2]
    server = http.Server(listener, pages, clock)
    stop_read, stop_write = socket.socketpair()
    thread = threading.Thread(target=server.serve, args=((stop_read.fileno(),),))
    thread.start()
    try:
        yield address
    finally:
        stop_write.close()
        thread.join(DEADLINE_S)
        stop_read.close()
        server.close()
        assert not thread.is_alive()


def page(text: str) -> Callable[[], Page]:
    return lambda: text_page(HTTPStatus.OK, text)


def test_get_head_and_what_is_not_there() -> None:
    with serving({"/": page("index"), "/x": page("x" * 1_000_000)}) as address:
        assert get(address, "/?query=1") == (200, "index\n")
        assert len(get(address, "/x")[1]) == 1_000_001
        head, body = ask(address, b"HEAD /x HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 1000001" in head
        assert body == b""
        assert get(address, "/nothing") == (404, "no such page; there are / /x\n")
        assert ask(address, b"POST / HTTP/1.1\r\n\r\n")[0].startswith(b"HTTP/1.1 405 ")
        assert ask(address, b"nonsense\r\n\r\n")[0].startswith(b"HTTP/1.1 400 ")


def test_a_request_in_single_bytes() -> None:
    with serving({"/": page("index")}) as address, socket.create_connection(address, timeout=DEADLINE_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET / HTTP/1.1\r\n\r\n":
            peer.sendall(bytes([byte]))
        assert read_answer(peer)[1] == b"index\n"


def test_a_peer_that_sends_a_body_still_gets_its_answer() -> None:
    """Closing on unread bytes would reset the connection and take the answer with it."""
    with serving({"/": page("index")}) as address:
        head, body = ask(address, b"POST / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"b" * 200_000)
    assert head.startswith(b"HTTP/1.1 405 ")
    assert body == b"only GET and HEAD are served\n"


def test_a_head_without_an_end_is_refused() -> None:
    with serving({"/": page("index")}) as address:
        head, _ = ask(address, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2_000)
    assert head.startswith(b"HTTP/1.1 431 ")


def test_a_slow_peer_is_dropped_at_its_deadline_and_not_before() -> None:
    clock = Clock()
    with serving({"/": page("index")}, clock) as address, socket.create_connection(address, DEADLINE_S) as slow:
        slow.sendall(b"GET / HT")
        clock.now_s += http.CONNECTION_TIMEOUT_S / 2
        assert get(address, "/")[0] == 200  # time enough for a turn of the loop
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)
        clock.now_s += http.CONNECTION_TIMEOUT_S
        slow.settimeout(DEADLINE_S)
        assert slow.recv(1) == b""


def test_connections_are_bounded_and_the_next_waits_its_turn() -> None:
    clock = Clock()
    with serving({"/": page("index")}, clock) as address:
        idle = [socket.create_connection(address, DEADLINE_S) for _ in range(http.CONNECTIONS_MAX)]
        with socket.create_connection(address, DEADLINE_S) as waiting:
            waiting.sendall(b"GET / HTTP/1.1\r\n\r\n")
            # The last of the idle ones is answered, so all of them were accepted; the one behind them was not.
            idle[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert read_answer(idle[-1])[1] == b"index\n"
            assert not select.select([waiting], [], [], 0)[0]
            idle[0].close()
            assert read_answer(waiting)[1] == b"index\n"
        for each in idle:
            each.close()


def test_a_page_that_fails_is_an_error_and_the_next_works(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Page:
        raise RuntimeError("Read beyond file size detected, file is corrupted.")

    with serving({"/": page("index"), "/metrics": broken}) as address:
        assert get(address, "/metrics") == (500, "/metrics: Read beyond file size detected, file is corrupted.\n")
        assert get(address, "/") == (200, "index\n")
    assert "cannot make /metrics" in caplog.text


def test_a_peer_that_resets_does_no_harm() -> None:
    with serving({"/": page("x" * 5_000_000)}) as address:
        for _ in range(5):
            peer = socket.create_connection(address, DEADLINE_S)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            peer.recv(10)
            peer.close()
        assert get(address, "/")[0] == 200


def test_a_taken_port_is_an_error_for_the_supervisor() -> None:
    with http.bind(FREE) as taken, pytest.raises(OSError, match="Address already in use"):
        http.bind(Settings(metrics_port=taken.getsockname()[1]))


# --- the process ------------------------------------------------------------------------------------------------------


class MetricsProcess:
    """`http.run` in a child, with this process for its supervisor."""

    def __init__(self, settings: Settings, board: Board) -> None:
        listener = http.bind(settings)
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
    process = MetricsProcess(Settings(data=tmp_path, metrics_port=0), board)
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


def test_a_scrape_shows_workers_processes_and_disk(started: MetricsProcess, board: Board) -> None:
    assert board.take_row(1)
    metrics = WorkerMetrics()
    metrics.line.messages_in += 42
    metrics.connections = 7
    RowWriter(board.row_of(1)).store(metrics)
    head, body = ask(started.address, b"GET /metrics HTTP/1.1\r\n\r\n")
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
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False
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
