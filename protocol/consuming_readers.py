"""The messages of `protocol.consuming`, from the bodies of their envelopes.

Readers raise PeerError for anything else.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast, get_args

from tailrace.protocol.consuming import (
    ACK_APPENDED,
    ACK_REPLICATED,
    ACK_WAIT_MAX_S,
    CONSUMERS_MAX,
    DELAY_MAX_MS,
    DELIVERIES_MAX,
    FAILED_MAX,
    FINISHED_MAX,
    GET_BYTES_MAX,
    GOT_HEAD,
    GOT_RANGE,
    GOT_RUN,
    MESSAGES_MAX,
    REASON_BYTES_MAX,
    ROWS_MAX,
    WAIT_MAX_MS,
    Consume,
    Consumed,
    Deed,
    DelayRow,
    FailedRow,
    FinishedRow,
    Get,
    Got,
    MemberNotice,
    MessageRange,
    Standing,
)
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FeatureReaders
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX, Fields
from tailrace.protocol.names import consumer_name
from tailrace.protocol.opcodes import Op
from tailrace.protocol.topics import topic_filter
from tailrace.shard.epochs import EPOCH_MAX
from tailrace.shard.frame import HEADER_BYTES

REPLICAS_MAX = 255  # as in a PUBLISH
NAMELESS: Final = ("list", "letters", "redrive", "purge", "drop")
"""What a CONSUME does without a consumer."""


# --- from client to broker ------------------------------------------------------------------------------------------


def _consume(fields: Fields) -> Consume:
    number, do = fields.number("id", U32_MAX), fields.text("do")
    if do not in get_args(Deed):
        raise _wrong("CONSUME", f"the field do is none of {', '.join(get_args(Deed))}")
    ack, replicas = _level("CONSUME", fields)
    return Consume(
        id=number,
        do=cast(Deed, do),
        stream=fields.consumed_stream("stream"),
        name=b"" if do in NAMELESS else consumer_name(fields.text("name").encode()),
        start=fields.start("from") if do in ("create", "reset") else None,
        ack_wait_s=fields.seconds("ack_wait_s", ACK_WAIT_MAX_S) if "ack_wait_s" in fields else None,
        deliveries_max=fields.number("deliveries_max", DELIVERIES_MAX) if "deliveries_max" in fields else None,
        ack=ack,
        replicas=replicas,
        member=consumer_name(fields.text("member").encode()) if do == "leave" else b"",
        retry_s=fields.seconds("retry_s", ACK_WAIT_MAX_S, may_be_0=True) if "retry_s" in fields else None,
        retry_max_s=fields.seconds("retry_max_s", ACK_WAIT_MAX_S, may_be_0=True) if "retry_max_s" in fields else None,
        first_seq=fields.number("first_seq", default=0),
        last_seq=fields.number("last_seq", default=0),
        topics=_filter(fields) if do == "create" else b"",
    )


def _filter(fields: Fields) -> bytes:
    return topic_filter(fields.text("topics").encode()) if "topics" in fields else b""


_NOTICES: Final[dict[str, Literal["away", "wake", "quit"]]] = {"away": "away", "wake": "wake", "quit": "quit"}


def read_body(verb: str, body: bytes) -> Consume | Get | MemberNotice:
    """What `consuming.pack_body` has packed, from another worker or node. Raises PeerError for anything else."""
    fields = Fields(verb.upper(), memoryview(body), ROWS_MAX)
    if verb == "get":
        return _get(fields)
    return _notice(fields) if fields.text("do") in _NOTICES else _consume(fields)


def _notice(fields: Fields) -> MemberNotice:
    return MemberNotice(
        do=_NOTICES[fields.text("do")],
        stream=fields.consumed_stream("stream"),
        name=consumer_name(fields.text("name").encode()),
        member=consumer_name(fields.text("member").encode()),
        idle_ms=fields.number("idle_ms"),
        session=fields.number("session"),
    )


def _get(fields: Fields) -> Get:
    ack, replicas = _level("GET", fields)
    return Get(
        id=fields.number("id", U32_MAX),
        stream=fields.consumed_stream("stream"),
        name=consumer_name(fields.text("name").encode()),
        member=consumer_name(fields.text("member").encode()),
        finished=_finished(fields) if "finished" in fields else (),
        failed=_failed(fields) if "failed" in fields else (),
        max_messages=fields.number("max_messages", MESSAGES_MAX),
        max_bytes=min(fields.number("max_bytes", default=GET_BYTES_MAX), GET_BYTES_MAX),
        wait_ms=fields.number("wait_ms", WAIT_MAX_MS, 0),
        fresh="fresh" in fields and fields.flag("fresh"),
        ack=ack,
        replicas=replicas,
        session=fields.number("session", default=0),
        delays=_delays(fields) if "delays" in fields else (),
    )


def _level(message: str, fields: Fields) -> tuple[int, int]:
    """What must be true of the outcome before it is answered: ack and replicas."""
    ack = fields.number("ack", ACK_REPLICATED, ACK_APPENDED)
    replicas = fields.number("replicas", REPLICAS_MAX, 0)
    if ack < ACK_APPENDED or (replicas > 0) != (ack == ACK_REPLICATED):
        text = f"ack {ack} with {replicas} replicas; ack is {ACK_APPENDED} to {ACK_REPLICATED}, and replicas go with"
        raise _wrong(message, f"{text} {ACK_REPLICATED} and no other")
    return ack, replicas


def _finished(fields: Fields) -> tuple[FinishedRow, ...]:
    rows = fields.rows("finished", (int, int, int))
    if len(rows) > FINISHED_MAX:
        raise _wrong("GET", f"{len(rows)} finished ranges; at most {FINISHED_MAX} are allowed")
    for first, last, epoch in rows:
        if not 0 <= first <= last <= NUMBER_MAX:
            raise _wrong("GET", f"{first} to {last} is not a range of seqs")
        _require_epoch(epoch)
    return cast(tuple[FinishedRow, ...], rows)


def _failed(fields: Fields) -> tuple[FailedRow, ...]:
    rows = fields.rows("failed", (int, int, str))
    if len(rows) > FAILED_MAX:
        raise _wrong("GET", f"{len(rows)} failed messages; at most {FAILED_MAX} are allowed")
    for seq, epoch, reason in rows:
        if not 0 <= seq <= NUMBER_MAX:
            raise _wrong("GET", f"{seq} is not the seq of a failed message")
        _require_epoch(epoch)
        if len(reason.encode()) > REASON_BYTES_MAX:
            raise _wrong("GET", f"the reason why {seq} has failed is longer than {REASON_BYTES_MAX} bytes")
    return cast(tuple[FailedRow, ...], rows)


def _delays(fields: Fields) -> tuple[DelayRow, ...]:
    rows = fields.rows("delays", (int, int, int))
    if len(rows) > FAILED_MAX:
        raise _wrong("GET", f"{len(rows)} delays; at most {FAILED_MAX} are allowed")
    for seq, epoch, delay_ms in rows:
        _require_epoch(epoch)
        if not (0 <= seq <= NUMBER_MAX and 0 <= delay_ms <= DELAY_MAX_MS):
            raise _wrong("GET", f"{delay_ms} ms for seq {seq} is not a delay: 0 to {DELAY_MAX_MS} ms")
    return cast(tuple[DelayRow, ...], rows)


def _require_epoch(epoch: int) -> None:
    if not 0 < epoch <= EPOCH_MAX:
        raise _wrong("GET", f"{epoch} is not an epoch: take it from the message's frame")


# --- from broker to client ------------------------------------------------------------------------------------------


def _consumed(fields: Fields) -> Consumed:
    return Consumed(
        id=fields.number("id", U32_MAX),
        next_seq=fields.number("next_seq") if "next_seq" in fields else None,
        created=fields.flag("created") if "created" in fields else None,
        existed=fields.flag("existed") if "existed" in fields else None,
        consumers=tuple([_standing(row) for row in fields.maps("consumers")]) if "consumers" in fields else None,
        count=fields.number("count") if "count" in fields else None,
        removed=_ranges(fields) if "removed" in fields else None,
    )


def _ranges(fields: Fields) -> tuple[MessageRange, ...]:
    return cast(tuple[MessageRange, ...], fields.rows("removed", (int, int)))


def _standing(row: Fields) -> Standing:
    return Standing(
        name=consumer_name(row.text("name").encode()),
        next_seq=row.number("next_seq"),
        lag_messages=row.number("lag_messages"),
        lag_us=row.number("lag_us") if "lag_us" in row else None,
        in_flight=row.number("in_flight"),
        members=row.number("members"),
        redelivered=row.number("redelivered"),
        dead=row.number("dead"),
        idle_us=row.number("idle_us"),
        ack_wait_s=row.seconds("ack_wait_s", ACK_WAIT_MAX_S),
        deliveries_max=row.number("deliveries_max", DELIVERIES_MAX),
        retry_s=row.seconds("retry_s", ACK_WAIT_MAX_S, may_be_0=True),
        retry_max_s=row.seconds("retry_max_s", ACK_WAIT_MAX_S, may_be_0=True),
        topics=_filter(row),
        lag_at_most="lag_at_most" in row and row.flag("lag_at_most"),
    )


def read_got(body: memoryview) -> Got:
    """A GOT; its frames are a part of `body`, and nobody has looked at them."""
    if len(body) < GOT_HEAD.size:
        raise _wrong("GOT", f"a body of {len(body)} bytes; it has at least {GOT_HEAD.size}", Code.PROTOCOL)
    request, runs_count, stale_count, trimmed = GOT_HEAD.unpack_from(body)
    runs_end = GOT_HEAD.size + runs_count * GOT_RUN.size
    stale_end = runs_end + stale_count * GOT_RANGE.size
    if len(body) < stale_end:
        text = f"a body of {len(body)} bytes; {runs_count} runs and {stale_count} ranges take {stale_end}"
        raise _wrong("GOT", text, Code.PROTOCOL)
    runs = tuple(GOT_RUN.iter_unpack(body[GOT_HEAD.size : runs_end]))
    stale = tuple(GOT_RANGE.iter_unpack(body[runs_end:stale_end]))
    frames = body[stale_end:]
    _check_runs(runs, len(frames))
    return Got(request, runs, stale, trimmed, frames)


def _check_runs(runs: tuple[Any, ...], frames_bytes: int) -> None:
    messages = sum(run[1] for run in runs)
    if not all(run[1] for run in runs) or (not messages and frames_bytes) or messages * HEADER_BYTES > frames_bytes:
        raise _wrong("GOT", f"{frames_bytes} bytes of frames for {messages} messages in its runs", Code.PROTOCOL)


def _wrong(message: str, problem: str, code: Code = Code.USAGE) -> PeerError:
    return PeerError(code, f"{message}: {problem}")


READERS: Final = FeatureReaders(
    requests={Op.CONSUME: _consume, Op.GET: _get},
    responses={Op.CONSUMED: _consumed},
    request_elements_max=ROWS_MAX,
    response_elements_max=CONSUMERS_MAX,
    fixed_responses={Op.GOT: read_got},
)
