"""The metrics process: /metrics, /healthz and /readyz on a port of their own.

A process of its own, forked by the supervisor, so that a scrape costs no worker a turn and a busy worker no scrape its
answer. It ends on SIGTERM and when the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest

from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.version import program_version
from tailrace.shard import leaves
from tailrace.supervisor.collectors import (
    BoardCollector,
    BuildCollector,
    DiskCollector,
    ProcessCollector,
    WorkerCollector,
    find_unready,
)
from tailrace.supervisor.http_exchange import HttpPage, text_page
from tailrace.supervisor.http_server import HttpServer, Pages
from tailrace.supervisor.textfile import TextfileCollector

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def run(settings: Settings, board: Board, listener: socket.socket, lifeline_fd: int) -> None:
    """The body of the metrics process; returns when it is stopped.

    `lifeline_fd` becomes readable when the supervisor is gone (the read end of a pipe that only the supervisor holds
    open). Call it in the forked child: it takes over the signals of its process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # meant for the supervisor; a terminal sends some to the whole group
    slow_pages = make_slow_pages(settings, board, os.getppid())
    server = HttpServer(make_pages(settings, board), slow_pages, settings.metrics_host)
    asyncio.run(server.serve(listener, lifeline_fd, [signal.SIGTERM]))


# --- pages ------------------------------------------------------------------------------------------------------------


def make_pages(settings: Settings, board: Board) -> Pages:
    """The pages that are made from memory."""

    def ready() -> HttpPage:
        unready = find_unready(board, settings.beat_timeout_s)
        if unready:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(unready))
        return text_page(HTTPStatus.OK, "ready")

    return {
        "/": lambda: text_page(HTTPStatus.OK, "tailrace\n/metrics\n/healthz\n/readyz"),
        "/healthz": lambda: text_page(HTTPStatus.OK, "alive"),
        "/readyz": ready,
    }


def make_slow_pages(settings: Settings, board: Board, supervisor_pid: int) -> Pages:
    """The pages that read files and the state of file systems."""
    registry = make_registry(settings, board, supervisor_pid)
    return {"/metrics": lambda: HttpPage(HTTPStatus.OK, generate_latest(registry), METRICS_TYPE)}


def make_registry(settings: Settings, board: Board, supervisor_pid: int) -> CollectorRegistry:
    """All that one scrape shows. A registry of its own: in the default one, names would be there twice."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(board))
    registry.register(BoardCollector(board))
    registry.register(ProcessCollector(board, supervisor_pid))
    registry.register(DiskCollector(settings.data))
    registry.register(TextfileCollector(settings.metrics_textfile))
    registry.register(BuildCollector(program_version(), leaves.build()))
    return registry
