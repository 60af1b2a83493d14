"""The connection of an uplink: one TCP socket to another node's port, on which this worker is the client.

The thin shell: queue out, bytes in. `broker.replication.upstream.connection` handles the messages. The queue out is
bounded by those that fill it: the window of publishes, one report per stream, `FOLLOWS_AT_ONCE` questions.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from tailrace.broker.connection.transport import TLSTransport
from tailrace.protocol.binary import ClientCodec, PublishedRow
from tailrace.protocol.errors import PeerError
from tailrace.protocol.features import REPLICATION
from tailrace.protocol.messages import CHUNK_HEAD, HANDLE_BYTES, PUBLISHED_ONE, Chunk, Op, Response
from tailrace.protocol.outgoing import Outgoing, OutgoingBuffer
from tailrace.protocol.strangers import STRANGER_BYTES, stranger
from tailrace.protocol.tls import READ_SLACK_BYTES, TLSEngine
from tailrace.protocol.tls_stream import TLS_READ_MAX_BYTES, TLSWorkspace

# Of one read; fewer while messages are very small and many.
RECEIVE_BYTES, RECEIVE_MIN_BYTES = 1 << 20, 16 << 10
TURN_BYTES = 4 << 20  # of long chunks: then everybody else of this worker has a turn
LEFT_MAX_BYTES = 2 << 20  # a longer envelope, which is a message of that size, is put together elsewhere
CHUNKS_AT_ONCE = 64  # are taken together, when they come together
LONG_MIN_BYTES = 64 << 10  # of frames in a chunk: the rest of a shorter one is read with the bytes behind it
PAGE_BYTES = 4_096
BUFFER_BYTES = PAGE_BYTES + LEFT_MAX_BYTES + RECEIVE_BYTES
MESSAGES_A_READ = 2_048  # more of them would keep everybody else of this worker waiting

ResolvedAddress: TypeAlias = tuple[socket.AddressFamily, Any]
"""An address family, and an address as its sockets take it."""


class UpstreamClosed(Exception):
    """The connection has ended, or is of no use; the text gives the reason."""


def numeric_address(host: str, port: int) -> ResolvedAddress | None:
    """The address of a host that is written as one; None for a name, which must be looked up."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return found[0][0], found[0][4]


