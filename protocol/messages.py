"""Messages of the binary protocol: one small class per message, and its bytes.

Stream names are bytes of valid UTF-8. The two messages that carry frames, `Publish` and `Chunk`, are not frozen because
they are made once an envelope and freezing triples their cost; nobody changes them.

`pack` returns the bytes of any message. If frames follow, the sender packs only the part before them (`pack_publish`,
`CHUNK_HEAD`) and sends the frames from their buffer. docs/binary-protocol.md draws all of it. The messages of the
features (`protocol.features`) are in modules of their own, and are packed here too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tailrace.protocol.envelope import BODY_BYTES_MAX, HEAD_BYTES, pack_envelope
from tailrace.protocol.errors import PeerError, UsageError
from tailrace.protocol.features import PACKERS
from tailrace.protocol.fields import CONTROL_BODY_MAX_BYTES as CONTROL_BODY_MAX_BYTES
from tailrace.protocol.fields import TEXT_CHARACTERS_MAX, pack_fields, pack_map
from tailrace.protocol.opcodes import VERSION as VERSION
from tailrace.protocol.opcodes import Op as Op
from tailrace.protocol.places import From

if TYPE_CHECKING:
    from tailrace.protocol import collecting, consuming, listing, recalling, replication, sharing

BEARER: Final = "bearer"
"""The mechanism of a login with a token: `login` is the token."""
EXTERNAL: Final = "external"
"""The mechanism of a login with the certificate that the connection has shown."""
PRODUCERS_FEATURE: Final = "producers"
TOPICS_FEATURE: Final = "topics"
"""That a publish may be numbered by its producer, and is then logged once however often it is sent."""
PUBLISH_STREAMS_MAX: Final = 1_024
"""The most streams that one PUBLISH may name."""
PUBLISH_COPIES_MAX_BYTES: Final = 64 * 1024 * 1024
"""The most bytes that the frames of a PUBLISH to several streams may take in all of them together."""


CHUNK: Final = int(Op.CHUNK)
"""As a plain number, for whoever packs a CHUNK_HEAD a chunk."""


class Ack(IntEnum):
    """The condition for the answer to a publish."""

    NONE = 0
    """Nothing: only errors are told."""
    APPENDED = 1
    """It is in the log; how safe that is, is the stream's durability."""
    SYNCED = 2
    """It is on the disk."""
    REPLICATED = 3
    """It is in the logs of so many replicas."""


WirePlace: TypeAlias = tuple[str, int]
"""kind ("seq", "time" or "now") and value: where a subscription ends."""
StreamResult: TypeAlias = tuple[int, int, int]
"""first seq, messages, subscribers on the node"""
PartResult: TypeAlias = tuple[int, int, int, str, str]
"""a Result, code ("" for done), text"""
Buffer: TypeAlias = bytes | bytearray | memoryview


LINE_END: Final = "\r\n\r\n"
"""Ends a line, and a request in HTTP: a server of such a protocol answers, and the client sees that it is no broker."""


# --- from client to broker ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """`client` names the software, for the operator; `token` is the secret that the broker may require.

    A peer that is itself a node sends its id (`node`), its listening `address`, and the secret among nodes
    (`peer_token`), if it has one; a worker that follows streams sends its number and how many workers there are
    (`worker`). A login has a `mechanism`, the name of the `user` and, in `login`, the mechanism's
    first data: a secret, or the first message of SCRAM. Brokers pass over `line_end`.
    """

    version: int
    features: tuple[str, ...]
    client: str
    token: str | None = None
    node: str | None = None
    address: str | None = None
    peer_token: str | None = None
    mechanism: str | None = None
    user: str | None = None
    login: bytes | None = field(default=None, repr=False)
    worker: tuple[int, int] | None = None
    line_end: str | None = field(default=LINE_END, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Prove:
    """The answer to a CHALLENGE: SCRAM's last message of a client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Open:
    """Let the handle `id`, which the client chooses, stand for a stream."""

    id: int
    stream: bytes


@dataclass(slots=True)
class Publish:
    """`count` whole unstamped frames, for each of the streams that `handles` stand for.

    `owned`: the frames lie in a buffer that nobody else has, to be kept and stamped in place. Otherwise they lie in the
    buffer that was read into, and are gone with the next read.
    """

    request: int
    ack: int
    replicas: int
    handles: tuple[int, ...]
    frames: memoryview
    count: int
    owned: bool = False


