"""Bytes on their way out of a socket, in the buffers they were made in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

OutgoingBuffer: TypeAlias = bytes | bytearray | memoryview

BUFFERS_MAX = 64  # handed to one system call


class Outgoing:
    """A row of buffers. They must not change before they are sent."""

    __slots__ = ("_buffers", "nbytes")

    def __init__(self) -> None:
        self._buffers: deque[OutgoingBuffer] = deque()
        self.nbytes = 0

    def add(self, *buffers: OutgoingBuffer) -> None:
        for buffer in buffers:
            if len(buffer):
                self._buffers.append(buffer)
                self.nbytes += len(buffer)

    def head(self) -> list[OutgoingBuffer]:
        """The next buffers to send, at most BUFFERS_MAX."""
        return list(islice(self._buffers, BUFFERS_MAX))

    def sent(self, nbytes: int) -> None:
        """Removes `nbytes` sent bytes from the front."""
        self.nbytes -= nbytes
        buffers = self._buffers
        while nbytes:
            size = len(buffers[0])
            if nbytes < size:
                buffers[0] = memoryview(buffers[0])[nbytes:]
                return
            buffers.popleft()
            nbytes -= size

    def drain(self, send: Callable[[Sequence[OutgoingBuffer]], int]) -> None:
        """Sends all by `send`, which returns the number of bytes it took; an exception of it leaves the rest here."""
        buffers = self._buffers
        if len(buffers) == 1:
            count = send((buffers[0],))
            if count == self.nbytes:
                buffers.clear()
                self.nbytes = 0
                return
            self.sent(count)
        while self.nbytes:
            self.sent(send(self.head()))

    def clear(self) -> None:
        self._buffers.clear()
        self.nbytes = 0
