"""A network that breaks where a test wants it to: a TCP proxy that cuts its first connection after so many bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tests.system.node import PATIENCE_S

PIECE_BYTES = 1 << 16
Value = TypeVar("Value")


class Way(Enum):
    TO_BROKER = "to the broker"
    TO_CLIENT = "to the client"


class Cut(Enum):
    """How both ends are closed."""

    END = "end"
    RESET = "reset"


@dataclass
class Route:
    """What goes through one port. `passed`: bytes of the first connection, by their way."""

    port: int
    way: Way
    after_bytes: int
    cut: Cut
    connections: int = 0
    passed: dict[Way, int] = field(default_factory=lambda: dict.fromkeys(Way, 0))


class Proxy:
    """Forwards to a port of this machine. Each `route` is a port of its own, whose later connections last."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def route(self, way: Way = Way.TO_CLIENT, after_bytes: int = 1 << 62, cut: Cut = Cut.END) -> Route:
        """A new port. Its first connection is cut when so many bytes have gone that way: they arrive, and no more."""
        made = Route(0, way, after_bytes, cut)

        async def listen() -> None:
            server = await asyncio.start_server(lambda *pair: self._serve(made, *pair), "127.0.0.1", 0)
            self._servers.append(server)
            made.port = server.sockets[0].getsockname()[1]

        self._do(listen())
        return made

    def close(self) -> None:
        async def stop() -> None:
            for server in self._servers:
                server.close()
            for _ in range(10):  # what was accepted just now must begin, to close what it holds when it is cancelled
                await asyncio.sleep(0)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._do(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _serve(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        route.connections += 1
        is_first = route.connections == 1
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(route if is_first else None, Way.TO_BROKER, reader, far_writer))
                group.create_task(self._pass(route if is_first else None, Way.TO_CLIENT, far_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                if is_first and route.cut is Cut.RESET:
                    reset_on_close(each)
                each.close()
            self._tasks.discard(task)

    async def _pass(
        self, route: Route | None, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until either end is closed, or the bytes of the cut have gone; OSError ends the other way too."""
        while True:
            most = PIECE_BYTES
            if route is not None and way is route.way:
                most = min(most, route.after_bytes - route.passed[way])
            data = await reader.read(most) if most else b""
            if not data:
                raise ConnectionAbortedError("cut")
            if route is not None:
                route.passed[way] += len(data)
            writer.write(data)
            await writer.drain()


def reset_on_close(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