@dataclass(slots=True)
class PublishRun:
    """Publishes of one read to one stream each, all with the same `ack`, staged by `protocol.publish_cy`.

    A group is all that goes to one handle: (handle, messages, their unstamped frames, its requests for `pack_answers`);
    or to the topics of one stream, by the handle that came first.
    """

    ack: int
    groups: list[tuple[int, int, bytearray, bytes]]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """`skip`: messages at exactly the time `start` that are left out (only with a time). `credit`: None is unlimited.

    `wait`: the stream may be made later. `topics`: the filter for the topics of its messages; empty for all messages.
    `exact`: `stream` is the name of a stream, never that of a topic.
    """

    id: int
    stream: bytes
    start: From
    skip: int = 0
    end: WirePlace | None = None
    credit: int | None = None
    wait: bool = False
    topics: bytes = b""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    id: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Allows `nbytes` more bytes of frames to be sent to the subscription."""

    id: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Close:
    """Answer all requests, then close."""


# --- from broker to client ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """`features`: those that both know. `limits`: by name, in bytes or pieces. `login`: the broker's own proof, after a
    login with SCRAM. `producer_prefix`: what the ids of this user's producers begin with.
    """

    version: int
    features: tuple[str, ...]
    software: str
    node: str
    worker: int
    limits: dict[str, int]
    login: bytes | None = None
    producer_prefix: bytes | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a login goes on with: SCRAM's first message of a server."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    id: int


@dataclass(frozen=True, slots=True)
class Published:
    """The results of the publish, one for each stream, in the order of the request."""

    request: int
    results: tuple[StreamResult, ...]


@dataclass(frozen=True, slots=True)
class Subscribed:
    """`next_seq`: of the first message that follows. `end_seq`: where the subscription ends; None is never. `stream`:
    of a subscription with a filter of topics, the one that they lie in."""

    id: int
    next_seq: int
    first_seq: int
    end_seq: int | None = None
    stream: str | None = None


@dataclass(slots=True)
class Chunk:
    """Whole stamped frames of one subscription, seqs without holes. They are gone with the next step of the codec."""

    id: int
    frames: memoryview


@dataclass(frozen=True, slots=True)
class Ended:
    """The subscription has ended: no CHUNK of it follows; `next_seq` is its position. `code` is "" after a regular
    end."""

    id: int
    next_seq: int
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An ERROR. `op`, `id`: the request it answers, 0 for none.

    results: one for each stream, if only some failed, or if messages are logged in spite of it ("unreplicated").
    """

    code: str
    text: str
    fatal: bool = False
    op: int = 0
    id: int = 0
    results: tuple[PartResult, ...] | None = None


# --- both ways, and never sent ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Pong:
    pass


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are not a valid message. The peer receives `answer()`; after a fatal error no more is read from it."""

    op: int
    id: int
    error: PeerError

    def answer(self) -> Failed:
        return Failed(self.error.code.value, self.error.text, self.error.fatal, self.op, self.id)


CoreRequest: TypeAlias = Hello | Prove | Open | Publish | Subscribe | Unsubscribe | Credit | Close | Ping | Pong
CoreResponse: TypeAlias = Welcome | Challenge | Opened | Published | Subscribed | Chunk | Ended | Failed | Ping | Pong
"""Those that need no feature."""
if TYPE_CHECKING:
    FeatureRequest: TypeAlias = consuming.ConsumerRequest | listing.ListingRequest | recalling.RecallRequest
    FeatureResponse: TypeAlias = consuming.ConsumerResponse | listing.ListingResponse | recalling.RecallResponse
    SharedRequest: TypeAlias = replication.NodeRequest | sharing.Interest
    Request: TypeAlias = CoreRequest | FeatureRequest | collecting.CollectRequest | SharedRequest
    Response: TypeAlias = CoreResponse | FeatureResponse | collecting.CollectResponse | replication.NodeResponse
else:  # the modules of the features are not loaded for this
    Request, Response = CoreRequest, CoreResponse
AnyMessage: TypeAlias = Request | Response


# --- their bytes ----------------------------------------------------------------------------------------------------

CHUNK_HEAD: Final = struct.Struct("<BII")
"""A CHUNK up to its frames: opcode, body length, subscription id."""
PUBLISH_HEAD: Final = struct.Struct("<IBBH")
"""A PUBLISH's body up to its handles: request, ack, replicas, streams."""
PUBLISHED_HEAD: Final = struct.Struct("<I")
PUBLISHED_RESULT: Final = struct.Struct("<QII")
CREDIT_BODY: Final = struct.Struct("<IQ")
HANDLE_BYTES: Final = 4

PUBLISH_TO_ONE: Final = struct.Struct("<BIIBBHI")
"""A PUBLISH to one stream up to its frames: opcode, body length, request, ack, replicas, 1, handle."""
PUBLISHED_ONE: Final = struct.Struct("<BIIQII")
"""A whole PUBLISHED about one stream: opcode, body length, request, first seq, count, subscribers."""
PUBLISHED_ONE_BODY_BYTES: Final = PUBLISHED_HEAD.size + PUBLISHED_RESULT.size

assert CHUNK_HEAD.size == HEAD_BYTES + HANDLE_BYTES
assert PUBLISH_TO_ONE.size == HEAD_BYTES + PUBLISH_HEAD.size + HANDLE_BYTES


