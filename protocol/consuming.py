"""Messages about durable consumers in the binary protocol: one small class per message, and its bytes.

These messages are accepted only on a connection whose HELLO asked for the feature `FEATURE` and got it. CONSUME
creates, resets, deletes and lists the consumers of a stream, and lets a member leave one. GET reports the messages that
its member has finished and asks for more; GOT answers it, with the frames as they are in the log.

docs/binary-protocol.md draws all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from tailrace.protocol import features
from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.fields import CONTROL_BODY_MAX_BYTES, pack_map, packed_map
from tailrace.protocol.names import CONSUMER_BYTES_MAX
from tailrace.protocol.opcodes import Op
from tailrace.protocol.places import From
from tailrace.shard.names import NAME_BYTES_MAX

FEATURE: Final = features.CONSUMERS
FINISHED_MAX: Final = 1_024
"""The most ranges that one GET says are finished."""
FAILED_MAX: Final = 128
"""The most messages that one GET says have failed."""
REASON_BYTES_MAX: Final = 200
"""The longest reason why a message has failed."""
MESSAGES_MAX: Final = 10_000
"""The most messages that one GET asks for."""
GET_BYTES_MAX: Final = (4 << 20) - (256 << 10)
"""The most bytes of frames that one GET asks for: with what stands before them a GOT has less than 4 MiB."""
STALE_MAX: Final = 1_024
"""The most stale ranges of one GOT; where there are more, the last one reaches to their end."""
WAIT_MAX_MS: Final = 60_000
"""The longest that a GET waits for messages."""
ACK_WAIT_MAX_S: Final = 7 * 24 * 3_600
DELIVERIES_MAX: Final = (1 << 16) - 1
DELAY_MAX_MS: Final = ACK_WAIT_MAX_S * 1_000
"""The longest that a failed message waits for its next delivery."""
ACK_WAIT_S: Final = 30.0
DELIVERIES: Final = 10
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""The settings of a consumer that is created without them, in any protocol: its acknowledgement deadline, the most
deliveries of a message, the wait after the first failed delivery, which doubles with each, and the longest wait."""
OWN_DELAY_MS: Final = -1
"""As a failed message's delay: the consumer's own wait."""
CONSUMER_FILTER_BYTES_MAX: Final = 256
"""The longest topic filter of a consumer."""
CONSUMERS_MAX: Final = 20_000
"""The most consumers of a stream."""
REMOVED_MAX: Final = 1_024
"""The most ranges of a stream's removed dead letters."""
ROWS_MAX: Final = max(FINISHED_MAX, FAILED_MAX)
"""The most elements of any array in these requests."""

REQUEST_VERBS: Final = frozenset({"consume", "get"})
"""The verbs of `pack_body`'s requests, between workers and nodes."""

ACK_APPENDED, ACK_SYNCED, ACK_REPLICATED = 1, 2, 3  # `protocol.messages.Ack`, which is not imported for it

Deed: TypeAlias = Literal["create", "reset", "delete", "leave", "list", "letters", "redrive", "purge", "drop"]
MessageRange: TypeAlias = tuple[int, int]
"""first seq, last seq"""
FinishedRow: TypeAlias = tuple[int, int, int]
"""first seq, last seq, epoch of all of these messages"""
FailedRow: TypeAlias = tuple[int, int, str]
"""seq, epoch, reason"""
DelayRow: TypeAlias = tuple[int, int, int]
"""seq, epoch, milliseconds until the next delivery: of a failed message"""
DeliveredRun: TypeAlias = tuple[int, int, int, int]
"""first seq, messages, how often they were delivered before, epoch of all of them"""

_FINISHED_BYTES_MAX = 1 + 9 + 9 + 5
_FAILED_BYTES_MAX = 1 + 9 + 5 + (2 + REASON_BYTES_MAX)
_DELAY_BYTES_MAX = 1 + 9 + 5 + 5
_GET_REST_BYTES_MAX = 256 + NAME_BYTES_MAX + 2 * CONSUMER_BYTES_MAX
assert (
    FINISHED_MAX * _FINISHED_BYTES_MAX + FAILED_MAX * (_FAILED_BYTES_MAX + _DELAY_BYTES_MAX) + _GET_REST_BYTES_MAX
    <= CONTROL_BODY_MAX_BYTES
)


