"""Reading a client's messages: round trips, and for everything else an answer that names the fault."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import messages as m
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import Code
from tailrace.protocol.features import NO_FEATURES
from tailrace.protocol.places import FROM_NEW, From
from tailrace.protocol.replication import FEATURE
from tailrace.protocol.replication_readers import REQUESTS as REPLICATION
from tailrace.protocol.requests import FAULTS, read_publish, read_request
from tailrace.shard.frame import HEADER_BYTES, pack_frame
from tests.protocol.wires import ALL_FEATURES, FRAMES, MAX_MESSAGE_BYTES, REQUESTS, frame_cy, publish


def request_of(opcode: int, fields: dict[str, Any]) -> m.Request | m.Malformed:
    return read_request(opcode, memoryview(msgpack.packb(fields)))


def published(body: bytes, max_message_bytes: int = MAX_MESSAGE_BYTES) -> m.Publish | m.Malformed:
    return read_publish(memoryview(body), max_message_bytes, False)


def publish_body(frames: bytes = FRAMES, *, ack: int = 1, replicas: int = 0, handles: tuple[int, ...] = (7,)) -> bytes:
    return struct.pack(f"<IBBH{len(handles)}I", 9, ack, replicas, len(handles), *handles) + frames


def refused(message: object) -> tuple[int, Code, str]:
    """(id, code, text) of a Malformed that is not fatal."""
    assert isinstance(message, m.Malformed)
    assert not message.error.fatal
    assert message.error.__traceback__ is None  # nothing that would keep the buffer
    return message.id, message.error.code, message.error.text


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_there_and_back(message: m.Request) -> None:
    data = m.pack(message)
    body = memoryview(data)[HEAD_BYTES:]
    if data[0] == m.Op.PUBLISH:
        assert read_publish(body, MAX_MESSAGE_BYTES, False) == message
    else:
        assert read_request(data[0], body, ALL_FEATURES) == message


def test_a_hello_of_a_node() -> None:
    for address in (":5050", "10.0.0.1:1", "[::1]:65535", "broker-2:5050"):
        hello = m.Hello(1, (FEATURE,), "c", None, "n" * 32, address)
        assert read_request(m.Op.HELLO, memoryview(m.pack(hello))[HEAD_BYTES:]) == hello


@pytest.mark.parametrize("worker", [(0, 0), (2, 2), (-1, 2), (0, 1 << 16)])
def test_a_hello_of_a_worker_that_cannot_be(worker: tuple[int, int]) -> None:
    found = request_of(m.Op.HELLO, {"version": 1, "features": [], "client": "c", "worker": worker})
    assert isinstance(found, m.Malformed) and "the field worker" in found.error.text
    hello = request_of(m.Op.HELLO, {"version": 1, "features": [], "client": "c", "worker": [1, 2]})
    assert isinstance(hello, m.Hello) and hello.worker == (1, 2)


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        (0, "opcode 0"),
        (2, "WELCOME"),
        (4, "OPENED"),
        (6, "PUBLISHED"),
        (12, "ERROR"),
        (13, "CHUNK"),
        (18, "FOLLOWED"),
        (27, "CONSUMED"),
        (29, "GOT"),
        (63, "opcode 63"),
    ],
)
def test_what_no_client_sends(opcode: int, name: str) -> None:
    for agreed in (NO_FEATURES, ALL_FEATURES):
        found = refused(read_request(opcode, memoryview(b""), agreed))
        assert found == (0, Code.PROTOCOL, f"{name} is nothing that a client sends")


@pytest.mark.parametrize("opcode", REPLICATION)
def test_what_only_nodes_say_needs_the_feature(opcode: int) -> None:
    found = refused(read_request(opcode, memoryview(b"")))
    name = m.Op(opcode).name
    assert found == (
        0,
        Code.PROTOCOL,
        f"{name} needs the feature replication; ask for it in HELLO, then check WELCOME",
    )


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert request_of(m.Op.UNSUBSCRIBE, {"id": 1, "later": {"deep": [1, 2]}}) == m.Unsubscribe(1)


CONTROL: list[tuple[m.Op, dict[str, Any], Code, str]] = [
    (m.Op.HELLO, {"features": [], "client": "c"}, Code.USAGE, "HELLO: the field version is missing"),
    (m.Op.HELLO, {"version": "1", "features": [], "client": "c"}, Code.USAGE, "version is a text"),
    (m.Op.HELLO, {"version": 1, "features": "a", "client": "c"}, Code.USAGE, "features is a text"),
    (m.Op.HELLO, {"version": 1, "features": [], "client": "c", "token": b"t"}, Code.USAGE, "token is binary"),
    (m.Op.HELLO, {"version": 1, "features": [], "client": "c", "node": ""}, Code.USAGE, "'' is not the id of a node"),
    (m.Op.HELLO, {"version": 1, "features": [], "client": "c", "node": 5}, Code.USAGE, "node is 5, not a text"),
    (
        m.Op.HELLO,
        {"version": 1, "features": [], "client": "c", "address": "a"},
        Code.USAGE,
        "not the address of a node",
    ),
    (m.Op.OPEN, {"stream": "s"}, Code.USAGE, "OPEN: the field id is missing"),
    (m.Op.OPEN, {"id": 2**32, "stream": "s"}, Code.USAGE, "the field id is 4294967296"),
    (m.Op.OPEN, {"id": 1, "stream": b"s"}, Code.USAGE, "the field stream is binary"),
    (m.Op.OPEN, {"id": 1, "stream": ""}, Code.NAME, "'' is not a stream name"),
    (m.Op.OPEN, {"id": 1, "stream": "a b"}, Code.NAME, "'a b' is not a stream name"),
    (m.Op.OPEN, {"id": 1, "stream": "x" * 201}, Code.NAME, "is not a stream name"),
    (m.Op.OPEN, {"id": 1, "stream": "$s"}, Code.RESERVED, "begins with $"),
    (m.Op.SUBSCRIBE, {"id": 1, "stream": "s"}, Code.USAGE, "SUBSCRIBE: the field from is missing"),
    (m.Op.SUBSCRIBE, {"id": 1, "stream": "s", "from": 0}, Code.FROM, "the field from is not a position"),
    (m.Op.SUBSCRIBE, {"id": 1, "stream": "s", "from": ["now", 0]}, Code.FROM, "one of seq, time, new"),
    (m.Op.SUBSCRIBE, {"id": 1, "stream": "s", "from": ["seq", 0], "end": ["new", 0]}, Code.FROM, "seq, time, now"),
    (m.Op.SUBSCRIBE, {"id": 1, "stream": "s", "from": ["seq", 0], "skip": 1}, Code.USAGE, "skip counts messages at"),
    (m.Op.SUBSCRIBE, {"id": 1, "stream": "s", "from": ["seq", 0], "credit": -1}, Code.USAGE, "the field credit is -1"),
    (m.Op.UNSUBSCRIBE, {}, Code.USAGE, "UNSUBSCRIBE: the field id is missing"),
]


@pytest.mark.parametrize(("opcode", "fields", "code", "text"), CONTROL)
def test_a_control_body_that_is_wrong(opcode: m.Op, fields: dict[str, Any], code: Code, text: str) -> None:
    message = request_of(opcode, fields)
    number, found, said = refused(message)
    assert (number, found) == (1 if fields.get("id") == 1 else 0, code)
    assert text in said


def test_new_has_no_value() -> None:
    message = request_of(m.Op.SUBSCRIBE, {"id": 1, "stream": "s", "from": ["new", 55]})
    assert message == m.Subscribe(1, b"s", FROM_NEW)
    message = request_of(m.Op.SUBSCRIBE, {"id": 1, "stream": "s", "from": ["time", 55], "skip": 0})
    assert message == m.Subscribe(1, b"s", From("time", 55))


@pytest.mark.parametrize("opcode", [m.Op.PING, m.Op.PONG, m.Op.CLOSE])
def test_a_body_where_there_is_none(opcode: m.Op) -> None:
    found = refused(read_request(opcode, memoryview(b"x")))
    assert found == (0, Code.USAGE, f"{opcode.name}: a body of 1 bytes; it has none")


def test_credit_that_is_wrong() -> None:
    for size in (0, 11, 13):
        assert refused(read_request(m.Op.CREDIT, memoryview(bytes(size))))[1] is Code.USAGE
    too_much = read_request(m.Op.CREDIT, memoryview(struct.pack("<IQ", 1, 2**63)))
    assert "at most 9223372036854775807" in refused(too_much)[2]


# --- PUBLISH --------------------------------------------------------------------------------------------------------


def test_the_frames_are_not_copied() -> None:
    body = bytearray(publish_body())
    message = read_publish(memoryview(body), MAX_MESSAGE_BYTES, True)
    assert isinstance(message, m.Publish)
    assert message.owned
    entries = frame_cy.stamp(message.frames, 4, 1_000, 1, 0)
    assert len(entries) == 24 * message.count
    assert frame_cy.check(body, 12, len(body), 4) == (3, len(FRAMES), "")


def test_several_streams() -> None:
    message = published(publish_body(handles=(1, 2, 1), ack=3, replicas=1))
    assert message == m.Publish(9, 3, 1, (1, 2, 1), memoryview(FRAMES), 3)


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"", Code.USAGE, "a body of 0 bytes; its head alone has 8"),
        (publish_body()[:7], Code.USAGE, "a body of 7 bytes"),
        (publish_body()[:11], Code.USAGE, "1 streams and no message"),
        (publish_body(b""), Code.USAGE, "1 streams and no message"),
        (publish_body(handles=()), Code.USAGE, "0 streams; 1 to 1024 are allowed"),
        (publish_body(handles=(1,) * 1_025), Code.USAGE, "1025 streams; 1 to 1024 are allowed"),
        (publish_body(handles=(1, 2))[:16], Code.USAGE, "2 streams and no message"),
        (publish_body(ack=4), Code.USAGE, "ack 4; it is 0 to 3"),
        (publish_body(ack=1, replicas=1), Code.USAGE, "1 replicas with ack 1"),
        (publish_body(ack=3), Code.USAGE, "0 replicas with ack 3"),
        (publish_body(FRAMES[:-1]), Code.USAGE, f"message 3 {FAULTS['short']}"),
        (publish_body(FRAMES + b"x"), Code.USAGE, f"message 4 {FAULTS['short']}"),
        (publish_body(FRAMES + bytes(HEADER_BYTES)), Code.USAGE, f"message 4 {FAULTS['length']}"),
        (publish_body(FRAMES + pack_frame(b"", flags=1)), Code.USAGE, "message 4 has flags that have no meaning there"),
        (publish_body(FRAMES + pack_frame(b"", metadata=b"\xa1x")), Code.USAGE, f"message 4 {FAULTS['metadata']}"),
        (publish_body(FRAMES + pack_frame(b"x" * 101)), Code.SIZE, "message 4 has more than 100 bytes"),
        (publish_body(pack_frame(b"x" * 100, metadata=b"\x80")), Code.SIZE, "message 1 has more than 100 bytes"),
    ],
)
def test_a_publish_that_is_wrong(body: bytes, code: Code, text: str) -> None:
    number, found, said = refused(published(body, 100))
    assert (number, found) == (9 if len(body) >= 8 else 0, code)
    assert said.startswith("PUBLISH: ")
    assert text in said


def test_one_publish_cannot_make_the_broker_write_without_end() -> None:
    frames = pack_frame(bytes(100_000 - HEADER_BYTES)) * 2
    most = m.PUBLISH_COPIES_MAX_BYTES // len(frames)
    assert isinstance(published(publish_body(frames, handles=(1,) * most)), m.Publish)
    _, code, text = refused(published(publish_body(frames, handles=(1,) * (most + 1))))
    assert code is Code.SIZE
    assert f"200000 bytes of messages for {most + 1} streams; at most {m.PUBLISH_COPIES_MAX_BYTES}" in text


def test_every_fault_of_the_leaf_has_its_words() -> None:
    frames = [b"x", bytes(HEADER_BYTES), pack_frame(b"xx"), pack_frame(b"", flags=2), pack_frame(b"", metadata=b"x")]
    assert {frame_cy.measure(frame, 0, len(frame), 1)[1] for frame in frames} == set(FAULTS)


@given(st.integers(0, 255), st.binary(max_size=100))
def test_any_bytes_give_a_message_or_an_answer(opcode: int, body: bytes) -> None:
    for message in (read_request(opcode, memoryview(body), ALL_FEATURES), published(body)):
        assert isinstance(message, m.Malformed) or type(message) in {type(each) for each in REQUESTS}
        if isinstance(message, m.Malformed):
            assert refused(message)[2].isprintable()


@given(st.integers(0, len(FRAMES) + 11), st.integers(1, 255))
def test_a_publish_with_one_wrong_byte_can_be_stamped_or_is_refused(place: int, mask: int) -> None:
    body = bytearray(publish_body())
    body[place] ^= mask
    message = published(bytes(body))
    if isinstance(message, m.Publish):
        assert len(frame_cy.stamp(bytearray(message.frames), 1, 2, 3, 4)) == 24 * message.count
        assert publish(message.request, message.handles, bytes(message.frames), message.ack).frames == message.frames
