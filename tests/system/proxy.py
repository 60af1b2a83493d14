"""A network that breaks on a test's command: a TCP proxy that cuts its first connection after a number of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass, field
from enum import Enum

from tests.system.ports import Ports

PIECE_BYTES = 1 << 16
GREETING_BYTES = 4096  # more than either side's


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


class Proxy(Ports):
    """Forwards to a port of this machine. Each `route` is a port of its own, whose later connections last."""

    def __init__(self, target_port: int) -> None:
        super().__init__()
        self._target_port = target_port
        self.cuts = 0
        """Connections of `cutting_port` that are over."""

    def route(self, way: Way = Way.TO_CLIENT, after_bytes: int = 1 << 62, cut: Cut = Cut.END) -> Route:
        """A new port. Its first connection is cut after `nbytes` in that direction: they arrive, and no more."""
        made = Route(0, way, after_bytes, cut)
        made.port = self.open(lambda reader, writer: self._serve(made, reader, writer))
        return made

    def cutting_port(self, dice: random.Random, mean_bytes: float, least_bytes: int = GREETING_BYTES) -> int:
        """A port that cuts each of its connections after a random number of bytes one way, the greeting excepted."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            after_bytes = least_bytes + int(dice.expovariate(1 / mean_bytes))
            await self._serve(Route(0, dice.choice(list(Way)), after_bytes, dice.choice(list(Cut))), reader, writer)
            self.cuts += 1

        return self.open(serve)

    async def _serve(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        route.connections += 1
        is_first = route.connections == 1
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(route if is_first else None, Way.TO_BROKER, reader, far_writer))
                group.create_task(self._pass(route if is_first else None, Way.TO_CLIENT, far_reader, writer))
        except* OSError:
            pass
        finally:
            for each in writers:
                if is_first and route.cut is Cut.RESET:
                    reset_on_close(each)
                each.close()

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
    with contextlib.suppress(OSError):
        set_reset_on_close(writer.get_extra_info("socket"))


def set_reset_on_close(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
