"""What workers of one node say to each other: envelopes with msgpack bodies. Internal; both ends run the same code.

    FORWARD     u32 head length, [request id, [[stream, messages, frame bytes, may create], …]], then the raw frames of
                all streams back to back: publishes for streams that the receiver owns
    FORWARDED   [request id, [[first seq, created, code, text], …]]: how each of them went; code "" for appended
    CALL        [request id, verb, arguments]: anything else asked of an owner
    REPLY       [request id, value, code, text]: its answer; code "" for done
    MOVED       request id: not done, the receiver of the request no longer owns its shards; ask its successor
    INTEREST    [stream, …]: tell me from now on when these grow
    UNINTEREST  [stream, …]: no more
    GREW        [[stream, next seq], …]: how far they have grown; 0 is "look yourself"
    HANDOVER    a connection's state; its descriptor travels beside the envelope

Stream names are bytes. A body that cannot be read raises PeerError (fatal): the link is of no use any more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgpack

from broker.protocol.envelope import pack_envelope
from broker.protocol.errors import Code, PeerError

FORWARD: Final = 64
FORWARDED: Final = 65
CALL: Final = 66
REPLY: Final = 67
MOVED: Final = 68
INTEREST: Final = 69
UNINTEREST: Final = 70
GREW: Final = 71
HANDOVER: Final = 72

Group: TypeAlias = tuple[bytes, int, int, bool]
"""stream, messages, frame bytes, whether the publisher may make the stream"""
Result: TypeAlias = tuple[int, bool, str, str]
"""first seq, whether the stream was made, code ("" for appended), text"""
Body: TypeAlias = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")


def pack_forward(request_id: int, groups: Sequence[Group]) -> bytes:
    """All of a FORWARD but the frames, which the caller sends right after it: as many bytes as the groups say."""
    head = msgpack.packb([request_id, groups])
    return pack_envelope(FORWARD, _LENGTH.pack(len(head)) + head, sum(group[2] for group in groups))


def unpack_forward(body: memoryview) -> tuple[int, list[Group], memoryview]:
    """(request id, groups, frames). The frames are a part of `body`."""
    if len(body) < _LENGTH.size:
        raise _garbled(f"FORWARD of {len(body)} bytes")
    end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    request_id, groups = _fields(body[_LENGTH.size : end], 2)
    frames = body[end:]
    if sum(group[2] for group in groups) != len(frames):
        raise _garbled(f"FORWARD {request_id} with {len(frames)} bytes of frames, unlike what its groups say")
    return request_id, [tuple(group) for group in groups], frames


def pack_forwarded(request_id: int, results: Sequence[Result]) -> bytes:
    return pack_envelope(FORWARDED, msgpack.packb([request_id, results]))


def unpack_forwarded(body: Body) -> tuple[int, list[Result]]:
    request_id, results = _fields(body, 2)
    return request_id, [tuple(result) for result in results]


def pack_call(request_id: int, verb: str, args: Sequence[Any]) -> bytes:
    return pack_envelope(CALL, msgpack.packb([request_id, verb, args]))


def unpack_call(body: Body) -> tuple[int, str, list[Any]]:
    request_id, verb, args = _fields(body, 3)
    return request_id, verb, args


def pack_reply(request_id: int, value: Any, code: str, text: str) -> bytes:
    return pack_envelope(REPLY, msgpack.packb([request_id, value, code, text]))


def unpack_reply(body: Body) -> tuple[int, Any, str, str]:
    request_id, value, code, text = _fields(body, 4)
    return request_id, value, code, text


def pack_moved(request_id: int) -> bytes:
    return pack_envelope(MOVED, msgpack.packb([request_id]))


def unpack_moved(body: Body) -> int:
    (request_id,) = _fields(body, 1)
    return int(request_id)


def pack_interest(names: Sequence[bytes]) -> bytes:
    return pack_envelope(INTEREST, msgpack.packb(names))


def pack_uninterest(names: Sequence[bytes]) -> bytes:
    return pack_envelope(UNINTEREST, msgpack.packb(names))


def unpack_interest(body: Body) -> list[bytes]:
    return _unpacked(body)


def unpack_uninterest(body: Body) -> list[bytes]:
    return _unpacked(body)


def pack_grew(streams: Sequence[tuple[bytes, int]]) -> bytes:
    return pack_envelope(GREW, msgpack.packb(streams))


def unpack_grew(body: Body) -> list[tuple[bytes, int]]:
    return [(name, next_seq) for name, next_seq in _unpacked(body)]


def pack_handover(state: dict[str, Any]) -> bytes:
    return pack_envelope(HANDOVER, msgpack.packb(state))


def unpack_handover(body: Body) -> dict[str, Any]:
    state = msgpack.unpackb(body)
    if not isinstance(state, dict):
        raise _garbled(f"HANDOVER of {type(state).__name__}")
    return state


def _unpacked(body: Body) -> list[Any]:
    try:
        value = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise _garbled(f"a body of {len(body)} bytes that is no msgpack: {error}") from error
    if not isinstance(value, list):
        raise _garbled(f"a body that is a {type(value).__name__}, not a list")
    return value


def _fields(body: Body, count: int) -> list[Any]:
    fields = _unpacked(body)
    if len(fields) != count:
        raise _garbled(f"a body of {len(fields)} fields instead of {count}")
    return fields


def _garbled(what: str) -> PeerError:
    return PeerError(Code.PROTOCOL, f"a sibling sent {what}", fatal=True)
