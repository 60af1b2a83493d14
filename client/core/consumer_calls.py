"""Calls about durable consumers: checked arguments in, requests out, and the broker's answers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from tailrace.core.arguments import checked_replicas, checked_stream
from tailrace.core.calls import PendingCall
from tailrace.core.consumer_state import ConsumerOptions
from tailrace.core.options import ClientOptions
from tailrace.core.places import StartPlace, start_of
from tailrace.core.subscribe_options import OnTrimmed, checked_filter
from tailrace.errors import InvalidArgument, NoSuchConsumer, UnknownStream
from tailrace.protocol.consuming import (
    ACK_WAIT_MAX_S,
    DELIVERIES_MAX,
    MESSAGES_MAX,
    RETRY_MAX_S,
    RETRY_S,
    Consume,
    Consumed,
    Standing,
)
from tailrace.protocol.errors import PeerError
from tailrace.protocol.features import CONSUMERS, FILTERS
from tailrace.protocol.messages import Ack
from tailrace.protocol.names import CONSUMER_BYTES_MAX, consumer_name

MEMBER_RANDOM_BYTES: Final = 6
SESSION_BYTES: Final = 7


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """The state of one durable consumer of a stream.

    next_seq: its first unacknowledged message; lag_messages, lag_s: the messages from there to the end of the stream,
    and the age of the first (None without any); in_flight: delivered and not acknowledged; redelivered: repeated
    deliveries; dead: dead letters; idle_s: since a member last asked; topics: its topic filter, "" for all topics;
    lag_at_most: the broker is still counting, and some of lag_messages may not match that filter.
    """

    name: str
    next_seq: int
    lag_messages: int
    lag_s: float | None
    in_flight: int
    members: int
    redelivered: int
    dead: int
    idle_s: float
    ack_wait_s: float
    deliveries_max: int
    retry_s: float = RETRY_S
    retry_max_s: float = RETRY_MAX_S
    topics: str = ""
    lag_at_most: bool = False


def consumer_options(
    stream: str,
    name: str,
    member: str | None,
    batch: int,
    ack_wait_s: float | None,
    linger_s: float,
    ack: Ack,
    replicas: int,
    on_trimmed: OnTrimmed,
    options: ClientOptions,
) -> ConsumerOptions:
    """Raises InvalidArgument, InvalidStreamName."""
    if on_trimmed not in ("raise", "skip"):
        raise InvalidArgument(f'on_trimmed is {on_trimmed!r}; it is "raise" or "skip"')
    if type(batch) is not int or not 1 <= batch <= MESSAGES_MAX:
        raise InvalidArgument(f"batch is {batch!r}; it is a number of messages from 1 to {MESSAGES_MAX:,}")
    if not linger_s >= 0:
        raise InvalidArgument(f"linger_s is {linger_s!r}; it is a number of seconds")
    ack, replicas = checked_level(ack, replicas)
    return ConsumerOptions(
        stream=checked_stream(stream),
        name=checked_name(name),
        member=new_member() if member is None else checked_name(member),
        batch=batch,
        ack_wait_s=ack_wait_s,
        linger_s=linger_s,
        ack=ack,
        replicas=replicas,
        raise_trimmed=on_trimmed == "raise",
        answer_s=options.timeout_s,
        patience_s=options.reconnect_s,
        session=int.from_bytes(os.urandom(SESSION_BYTES)) or 1,
    )


def create_call(
    stream: str,
    name: str,
    start: StartPlace,
    ack_wait_s: float | None,
    deliveries_max: int | None,
    ack: Ack,
    replicas: int,
    timeout_s: float,
    retry_s: float | None = None,
    retry_max_s: float | None = None,
    topics: str = "",
) -> PendingCall:
    """Raises InvalidArgument, InvalidStreamName."""
    if ack_wait_s is not None and not 0 < ack_wait_s <= ACK_WAIT_MAX_S:
        raise InvalidArgument(f"ack_wait_s is {ack_wait_s!r}; it is more than 0 s, and at most {ACK_WAIT_MAX_S:,} s")
    if deliveries_max is not None and not (type(deliveries_max) is int and 0 <= deliveries_max <= DELIVERIES_MAX):
        raise InvalidArgument(f"deliveries_max is {deliveries_max!r}; it is 0 (no end), or 1 to {DELIVERIES_MAX:,}")
    for what, wait_s in (("retry_s", retry_s), ("retry_max_s", retry_max_s)):
        if wait_s is not None and not 0 <= wait_s <= ACK_WAIT_MAX_S:
            raise InvalidArgument(f"{what} is {wait_s!r}; it is 0 to {ACK_WAIT_MAX_S:,} s")
    fields = {
        "start": start_of(start),
        "ack_wait_s": ack_wait_s,
        "deliveries_max": deliveries_max,
        "retry_s": retry_s,
        "retry_max_s": retry_max_s,
        "topics": checked_filter(topics).encode(),
    }
    feature = FILTERS if topics else CONSUMERS
    return _call("create", stream, name, timeout_s, fields, ack, replicas, feature)


def reset_call(stream: str, name: str, start: StartPlace, ack: Ack, replicas: int, timeout_s: float) -> PendingCall:
    """Raises InvalidArgument, InvalidStreamName."""
    return _call("reset", stream, name, timeout_s, {"start": start_of(start)}, ack, replicas)


def delete_call(stream: str, name: str, ack: Ack, replicas: int, timeout_s: float) -> PendingCall:
    """Raises InvalidArgument, InvalidStreamName."""
    return _call("delete", stream, name, timeout_s, {}, ack, replicas)


def drop_call(stream: str, timeout_s: float) -> PendingCall:
    """Deletes the stream. Raises InvalidArgument, InvalidStreamName."""
    return _call("drop", stream, None, timeout_s, {}, Ack.APPENDED, 0)


def require_dropped(call: PendingCall) -> None:
    """Raises the call's error. That the stream is unknown may be what its first, lost answer has done."""
    try:
        call.outcome()
    except UnknownStream:
        if not call.is_repeated:
            raise


