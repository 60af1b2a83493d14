"""The HTTP server of the metrics process, by asyncio and h11. Pages that may wait for the disk are made in a thread.

What needs a bound are the connections, the request head and the time of a connection (`CONNECTION_TIMEOUT_S`, for both
directions together). A peer never waits for others that are idle or slow: beyond CONNECTIONS_MAX the oldest connection
of the address with the most is closed for the new one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any

from tailrace.supervisor.http_exchange import Exchange, HttpError, HttpPage, text_page

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
CONNECTION_TIMEOUT_S = 10.0
RECEIVE_BYTES = 16 << 10
LINGER_MAX_BYTES = 1 << 20  # of a peer that goes on sending after its answer

Pages = Mapping[str, Callable[[], HttpPage]]


class SlowPage:
    """A page that is made in a thread, once at a time. All that ask while it is being made share the next one."""

    def __init__(self, make: Callable[[], HttpPage], executor: ThreadPoolExecutor) -> None:
        self._make = make
        self._executor = executor
        self._making = asyncio.Lock()
        self._next: asyncio.Task[HttpPage] | None = None

    async def page(self) -> HttpPage:
        if self._next is None:
            self._next = asyncio.create_task(self._make_next())
        return await asyncio.shield(self._next)

    async def _make_next(self) -> HttpPage:
        async with self._making:
            self._next = None  # it begins now: it may be too old for those who ask from here on
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._make)


class HttpServer:
    """Answers one request for each connection.

    pages: made at once, in the loop. slow_pages: made in a thread.
    host: the name by which the listener was bound. On a loopback address requests must be for it, for localhost or for
    an address: else a web page in a browser of this machine could read the pages by DNS rebinding.
    """

    def __init__(self, pages: Pages, slow_pages: Pages, host: str = "") -> None:
        self._names = {"localhost", host.lower()}
        executor = ThreadPoolExecutor(1, "pages")
        self._pages = {path: partial(make_safely, path, make) for path, make in pages.items()}
        self._slow_pages = {
            path: SlowPage(partial(make_safely, path, make), executor) for path, make in slow_pages.items()
        }
        self._hosts: dict[asyncio.Task[Any], str] = {}  # the peer of each connection, the oldest first

    async def serve(self, listener: socket.socket, stop_fd: int, stop_signals: Collection[signal.Signals] = ()) -> None:
        """Serve until `stop_fd` is readable or a signal comes. A page that is being made is not waited for."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(stop_fd, stopped.set)
        for number in stop_signals:
            loop.add_signal_handler(number, stopped.set)
        server = await asyncio.start_server(self._connected, sock=listener, limit=RECEIVE_BYTES)
        await stopped.wait()
        loop.remove_reader(stop_fd)
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._hosts) >= CONNECTIONS_MAX:
            self._close_oldest_of_most()
        self._hosts[task] = (writer.get_extra_info("peername") or ("",))[0]
        try:
            async with asyncio.timeout(CONNECTION_TIMEOUT_S):
                await self._answer(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the peer has gone, its time is over, or it makes room; asyncio logs tasks that end by cancellation
        finally:
            self._hosts.pop(task, None)
            writer.transport.abort()

    def _close_oldest_of_most(self) -> None:
        """Close the oldest connection of the address that has the most."""
        ((host, _count),) = Counter(self._hosts.values()).most_common(1)
        oldest = next(task for task, its_host in self._hosts.items() if its_host == host)
        del self._hosts[oldest]
        oldest.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = self._names if is_loopback(writer.get_extra_info("sockname")[0]) else None
        exchange = Exchange(names)
        page = await self._page(reader, exchange)
        if page is None:
            return
        writer.transport.set_write_buffer_limits(0)  # `drain` returns when the kernel has all of it
        writer.write(exchange.answer(page))
        await writer.drain()
        writer.write_eof()
        # The peer closes once it has read: closing first, with unread input, would reset the answer.
        left = LINGER_MAX_BYTES
        while left > 0 and (received := await reader.read(RECEIVE_BYTES)):
            left -= len(received)

    async def _page(self, reader: asyncio.StreamReader, exchange: Exchange) -> HttpPage | None:
        """The page that the peer asks for; None if it leaves before it has asked."""
        path = None
        try:
            while path is None:
                received = await reader.read(RECEIVE_BYTES)
                if not received:
                    return None
                path = exchange.receive(received)
        except HttpError as bad:
            return text_page(bad.status, str(bad))
        if path in self._slow_pages:
            return await self._slow_pages[path].page()
        if path in self._pages:
            return self._pages[path]()
        paths = " ".join((*self._pages, *self._slow_pages))
        return text_page(HTTPStatus.NOT_FOUND, f"no such page; there are {paths}")


def make_safely(path: str, make: Callable[[], HttpPage]) -> HttpPage:
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
