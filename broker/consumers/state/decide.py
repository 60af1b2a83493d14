"""The owner's decision about each request of a consumer. Pure: the time and the stream come in, records go out.

Each function applies the records that it returns, so `Decision.value` is the present state at once. The caller

1. appends `records`, in their order, to `$cursor/X` (it is empty if nothing has changed), and answers when they are
   logged as was asked for;
2. publishes each letter of `dead` to X/$dead (`DeadLetter.producer_id`, number 0), after the records are appended, and
   then calls `bury`; `ConsumerTable.unburied` has those that are left, also after a load. A letter that cannot be
   published now may be tried again at any time; one whose message is not kept any more is buried without;
3. throws the state away and loads it anew when the append fails, or when anything but Refused is raised here.

Refused is raised before anything was changed. After a load, after the stream's role or term has changed, and before its
first new message is appended, call `rewind`.
"""

from __future__ import annotations

from typing import Final

from tailrace.broker.consumers.state.consumer import DurableConsumer
from tailrace.broker.consumers.state.decide_get import get, on_line, present, rewind, since
from tailrace.broker.consumers.state.group import ConsumedStream, followers
from tailrace.broker.consumers.state.ranges import SeqRange, flat
from tailrace.broker.consumers.state.records import (
    ConsumerCreated,
    ConsumerDeleted,
    ConsumerReset,
    FlightReturned,
    LetterPublished,
    Record,
)
from tailrace.broker.consumers.state.requests import (
    ConsumeResult,
    ConsumerStatus,
    Decision,
    GetResult,
    find,
    require_filter,
    require_name,
    require_seq,
    require_settings,
)
from tailrace.broker.consumers.state.stream_state import ConsumerTable, DeadLetter
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import ACK_WAIT_S, CONSUMERS_MAX, DELIVERIES, RETRY_MAX_S, RETRY_S
from tailrace.protocol.errors import Code
from tailrace.protocol.names import shown

__all__ = [
    "ConsumeResult",
    "ConsumedStream",
    "ConsumerStatus",
    "Decision",
    "GetResult",
    "away",
    "bury",
    "create",
    "delete",
    "expire",
    "get",
    "leave",
    "listing",
    "next_deadline_us",
    "reset",
    "rewind",
]

DEFAULTS: Final = (int(ACK_WAIT_S * 1e6), DELIVERIES, int(RETRY_S * 1e6), int(RETRY_MAX_S * 1e6))
"""Settings of a consumer that was made without them: ack_wait_us, deliveries_max, retry_us, retry_max_us."""
GRACE_US: Final = 5_000_000
"""What a member that went away has in flight is its own for so long."""
EXPIRED_MAX: Final = 256
"""Consumers that one call of `expire` looks at."""
LATE: Final = "its deadline has passed"
LEFT: Final = "its member has left"


def create(
    consumers: ConsumerTable,
    name: bytes,
    seq: int,
    log_view: ConsumedStream,
    now_us: int,
    ack_wait_us: int | None = None,
    deliveries_max: int | None = None,
    retry_us: int | None = None,
    retry_max_us: int | None = None,
    topics: bytes | None = None,
) -> Decision[ConsumeResult]:
    """Make a consumer whose first message is `seq`, or the nearest there is or will be. `topics`: its filter.

    If it exists with these settings (None: any), that is fine. A new one has the broker's defaults for None.

    Raises Refused: USAGE for an invalid name or settings, or if it exists with others; OVERLOADED at CONSUMERS_MAX.
    """
    require_name(name, "consumer")
    require_seq(seq)
    require_settings(ack_wait_us, deliveries_max, retry_us, retry_max_us)
    require_filter(topics)
    wanted = (ack_wait_us, deliveries_max, retry_us, retry_max_us)
    there = consumers.by_name.get(name)
    if there is not None:
        _require_same(there, wanted)
        _require_same_filter(there, topics)
        return Decision((), ConsumeResult(there.floor_seq))
    if len(consumers.by_name) >= CONSUMERS_MAX:
        raise Refused(Code.OVERLOADED, f"this stream has {CONSUMERS_MAX} consumers, which is the most; delete some")
    wait_us, most, first_us, longest_us = (
        default if given is None else given for given, default in zip(wanted, DEFAULTS, strict=True)
    )
    if retry_max_us is None:
        longest_us = max(first_us, longest_us)
    parted = on_line(consumers, log_view) if log_view.history != consumers.history else ()
    retries = min(first_us, longest_us), longest_us
    created = ConsumerCreated(name, now_us, _nearest(seq, log_view), wait_us, most, *retries, topics or b"")
    return Decision((*parted, *_apply(consumers, created)), ConsumeResult(created.seq, True))