def list_call(stream: str, timeout_s: float) -> PendingCall:
    """Raises InvalidArgument, InvalidStreamName."""
    return _call("list", stream, None, timeout_s, {}, Ack.APPENDED, 0)


def next_seq_of(call: PendingCall) -> int:
    """Returns the seq where the created or reset consumer begins. Raises the call's error."""
    answer: Consumed = call.outcome()
    return answer.next_seq or 0


def was_deleted(call: PendingCall) -> bool:
    """Returns whether the consumer existed. Raises the call's error."""
    try:
        answer: Consumed = call.outcome()
    except NoSuchConsumer:
        return call.is_repeated  # its first answer may be lost
    return bool(answer.existed) or call.is_repeated


def infos_of(call: PendingCall) -> list[ConsumerInfo]:
    """Returns the list. Raises the call's error."""
    answer: Consumed = call.outcome()
    return [_info(standing) for standing in answer.consumers or ()]


def checked_name(name: object) -> str:
    """The name of a consumer or a member itself. Raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{name!r} is not the name of a consumer: it is a str, not {type(name).__name__}")
    try:
        return consumer_name(name.encode()).decode()
    except PeerError as error:
        raise InvalidArgument(error.text) from None
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name!r} is not the name of a consumer: it has no UTF-8 form") from None


def new_member() -> str:
    """A unique member name that shows a person its origin."""
    suffix = f".{os.getpid()}.{os.urandom(MEMBER_RANDOM_BYTES).hex()}"
    host = "".join(each for each in os.uname().nodename if each.isascii() and (each.isalnum() or each in "-."))
    return host[: CONSUMER_BYTES_MAX - len(suffix)] + suffix


def _call(
    do: Any,
    stream: str,
    name: str | None,
    timeout_s: float,
    fields: dict[str, Any],
    ack: Ack,
    replicas: int,
    feature: str = CONSUMERS,
) -> PendingCall:
    encoded = b"" if name is None else checked_name(name).encode()
    where = checked_stream(stream).encode()
    ack, replicas = checked_level(ack, replicas)

    def make(number: int) -> Consume:
        return Consume(number, do, where, encoded, ack=ack, replicas=replicas, **fields)

    whose = "its consumers" if name is None else name
    return PendingCall(stream, f"{do} of {whose}", make, timeout_s=timeout_s, feature=feature)


def checked_level(ack: Ack, replicas: int) -> tuple[Ack, int]:
    """Returns ack and replicas for a change. Raises InvalidArgument."""
    if Ack(ack) is Ack.NONE:
        raise InvalidArgument("a consumer's requests are always answered: ack is Ack.APPENDED, SYNCED or REPLICATED")
    return Ack(ack), checked_replicas(ack, replicas)


def _info(standing: Standing) -> ConsumerInfo:
    return ConsumerInfo(
        name=standing.name.decode(),
        next_seq=standing.next_seq,
        lag_messages=standing.lag_messages,
        lag_s=None if standing.lag_us is None else standing.lag_us / 1e6,
        in_flight=standing.in_flight,
        members=standing.members,
        redelivered=standing.redelivered,
        dead=standing.dead,
        idle_s=standing.idle_us / 1e6,
        ack_wait_s=standing.ack_wait_s,
        deliveries_max=standing.deliveries_max,
        retry_s=standing.retry_s,
        retry_max_s=standing.retry_max_s,
        topics=standing.topics.decode(),
        lag_at_most=standing.lag_at_most,
    )
