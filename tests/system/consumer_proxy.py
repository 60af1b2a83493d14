"""A network that a test stops at one request or its answer: a proxy that knows where the envelopes begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

from tailrace.protocol.envelope import EnvelopeReader, pack_envelope
from tailrace.protocol.messages import Op
from tests.system.node import PATIENCE_S
from tests.system.ports import Ports
from tests.system.proxy import PIECE_BYTES, Cut, Way, reset_on_close

BODY_BYTES_MAX = 1 << 24
ANSWERS: Final[dict[Op, tuple[Op, ...]]] = {
    Op.PUBLISH: (Op.PUBLISHED, Op.ERROR),
    Op.GET: (Op.GOT, Op.ERROR),
    Op.CONSUME: (Op.CONSUMED, Op.ERROR),
}


class Trap:
    """Holds the first request of a kind that comes, or the answer to it, until `let`. What follows it waits as well."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: Op, way: Way) -> None:
        self.reached = threading.Event()
        self._loop = loop
        self._request = request
        self._way = way
        self._asked: Passage | None = None  # where the request went through
        self._held = b""
        self._let_bytes = 0
        self._writer: asyncio.StreamWriter | None = None
        self._free = asyncio.Event()

    def let(self, part: float = 1.0) -> None:
        """Let so much of it go on, from its beginning. It is handed to the system when this returns."""
        asyncio.run_coroutine_threadsafe(self._let(part), self._loop).result(PATIENCE_S)

    def is_for(self, passage: Passage, way: Way, opcode: int) -> bool:
        """Whether this envelope is the one to hold."""
        if self._asked is None and way is Way.TO_BROKER and opcode == self._request:
            self._asked = passage
            return self._way is Way.TO_BROKER
        if self._way is way is Way.TO_CLIENT and passage is self._asked and not self.reached.is_set():
            return opcode in ANSWERS[self._request]
        return False

    async def hold(self, envelope: bytes, writer: asyncio.StreamWriter) -> None:
        self._held, self._writer = envelope, writer
        self.reached.set()
        await self._free.wait()

    async def _let(self, part: float) -> None:
        end = int(len(self._held) * part)
        if self._writer is not None and self._asked is not None and not self._asked.silent:
            with contextlib.suppress(OSError):
                self._writer.write(self._held[self._let_bytes : end])
                await self._writer.drain()
        self._let_bytes = max(self._let_bytes, end)
        if part >= 1.0:
            self._free.set()


class Passage:
    """One connection through the proxy. A silent one forwards nothing any more, and stays open."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.writers = (near, far)
        self.silent = False

    def close(self, cut: Cut) -> None:
        for writer in self.writers:
            if cut is Cut.RESET:
                reset_on_close(writer)
            writer.close()


class Line:
    """A port of the proxy, and what goes through it."""

    def __init__(self, proxy: CrashProxy, target_port: int) -> None:
        self.port = 0
        self.connections = 0
        self._proxy = proxy
        self._target_port = target_port
        self._trap: Trap | None = None
        self._passages: set[Passage] = set()
        self._is_dead = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def arm(self, request: Op, way: Way) -> Trap:
        """Hold the next request of this kind, or its answer. A later connection's requests pass when one was held."""
        self._trap = Trap(self._proxy.loop, request, way)
        return self._trap

    def cut(self, cut: Cut) -> None:
        """Close all that goes through it, at both ends. New connections are taken."""

        async def close_all() -> None:
            for passage in list(self._passages):
                passage.close(cut)

        self._proxy.do(close_all())

    def silence(self, *, for_good: bool = False) -> None:
        """The open connections pass nothing more, either way, and neither end is notified.

        `for_good`: nor through later ones.
        """

        async def silence_all() -> None:
            self._is_dead = for_good
            for passage in self._passages:
                passage.silent = True

        self._proxy.do(silence_all())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        passage = Passage(writer, far_writer)
        passage.silent = self._is_dead
        self._passages.add(passage)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(passage, Way.TO_BROKER, reader, far_writer))
                group.create_task(self._forward(passage, Way.TO_CLIENT, far_reader, writer))
        except* OSError:
            pass
        finally:
            passage.close(Cut.END)
            self._passages.discard(passage)

    async def _forward(
        self, passage: Passage, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until either end is closed; the OSError ends the other way too."""
        envelopes = EnvelopeReader(BODY_BYTES_MAX)
        while data := await reader.read(PIECE_BYTES):
            for opcode, body in envelopes.feed(data):
                envelope = pack_envelope(opcode, bytes(body))
                if self._trap is not None and self._trap.is_for(passage, way, opcode):
                    await self._trap.hold(envelope, writer)
                elif not passage.silent:
                    writer.write(envelope)
            if not passage.silent:
                await writer.drain()
        raise ConnectionAbortedError("closed")


class CrashProxy(Ports):
    """Each `line` is a port of its own that leads to a port of this machine."""

    def line(self, target_port: int) -> Line:
        made = Line(self, target_port)
        made.port = self.open(made.serve)
        return made
