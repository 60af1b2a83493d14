"""Envelopes: `u8 opcode, u32 body length` (little-endian), then the body. The framing of the binary protocol.

Clients speak it (`protocol.binary`), and so do workers to each other (`protocol.sibling`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from tailrace.protocol.errors import Code, PeerError, UsageError

HEAD: Final = struct.Struct("<BI")
HEAD_BYTES: Final = HEAD.size
BODY_BYTES_MAX: Final = (1 << 32) - 1


def pack_envelope(opcode: int, body: bytes | bytearray = b"", follows_bytes: int = 0) -> bytes:
    """An envelope; `follows_bytes` of its body are sent by the caller right after it. UsageError when too long."""
    length = len(body) + follows_bytes
    if length > BODY_BYTES_MAX:
        raise UsageError(f"an envelope's body of {length} bytes; at most {BODY_BYTES_MAX}")
    return HEAD.pack(opcode, length) + body


def too_long(opcode: int, length: int, max_bytes: int) -> PeerError:
    """The fatal error for an envelope whose body is longer than is taken."""
    text = f"envelope {opcode} with a body of {length} bytes; at most {max_bytes} are allowed"
    return PeerError(Code.SIZE, text, fatal=True)


class EnvelopeReader:
    """Bytes in, in any pieces; whole envelopes out. Holds at most one partial envelope, of a bounded body."""

    __slots__ = ("_held", "_needed", "body_max_bytes", "left_bytes", "owned")

    def __init__(self, body_max_bytes: int) -> None:
        self.body_max_bytes = body_max_bytes
        self.owned = False
        """Whether the body just given lies in a buffer of its own, which is not used again, and not in what was fed."""
        self.left_bytes = 0
        """At the end of what was fed last: a partial envelope that is not held, and is to be fed again."""
        self._held = bytearray()
        self._needed = HEAD_BYTES  # the bytes `_held` must have before it is looked at again

    @property
    def pending_bytes(self) -> int:
        """Bytes held of the unfinished envelope."""
        return len(self._held)

    def feed(self, data: bytes | bytearray | memoryview, leave_bytes: int = 0) -> Iterator[tuple[int, memoryview]]:
        """Yield (opcode, body) for each whole envelope; run it to its end. A body is valid for as long as `data` is.

        An unfinished envelope at the end is held, or, if the whole envelope has at most `leave_bytes`, left to the
        caller, so that it need not be copied. Raises PeerError (fatal) if the head is invalid, before any of the body
        is held.
        """
        view = memoryview(data)
        position = 0
        while (taken := self.take(view, position, leave_bytes)) is not None:
            opcode, body, position = taken
            yield opcode, body

    def take(self, view: memoryview, position: int, leave_bytes: int = 0) -> tuple[int, memoryview, int] | None:
        """As `feed`, one envelope a call: (opcode, body, the offset of its end); None if no whole one is left."""
        self.owned = False
        self.left_bytes = 0
        if self._held:
            position += self._refill(view[position:])
            if len(self._held) < self._needed:
                return None
            held, self._held, self._needed = self._held, bytearray(), HEAD_BYTES
            self.owned = True
            return held[0], memoryview(held)[HEAD_BYTES:], position
        size = len(view)
        if size - position >= HEAD_BYTES:
            opcode, length = HEAD.unpack_from(view, position)
            start = position + HEAD_BYTES
            end = start + self.checked_length(opcode, length)
            if end <= size:
                return opcode, view[start:end], end
            self._needed = end - position
        if self._needed > leave_bytes:
            self._held += view[position:]
        elif position < size:
            self.left_bytes, self._needed = size - position, HEAD_BYTES
        return None

    def export_state(self) -> bytes:
        """The partial envelope."""
        return bytes(self._held)

    def restore_state(self, held: bytes) -> None:
        """Go on where `export_state` was called."""
        self._held = bytearray(held)
        self._needed = HEAD_BYTES
        if len(held) >= HEAD_BYTES:
            self._needed += HEAD.unpack_from(held)[1]

    def _refill(self, view: memoryview) -> int:
        """Complete the held envelope's head, then its body, as far as there are bytes; returns how many were used."""
        used = 0
        if len(self._held) < HEAD_BYTES:
            used = HEAD_BYTES - len(self._held)
            self._held += view[:used]
            if len(self._held) < HEAD_BYTES:
                return used
            opcode, length = HEAD.unpack(self._held)
            self._needed = HEAD_BYTES + self.checked_length(opcode, length)
        more = self._needed - len(self._held)
        self._held += view[used : used + more]
        return used + more

    def checked_length(self, opcode: int, length: int) -> int:
        """Returns the body's length in the head. Raises PeerError (fatal) if it exceeds the limit."""
        if length > self.body_max_bytes:
            raise too_long(opcode, length, self.body_max_bytes)
        return length
