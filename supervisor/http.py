"""The metrics process: /metrics, /healthz and /readyz on a port of their own.

A process of its own, forked by the supervisor, so that a scrape costs no worker a turn and a busy worker no scrape its
answer. One thread and one selector: a page takes milliseconds, so requests are answered one after the other, and what
needs a bound are the connections (`CONNECTIONS_MAX`), the request head and the time a peer may take for both directions
together (`CONNECTION_TIMEOUT_S`). It ends on SIGTERM and when the supervisor is gone.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
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
from tailrace.supervisor.http_request import BadRequest, Page, Request, parse_request, render_answer, text_page
from tailrace.supervisor.textfile import TextfileCollector

log = logging.getLogger(__name__)

BACKLOG = 64
CONNECTIONS_MAX = 64
CONNECTION_TIMEOUT_S = 10.0
SWEEP_INTERVAL_S = 1.0
RECEIVE_BYTES = 16 << 10
LINGER_MAX_BYTES = 1 << 20  # of a peer that goes on sending after its answer
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Pages = Mapping[str, Callable[[], Page]]


def bind(settings: Settings) -> socket.socket:
    """The listening socket of the metrics process, for the supervisor to make before it forks. Raises OSError."""
    family, kind, protocol, _name, address = socket.getaddrinfo(
        settings.metrics_host, settings.metrics_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def run(settings: Settings, board: Board, listener: socket.socket, lifeline_fd: int) -> None:
    """The body of the metrics process; returns when it is stopped.

    `lifeline_fd` becomes readable when the supervisor is gone (the read end of a pipe that only the supervisor holds
    open). Call it in the forked child: it takes over the signals of its process.
    """
    wake_read, wake_write = socket.socketpair()
    for end in (wake_read, wake_write):
        end.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)  # the wake-up byte ends the loop
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # meant for the supervisor; a terminal sends some to the whole group
    server = Server(listener, make_pages(settings, board, os.getppid()))
    try:
        server.serve((lifeline_fd, wake_read.fileno()))
    finally:
        signal.set_wakeup_fd(-1)
        server.close()
        wake_read.close()
        wake_write.close()


# --- pages ------------------------------------------------------------------------------------------------------------


def make_pages(settings: Settings, board: Board, supervisor_pid: int) -> Pages:
    """Every path that is served."""
    registry = make_registry(settings, board, supervisor_pid)

    def metrics() -> Page:
        return Page(HTTPStatus.OK, generate_latest(registry), METRICS_TYPE)

    def ready() -> Page:
        unready = find_unready(board, settings.beat_timeout_s)
        if unready:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(unready))
        return text_page(HTTPStatus.OK, "ready")

    return {
        "/": lambda: text_page(HTTPStatus.OK, "tailrace\n/metrics\n/healthz\n/readyz"),
        "/metrics": metrics,
        "/healthz": lambda: text_page(HTTPStatus.OK, "alive"),
        "/readyz": ready,
    }


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


# --- the server -------------------------------------------------------------------------------------------------------


class Connection:
    """One peer: reads its request head, sends the answer, and discards further input."""

    __slots__ = ("answer", "deadline_s", "lingered_bytes", "received", "sock")

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self.sock = sock
        self.deadline_s = deadline_s
        self.received = bytearray()
        self.answer: memoryview | None = None
        self.lingered_bytes = 0


class Server:
    """Answers one request a connection from `pages`."""

    def __init__(self, listener: socket.socket, pages: Pages, clock: Callable[[], float] = time.monotonic) -> None:
        self._listener = listener
        self._pages = pages
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Connection, None] = {}
        self._listening = False
        self._listen(True)

    def serve(self, stop_fds: tuple[int, ...]) -> None:
        """Serve until one of `stop_fds` is readable."""
        for fd in stop_fds:
            self._selector.register(fd, selectors.EVENT_READ, None)
        while True:
            for key, mask in self._selector.select(SWEEP_INTERVAL_S):
                if key.data is None and key.fileobj is not self._listener:
                    return
                self._on_event(key.data, mask)
            self._sweep()

    def close(self) -> None:
        """Close every socket."""
        for connection in list(self._connections):
            self._drop(connection)
        self._listener.close()
        self._selector.close()

    def _on_event(self, connection: Connection | None, mask: int) -> None:
        if connection is None:
            self._accept()
        elif connection in self._connections:
            try:
                self._advance(connection, mask)
            except OSError:  # the peer has gone; pages answer for their own errors
                self._drop(connection)

    def _accept(self) -> None:
        try:
            sock, _address = self._listener.accept()
        except OSError as error:  # the peer has gone again, or no descriptor is left: try again after the next sweep
            log.warning("cannot accept a connection for metrics: %s", error.strerror)
            self._listen(False)
            return
        sock.setblocking(False)
        connection = Connection(sock, self._clock() + CONNECTION_TIMEOUT_S)
        self._connections[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._listen(len(self._connections) < CONNECTIONS_MAX)

    def _listen(self, wanted: bool) -> None:
        """At the bound, further peers wait in the kernel's queue until one has left."""
        if wanted and not self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        elif self._listening and not wanted:
            self._selector.unregister(self._listener)
        self._listening = wanted

    def _advance(self, connection: Connection, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            self._receive(connection)
        if mask & selectors.EVENT_WRITE and connection.answer is not None:
            self._send(connection, connection.answer)

    def _receive(self, connection: Connection) -> None:
        try:
            received = connection.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not received:
            self._drop(connection)
        elif connection.answer is None:
            connection.received += received
            self._answer(connection)
        else:
            connection.lingered_bytes += len(received)
            if connection.lingered_bytes > LINGER_MAX_BYTES:
                self._drop(connection)

    def _answer(self, connection: Connection) -> None:
        try:
            request = parse_request(connection.received)
        except BadRequest as bad:
            answer = render_answer(text_page(bad.status, str(bad)), with_body=True)
        else:
            if request is None:
                return
            answer = render_answer(self._page(request), with_body=request.method == "GET")
        connection.received.clear()
        self._send(connection, memoryview(answer))

    def _page(self, request: Request) -> Page:
        make = self._pages.get(request.path)
        if make is None:
            return text_page(HTTPStatus.NOT_FOUND, "no such page; there are " + " ".join(self._pages))
        try:
            return make()
        except (OSError, RuntimeError, ValueError) as error:  # a shared file that is torn or gone: this scrape fails
            log.exception("cannot make %s", request.path)
            return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, f"{request.path}: {error}")

    def _send(self, connection: Connection, answer: memoryview) -> None:
        try:
            answer = answer[connection.sock.send(answer) :]
        except BlockingIOError:
            pass
        connection.answer = answer
        events = selectors.EVENT_READ | selectors.EVENT_WRITE if answer else selectors.EVENT_READ
        self._selector.modify(connection.sock, events, connection)
        if not answer:
            # The peer closes once it has read: closing first, with unread input, would reset the answer.
            connection.sock.shutdown(socket.SHUT_WR)

    def _sweep(self) -> None:
        now_s = self._clock()
        for connection in [each for each in self._connections if each.deadline_s <= now_s]:
            self._drop(connection)
        self._listen(len(self._connections) < CONNECTIONS_MAX)

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._listen(len(self._connections) < CONNECTIONS_MAX)
