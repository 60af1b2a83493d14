"""A sibling link: one unix stream socket between two workers of a node, carrying envelopes and now and then a
descriptor.

The thin shell: queue out, bytes in. `broker.routing.worker_links` handles the envelopes. The queue out is bounded by
those that fill it: the link window of publishes, one notice per stream and turn, one handover a connection.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Iterator
from itertools import accumulate, islice

from tailrace.protocol.envelope import EnvelopeReader
from tailrace.protocol.outgoing import Outgoing, OutgoingBuffer

RECEIVE_BYTES = 256 << 10
FDS_MAX = 16
BUFFER_BYTES = 4 << 20
LOST_FD = -1

_TRUNCATED = int(socket.MSG_CTRUNC)  # `&` with an IntFlag takes microseconds
_FD_BYTES = array.array("i").itemsize
_receive_buffer = bytearray(RECEIVE_BYTES)  # one a process: filled and read within one call


class LinkClosed(Exception):
    """The worker at the other end is gone."""


class WorkerLink:
    """One end of a link to the worker (`slot`, `generation`)."""

    __slots__ = ("_fds", "_fds_out", "_out", "_queued", "_reader", "closed", "generation", "slot", "sock")

    def __init__(self, sock: socket.socket, slot: int, generation: int, body_max_bytes: int) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self.sock = sock
        self.slot = slot
        self.generation = generation
        self.closed = False
        self._reader = EnvelopeReader(body_max_bytes)
        self._out = Outgoing()
        self._queued = 0  # bytes in all, those that are sent too
        self._fds_out: deque[tuple[int, int]] = deque()  # behind how many bytes a descriptor goes with the next of them
        self._fds: deque[int] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._out.nbytes)

    @property
    def queued_bytes(self) -> int:
        return self._out.nbytes

    def queue(self, *buffers: OutgoingBuffer, fd: int = -1) -> None:
        """Queue bytes to go out; `fd`, which the link then owns, travels with the first of them and is closed after."""
        if fd >= 0:
            self._fds_out.append((self._queued, fd))
        before = self._out.nbytes
        self._out.add(*buffers)
        self._queued += self._out.nbytes - before

    def flush(self) -> None:
        """Send what the socket takes. Raises LinkClosed."""
        while self._out.nbytes:
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
                self._fds_out.popleft()
            self._out.sent(sent)

    def drop_queue(self) -> None:
        """Drop the outgoing queue: there is nobody to take it."""
        for _place, fd in self._fds_out:
            os.close(fd)
        self._fds_out.clear()
        self._out.clear()

    def _head(self) -> tuple[list[OutgoingBuffer], int]:
        """The buffers for one send: up to the next one that has a descriptor, which must begin a send of its own."""
        buffers = self._out.head()
        if not self._fds_out:
            return buffers, -1
        place = self._queued - self._out.nbytes
        fd = self._fds_out[0][1] if self._fds_out[0][0] == place else -1
        others = [at for at, _fd in islice(self._fds_out, 2) if at > place]
        starts = accumulate(map(len, buffers), initial=place)
        return [each for each, at in zip(buffers, starts, strict=False) if not others or at < others[0]], fd

    def _send(self, buffers: list[OutgoingBuffer], fd: int) -> int:
        if fd < 0:
            return self.sock.sendmsg(buffers)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        return self.sock.sendmsg(buffers, [rights])

    def receive(self) -> Iterator[tuple[int, memoryview]]:
        """Read once; yield each envelope (opcode, body) that is whole. A body is valid until the next step.

        Raises LinkClosed at end-of-file.
        """
        try:
            count, ancillary, flags, _address = self.sock.recvmsg_into(
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
        if flags & _TRUNCATED:  # each send has one descriptor at most, so one was lost: it keeps its place
            self._fds.append(LOST_FD)
        if not count:
            raise LinkClosed(f"worker {self.slot} is gone")
        yield from self._reader.feed(memoryview(_receive_buffer)[:count])

    def take_fd(self) -> int:
        """The descriptor that came with the envelope at hand (they travel in order); LOST_FD if this process had no
        number left for it, in which case the kernel has closed it.
        """
        return self._fds.popleft()

    def close(self) -> None:
        self.closed = True
        for fd in self._fds:
            if fd != LOST_FD:
                os.close(fd)
        self._fds.clear()
        self.drop_queue()
        self.sock.close()
