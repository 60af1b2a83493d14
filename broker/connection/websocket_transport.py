"""A socket, plain or under TLS, whose bytes go in the frames of WebSocket. What is sent goes in binary messages.

A frame that has begun must be ended. So the rest of one that the socket does not take is kept, as under TLS: at most
FRAME_BYTES and what control frames need.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

from tailrace.broker.connection.transport import AnySocket
from tailrace.protocol.tls_stream import Sendable
from tailrace.protocol.websocket import NORMAL, PONG, FrameReader, close_frame, control_frame, frame_head

READ_MAX_BYTES: Final = 32 << 10
"""Received at once: the smallest frames have 6 bytes each and cost some microseconds."""
FRAME_BYTES: Final = 64 << 10
"""The payload of one frame at most."""


class WebSocketTransport:
    """`rest`: bytes of frames that came behind the request."""

    __slots__ = ("_below", "_closing", "_early", "_framing_bytes", "_reader", "_sock", "_unsent", "polled_fd")

    def __init__(self, sock: AnySocket, rest: bytes) -> None:
        self._below = None if isinstance(sock, socket.socket) else sock  # TLS
        self.polled_fd = sock.fileno() if isinstance(sock, socket.socket) else sock.polled_fd
        self._sock = sock
        self._early = rest
        self._reader = FrameReader()
        self._unsent = memoryview(b"")  # of frames, not taken by the socket yet: nothing else is sent before
        self._closing = False  # a close is sent, or waits to be: nothing may follow it
        self._framing_bytes = 0  # received, and no payload

    # --- receiving --------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: Any, nbytes: int) -> int:
        """Up to `nbytes` of payload. 0: the peer sends no more. Raises BlockingIOError, OSError."""
        if self._reader.ended:
            return self._discard(buffer, nbytes)
        with memoryview(buffer) as room:
            if self._early:
                count, early = len(self._early[:nbytes]), self._early
                room[:count], self._early = early[:count], early[count:]
            else:
                count = self._sock.recv_into(room, min(nbytes, READ_MAX_BYTES))
            if not count:
                return 0
            plain = self._reader.feed(memoryview(bytes(room[:count])), room)
        self._framing_bytes += count - plain
        self._answer_controls()
        if plain or self._reader.ended:
            return plain
        raise BlockingIOError

    def _discard(self, buffer: Any, nbytes: int) -> int:
        """Nothing counts behind a close; the connection waits for the end."""
        while self._sock.recv_into(buffer, min(nbytes, READ_MAX_BYTES)):
            continue
        return 0

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As it came over the network: for looking whether anything is there, and for discarding it."""
        return self._sock.recv(bufsize, flags)

    @property
    def ended(self) -> bool:
        """Whether the peer sends no more."""
        return self._reader.ended or (self._below is not None and self._below.ended and not self._early)

    def take_bare_bytes(self) -> int:
        count, self._framing_bytes = self._framing_bytes, 0
        return count + (0 if self._below is None else self._below.take_bare_bytes())

    @property
    def half_record_bytes(self) -> int:
        return 0 if self._below is None else self._below.half_record_bytes

    # --- sending ----------------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent) + (0 if self._below is None else self._below.unsent_bytes)

    def batch_room(self, due_bytes: int) -> memoryview:
        """Memory for a frame, or for all that is due."""
        return memoryview(bytearray(min(due_bytes, FRAME_BYTES)))

    def send(self, data: Sendable) -> int:
        """How many bytes of `data` were taken, in whole frames. Raises BlockingIOError, OSError."""
        if self._unsent and not self._flush_frames():
            raise BlockingIOError
        taken = 0
        with memoryview(data) as whole:
            while taken < len(whole) and not self._unsent:
                with whole[taken : taken + FRAME_BYTES] as payload:
                    self._push(frame_head(len(payload)), payload)
                    taken += len(payload)
        return taken

    def sendmsg(self, buffers: Sequence[Sendable]) -> int:
        return self.send(b"".join(buffers))

    def flush(self) -> bool:
        """Send what is left of frames. False if the socket does not take all of it. Raises OSError."""
        return self._flush_frames() and (self._below is None or self._below.flush())

    def _flush_frames(self) -> bool:
        while self._unsent:
            try:
                sent = self._sock.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]
        self._answer_controls()
        return not self._unsent

    def _push(self, head: bytes, payload: Sendable) -> None:
        """Send a frame; nothing may be unsent. Bytes that the socket does not take are kept."""
        try:
            sent = self._sock.sendmsg((head, payload))
        except BlockingIOError:
            sent = 0
        if sent < len(head) + len(payload):
            self._unsent = memoryview(b"".join((head, payload)))[sent:]

    def _answer_controls(self) -> None:
        """The last ping needs a pong, and a close another one. Either waits for the rest of a frame."""
        reader = self._reader
        if self._unsent or self._closing:
            return
        if reader.reply_code is not None:
            self._close(reader.reply_code)
        elif reader.ping is not None:
            payload, reader.ping = reader.ping, None
            self._push(control_frame(PONG, payload), b"")

    def _close(self, code: int) -> None:
        self._closing = True
        self._push(close_frame(code), b"")

    # --- the end ----------------------------------------------------------------------------------------------------

    def shutdown(self, how: int) -> None:
        if not self._closing and not self._unsent:
            self._close(NORMAL)
        self._sock.shutdown(how)

    def close(self) -> None:
        try:
            if not self._closing and not self._unsent:
                self._close(NORMAL)
        except OSError:  # the peer is gone
            pass
        self._sock.close()
