"""Ports of this machine that a test serves itself, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

from tests.system.node import PATIENCE_S

Value = TypeVar("Value")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Ports:
    """Leaving it closes them, and ends the tasks that serve their connections."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, name="ports", daemon=True)
        self._thread.start()

    def open(self, serve: Serve) -> int:
        """A new port, each of whose connections is served by `serve`."""

        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await serve(reader, writer)
            finally:
                self._tasks.discard(task)

        async def listen() -> int:
            server = await asyncio.start_server(run, "127.0.0.1", 0)
            self._servers.append(server)
            port: int = server.sockets[0].getsockname()[1]
            return port

        return self.do(listen())

    def do(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Runs it on the loop, and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def close(self) -> None:
        async def stop() -> None:
            for sock in [sock for server in self._servers for sock in server.sockets]:
                self.loop.remove_reader(sock.fileno())
            for _ in range(10):  # tasks accepted just now must begin, to close their sockets when cancelled
                await asyncio.sleep(0)
            for server in self._servers:  # closed before that, it would leave accepted connections open
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self.do(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
