"""Bytes on their way out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tailrace.protocol.outgoing import BUFFERS_MAX, Outgoing, OutgoingBuffer


def test_whatever_is_taken_at_a_time_the_bytes_are_the_same() -> None:
    chance = random.Random(5)
    pieces = [chance.randbytes(chance.randrange(1, 20)) for _ in range(300)]
    outgoing = Outgoing()
    for kind, piece in zip([bytes, bytearray, memoryview] * 100, pieces, strict=True):
        outgoing.add(kind(piece))
    sent = b""
    while outgoing.nbytes:
        head = outgoing.head()
        assert len(head) <= BUFFERS_MAX
        ready = b"".join(head)
        count = chance.randrange(1, min(50, len(ready)) + 1)
        sent += ready[:count]
        outgoing.sent(count)
    assert sent == b"".join(pieces)
    assert outgoing.head() == []


def test_nothing_is_no_buffer() -> None:
    outgoing = Outgoing()
    outgoing.add(b"")
    assert outgoing.head() == []
    outgoing.add(b"", b"a")
    assert outgoing.head() == [b"a"]
    outgoing.sent(1)
    assert outgoing.nbytes == 0
    outgoing.add(b"b")
    outgoing.clear()
    assert outgoing.head() == []


def test_drain() -> None:
    """All goes out through a function that takes some bytes at a time; an exception of it leaves the rest."""
    outgoing, taken, room = Outgoing(), bytearray(), [3, 1, 5, 0, 9]

    def send(buffers: Sequence[OutgoingBuffer]) -> int:
        piece = b"".join(buffers)[: room.pop(0)]
        if not piece:
            raise BlockingIOError
        taken.extend(piece)
        return len(piece)

    outgoing.add(b"abcd")
    outgoing.drain(send)
    assert (bytes(taken), outgoing.nbytes) == (b"abcd", 0)
    outgoing.add(b"ef", b"ghijk")
    with pytest.raises(BlockingIOError):
        outgoing.drain(send)
    assert (bytes(taken), outgoing.nbytes) == (b"abcdefghi", 2)
    outgoing.drain(send)
    assert (bytes(taken), outgoing.nbytes) == (b"abcdefghijk", 0)
