"""Frames of WebSocket against an encoder of their own, written from RFC 6455, section 5.2."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.protocol import websocket as ws
from tests.thorough import examples

KEY = b"\x01\x80\xfe\x37"
PAYLOADS = st.one_of(
    st.binary(max_size=300), st.integers(400, 70_000).map(lambda size: bytes(range(251)) * (size // 251))
)


def frame(payload: bytes, opcode: int = 2, *, fin: bool = True, key: bytes = KEY, first: int = 0) -> bytes:
    """A frame of a client."""
    size = len(payload)
    head = bytes([(0x80 if fin else 0) | opcode | first])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65_536:
        head += struct.pack(">BH", 0x80 | 126, size)
    else:
        head += struct.pack(">BQ", 0x80 | 127, size)
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


def feed(reader: ws.FrameReader, data: bytes) -> bytes:
    room = bytearray(len(data))
    count = reader.feed(memoryview(data), memoryview(room))
    return bytes(room[:count])


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_messages_cut_anywhere_into_frames_and_reads(data: st.DataObject) -> None:
    """With pings between the frames of a message, which RFC 6455 allows."""
    sent, wire, pings = b"", b"", []
    for parts in data.draw(st.lists(st.lists(PAYLOADS, min_size=1, max_size=3), max_size=4)):
        for number, part in enumerate(parts):
            wire += frame(
                part, 0 if number else 2, fin=number == len(parts) - 1, key=data.draw(st.binary(min_size=4, max_size=4))
            )
            sent += part
            if data.draw(st.booleans()):
                pings.append(data.draw(st.binary(max_size=125)))
                wire += frame(pings[-1], 9)
    reader, got = ws.FrameReader(), b""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        got += feed(reader, wire[begin:end])
    assert got == sent and not reader.ended
    assert reader.ping == (pings[-1] if pings else None)


def test_byte_by_byte() -> None:
    reader = ws.FrameReader()
    wire = (
        frame(b"ab", fin=False) + frame(b"p", 9) + frame(b"", 0) + frame(bytes(200)) + frame(struct.pack(">H", 1001), 8)
    )
    assert b"".join(feed(reader, wire[at : at + 1]) for at in range(len(wire))) == b"ab" + bytes(200)
    assert reader.ping == b"p" and reader.ended and reader.reply_code == 1001


MALFORMED = {
    "unmasked": (b"\x82\x01x", 1002),
    "a reserved bit": (frame(b"x", first=0x40), 1002),
    "a reserved opcode": (frame(b"x", 3), 1002),
    "a reserved control opcode": (frame(b"", 11), 1002),
    "text: MQTT-6.0.0-1": (frame(b"x", 1), 1003),
    "a continuation of nothing": (frame(b"x", 0), 1002),
    "a message within a message": (frame(b"", fin=False) + frame(b"x"), 1002),
    "a ping in two frames": (frame(b"x", 9, fin=False), 1002),
    "a ping that is too long": (frame(bytes(126), 9), 1002),
    "a length of two bytes that needs one": (b"\x82\xfe\x00\x7d" + KEY, 1002),
    "a length of eight bytes that needs two": (b"\x82\xff" + struct.pack(">Q", 65_535) + KEY, 1002),
    "a length over 2**63": (b"\x82\xff" + struct.pack(">Q", 1 << 63) + KEY, 1002),
    "half a code in a close": (frame(b"x", 8), 1002),
    "a code that is never sent": (frame(struct.pack(">H", 1006), 8), 1002),
    "an unassigned code": (frame(struct.pack(">H", 999), 8), 1002),
}


@pytest.mark.parametrize("wire, code", MALFORMED.values(), ids=MALFORMED)
def test_what_ends_a_connection(wire: bytes, code: int) -> None:
    reader = ws.FrameReader()
    assert feed(reader, frame(b"before") + wire + frame(b"behind")) == b"before"
    assert reader.ended and reader.reply_code == code


@pytest.mark.parametrize("code", [1000, 1001, 1011, 3000, 4999])
def test_a_close_is_answered_with_its_code(code: int) -> None:
    reader = ws.FrameReader()
    feed(reader, frame(struct.pack(">H", code) + b"bye", 8))
    assert reader.ended and reader.reply_code == code


def test_a_close_without_a_code() -> None:
    reader = ws.FrameReader()
    feed(reader, frame(b"", 8))
    assert reader.ended and reader.reply_code == 1000


@given(st.lists(st.binary(max_size=40), max_size=20))
@settings(max_examples=examples(300), deadline=None)
def test_garbage_raises_nothing_and_gives_no_more_than_came(pieces: list[bytes]) -> None:
    reader = ws.FrameReader()
    for piece in pieces:
        assert len(feed(reader, piece)) <= len(piece)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 499, 500, 65_535, 65_536])
def test_heads_of_frames(size: int) -> None:
    """As the encoder above has them, but for the mask."""
    masked = frame(bytes(size))
    head = ws.frame_head(size)
    assert head[0] == masked[0] and head[1] == masked[1] & 0x7F and head[2:] == masked[2 : len(head)]


@given(PAYLOADS, st.binary(min_size=4, max_size=4), st.integers(0, 9))
@settings(max_examples=examples(50), deadline=None)
def test_masks(payload: bytes, key: bytes, at: int) -> None:
    assert ws.masked(payload, key, at) == bytes(byte ^ key[(at + index) % 4] for index, byte in enumerate(payload))
