"""A sibling link: one unix stream socket between two workers of a node, carrying envelopes and now and then a
descriptor.

The thin shell: queue out, bytes in. What the envelopes mean is `broker.siblings`' business. The queue out is bounded by
those who fill it: publishes by the link window, notices by one a stream and turn, connections handed over by the
number of connections.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Iterator

from broker.protocol.envelope import EnvelopeReader

RECEIVE_BYTES = 256 << 10
SEND_BUFFERS_MAX = 64  # well under IOV_MAX
FDS_MAX = 16
BUFFER_BYTES = 4 << 20

_FD_BYTES = array.array("i").itemsize
_receive_buffer = bytearray(RECEIVE_BYTES)  # one a process: filled and read within one call


class LinkClosed(Exception):
    """The worker at the other end is gone."""


class Link:
    """One end of a link to the worker (`slot`, `generation`)."""

    __slots__ = ("_fds", "_out", "_reader", "closed", "generation", "queued_bytes", "slot", "sock")

    def __init__(self, sock: socket.socket, slot: int, generation: int, body_max_bytes: int) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self.sock = sock
        self.slot = slot
        self.generation = generation
        self.closed = False
        self.queued_bytes = 0
        self._reader = EnvelopeReader(body_max_bytes)
        self._out: deque[tuple[memoryview, int]] = deque()  # bytes, and a descriptor to go with them or -1
        self._fds: deque[int] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def queue(self, *buffers: bytes | bytearray | memoryview, fd: int = -1) -> None:
        """Queue bytes to go out; `fd`, which the link then owns, travels with the first of them and is closed after."""
        for buffer in buffers:
            if len(buffer):
                self._out.append((memoryview(buffer), fd))
                self.queued_bytes += len(buffer)
                fd = -1

    def flush(self) -> None:
        """Send what the socket takes. Raises LinkClosed."""
        while self._out:
            buffers, fd = self._head()
            try:
                sent = self._send(buffers, fd)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError) as error:
                raise LinkClosed(f"worker {self.slot} is gone") from error
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:  # descriptors on their way, of all processes of this user
                    raise
                return
            if fd >= 0:
                os.close(fd)
            self._drop(sent)

    def drop_queue(self) -> None:
        """Forget what was to go out: there is nobody to take it."""
        for _view, fd in self._out:
            if fd >= 0:
                os.close(fd)
        self._out.clear()
        self.queued_bytes = 0

    def _head(self) -> tuple[list[memoryview], int]:
        """The buffers for one send: up to the next one that has a descriptor, which must begin a send of its own."""
        first, fd = self._out[0]
        buffers = [first]
        for index in range(1, min(len(self._out), SEND_BUFFERS_MAX)):
            view, other_fd = self._out[index]
            if other_fd >= 0:
                break
            buffers.append(view)
        return buffers, fd

    def _send(self, buffers: list[memoryview], fd: int) -> int:
        if fd < 0:
            return self.sock.sendmsg(buffers)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        return self.sock.sendmsg(buffers, [rights])

    def _drop(self, sent: int) -> None:
        self.queued_bytes -= sent
        while sent:
            view, _fd = self._out.popleft()
            if sent < len(view):
                self._out.appendleft((view[sent:], -1))
                return
            sent -= len(view)

    def receive(self) -> Iterator[tuple[int, memoryview]]:
        """Read once; yield each envelope (opcode, body) that is whole. A body is valid until the next step.

        Raises LinkClosed at end-of-file.
        """
        try:
            count, ancillary, _flags, _address = self.sock.recvmsg_into(
                [_receive_buffer], socket.CMSG_SPACE(FDS_MAX * _FD_BYTES)
            )
        except BlockingIOError:
            return
        except ConnectionResetError as error:
            raise LinkClosed(f"worker {self.slot} is gone") from error
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i", data[: len(data) - len(data) % _FD_BYTES])
                self._fds.extend(fds)
        if not count:
            raise LinkClosed(f"worker {self.slot} is gone")
        yield from self._reader.feed(memoryview(_receive_buffer)[:count])

    def take_fd(self) -> int:
        """The descriptor that came with the envelope at hand (they travel in order)."""
        return self._fds.popleft()

    def close(self) -> None:
        self.closed = True
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.drop_queue()
        self.sock.close()
