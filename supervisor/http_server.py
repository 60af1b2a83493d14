"""The HTTP server of the metrics process: one selector, and a thread for pages that may wait for the disk.

What needs a bound are the connections, the request head and the time of a connection (`CONNECTION_TIMEOUT_S`, for both
directions together). A peer never waits for others that are idle or slow: beyond CONNECTIONS_MAX the oldest connection
of the address with the most is closed for the new one.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http import HTTPStatus

from tailrace.supervisor.http_exchange import BadRequest, Exchange, Page, text_page

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
CONNECTION_TIMEOUT_S = 10.0
SWEEP_INTERVAL_S = 1.0
RECEIVE_BYTES = 16 << 10
LINGER_MAX_BYTES = 1 << 20  # of a peer that goes on sending after its answer
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

MakePage = Callable[[], Page]
Pages = Mapping[str, MakePage]


class Connection:
    """One peer: reads its request head, sends the answer, and discards further input."""

    __slots__ = (
        "deadline_s",
        "events",
        "exchange",
        "has_asked",
        "has_ended",
        "host",
        "is_answered",
        "lingered_bytes",
        "out",
        "sock",
    )

    def __init__(self, sock: socket.socket, host: str, exchange: Exchange, deadline_s: float) -> None:
        self.sock = sock
        self.host = host
        self.exchange = exchange
        self.deadline_s = deadline_s
        self.events = 0  # those that the selector waits for
        self.out = memoryview(b"")  # what is left of the answer
        self.has_asked = False
        self.is_answered = False
        self.has_ended = False  # the peer sends no more; it may still read
        self.lingered_bytes = 0


class SlowPage:
    """A page that is made in a thread, once at a time. All that ask while it is being made share the next one."""

    def __init__(self, make: MakePage, executor: ThreadPoolExecutor, on_made: Callable[[], None]) -> None:
        self._make = make
        self._executor = executor
        self._on_made = on_made
        self._future: Future[Page] | None = None
        self._asked: dict[Connection, None] = {}
        self._next: dict[Connection, None] = {}

    def ask(self, connection: Connection) -> None:
        self._next[connection] = None
        self._begin()

    def forget(self, connection: Connection) -> None:
        self._asked.pop(connection, None)
        self._next.pop(connection, None)

    def _begin(self) -> None:
        if self._future is None and self._next:
            self._asked, self._next = self._next, {}
            self._future = self._executor.submit(self._make)
            self._future.add_done_callback(lambda _future: self._on_made())

    def take(self) -> tuple[Page, list[Connection]] | None:
        """The page and its readers, if it has been made since the last call; then the next one is begun."""
        if self._future is None or not self._future.done():
            return None
        made = self._future.result(), list(self._asked)
        self._future = None
        self._begin()
        return made


class Server:
    """Answers one request for each connection.

    pages: made at once, in the loop. slow_pages: made in a thread.
    host: the name by which the listener was bound. On a loopback address requests must be for it, for localhost or for
    an address: else a web page in a browser of this machine could read the pages by DNS rebinding.
    """

    def __init__(
        self,
        listener: socket.socket,
        pages: Pages,
        slow_pages: Pages,
        host: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._names = {"localhost", host.lower()}
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._made_read, self._made_write = socket.socketpair()
        for end in (self._made_read, self._made_write):
            end.setblocking(False)
        self._executor = ThreadPoolExecutor(1, "pages")
        self._pages = {path: partial(make_safely, path, make) for path, make in pages.items()}
        self._slow_pages = {
            path: SlowPage(partial(make_safely, path, make), self._executor, self._notify)
            for path, make in slow_pages.items()
        }
        self._selector.register(self._made_read, selectors.EVENT_READ, self._on_made)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def serve(self, stop_fds: tuple[int, ...]) -> None:
        """Serve until one of `stop_fds` is readable."""
        for fd in stop_fds:
            self._selector.register(fd, selectors.EVENT_READ, None)
        while True:
            for key, mask in self._selector.select(SWEEP_INTERVAL_S):
                if key.data is None:
                    return
                key.data(mask)
            self._sweep()

    def close(self) -> None:
        """Close every socket. A page that is being made is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for connection in list(self._connections):
            self._drop(connection)
        for sock in (self._listener, self._made_read, self._made_write):
            sock.close()
        self._selector.close()

    # --- connections ------------------------------------------------------------------------------------------------

    def _accept(self, _mask: int) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            if error.errno in SHORTAGES:  # try again after the next sweep
                log.warning("cannot accept a connection for metrics: %s", error.strerror)
                self._selector.unregister(self._listener)
            return
        sock.setblocking(False)
        while len(self._connections) >= CONNECTIONS_MAX:
            self._drop(self._oldest_of_most())
        names = self._names if is_loopback(sock.getsockname()[0]) else None
        connection = Connection(sock, address[0], Exchange(names), self._clock() + CONNECTION_TIMEOUT_S)
        self._connections[connection] = None
        self._watch(connection)

    def _oldest_of_most(self) -> Connection:
        """The oldest connection of the address that has the most."""
        ((host, _count),) = Counter(each.host for each in self._connections).most_common(1)
        return next(each for each in self._connections if each.host == host)

    def _watch(self, connection: Connection) -> None:
        """Wait for what the connection needs next."""
        reading = 0 if connection.has_ended else selectors.EVENT_READ
        events = reading | (selectors.EVENT_WRITE if connection.out else 0)
        if events and connection.events:
            self._selector.modify(connection.sock, events, partial(self._on_event, connection))
        elif events:
            self._selector.register(connection.sock, events, partial(self._on_event, connection))
        elif connection.events:
            self._selector.unregister(connection.sock)
        connection.events = events

    def _on_event(self, connection: Connection, mask: int) -> None:
        if connection not in self._connections:
            return  # closed in this turn
        try:
            if mask & selectors.EVENT_READ:
                self._receive(connection)
            if mask & selectors.EVENT_WRITE and connection.out:
                self._send(connection)
        except BlockingIOError:
            pass
        except OSError:  # the peer has gone; pages handle their own errors
            self._drop(connection)

    def _receive(self, connection: Connection) -> None:
        received = connection.sock.recv(RECEIVE_BYTES)
        if not received:
            self._end(connection)
        elif connection.has_asked:
            connection.lingered_bytes += len(received)
            if connection.lingered_bytes > LINGER_MAX_BYTES:
                self._drop(connection)
        else:
            self._ask(connection, received)

    def _end(self, connection: Connection) -> None:
        """The peer has closed its side: drop it, unless it is owed an answer."""
        if connection.has_asked and (connection.out or not connection.is_answered):
            connection.has_ended = True
            self._watch(connection)
        else:
            self._drop(connection)

    def _sweep(self) -> None:
        now_s = self._clock()
        for connection in list(self._connections):
            if connection.deadline_s > now_s:
                break  # the others are younger
            self._drop(connection)
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            for slow in self._slow_pages.values():
                slow.forget(connection)
            if connection.events:
                self._selector.unregister(connection.sock)
            connection.sock.close()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _ask(self, connection: Connection, received: bytes) -> None:
        try:
            path = connection.exchange.receive(received)
        except BadRequest as bad:
            self._answer(connection, text_page(bad.status, str(bad)))
            return
        if path is None:
            return
        connection.has_asked = True
        slow = self._slow_pages.get(path)
        if slow is not None:
            slow.ask(connection)
        elif path in self._pages:
            self._answer(connection, self._pages[path]())
        else:
            paths = " ".join((*self._pages, *self._slow_pages))
            self._answer(connection, text_page(HTTPStatus.NOT_FOUND, f"no such page; there are {paths}"))

    def _answer(self, connection: Connection, page: Page) -> None:
        connection.has_asked = connection.is_answered = True
        connection.out = memoryview(connection.exchange.answer(page))
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        with contextlib.suppress(BlockingIOError):
            connection.out = connection.out[connection.sock.send(connection.out) :]
        self._watch(connection)
        if not connection.out:
            # The peer closes once it has read: closing first, with unread input, would reset the answer.
            connection.sock.shutdown(socket.SHUT_WR)
            if connection.has_ended:
                self._drop(connection)

    def _notify(self) -> None:
        """In the thread of the pages: wake the loop. A full buffer wakes it as well."""
        with contextlib.suppress(OSError):
            self._made_write.send(b"\0")

    def _on_made(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._made_read.recv(RECEIVE_BYTES)
        for slow in self._slow_pages.values():
            made = slow.take()
            if made is None:
                continue
            page, connections = made
            for connection in connections:
                try:
                    self._answer(connection, page)
                except OSError:  # the peer has gone
                    self._drop(connection)


def make_safely(path: str, make: MakePage) -> Page:
    """The page, or one with its error."""
    try:
        return make()
    except (OSError, RuntimeError, ValueError) as error:
        log.exception("cannot make %s", path)
        return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, f"{path}: {error}")


def is_loopback(address: str) -> bool:
    """Whether a numeric address is of this machine alone."""
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