def reset(
    consumers: ConsumerTable, name: bytes, seq: int, log_view: ConsumedStream, now_us: int
) -> Decision[ConsumeResult]:
    """Go on at `seq`, or the nearest there is; messages in flight become nobody's. Raises Refused: CONSUMER, USAGE."""
    require_seq(seq)
    find(consumers, name)
    parted = on_line(consumers, log_view) if log_view.history != consumers.history else ()
    done = ConsumerReset(name, now_us, _nearest(seq, log_view))
    return Decision((*parted, *_apply(consumers, done)), ConsumeResult(done.seq))


def delete(consumers: ConsumerTable, name: bytes) -> Decision[bool]:
    """Whether it existed."""
    if name not in consumers.by_name:
        return Decision((), False)
    return Decision(_apply(consumers, ConsumerDeleted(name)), True)


def listing(consumers: ConsumerTable, log_view: ConsumedStream, now_us: int) -> list[ConsumerStatus]:
    """All consumers, by name."""
    return [_listed(consumer, log_view, now_us) for _name, consumer in sorted(consumers.by_name.items())]


def away(consumers: ConsumerTable, name: bytes, member: bytes, now_us: int) -> None:
    """The member's connection is gone. Its messages in flight are returned after GRACE_US unless it comes back.

    Makes no record: `expire` makes one later. `next_deadline_us` may be earlier now. Does nothing for unknown ones.
    The caller does not call this if the member has a newer connection already.
    """
    consumer = consumers.by_name.get(name)
    left = consumer.members.get(member) if consumer is not None else None
    if consumer is None or left is None:
        return
    if left.in_flight:
        left.leaving_us = now_us + GRACE_US
        consumers.alarm(consumer, left.leaving_us)
    else:
        del consumer.members[member]


def leave(consumers: ConsumerTable, name: bytes, member: bytes) -> Decision[None]:
    """The member has ended in order: its messages in flight wait again at once, as if they had not been delivered.

    No records if it has none in flight, or is unknown. Raises Refused: CONSUMER, USAGE.
    """
    consumer = find(consumers, name)
    require_name(member, "member")
    has = [(run.first, run.last) for run in consumer.flight if run.member == member]
    records = _apply(consumers, FlightReturned(name, member, LEFT, (), flat(has))) if has else ()
    consumer.members.pop(member, None)
    return Decision(records, None)


def expire(consumers: ConsumerTable, log_view: ConsumedStream, now_us: int) -> Decision[frozenset[bytes]]:
    """Return the messages that were in flight for too long, or whose member is gone.

    The value: the consumers that have something again, those included whose failed messages have waited long enough.

    At most EXPIRED_MAX consumers: call it again when `next_deadline_us` is still past.
    """
    records: list[Record] = []
    dead: list[DeadLetter] = []
    due: set[bytes] = set()
    for _ in range(EXPIRED_MAX):
        consumer = consumers.take_alarm(now_us)
        if consumer is None:
            break
        letters = consumer.dead
        left = {name for name, member in consumer.members.items() if 0 < member.leaving_us <= now_us}
        for member, late in _late(consumer, left, now_us).items():
            reason, time_us = (LEFT, 0) if member in left else (LATE, now_us)
            records.append(_return(consumers, consumer, member, late, log_view, reason, time_us))
        for member in left:
            consumer.members.pop(member, None)
        dead += since(consumer, letters)
        consumer.wake(now_us)
        due.add(consumer.name)
        _set_alarm(consumers, consumer)
    return Decision(tuple(records), frozenset(due), tuple(dead))


