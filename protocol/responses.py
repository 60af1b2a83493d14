"""Reads a broker's messages from the bodies of their envelopes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from tailrace.protocol import features
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import U16_MAX, U32_MAX, Fields
from tailrace.protocol.messages import (
    HANDLE_BYTES,
    PUBLISH_STREAMS_MAX,
    PUBLISHED_HEAD,
    PUBLISHED_RESULT,
    Challenge,
    Chunk,
    Ended,
    Failed,
    Op,
    Opened,
    Ping,
    Pong,
    Published,
    Response,
    Subscribed,
    Welcome,
)
from tailrace.shard.frame import HEADER_BYTES

_SUBSCRIPTION = struct.Struct("<I").unpack_from
_CHUNK_BYTES_MIN = HANDLE_BYTES + HEADER_BYTES


def check_opcode(opcode: int, asked: frozenset[str]) -> None:
    """Raises PeerError for the opcode of a message that no broker sends, so that its body is not waited for."""
    of_feature = features.RESPONSES.get(opcode) in asked
    if not of_feature and opcode not in _OF_FIELDS and opcode not in _OF_FIXED:
        raise _not_sent(opcode)


def read_chunk(body: memoryview) -> Chunk:
    """A CHUNK; its frames are a part of `body`, and nobody has looked at them. Raises PeerError."""
    if len(body) < _CHUNK_BYTES_MIN:
        raise PeerError(Code.PROTOCOL, f"CHUNK: a body of {len(body)} bytes; it has at least {_CHUNK_BYTES_MIN}")
    return Chunk(_SUBSCRIPTION(body)[0], body[HANDLE_BYTES:])


def read_response(opcode: int, body: memoryview, asked: frozenset[str] = features.NO_FEATURES) -> Response:
    """Reads any message but CHUNK. Raises PeerError for invalid bytes.

    `asked`: the features that HELLO asked for; messages of other features are invalid.
    """
    read_fields, read_fixed, elements_max = _OF_FIELDS.get(opcode), _OF_FIXED.get(opcode), PUBLISH_STREAMS_MAX
    feature = features.RESPONSES.get(opcode)
    if feature is not None and feature in asked:
        readers = features.readers_of(feature)
        read_fields, read_fixed = readers.responses.get(opcode), readers.fixed_responses.get(opcode)
        elements_max = readers.response_elements_max
    if read_fields is not None:
        return read_fields(Fields(Op(opcode).name, body, elements_max))
    if read_fixed is not None:
        return read_fixed(body)
    raise _not_sent(opcode)


def _not_sent(opcode: int) -> PeerError:
    return PeerError(Code.PROTOCOL, f"opcode {opcode} is not a message of brokers")


def _published(body: memoryview) -> Published:
    rows = body[PUBLISHED_HEAD.size :]
    if not rows or len(rows) % PUBLISHED_RESULT.size:
        text = f"a body of {len(body)} bytes, not {PUBLISHED_HEAD.size} and {PUBLISHED_RESULT.size} for each stream"
        raise PeerError(Code.PROTOCOL, f"PUBLISHED: {text}")
    return Published(PUBLISHED_HEAD.unpack_from(body)[0], tuple(PUBLISHED_RESULT.iter_unpack(rows)))


def _welcome(fields: Fields) -> Welcome:
    return Welcome(
        version=fields.number("version", U16_MAX),
        features=fields.texts("features"),
        software=fields.text("software"),
        node=fields.text("node"),
        worker=fields.number("worker", U32_MAX),
        limits=fields.numbers("limits"),
        login=fields.binary("login") if "login" in fields else None,
        producer_prefix=fields.binary("producer_prefix") if "producer_prefix" in fields else None,
    )


def _opened(fields: Fields) -> Opened:
    return Opened(fields.number("id", U32_MAX))


def _subscribed(fields: Fields) -> Subscribed:
    end_seq = fields.number("end_seq") if "end_seq" in fields else None
    stream = fields.text("stream") if "stream" in fields else None
    next_seq, first_seq = fields.number("next_seq"), fields.number("first_seq")
    return Subscribed(fields.number("id", U32_MAX), next_seq, first_seq, end_seq, stream)


def _ended(fields: Fields) -> Ended:
    return Ended(fields.number("id", U32_MAX), fields.number("next_seq"), fields.text("code"), fields.text("text"))


def _failed(fields: Fields) -> Failed:
    return Failed(
        code=fields.text("code"),
        text=fields.text("text"),
        fatal="fatal" in fields and fields.flag("fatal"),
        op=fields.number("op", 255) if "op" in fields else 0,
        id=fields.number("id", U32_MAX) if "id" in fields else 0,
        results=fields.rows("results", (int, int, int, str, str)) if "results" in fields else None,
    )


def _empty(opcode: int, message: Response) -> Callable[[memoryview], Response]:
    def read(body: memoryview) -> Response:
        if len(body):
            raise PeerError(Code.PROTOCOL, f"{Op(opcode).name}: a body of {len(body)} bytes; it has none")
        return message

    return read


_OF_FIELDS: Final[Mapping[int, Callable[[Fields], Response]]] = {
    Op.WELCOME: _welcome,
    Op.CHALLENGE: lambda fields: Challenge(fields.binary("data")),
    Op.OPENED: _opened,
    Op.SUBSCRIBED: _subscribed,
    Op.ENDED: _ended,
    Op.ERROR: _failed,
}
_OF_FIXED: Final[Mapping[int, Callable[[memoryview], Response]]] = {
    Op.PUBLISHED: _published,
    Op.CHUNK: read_chunk,
    Op.PING: _empty(Op.PING, Ping()),
    Op.PONG: _empty(Op.PONG, Pong()),
}
