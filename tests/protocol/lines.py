"""What the tests of the line protocol share: feeding a codec in any pieces, and hypothesis strategies for its input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from hypothesis import strategies as st

from tailrace.protocol.commands import Command, Invalid, Reply, Staged
from tailrace.protocol.line import LineCodec
from tailrace.shard.frame import HEADER, HEADER_BYTES

Message: TypeAlias = tuple[bytes, bytes]
"""stream, payload"""

MAX_LINE_BYTES = 4_096
MAX_MESSAGE_BYTES = 2_000


def payloads(frames: bytes | bytearray) -> list[bytes]:
    """The payloads of whole unstamped frames; checks that nothing but the length is set in their headers."""
    found, position = [], 0
    while position < len(frames):
        length, *rest = HEADER.unpack_from(frames, position)
        assert rest == [0] * 6
        found.append(bytes(frames[position + HEADER_BYTES : position + length]))
        position += length
    assert position == len(frames)
    return found


def messages(staged: Staged) -> list[Message]:
    """The messages of a staged run: in the order sent if it is known, else stream by stream."""
    rows = [(name, count, payloads(frames)) for name, count, frames in staged.groups]
    assert all(count == len(row) for _, count, row in rows)
    if not staged.order:
        return [(name, payload) for name, _, row in rows for payload in row]
    left = [iter(row) for _, _, row in rows]
    ordered = [(rows[key][0], next(left[key])) for key in staged.order]
    assert not any(list(each) for each in left)
    return ordered


def flat(commands: Iterable[Command]) -> list[object]:
    """Commands as values that can be compared however the input was cut: messages one by one, errors by code."""
    found: list[object] = []
    for command in commands:
        if isinstance(command, Staged):
            found += messages(command)
        elif isinstance(command, Invalid):
            found.append(command.error.code)
        elif not isinstance(command, Reply):
            found.append(command)
    return found


def replies(commands: Iterable[Command]) -> bytes:
    return b"".join(command.data for command in commands if isinstance(command, Reply))


def feed(codec: LineCodec, pieces: Iterable[bytes]) -> list[Command]:
    """Feed the pieces through one shared buffer that is overwritten each time, as the worker's is."""
    shared = bytearray(1 << 16)
    found: list[Command] = []
    for piece in pieces:
        shared[: len(piece)] = piece
        found += codec.feed(memoryview(shared), len(piece))
        shared[: len(piece)] = b"!" * len(piece)
    return found


def codec(
    *, ack: bool = False, line: int = MAX_LINE_BYTES, message: int = MAX_MESSAGE_BYTES, begun: bool = False
) -> LineCodec:
    """`begun`: a first command has come, so that the peer is known to speak lines."""
    made = LineCodec(line, message)
    made.ack = ack
    if begun:
        feed(made, [b"ping\n"])
    return made


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """`data` in pieces, cut at the places (in any order, taken modulo its length)."""
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in pairwise(borders)]


names = st.one_of(
    st.sampled_from([b"s", b"25", b"a/b", "é".encode(), b"x" * 200]),
    st.text("abc019-._~#!é\u3042", min_size=1, max_size=8).map(str.encode),
)
payload_bytes = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"\0")),
    st.sampled_from([b"", b"\r", b"\r\r", b"\xff\xfd\x06", b"|", b"\0", b"x" * MAX_MESSAGE_BYTES]),
)
cuts = st.lists(st.integers(0, 5_000), max_size=12)
