"""Stamps in published messages, and finding them in received ones: each payload begins with PAYLOAD_MARK
and the moment it was sent.
"""

from __future__ import annotations

import re
import socket
import time

from bench.load.limits import LoadError
from bench.peers.base import PAYLOAD_MARK, Contestant
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.messages import CHUNK_HEAD, Op
from tailrace.shard.frame import HEADER_BYTES, unpack_header

STAMP_DIGITS = 19
STAMP_BYTES = len(PAYLOAD_MARK) + STAMP_DIGITS
_STAMP = re.compile(PAYLOAD_MARK + rb"(\d{%d})" % STAMP_DIGITS)


class StampedPublisher:
    """Publishes one payload to a stream again and again, each time with the moment just before its `send`."""

    def __init__(self, peer: Contestant, name: str, payload: bytes, sock: socket.socket) -> None:
        before, _, after = peer.publish(name, payload).partition(payload)
        self._before, self._after = before + PAYLOAD_MARK, payload[STAMP_BYTES:] + after
        self._sealed = peer.sealed
        self._sock = sock

    def send(self) -> None:
        """LoadError when the socket is full."""
        stamp = b"%0*d" % (STAMP_DIGITS, time.perf_counter_ns())
        data = self._sealed(b"%s%s%s" % (self._before, stamp, self._after))
        if self._sock.send(data) != len(data):
            raise LoadError("the publisher's socket is full: the server does not take this rate")


class MarkedStamps:
    """A mark and digits stand nowhere but at the beginning of payloads."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Every stamp that is whole by now; one that is cut in two is finished by the next call."""
        stamps, end = [], 0
        data = self._rest + data
        for found in _STAMP.finditer(data):
            stamps.append(int(found[1]))
            end = found.end()
        self._rest = data[max(end, len(data) - STAMP_BYTES + 1) :]
        return stamps


class FramedStamps:
    """CHUNK envelopes of frames, from seq 0 on. `feed` raises LoadError for anything else."""

    def __init__(self) -> None:
        self._rest = b""
        self._next_seq = 0

    def feed(self, data: bytes) -> list[int]:
        """The stamps of every envelope that is whole by now."""
        stamps: list[int] = []
        data, position = self._rest + data, 0
        while len(data) - position >= HEAD_BYTES:
            opcode, length = HEAD.unpack_from(data, position)
            end = position + HEAD_BYTES + length
            if opcode != Op.CHUNK:
                raise LoadError(f"opcode {opcode} among the chunks: {data[position : position + 200]!r}")
            if end > len(data):
                break
            stamps += self._chunk(data, position + CHUNK_HEAD.size, end)
            position = end
        self._rest = data[position:]
        return stamps

    def _chunk(self, data: bytes, start: int, end: int) -> list[int]:
        stamps = []
        while start < end:
            header = unpack_header(data, start)
            if header.seq != self._next_seq or header.length < HEADER_BYTES + STAMP_BYTES:
                raise LoadError(f"seq {header.seq} in a frame of {header.length} bytes where {self._next_seq} was due")
            begin = start + HEADER_BYTES + header.metadata_bytes + len(PAYLOAD_MARK)
            stamps.append(int(data[begin : begin + STAMP_DIGITS]))
            self._next_seq += 1
            start += header.length
        return stamps


def make_stamps(peer: Contestant) -> MarkedStamps | FramedStamps:
    return FramedStamps() if peer.framed else MarkedStamps()