def look_up(host: str, port: int) -> ResolvedAddress:
    """The first address of a host. Waits for the network. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a..b, or a label of more than 63 characters
        raise OSError(f"{host} is no name of a host: {error}") from error
    return found[0][0], found[0][4]


class ChunkRun(NamedTuple):
    """The frames of CHUNKs of one subscription that came one behind the other."""

    id: int
    pieces: list[memoryview]


class PublishedRun(NamedTuple):
    """PUBLISHEDs of one stream each that came one behind the other."""

    rows: list[PublishedRow]


ResponseRun: TypeAlias = Response | PublishedRun


def gather(messages: Iterable[ResponseRun]) -> Iterator[ResponseRun | ChunkRun]:
    """The same, with Chunks instead of each Chunk. Raises what `messages` raises, behind all that came before.

    A long chunk is yielded before the next is asked for, which may overwrite it.
    """
    number, pieces = 0, list[memoryview]()
    try:
        for message in messages:
            chunk = message if isinstance(message, Chunk) else None
            if pieces and (chunk is None or chunk.id != number or len(pieces) == CHUNKS_AT_ONCE):
                yield ChunkRun(number, pieces)
                pieces = []
            if chunk is None:
                yield message
            else:
                number = chunk.id
                pieces.append(chunk.frames)
                if len(chunk.frames) >= LONG_MIN_BYTES:
                    yield ChunkRun(number, pieces)
                    pieces = []
    except (PeerError, UpstreamClosed):
        if pieces:
            yield ChunkRun(number, pieces)
        raise
    if pieces:
        yield ChunkRun(number, pieces)


class LongChunk:
    """A chunk that is not whole yet: its frames are to lie in the buffer from `start` to `end`, and do to `filled`."""

    __slots__ = ("end", "filled", "number", "start")

    def __init__(self, number: int, start: int, size: int) -> None:
        self.number = number
        self.start = self.filled = start
        self.end = start + size


def long_chunk(head: OutgoingBuffer) -> tuple[int, int] | None:
    """The subscription's id, and how many bytes of frames, of a chunk that begins so; None for anything but a long
    chunk that fits into the buffer.
    """
    if len(head) < CHUNK_HEAD.size:
        return None
    opcode, length, number = CHUNK_HEAD.unpack_from(head)
    size = length - HANDLE_BYTES
    return (number, size) if opcode == Op.CHUNK and LONG_MIN_BYTES <= size <= LEFT_MAX_BYTES else None


class UpstreamSocket:
    """The socket of an uplink, with its codec and buffers.

    The rest of a long chunk is read by itself, together with the head of the next message, so that its frames lie at
    the same offset within a page as in the file: a copy between places of equal offsets is a quarter faster. The frames
    are not moved afterwards. Each chunk lies at the place of the one before, which is in the processor's cache.

    One chunk at a time is also written at a time. For several megabytes the kernel would make pieces of the page cache
    as large as it has them, and in a virtual machine the host has often taken these back since.
    """

    __slots__ = (
        "_buffer",
        "_codec",
        "_fed_end",
        "_head",
        "_is_known",
        "_long",
        "_open",
        "_out",
        "_read_bytes",
        "_sealed",
        "_tcp_up",
        "closed",
        "received_bytes",
        "sock",
    )

    def __init__(self, address: ResolvedAddress, tls: ssl.SSLContext | None = None, host: str = "") -> None:
        """Begin to connect; it is done when `connected` returns True. Raises UpstreamClosed.

        tls: None for a plain connection; else the other end's certificate has to be one of `host`.
        """
        family, where = address
        self._tcp_up = self._open = False
        self._sealed: TLSTransport | None = None
        self.closed = False
        self.received_bytes = 0
        self._codec = ClientCodec(features=frozenset({REPLICATION}))
        self._read_bytes = RECEIVE_BYTES
        # A mapping, whose pages become memory only when written to: most upstreams never send that much at once.
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._is_known = False  # a message of a broker has come
        self._fed_end = 0  # the end of the codec's last input; the bytes that the codec left are at the end of it
        self._long: LongChunk | None = None
        self._head = bytearray(CHUNK_HEAD.size)
        self._out = Outgoing()
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise UpstreamClosed(error.strerror or "no socket can be had") from error
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            self.close()
            raise UpstreamClosed(os.strerror(code))
        if tls is not None:
            self._sealed = self._seal(tls, host)

    def _seal(self, tls: ssl.SSLContext, host: str) -> TLSTransport:
        workspace = TLSWorkspace()
        try:
            return TLSTransport(self.sock, TLSEngine(tls, workspace.buffers, server_hostname=host), workspace)
        except ValueError as error:
            self.close()
            raise UpstreamClosed(f"{host} is no name for TLS: {error}") from error

    def fileno(self) -> int:
        return self.sock.fileno()

    def connected(self) -> bool:
        """To be asked at each event until it is True: then the other end can be greeted. Raises UpstreamClosed when
        nobody is there, or nobody with the right certificate.
        """
        if not self._tcp_up:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise UpstreamClosed(os.strerror(code))
            self._tcp_up = True
        try:
            self._open = self._sealed is None or self._sealed.handshake()
        except OSError as error:
            raise UpstreamClosed(f"TLS: {error.strerror or error}") from error
        return self._open

    @property
    def interest(self) -> int:
        if not self._tcp_up:
            return select.EPOLLOUT
        unsent = self._out.nbytes if self._sealed is None else self._out.nbytes or self._sealed.unsent_bytes
        return select.EPOLLIN | (select.EPOLLOUT if unsent else 0)

    @property
    def queued_bytes(self) -> int:
        return self._out.nbytes

    def queue(self, *buffers: OutgoingBuffer) -> None:
        """Queue bytes to go out; they are the wire's from here on."""
        self._out.add(*buffers)

    def flush(self) -> None:
        """Send what the socket takes. Raises UpstreamClosed."""
        sealed = self._sealed
        try:
            if sealed is not None and not sealed.flush():
                return
            while self._open and self._out.nbytes:
                self._out.sent((sealed or self.sock).sendmsg(self._out.head()))
        except BlockingIOError:
            return
        except OSError as error:
            raise UpstreamClosed(error.strerror or "the connection is gone") from error

    def receive(self, place_of: Callable[[int], int] = lambda _number: 0) -> Iterator[ResponseRun | ChunkRun]:
        """Read once, or a few times while long chunks come; the messages that are whole.

        The frames of Chunks are valid until the next message is asked for. `place_of`: the offset in a file at which
        the next frames of a subscription will be written. Raises UpstreamClosed at the end of the input, and for bytes
        that no broker sends.
        """
        messages = 0
        try:
            for message in gather(self._read_any() if self._long is None else self._read_long(self._long)):
                messages += len(message[-1]) if isinstance(message, ChunkRun | PublishedRun) else 1
                yield message
        except PeerError as error:
            text, first = f"what it sent is no binary protocol: {error.text}", self._buffer[:STRANGER_BYTES]
            raise UpstreamClosed(text if self._is_known else stranger(bytes(first), text)) from error
        self._is_known = self._is_known or messages > 0
        if self._long is None:
            self._keep_left(place_of)
            self._pace(messages)

    def _receive(self, *buffers: OutgoingBuffer) -> int:
        """How many bytes were there for these buffers. Raises UpstreamClosed."""
        try:
            count = self._receive_into(buffers)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise UpstreamClosed(error.strerror or "the connection is gone") from error
        if not count:
            raise UpstreamClosed("the other node has closed the connection")
        self.received_bytes += count
        return count

    def _receive_into(self, buffers: Sequence[OutgoingBuffer]) -> int:
        if self._sealed is None:
            return self.sock.recvmsg_into(buffers)[0]
        return self._sealed.recv_into(buffers[0], TLS_READ_MAX_BYTES)

    def _read_any(self) -> Iterator[ResponseRun]:
        left = self._fed_end
        room_bytes = self._read_bytes if self._sealed is None else TLS_READ_MAX_BYTES + READ_SLACK_BYTES
        count = self._receive(self._buffer[left : left + room_bytes])
        if count:
            yield from self._feed(left + count)

    def _feed(self, end: int) -> Iterator[ResponseRun]:
        """What the codec has left is at the end of the buffer's first `end` bytes afterwards."""
        self._fed_end = end
        data = self._buffer[:end]
        if rows := self._codec.feed_published(data):
            yield PublishedRun(rows)
            data = data[len(rows) * PUBLISHED_ONE.size :]
        if data:
            yield from self._codec.feed(data, LEFT_MAX_BYTES)

    def _read_long(self, long: LongChunk) -> Iterator[ResponseRun]:
        """The rest of a chunk, and of those that come behind it, TURN_BYTES of them or a little more."""
        head, turn_bytes = self._head, 0
        while turn_bytes < TURN_BYTES:
            missing = long.end - long.filled
            count = self._receive(self._buffer[long.filled : long.end], head)
            turn_bytes += count
            if count < missing:
                long.filled += count
                return
            yield Chunk(long.number, self._buffer[long.start : long.end])
            following = long_chunk(head) if count - missing == len(head) else None
            if following is None or following[0] != long.number:
                self._long = None
                end = count - missing
                self._buffer[:end] = head[:end]
                yield from self._feed(end)
                return
            self._long = long = LongChunk(long.number, long.end % PAGE_BYTES, following[1])

    def _keep_left(self, place_of: Callable[[int], int]) -> None:
        """Move what the codec has left to where the rest is to be read; all that came before it has been dealt with."""
        left = self._codec.left_bytes
        part = self._buffer[self._fed_end - left : self._fed_end]
        found = long_chunk(part) if self._sealed is None else None  # else it does not come in such portions
        if found is None:
            if self._fed_end > left:
                self._buffer[:left] = part
                self._fed_end = left
            return
        number, size = found
        self._long = long = LongChunk(number, place_of(number) % PAGE_BYTES, size)
        long.filled += left - CHUNK_HEAD.size
        self._buffer[long.start : long.filled] = part[CHUNK_HEAD.size :]
        self._fed_end = 0

    def _pace(self, messages: int) -> None:
        """Read less at once when one read brought many messages (MESSAGES_A_READ), and more when it brought few."""
        if messages > MESSAGES_A_READ:
            self._read_bytes = max(self._read_bytes // 2, RECEIVE_MIN_BYTES)
        elif messages < MESSAGES_A_READ // 4:
            self._read_bytes = min(self._read_bytes * 2, RECEIVE_BYTES)

    def close(self) -> None:
        self.closed = True
        self._out.clear()
        if self._sealed is not None:
            self._sealed.close()
        self.sock.close()