# --- from client to broker ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Consume:
    """A change of a stream's consumers, or their list; "drop" deletes the stream with all of them. `start`: "create"
    and "reset". `name`: none of "list", "letters", "redrive", "purge" and "drop". "redrive" and "purge" have
    `first_seq` and `last_seq`, of dead letters.

    `ack_wait_s`, `deliveries_max`, `retry_s`, `retry_max_s`: "create", None for the broker's own. `ack`, `replicas`: as
    those of a Publish.
    `member`: "leave". `topics`: the filter of "create", b"" for one that exists as it is, or a new one of all topics.
    """

    id: int
    do: Deed
    stream: bytes
    name: bytes = b""
    start: From | None = None
    ack_wait_s: float | None = None
    deliveries_max: int | None = None
    ack: int = ACK_APPENDED
    replicas: int = 0
    member: bytes = b""
    retry_s: float | None = None
    retry_max_s: float | None = None
    first_seq: int = 0
    last_seq: int = 0
    topics: bytes = b""


@dataclass(frozen=True, slots=True)
class Get:
    """Report finished and failed messages, and deliver up to `max_messages` more to `member` of the consumer `name`.

    `fresh`: only messages that it does not have yet. `wait_ms`: how long to wait for the first. A `max_messages` of 0
    asks for none. `session`: a number that a program chooses at its start, which distinguishes it from an earlier one
    of the same member; 0 for none. `delays`: waits of failed messages, if not the consumer's own.
    """

    id: int
    stream: bytes
    name: bytes
    member: bytes
    finished: tuple[FinishedRow, ...] = ()
    failed: tuple[FailedRow, ...] = ()
    max_messages: int = 0
    max_bytes: int = GET_BYTES_MAX
    wait_ms: int = 0
    fresh: bool = False
    ack: int = ACK_APPENDED
    replicas: int = 0
    session: int = 0
    delays: tuple[DelayRow, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberNotice:
    """From the worker of a member's connection to the owner of the stream; clients cannot send it.

    "away": the connection has ended. `idle_ms`: the time since the member's last request, `session`: that of it.
    "wake": the member's GET is to wait no longer. "quit": the consumer, of a shared subscription, is not needed if it
    has no members.
    """

    do: Literal["away", "wake", "quit"]
    stream: bytes
    name: bytes
    member: bytes
    idle_ms: int = 0
    session: int = 0


# --- from broker to client ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """One consumer in numbers. `lag_us`: the age of its first unfinished message; None without any. `topics`: its
    filter; `lag_at_most`: whether `lag_messages` counts messages that it may not match."""

    name: bytes
    next_seq: int
    lag_messages: int
    lag_us: int | None
    in_flight: int
    members: int
    redelivered: int
    dead: int
    idle_us: int
    ack_wait_s: float
    deliveries_max: int
    retry_s: float = RETRY_S
    retry_max_s: float = RETRY_MAX_S
    topics: bytes = b""
    lag_at_most: bool = False


@dataclass(frozen=True, slots=True)
class Consumed:
    """The result of a CONSUME. `next_seq`: "create" and "reset", `created`: "create", `existed`: "delete",
    `consumers`: "list". `removed`: "letters", ranges of dead letters; `next_seq` is the end of all then. `count`:
    "redrive" and "purge", and `next_seq` where to go on."""

    id: int
    next_seq: int | None = None
    created: bool | None = None
    existed: bool | None = None
    consumers: tuple[Standing, ...] | None = None
    count: int | None = None
    removed: tuple[MessageRange, ...] | None = None


@dataclass(slots=True)
class Got:
    """The answer to a GET: the runs' messages, whole stamped frames one after the other.

    `stale`: messages reported as finished or failed that another member has now, or that were lost with the master:
    other messages have these seqs. `trimmed`: messages that were dropped from the stream before the consumer got them.
    The frames are invalid after the next step of the codec.
    """

    id: int
    runs: tuple[DeliveredRun, ...]
    stale: tuple[MessageRange, ...]
    trimmed: int
    frames: memoryview


ConsumerRequest: TypeAlias = Consume | Get

ConsumerResponse: TypeAlias = Consumed | Got


# --- their bytes ----------------------------------------------------------------------------------------------------

GOT_HEAD: Final = struct.Struct("<IHHQ")
"""A GOT's body up to its runs: request, runs, stale ranges, trimmed."""
GOT_RUN: Final = struct.Struct("<QIII")
GOT_RANGE: Final = struct.Struct("<QQ")

assert GET_BYTES_MAX + GOT_HEAD.size + MESSAGES_MAX * GOT_RUN.size + STALE_MAX * GOT_RANGE.size < 4 << 20


def pack_got(
    request: int, runs: Sequence[Sequence[int]], stale: Sequence[Sequence[int]], trimmed: int, frames_bytes: int
) -> bytes:
    """A GOT up to its frames, which the caller sends right after it."""
    told = stale if len(stale) <= STALE_MAX else [*stale[: STALE_MAX - 1], (stale[STALE_MAX - 1][0], stale[-1][1])]
    parts = [GOT_HEAD.pack(request, len(runs), len(told), trimmed)]
    parts += [GOT_RUN.pack(*run) for run in runs]
    parts += [GOT_RANGE.pack(*each) for each in told]
    return pack_envelope(Op.GOT, b"".join(parts), frames_bytes)


def pack_body(request: Any) -> bytes:
    """The body of a CONSUME, a GET or a MemberNotice, for another worker or node (`consuming_readers.read_body`).

    Raises TypeError for anything else: it is a `default` of msgpack's packer.
    """
    if type(request) is Get:
        return packed_map(_get_body(request))
    if type(request) is Consume:
        return packed_map(_consume_body(request))
    if type(request) is MemberNotice:
        return packed_map(_notice_body(request))
    raise TypeError(f"{type(request).__name__} cannot be packed")


def _notice_body(notice: MemberNotice) -> dict[str, Any]:
    return {
        "do": notice.do,
        "stream": notice.stream.decode(),
        "name": notice.name.decode(),
        "member": notice.member.decode(),
        "idle_ms": notice.idle_ms,
        "session": notice.session,
    }


def _consume(message: Consume) -> bytes:
    return pack_map(Op.CONSUME, _consume_body(message))


def _get(message: Get) -> bytes:
    return pack_map(Op.GET, _get_body(message))


def _consume_body(message: Consume) -> dict[str, Any]:
    return {
        "id": message.id,
        "do": message.do,
        "stream": message.stream.decode(),
        "name": message.name.decode() or None,
        "member": message.member.decode() or None,
        "from": message.start,
        "ack_wait_s": message.ack_wait_s,
        "deliveries_max": message.deliveries_max,
        "retry_s": message.retry_s,
        "retry_max_s": message.retry_max_s,
        "ack": _unless(message.ack, ACK_APPENDED),
        "replicas": _unless(message.replicas, 0),
        "first_seq": _unless(message.first_seq, 0),
        "last_seq": _unless(message.last_seq, 0),
        "topics": message.topics.decode() or None,
    }


def _get_body(message: Get) -> dict[str, Any]:
    return {
        "id": message.id,
        "stream": message.stream.decode(),
        "name": message.name.decode(),
        "member": message.member.decode(),
        "finished": message.finished or None,
        "failed": message.failed or None,
        "max_messages": message.max_messages,
        "max_bytes": _unless(message.max_bytes, GET_BYTES_MAX),
        "wait_ms": _unless(message.wait_ms, 0),
        "fresh": message.fresh or None,
        "ack": _unless(message.ack, ACK_APPENDED),
        "replicas": _unless(message.replicas, 0),
        "session": _unless(message.session, 0),
        "delays": message.delays or None,
    }


def _unless(value: int, default: int) -> int | None:
    """Returns the value, or None for an omitted default."""
    return None if value == default else value


def _consumed(message: Consumed) -> bytes:
    rows = message.consumers
    body = {
        "id": message.id,
        "next_seq": message.next_seq,
        "created": message.created,
        "existed": message.existed,
        "consumers": None if rows is None else [_standing(row) for row in rows],
        "count": message.count,
        "removed": message.removed,
    }
    return pack_map(Op.CONSUMED, body)


def _standing(row: Standing) -> dict[str, Any]:
    return {
        "name": row.name.decode(),
        "next_seq": row.next_seq,
        "lag_messages": row.lag_messages,
        "lag_us": row.lag_us,
        "in_flight": row.in_flight,
        "members": row.members,
        "redelivered": row.redelivered,
        "dead": row.dead,
        "idle_us": row.idle_us,
        "ack_wait_s": row.ack_wait_s,
        "deliveries_max": row.deliveries_max,
        "retry_s": row.retry_s,
        "retry_max_s": row.retry_max_s,
        "topics": row.topics.decode() or None,
        "lag_at_most": row.lag_at_most or None,
    }


def _got(message: Got) -> bytes:
    return pack_got(message.id, message.runs, message.stale, message.trimmed, len(message.frames)) + message.frames


PACKERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    Consume: _consume,
    Get: _get,
    Consumed: _consumed,
    Got: _got,
}
features.PACKERS.update(PACKERS)
