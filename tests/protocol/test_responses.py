"""Reading a broker's messages: round trips, and one kind of error for everything else."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import messages as m
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.replication_readers import RESPONSES as REPLICATION
from tailrace.protocol.responses import read_chunk, read_response
from tests.protocol.wires import ALL_FEATURES, RESPONSES, stamped


@pytest.mark.parametrize("message", RESPONSES, ids=lambda message: type(message).__name__)
def test_there_and_back(message: m.Response) -> None:
    data = m.pack(message)
    assert read_response(data[0], memoryview(data)[HEAD_BYTES:], ALL_FEATURES) == message


def test_the_frames_of_a_chunk_are_not_copied() -> None:
    body = bytearray(m.pack(m.Chunk(8, stamped()))[HEAD_BYTES:])
    chunk = read_chunk(memoryview(body))
    body[-1:] = b"!"
    assert bytes(chunk.frames[-1:]) == b"!"


@pytest.mark.parametrize(
    "opcode",
    [
        0,
        *(m.Op[name] for name in ("HELLO", "OPEN", "PUBLISH", "SUBSCRIBE", "CREDIT", "CLOSE", "FOLLOW", "ASK")),
        26,
        255,
    ],
)
def test_what_no_broker_sends(opcode: int) -> None:
    with pytest.raises(PeerError, match=f"opcode {opcode} is not a message of brokers"):
        read_response(opcode, memoryview(b""), ALL_FEATURES)


@pytest.mark.parametrize("opcode", REPLICATION)
def test_what_is_said_to_nodes_only(opcode: int) -> None:
    with pytest.raises(PeerError, match=f"opcode {int(opcode)} is not a message of brokers"):
        read_response(opcode, memoryview(b"\x80"))


def test_an_error_may_say_little() -> None:
    body = msgpack.packb({"code": "full", "text": "no space"})
    assert read_response(m.Op.ERROR, memoryview(body)) == m.Failed("full", "no space")


def test_an_error_may_have_a_result_for_each_stream() -> None:
    rows = tuple((seq, 1, 0, "", "") for seq in range(m.PUBLISH_STREAMS_MAX))
    failed = m.Failed("full", "no space", results=rows)
    assert read_response(m.Op.ERROR, memoryview(m.pack(failed))[HEAD_BYTES:]) == failed


WRONG: list[tuple[m.Op, bytes | dict[str, Any], str]] = [
    (m.Op.WELCOME, {"version": 1}, "WELCOME: the field features is missing"),
    (m.Op.WELCOME, b"\x90", "WELCOME: a body of 1 bytes that is not a msgpack map"),
    (m.Op.OPENED, {"id": -1}, "OPENED: the field id is -1"),
    (m.Op.PUBLISHED, b"", "PUBLISHED: a body of 0 bytes, not 4 and 16 for each stream"),
    (m.Op.PUBLISHED, bytes(4), "a body of 4 bytes"),
    (m.Op.PUBLISHED, bytes(21), "a body of 21 bytes"),
    (m.Op.SUBSCRIBED, {"id": 1, "next_seq": 2, "first_seq": 0, "end_seq": "never"}, "the field end_seq is a text"),
    (m.Op.CHUNK, bytes(35), "CHUNK: a body of 35 bytes; it has at least 36"),
    (m.Op.PING, b"x", "PING: a body of 1 bytes; it has none"),
    (m.Op.PONG, b"x", "PONG: a body of 1 bytes; it has none"),
    (m.Op.ENDED, {"id": 1, "next_seq": 2, "code": "", "text": None}, "ENDED: the field text is missing"),
    (m.Op.ERROR, {"code": "full"}, "ERROR: the field text is missing"),
    (m.Op.ERROR, {"code": "full", "text": "", "fatal": 1}, "ERROR: the field fatal is 1"),
    (m.Op.ERROR, {"code": "full", "text": "", "op": 256}, "ERROR: the field op is 256"),
    (m.Op.ERROR, {"code": "full", "text": "", "results": [[1, 2, 3]]}, "ERROR: the field results"),
]


@pytest.mark.parametrize(("opcode", "body", "text"), WRONG)
def test_a_body_that_is_wrong(opcode: m.Op, body: bytes | dict[str, Any], text: str) -> None:
    data = body if isinstance(body, bytes) else msgpack.packb(body)
    with pytest.raises(PeerError, match=text) as caught:
        read_response(opcode, memoryview(data))
    assert caught.value.code in (Code.USAGE, Code.PROTOCOL)


@given(st.integers(0, 255), st.binary(max_size=100))
def test_any_bytes_give_a_message_or_the_one_error(opcode: int, body: bytes) -> None:
    try:
        message = read_response(opcode, memoryview(body), ALL_FEATURES)
    except PeerError:
        return
    assert type(message) in {type(each) for each in RESPONSES}
