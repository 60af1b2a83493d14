"""Messages between workers of one node: envelopes with msgpack bodies. Internal; both ends run the same code.

    FORWARD     u32 head length, [request id, [[stream, messages, frame bytes, may create, sync, replicas], …]], then
                the raw frames of all streams back to back: publishes for streams that the receiver owns
    FORWARDED   [request id, [[first seq, subscribers, created, code, text], …]]: how each went; code "" for done
    PARTLY      [request id, [[place, result], …]]: of a FORWARD, these streams are answered, by their place in it; the
                others wait for their streams to be opened, and FORWARDED will answer those that are left then, in
                order. Of a CALL: it waits so, without rows. The requester is not read meanwhile
    CALL        [request id, verb, arguments]: anything else asked of an owner
    REPLY       [request id, value, code, text]: its answer; code "" for done
    MOVED       request id: not done, the receiver of the request no longer owns its shards; ask its successor
    INTEREST    [[stream, subscribers, everything, added, removed], …]: my subscribers of these now; notify me when a
                stream grows, unless 0: by any message if `everything`, else by one that matches a filter of mine. Such
                filters are added and removed; a new link has none. GREW with seq 0 answers each row that wants more
    GREW        [[stream, next seq, content bytes], …]: how far they have grown; seq 0 is "look yourself"
    CUT         [stream, seq]: its messages from there on were set aside, cached facts about it are invalid
    HANDOVER    a connection's state; its descriptor travels beside the envelope
    TAKEN       [request id, …]: these publishes are logged, and are answered when as many nodes hold them as was asked;
                or these calls are begun, and are answered when their wait is over
    HELD        [[stream, line, connection, node, next seq, synced seq], …]: what the nodes hold that follow streams of
                yours through me
    GONE        [connection, [[stream, node], …]]: they do not follow any more; none are all of a connection that ended
    NEWS        [[stream, lineage], …]: the role, the terms or the way to the master of streams that nodes follow
                through you have changed
    WANT        [stream, …]: nodes follow these streams of yours through me; send me their NEWS
    WOKE        [[stream, first seq], …]: the streams of mine that have grown, and the first message of that growth: for
                a worker that watches all of them (`broker.delivery.wide`)
    WANTS       [[stream, everything, added, removed], …]: what my subscribers want of these streams of yours, which are
                in memory, for other nodes to send; everything is nil if they want nothing any more
    SWITCHED    (empty): your successor has all that is mine; neither a request nor a connection comes to you any more

Stream names are bytes. A body that cannot be read raises PeerError (fatal): the link is of no use any more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeAlias, TypeVar

import msgpack

from tailrace.protocol.consuming import REQUEST_VERBS, pack_body
from tailrace.protocol.consuming_readers import read_body
from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.errors import Code, PeerError

FORWARD: Final = 64
FORWARDED: Final = 65
CALL: Final = 66
REPLY: Final = 67
MOVED: Final = 68
INTEREST: Final = 69
GREW: Final = 71
HANDOVER: Final = 72
SWITCHED: Final = 73
WANTS: Final = 82
HELD: Final = 74
GONE: Final = 75
NEWS: Final = 76
TAKEN: Final = 78
WANT: Final = 79
CUT: Final = 77
PARTLY: Final = 80
WOKE: Final = 81

ForwardGroup: TypeAlias = tuple[bytes, int, int, bool, bool, int]
"""stream, messages, frame bytes, whether the publisher may make the stream, whether it is to be on the disk, and on how
many other nodes"""
ForwardResult: TypeAlias = tuple[int, int, bool, str, str]
"""first seq, subscribers on the node, whether the stream was made, code ("" for done), text"""
GrownRow: TypeAlias = tuple[bytes, int]
"""stream, the seq of the first message that it has grown by"""
WantRow: TypeAlias = tuple[bytes, bool | None, list[bytes], list[bytes]]
"""stream; whether every message is wanted, None if none is any more; filters that have come and that have gone"""
InterestRow: TypeAlias = tuple[bytes, int, bool, list[bytes], list[bytes]]
"""stream, subscribers, whether each message is of interest, filters that are new, filters that are gone"""
HeldRow: TypeAlias = tuple[bytes, int, int, str, int, int]
"""stream, its line (`broker.replication.downstream.replica_acks`), the follower's connection, node, next seq, synced
seq"""
EnvelopeBody: TypeAlias = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")
_GARBLED = (ValueError, TypeError, IndexError, struct.error, msgpack.UnpackException)
_Unpacked = TypeVar("_Unpacked")


def _reader(unpack: Callable[[EnvelopeBody], _Unpacked]) -> Callable[[EnvelopeBody], _Unpacked]:
    """Wraps a function that takes a body apart: raises PeerError if the body is malformed."""

    @wraps(unpack)
    def checked(body: EnvelopeBody) -> _Unpacked:
        try:
            return unpack(body)
        except _GARBLED as error:
            what = unpack.__name__.removeprefix("unpack_").upper()
            text = f"a sibling sent {what} of {len(body)} bytes that cannot be read: {error}"
            raise PeerError(Code.PROTOCOL, text, fatal=True) from error

    return checked


def pack_forward(request_id: int, groups: Sequence[ForwardGroup]) -> bytes:
    """Packs a FORWARD without the frames, which the caller sends right after it: as many bytes as the groups
    declare."""
    head = msgpack.packb([request_id, groups])
    return pack_envelope(FORWARD, _LENGTH.pack(len(head)) + head, sum(group[2] for group in groups))


@_reader
def unpack_forward(body: EnvelopeBody) -> tuple[int, list[ForwardGroup], memoryview]:
    """(request id, groups, frames). The frames are a part of `body`."""
    view = memoryview(body)
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    request_id, groups = msgpack.unpackb(view[_LENGTH.size : end])
    frames = view[end:]
    said = sum(group[2] for group in groups)
    if said != len(frames):
        raise ValueError(f"{len(frames)} bytes of frames instead of {said}")
    return request_id, [tuple(group) for group in groups], frames


def pack_forwarded(request_id: int, results: Sequence[ForwardResult]) -> bytes:
    return pack_envelope(FORWARDED, msgpack.packb([request_id, results]))


@_reader
def unpack_forwarded(body: EnvelopeBody) -> tuple[int, list[ForwardResult]]:
    request_id, results = msgpack.unpackb(body)
    return request_id, [tuple(result) for result in results]


def pack_partly(request_id: int, rows: Sequence[tuple[int, ForwardResult]]) -> bytes:
    return pack_envelope(PARTLY, msgpack.packb([request_id, rows]))


@_reader
def unpack_partly(body: EnvelopeBody) -> tuple[int, list[tuple[int, ForwardResult]]]:
    request_id, rows = msgpack.unpackb(body)
    return request_id, [(place, tuple(result)) for place, result in rows]


def pack_taken(request_ids: Sequence[int]) -> bytes:
    return pack_envelope(TAKEN, msgpack.packb(request_ids))


@_reader
def unpack_taken(body: EnvelopeBody) -> list[int]:
    return [int(request_id) for request_id in msgpack.unpackb(body)]


def pack_call(request_id: int, verb: str, args: Sequence[Any]) -> bytes:
    return pack_envelope(CALL, msgpack.packb([request_id, verb, args], default=pack_body))


@_reader
def unpack_call(body: EnvelopeBody) -> tuple[int, str, list[Any]]:
    request_id, verb, args = msgpack.unpackb(body)
    if verb in REQUEST_VERBS:
        args[1] = read_body(verb, args[1])
    return request_id, verb, args


def pack_reply(request_id: int, value: Any, code: str, text: str) -> bytes:
    return pack_envelope(REPLY, msgpack.packb([request_id, value, code, text]))


@_reader
def unpack_reply(body: EnvelopeBody) -> tuple[int, Any, str, str]:
    request_id, value, code, text = msgpack.unpackb(body)
    return request_id, value, code, text


def pack_moved(request_id: int) -> bytes:
    return pack_envelope(MOVED, msgpack.packb([request_id]))


@_reader
def unpack_moved(body: EnvelopeBody) -> int:
    (request_id,) = msgpack.unpackb(body)
    return int(request_id)


def pack_interest(rows: Sequence[InterestRow]) -> bytes:
    return pack_envelope(INTEREST, msgpack.packb(rows))


@_reader
def unpack_interest(body: EnvelopeBody) -> list[InterestRow]:
    return [
        (name, subscribers, bool(everything), [*added], [*removed])
        for name, subscribers, everything, added, removed in msgpack.unpackb(body)
    ]


def pack_wants(rows: Sequence[WantRow]) -> bytes:
    return pack_envelope(WANTS, msgpack.packb(rows))


@_reader
def unpack_wants(body: EnvelopeBody) -> list[WantRow]:
    return [
        (name, None if everything is None else bool(everything), [*added], [*removed])
        for name, everything, added, removed in msgpack.unpackb(body)
    ]


def pack_grew(streams: Sequence[tuple[bytes, int, int]]) -> bytes:
    return pack_envelope(GREW, msgpack.packb(streams))


@_reader
def unpack_grew(body: EnvelopeBody) -> list[tuple[bytes, int, int]]:
    return [(name, next_seq, end_offset) for name, next_seq, end_offset in msgpack.unpackb(body)]


def pack_woke(streams: Sequence[GrownRow]) -> bytes:
    return pack_envelope(WOKE, msgpack.packb(streams))


@_reader
def unpack_woke(body: EnvelopeBody) -> list[GrownRow]:
    return [(bytes(name), int(first_seq)) for name, first_seq in msgpack.unpackb(body)]


def pack_cut(name: bytes, seq: int, *, is_deleted: bool = False) -> bytes:
    return pack_envelope(CUT, msgpack.packb([name, seq, is_deleted]))


@_reader
def unpack_cut(body: EnvelopeBody) -> tuple[bytes, int, bool]:
    name, seq, is_deleted = msgpack.unpackb(body)
    return bytes(name), int(seq), bool(is_deleted)


def pack_handover(state: dict[str, Any]) -> bytes:
    return pack_envelope(HANDOVER, msgpack.packb(state))


@_reader
def unpack_handover(body: EnvelopeBody) -> dict[str, Any]:
    return dict(msgpack.unpackb(body))


def pack_held(rows: Sequence[HeldRow]) -> bytes:
    return pack_envelope(HELD, msgpack.packb(rows))


@_reader
def unpack_held(body: EnvelopeBody) -> list[HeldRow]:
    return [
        (name, line, connection, node, next_seq, synced_seq)
        for name, line, connection, node, next_seq, synced_seq in msgpack.unpackb(body)
    ]


def pack_gone(connection: int, rows: Sequence[tuple[bytes, str]]) -> bytes:
    return pack_envelope(GONE, msgpack.packb([connection, rows]))


@_reader
def unpack_gone(body: EnvelopeBody) -> tuple[int, list[tuple[bytes, str]]]:
    connection, rows = msgpack.unpackb(body)
    return connection, [(name, node) for name, node in rows]


def pack_news(streams: Sequence[tuple[bytes, list[Any]]]) -> bytes:
    return pack_envelope(NEWS, msgpack.packb(streams))


@_reader
def unpack_news(body: EnvelopeBody) -> list[tuple[bytes, list[Any]]]:
    return [(name, lineage) for name, lineage in msgpack.unpackb(body)]


def pack_want(names: Sequence[bytes]) -> bytes:
    return pack_envelope(WANT, msgpack.packb(names))


@_reader
def unpack_want(body: EnvelopeBody) -> list[bytes]:
    return list(msgpack.unpackb(body))


def pack_switched() -> bytes:
    return pack_envelope(SWITCHED)
