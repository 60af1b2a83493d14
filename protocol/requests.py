"""Reads a client's messages from the bodies of their envelopes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from tailrace.protocol import features
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import ELEMENTS_MAX, NUMBER_MAX, U16_MAX, U32_MAX, Fields
from tailrace.protocol.messages import (
    CREDIT_BODY,
    HANDLE_BYTES,
    PUBLISH_COPIES_MAX_BYTES,
    PUBLISH_HEAD,
    PUBLISH_STREAMS_MAX,
    Ack,
    Close,
    Credit,
    Hello,
    Malformed,
    Op,
    Open,
    Ping,
    Pong,
    Prove,
    Publish,
    Request,
    Subscribe,
    Unsubscribe,
    WirePlace,
)
from tailrace.protocol.names import node_address, node_id
from tailrace.protocol.topics import topic_filter
from tailrace.shard.frame import (
    FAULT_FLAGS,
    FAULT_LENGTH,
    FAULT_METADATA,
    FAULT_SHORT,
    FAULT_SIZE,
    MAX_FRAME_BYTES,
)
from tailrace.shard.leaves import load

FAULTS: Final[Mapping[str, str]] = {
    FAULT_SHORT: "exceeds the end of the envelope",
    FAULT_LENGTH: f"has an impossible length: 32 to {MAX_FRAME_BYTES} with its metadata",
    FAULT_SIZE: "has more than {max_message_bytes} bytes",
    FAULT_FLAGS: "has flags that have no meaning there; they are 0, or those of one numbered run",
    FAULT_METADATA: "has metadata that is not a msgpack map",
}
"""What is wrong with a message of a PUBLISH, in words."""

_measure = load("tailrace.shard.frame_cy").measure
_TO_ONE = struct.Struct("<IBBHI").unpack_from
_TO_ONE_BYTES = PUBLISH_HEAD.size + HANDLE_BYTES
_ACK_PLAIN_MAX = int(Ack.SYNCED)
_ACK_REPLICATED = int(Ack.REPLICATED)
_PUBLISH = int(Op.PUBLISH)


def read_publish(body: memoryview, max_message_bytes: int, owned: bool) -> Publish | Malformed:
    """A PUBLISH; its frames are a part of `body`. Either all of it can be taken, or none."""
    size = len(body)
    if size >= _TO_ONE_BYTES:
        request, ack, replicas, streams, handle = _TO_ONE(body)
        if streams == 1 and ack <= _ACK_PLAIN_MAX and not replicas:
            count, fault = _measure(body, _TO_ONE_BYTES, size, max_message_bytes)
            if count and not fault:
                return Publish(request, ack, 0, (handle,), body[_TO_ONE_BYTES:], count, owned)
    return _read_publish(body, max_message_bytes, owned)


def read_request(opcode: int, body: memoryview, agreed: frozenset[str] = features.NO_FEATURES) -> Request | Malformed:
    """Reads any message but PUBLISH. Invalid bytes give Malformed.

    `agreed`: the features that both ends know; messages of other features are invalid.
    """
    read_fields, elements_max = _OF_FIELDS.get(opcode), ELEMENTS_MAX
    feature = features.REQUESTS.get(opcode)
    if feature is not None and feature in agreed:
        readers = features.readers_of(feature)
        read_fields, elements_max = readers.requests[opcode], readers.request_elements_max
    fields = None
    try:
        if read_fields is not None:
            fields = Fields(Op(opcode).name, body, elements_max)
            return read_fields(fields)
        read_fixed = _OF_FIXED.get(opcode)
        if read_fixed is not None:
            return read_fixed(body)
    except PeerError as error:
        return Malformed(opcode, 0 if fields is None else fields.id, error.with_traceback(None))
    return Malformed(opcode, 0, _unwanted(opcode))


def _read_publish(body: memoryview, max_message_bytes: int, owned: bool) -> Publish | Malformed:
    """As `read_publish`, for several streams, and to describe the fault."""
    request = 0
    try:
        if len(body) < PUBLISH_HEAD.size:
            raise _unusable(f"a body of {len(body)} bytes; its head alone has {PUBLISH_HEAD.size}")
        request, ack, replicas, streams = PUBLISH_HEAD.unpack_from(body)
        _check_ack(ack, replicas)
        start = PUBLISH_HEAD.size + HANDLE_BYTES * streams
        _check_streams(streams, len(body) - start)
        count, fault = _measure(body, start, len(body), max_message_bytes)
        if fault or not count:
            raise _unfit(count, fault, max_message_bytes)
        handles = struct.unpack_from(f"<{streams}I", body, PUBLISH_HEAD.size)
        return Publish(request, ack, replicas, handles, body[start:], count, owned)
    except PeerError as error:
        return Malformed(_PUBLISH, request, error.with_traceback(None))


def _check_ack(ack: int, replicas: int) -> None:
    if ack > _ACK_REPLICATED:
        raise _unusable(f"ack {ack}; it is 0 to {_ACK_REPLICATED}")
    if (replicas > 0) != (ack == _ACK_REPLICATED):
        raise _unusable(f"{replicas} replicas with ack {ack}; they go with ack {_ACK_REPLICATED} and no other")


def _check_streams(streams: int, frame_bytes: int) -> None:
    """Checks the number of streams, and bounds the bytes that the broker would write."""
    if not 0 < streams <= PUBLISH_STREAMS_MAX:
        raise _unusable(f"{streams} streams; 1 to {PUBLISH_STREAMS_MAX} are allowed")
    if frame_bytes <= 0:
        raise _unusable(f"{streams} streams and no message")
    if streams > 1 and streams * frame_bytes > PUBLISH_COPIES_MAX_BYTES:
        text = f"{frame_bytes} bytes of messages for {streams} streams; at most {PUBLISH_COPIES_MAX_BYTES} in all"
        raise PeerError(Code.SIZE, f"PUBLISH: {text}")


def _unfit(count: int, fault: str, max_message_bytes: int) -> PeerError:
    text = f"PUBLISH: message {count + 1} {FAULTS[fault].format(max_message_bytes=max_message_bytes)}"
    return PeerError(Code.SIZE if fault == FAULT_SIZE else Code.USAGE, text)


def _unusable(problem: str) -> PeerError:
    return PeerError(Code.USAGE, f"PUBLISH: {problem}")


def _worker(pair: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= pair[0] < pair[1] <= U16_MAX:
        raise PeerError(Code.USAGE, f"HELLO: the field worker is {list(pair)}, not a number from 0 to below the second")
    return pair


def _hello(fields: Fields) -> Hello:
    token = fields.text("token") if "token" in fields else None
    node = node_id(fields.text("node")) if "node" in fields else None
    address = node_address(fields.text("address")) if "address" in fields else None
    version, features = fields.number("version", U16_MAX), fields.texts("features")
    peer_token = fields.text("peer_token") if "peer_token" in fields else None
    mechanism = fields.text("mechanism") if "mechanism" in fields else None
    user = fields.text("user") if "user" in fields else None
    login = fields.binary("login") if "login" in fields else None
    client = fields.text("client")
    worker = _worker(fields.pair("worker")) if "worker" in fields else None
    return Hello(
        *(version, features, client, token, node, address, peer_token, mechanism, user, login, worker), line_end=None
    )


def _open(fields: Fields) -> Open:
    return Open(fields.number("id", U32_MAX), fields.writable_stream("stream"))


def _subscribe(fields: Fields) -> Subscribe:
    number = fields.number("id", U32_MAX)
    start = fields.start("from")
    skip = fields.number("skip") if "skip" in fields else 0
    if skip and start.kind != "time":
        raise PeerError(Code.USAGE, "SUBSCRIBE: the field skip counts messages at a time, so from must be one")
    end: WirePlace | None = fields.place("end", ("seq", "time", "now")) if "end" in fields else None
    credit = fields.number("credit") if "credit" in fields else None
    wait = "wait" in fields and fields.flag("wait")
    topics = topic_filter(fields.text("topics").encode()) if "topics" in fields else b""
    exact = "exact" in fields and fields.flag("exact")
    return Subscribe(number, fields.readable_stream("stream"), start, skip, end, credit, wait, topics, exact)


def _unsubscribe(fields: Fields) -> Unsubscribe:
    return Unsubscribe(fields.number("id", U32_MAX))


def _credit(body: memoryview) -> Credit:
    if len(body) != CREDIT_BODY.size:
        raise PeerError(Code.USAGE, f"CREDIT: a body of {len(body)} bytes instead of {CREDIT_BODY.size}")
    number, nbytes = CREDIT_BODY.unpack_from(body)
    if nbytes > NUMBER_MAX:
        raise PeerError(Code.USAGE, f"CREDIT: {nbytes} bytes; at most {NUMBER_MAX} are allowed")
    return Credit(number, nbytes)


def _empty(opcode: int, message: Request) -> Callable[[memoryview], Request]:
    def read(body: memoryview) -> Request:
        if len(body):
            raise PeerError(Code.USAGE, f"{Op(opcode).name}: a body of {len(body)} bytes; it has none")
        return message

    return read


def _unwanted(opcode: int) -> PeerError:
    feature = features.REQUESTS.get(opcode)
    if feature is not None:
        text = f"{_op_name(opcode)} needs the feature {feature}; ask for it in HELLO, then check WELCOME"
        return PeerError(Code.PROTOCOL, text)
    return PeerError(Code.PROTOCOL, f"{_op_name(opcode)} is nothing that a client sends")


def _op_name(opcode: int) -> str:
    return Op(opcode).name if opcode in Op._value2member_map_ else f"opcode {opcode}"


_OF_FIELDS: Final[Mapping[int, Callable[[Fields], Request]]] = {
    Op.HELLO: _hello,
    Op.PROVE: lambda fields: Prove(fields.binary("data")),
    Op.OPEN: _open,
    Op.SUBSCRIBE: _subscribe,
    Op.UNSUBSCRIBE: _unsubscribe,
}
_OF_FIXED: Final[Mapping[int, Callable[[memoryview], Request]]] = {
    Op.CREDIT: _credit,
    Op.PING: _empty(Op.PING, Ping()),
    Op.PONG: _empty(Op.PONG, Pong()),
    Op.CLOSE: _empty(Op.CLOSE, Close()),
}
