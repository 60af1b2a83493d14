"""The bytes of each message, and the limits of its fields."""

from __future__ import annotations

import dataclasses
import struct

import msgpack
import pytest

from tailrace.protocol import messages as m
from tailrace.protocol.envelope import BODY_BYTES_MAX, HEAD, HEAD_BYTES
from tailrace.protocol.errors import Code, PeerError, UsageError
from tailrace.protocol.fields import TEXT_CHARACTERS_MAX
from tailrace.protocol.places import From
from tests.protocol.wires import FRAMES, REQUEST_KINDS, REQUESTS, RESPONSE_KINDS, RESPONSES, publish, stamped


def control(message: m.AnyMessage) -> object:
    """What msgpack makes of a body."""
    return msgpack.unpackb(m.pack(message)[HEAD_BYTES:])


def test_every_message_is_among_those_that_are_tried() -> None:
    assert {type(message) for message in REQUESTS} == REQUEST_KINDS
    assert {type(message) for message in RESPONSES} == RESPONSE_KINDS


@pytest.mark.parametrize("message", [*REQUESTS, *RESPONSES], ids=lambda message: type(message).__name__)
def test_an_envelope_is_as_long_as_its_head_says(message: m.AnyMessage) -> None:
    opcode, length = HEAD.unpack_from(m.pack(message))
    assert length == len(m.pack(message)) - HEAD_BYTES
    named = "ERROR" if isinstance(message, m.Failed) else type(message).__name__.upper()
    assert m.Op(opcode).name == named


def test_the_acknowledgements_are_ordered() -> None:
    assert [(ack.name, int(ack)) for ack in m.Ack] == [("NONE", 0), ("APPENDED", 1), ("SYNCED", 2), ("REPLICATED", 3)]


def test_publish_to_one_stream() -> None:
    assert m.pack(publish(9, (5,))) == struct.pack("<BIIBBHI", 5, 12 + len(FRAMES), 9, 1, 0, 1, 5) + FRAMES


def test_publish_to_several_streams() -> None:
    head = struct.pack("<BIIBBHII", 5, 16 + len(FRAMES), 9, 3, 2, 2, 5, 6)
    assert m.pack(publish(9, (5, 6), ack=m.Ack.REPLICATED)) == head + FRAMES
    assert m.pack_publish(9, m.Ack.REPLICATED, [5, 6], FRAMES, replicas=2) == head


def test_published() -> None:
    assert m.pack_published(9, [(1, 2, 3)]) == struct.pack("<BIIQII", 6, 20, 9, 1, 2, 3)
    assert m.pack_published(9, [(1, 2, 3), (4, 5, 6)]) == struct.pack("<BIIQIIQII", 6, 36, 9, 1, 2, 3, 4, 5, 6)
    assert m.pack(m.Published(9, ((1, 2, 3),))) == m.pack_published(9, [(1, 2, 3)])


def test_chunk_and_credit() -> None:
    frames = stamped()
    assert m.pack(m.Chunk(8, frames)) == m.CHUNK_HEAD.pack(m.CHUNK, 4 + len(frames), 8) + frames
    assert m.pack(m.Credit(8, 2**40)) == struct.pack("<BIIQ", 14, 12, 8, 2**40)


@pytest.mark.parametrize(("message", "opcode"), [(m.Ping(), 10), (m.Pong(), 11), (m.Close(), 16)])
def test_messages_without_a_body(message: m.AnyMessage, opcode: int) -> None:
    assert m.pack(message) == bytes([opcode, 0, 0, 0, 0])


def test_control_messages_are_maps_without_what_is_not_said() -> None:
    assert control(m.Hello(1, (), "c")) == {"version": 1, "features": [], "client": "c", "line_end": "\r\n\r\n"}
    assert control(m.Hello(1, ("f",), "c", "t", "n1", ":5050", line_end=None)) == {
        "version": 1, "features": ["f"], "client": "c", "token": "t", "node": "n1", "address": ":5050",
    }  # fmt: skip
    assert control(m.Open(1, "é".encode())) == {"id": 1, "stream": "é"}
    assert control(m.Subscribe(1, b"s", From("seq", 4))) == {"id": 1, "stream": "s", "from": ["seq", 4]}
    assert control(m.Subscribe(1, b"s", From("time", 4), 2, ("now", 0), 9)) == {
        "id": 1, "stream": "s", "from": ["time", 4], "skip": 2, "end": ["now", 0], "credit": 9,
    }  # fmt: skip
    assert control(m.Subscribed(1, 2, 3)) == {"id": 1, "next_seq": 2, "first_seq": 3}
    assert control(m.Ended(1, 2, Code.SLOW, "t")) == {"id": 1, "next_seq": 2, "code": "slow", "text": "t"}
    assert control(m.Failed(Code.SLOW, "t")) == {"code": "slow", "text": "t", "fatal": False, "op": 0, "id": 0}


def test_a_text_is_cut_where_the_other_end_would_refuse_it() -> None:
    long = "x" * (TEXT_CHARACTERS_MAX + 1)
    body = control(m.Failed("full", long, results=((0, 1, 0, "full", long),)))
    assert isinstance(body, dict)
    assert [len(body["text"]), len(body["results"][0][4])] == [TEXT_CHARACTERS_MAX] * 2
    body = control(m.Ended(1, 2, "full", long))
    assert isinstance(body, dict)
    assert len(body["text"]) == TEXT_CHARACTERS_MAX


@pytest.mark.parametrize(
    "message",
    [m.Open(-1, b"s"), m.Credit(2**32, 1), m.Credit(1, -1), publish(-1), publish(1, ack=256), publish(1, (2**32,)),
     m.Published(1, ((-1, 0, 0),)), m.Opened(2**64)],
    ids=repr,
)  # fmt: skip
def test_numbers_that_have_no_room_are_our_own_mistake(message: m.AnyMessage) -> None:
    if isinstance(message, m.Open):
        assert control(message) == {"id": -1, "stream": "s"}  # msgpack has room; the other end refuses it
        return
    with pytest.raises(UsageError, match="cannot be packed"):
        m.pack(message)


@pytest.mark.parametrize("streams", [0, m.PUBLISH_STREAMS_MAX + 1])
def test_a_publish_to_too_many_streams_or_none(streams: int) -> None:
    with pytest.raises(UsageError, match=f"to {streams} streams"):
        m.pack_publish(1, 1, [1] * streams, FRAMES)


def test_a_publish_that_no_head_can_tell() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return BODY_BYTES_MAX - 11

    with pytest.raises(UsageError, match="4294967284 bytes"):
        m.pack_publish(1, 1, [1], Huge())


def test_messages_are_values() -> None:
    assert m.Open(1, b"s") == m.Open(1, b"s") != m.Open(2, b"s")
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.Open(1, b"s").id = 2  # type: ignore[misc]
    assert not hasattr(publish(), "__dict__")


def test_what_is_answered_to_malformed_bytes() -> None:
    error = PeerError(Code.SIZE, "too long", fatal=True)
    assert m.Malformed(5, 9, error).answer() == m.Failed("size", "too long", True, 5, 9)