def pack(message: AnyMessage) -> bytes:
    """Packs the whole envelope of any message. UsageError if a field does not fit."""
    try:
        return PACKERS[type(message)](message)
    except (struct.error, OverflowError) as error:
        raise UsageError(f"{message} cannot be packed: {error}") from error


def pack_publish(request: int, ack: int, handles: Sequence[int], frames: Buffer, replicas: int = 0) -> bytes:
    """A PUBLISH up to its frames, which the caller sends right after it. UsageError when it would be too long."""
    streams = len(handles)
    length = PUBLISH_HEAD.size + HANDLE_BYTES * streams + len(frames)
    if not 0 < streams <= PUBLISH_STREAMS_MAX or length > BODY_BYTES_MAX:
        raise UsageError(
            f"a publish of {len(frames)} bytes to {streams} streams; 1 to {PUBLISH_STREAMS_MAX} are allowed"
        )
    if streams == 1:
        return PUBLISH_TO_ONE.pack(Op.PUBLISH, length, request, ack, replicas, 1, handles[0])
    body = PUBLISH_HEAD.pack(request, ack, replicas, streams) + struct.pack(f"<{streams}I", *handles)
    return pack_envelope(Op.PUBLISH, body, len(frames))


def pack_published(request: int, results: Sequence[StreamResult]) -> bytes:
    """A PUBLISHED with the results of the streams, in the order of the request."""
    if len(results) == 1:
        first_seq, count, subscribers = results[0]
        return PUBLISHED_ONE.pack(Op.PUBLISHED, PUBLISHED_ONE_BODY_BYTES, request, first_seq, count, subscribers)
    rows = [PUBLISHED_RESULT.pack(*result) for result in results]
    return pack_envelope(Op.PUBLISHED, PUBLISHED_HEAD.pack(request) + b"".join(rows))


def _open(message: Open) -> bytes:
    return pack_map(Op.OPEN, {"id": message.id, "stream": message.stream.decode()})


def _publish(message: Publish) -> bytes:
    head = pack_publish(message.request, message.ack, message.handles, message.frames, message.replicas)
    return head + message.frames


def _subscribe(message: Subscribe) -> bytes:
    body = {
        "id": message.id,
        "stream": message.stream.decode(),
        "from": message.start,
        "skip": message.skip or None,
        "end": message.end,
        "credit": message.credit,
        "wait": message.wait or None,
        "topics": message.topics.decode() or None,
        "exact": message.exact or None,
    }
    return pack_map(Op.SUBSCRIBE, body)


def _subscribed(message: Subscribed) -> bytes:
    body = {
        "id": message.id,
        "next_seq": message.next_seq,
        "first_seq": message.first_seq,
        "end_seq": message.end_seq,
        "stream": message.stream,
    }
    return pack_map(Op.SUBSCRIBED, body)


def _ended(message: Ended) -> bytes:
    body = {"id": message.id, "next_seq": message.next_seq, "code": message.code, "text": _bounded(message.text)}
    return pack_map(Op.ENDED, body)


def _failed(message: Failed) -> bytes:
    body = {
        "code": message.code,
        "text": _bounded(message.text),
        "fatal": message.fatal,
        "op": message.op,
        "id": message.id,
        "results": [(*row[:4], _bounded(row[4])) for row in message.results] if message.results else None,
    }
    return pack_map(Op.ERROR, body)


def _chunk(message: Chunk) -> bytes:
    return CHUNK_HEAD.pack(Op.CHUNK, HANDLE_BYTES + len(message.frames), message.id) + message.frames


def _bounded(text: str) -> str:
    """Packs as many rows as the peer accepts."""
    return text[:TEXT_CHARACTERS_MAX]


def _id_only(opcode: int) -> Callable[[Any], bytes]:
    return lambda message: pack_map(opcode, {"id": message.id})


def _empty(opcode: int) -> Callable[[Any], bytes]:
    whole = pack_envelope(opcode)
    return lambda _message: whole


_CORE_PACKERS: Final[dict[type, Callable[[Any], bytes]]] = {
    Hello: partial(pack_fields, Op.HELLO),
    Welcome: partial(pack_fields, Op.WELCOME),
    Challenge: partial(pack_fields, Op.CHALLENGE),
    Prove: partial(pack_fields, Op.PROVE),
    Open: _open,
    Opened: _id_only(Op.OPENED),
    Publish: _publish,
    Published: lambda message: pack_published(message.request, message.results),
    Subscribe: _subscribe,
    Subscribed: _subscribed,
    Unsubscribe: _id_only(Op.UNSUBSCRIBE),
    Ping: _empty(Op.PING),
    Pong: _empty(Op.PONG),
    Failed: _failed,
    Chunk: _chunk,
    Credit: lambda message: pack_envelope(Op.CREDIT, CREDIT_BODY.pack(message.id, message.nbytes)),
    Ended: _ended,
    Close: _empty(Op.CLOSE),
}
PACKERS.update(_CORE_PACKERS)