def next_deadline_us(consumers: ConsumerTable) -> int | None:
    """When to call `expire`; None for never, as things are."""
    return consumers.next_alarm_us()


def bury(consumers: ConsumerTable, letter: DeadLetter) -> Decision[None]:
    """The letter is in X/$dead. No records if that was known."""
    consumer = consumers.by_name.get(letter.consumer)
    if consumer is None or consumer.dying.get(letter.number) != letter:
        return Decision((), None)
    return Decision(_apply(consumers, LetterPublished(letter.consumer, letter.number)), None)


def _require_same(consumer: DurableConsumer, wanted: tuple[int | None, ...]) -> None:
    own = (consumer.ack_wait_us, consumer.deliveries_max, consumer.retry_us, consumer.retry_max_us)
    if all(each in (None, value) for each, value in zip(wanted, own, strict=True)):
        return
    has = (
        f"ack_wait_s {own[0] / 1e6:g}, deliveries_max {own[1]}, retry_s {own[2] / 1e6:g}, retry_max_s {own[3] / 1e6:g}"
    )
    raise Refused(Code.USAGE, f"the consumer {shown(consumer.name)} is there with {has}: delete it, or ask for these")


def _require_same_filter(consumer: DurableConsumer, topics: bytes | None) -> None:
    if topics in (None, consumer.topics):
        return
    has = f"with the topic filter {shown(consumer.topics)}" if consumer.topics else "without a topic filter"
    raise Refused(Code.USAGE, f"the consumer {shown(consumer.name)} is there {has}: delete it, or ask for this one")


def _nearest(seq: int, log_view: ConsumedStream) -> int:
    return min(max(seq, log_view.first_seq), log_view.next_seq)


def _apply(consumers: ConsumerTable, record: Record) -> tuple[Record]:
    consumers.apply(record)
    return (record,)


def _listed(consumer: DurableConsumer, log_view: ConsumedStream, now_us: int) -> ConsumerStatus:
    members = present(consumer, now_us)
    latest = next(reversed(consumer.members.values())).seen_us if members else 0
    return ConsumerStatus(
        consumer.name,
        consumer.floor_seq,
        consumer.lag_messages(log_view.next_seq),
        consumer.flight.count,
        members,
        consumer.redelivered,
        consumer.dead,
        max(0, now_us - max(consumer.last_us, latest)),
        consumer.ack_wait_us,
        consumer.deliveries_max,
        consumer.retry_us,
        consumer.retry_max_us,
        consumer.topics,
        not consumer.is_counted(log_view.next_seq),
    )


def _late(consumer: DurableConsumer, left: set[bytes], now_us: int) -> dict[bytes, list[SeqRange]]:
    """The messages to be returned, of each member."""
    late: dict[bytes, list[SeqRange]] = {}
    for run in consumer.flight:
        if run.deadline_us <= now_us or run.member in left:
            late.setdefault(run.member, []).append((run.first, run.last))
    return late


def _return(
    consumers: ConsumerTable,
    consumer: DurableConsumer,
    member: bytes,
    late: list[SeqRange],
    log_view: ConsumedStream,
    reason: str,
    time_us: int,
) -> FlightReturned:
    consumer.fail(late, reason, consumers.history, time_us)
    back = followers(consumer, member, late, log_view)
    consumer.back(back)
    return FlightReturned(consumer.name, member, reason, flat(late), flat(back), time_us)


def _set_alarm(consumers: ConsumerTable, consumer: DurableConsumer) -> None:
    times = [run.deadline_us for run in consumer.flight]
    if (due_us := consumer.delayed.next_due_us()) is not None:
        times.append(due_us)
    times += [member.leaving_us for member in consumer.members.values() if member.leaving_us]
    if times:
        consumers.alarm(consumer, min(times))
