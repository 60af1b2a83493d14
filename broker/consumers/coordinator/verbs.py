"""The owner's verbs "consume" and "get", answered when their outcome is logged.

On a node that is not the stream's master they go on to its master (`OwnerContext.call_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tailrace.broker.consumers.coordinator import redrive
from tailrace.broker.consumers.coordinator.coordinator import DISABLED_TEXT, Coordinator
from tailrace.broker.consumers.coordinator.cursor_log import log_name
from tailrace.broker.consumers.coordinator.waiting_gets import WaitingGet
from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.decide import ConsumerStatus, Decision
from tailrace.broker.routing.batch import LoggedAnswer
from tailrace.broker.streams.owner import REPLICAS_FULL_TEXT
from tailrace.broker.streams.owner_calls import locate, refusals
from tailrace.broker.streams.refused import CallArgs, OnResult, Refused
from tailrace.protocol.consuming import ACK_SYNCED, Consume, Get, MemberNotice
from tailrace.protocol.errors import Code
from tailrace.protocol.places import FROM_NEW
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role
from tailrace.shard.names import is_reserved

MICROSECONDS: Final = 1_000_000
READING_WAIT_S: Final = 5.0
"""How long a get that is not to wait for messages may wait until its consumer's filter has seen those there are."""
SLACK_US: Final = 1_000_000
"""By how much a member's get may be younger than its connection knows: it waits for its turn in two busy workers.

Taken for too much, a member that came back within it is away until its next get. Taken for too little, one that is gone
keeps what it has for the whole of its time.
"""


def get(desk: Coordinator, args: CallArgs, done: OnResult) -> None:
    """[stream, Get]. `done` gets the value, {runs, stale, trimmed}, or Refused."""
    try:
        with refusals("get"):
            _get(desk, args, done)
    except Refused as refused:
        done(refused)


def consume(desk: Coordinator, args: CallArgs, done: OnResult) -> None:
    """[stream, Consume or MemberNotice]. `done` gets the value or Refused."""
    try:
        with refusals("consume"):
            request = args[1]
            if request.do == "drop":
                desk.owner.context.delete(request.stream, done)
                return
            if not _is_here(desk, request.stream, "consume", args, done):
                return
            if isinstance(request, MemberNotice):
                _NOTICES[request.do](desk, request, done)
            else:
                if request.replicas:
                    _require_room(desk, request.stream)
                _DEEDS[request.do](desk, request, done)
    except Refused as refused:
        done(refused)


def _get(desk: Coordinator, args: CallArgs, done: OnResult) -> None:
    wanted: Get = args[1]
    name, sync, replicas = wanted.stream, wanted.ack == ACK_SYNCED, wanted.replicas
    if not _is_here(desk, name, "get", args, done):
        return
    if replicas:
        _require_room(desk, name)
    book = desk.book(name)
    older = desk.waiters.take(name, wanted.name, wanted.member)
    if older is not None:
        desk.answer_empty(older)
    log_view, now_us = book.current(), desk.owner.clock_us()
    decision = desk.decided(book, lambda: decide.get(book.consumers, wanted, log_view, now_us))
    given = decision.value
    if given.runs or not wanted.max_messages or not desk.patient or not (wanted.wait_ms or book.is_short(wanted.name)):
        desk.stage(book, decision, LoggedAnswer(done, given.to_wire()), [wanted.name], sync=sync, replicas=replicas)
        return
    desk.stage(book, decision, None, [wanted.name], sync=sync, replicas=replicas)
    wait_s = wanted.wait_ms / 1000 or READING_WAIT_S
    desk.waiters.add(WaitingGet(wanted, given, done, desk.clock() + wait_s, now_us))
    if book.is_short(wanted.name):
        desk.read_on(name, wanted.name)


def _is_here(desk: Coordinator, name: bytes, verb: str, args: CallArgs, done: OnResult) -> bool:
    """Whether this node decides; if its master does, the request is sent there. Raises Refused."""
    owner = desk.owner
    stream = owner.catalog.open.get(name)
    if stream is not None and stream.epoch and not is_reserved(name):
        return True  # as nearly always
    if is_reserved(name):
        raise Refused(Code.USAGE, "a stream of the broker's own has no consumers")
    role = owner.roles.role(name)
    if role is Role.SLAVE:  # also where the rules let it follow, and nothing of it is here yet
        owner.context.call_up(name, verb, args, done)
    elif name not in owner.catalog.names:
        raise owner.unknown(name)
    elif role is Role.DISABLED:
        raise Refused(Code.DISABLED, DISABLED_TEXT)
    return role is Role.MASTER


def _require_room(desk: Coordinator, name: bytes) -> None:
    """Raises Refused where too much waits for other nodes already."""
    if desk.owner.replicas.full(log_name(name)):
        raise Refused(Code.OVERLOADED, REPLICAS_FULL_TEXT)


# --- what "consume" does --------------------------------------------------------------------------------------------


def _create(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    book = desk.book(deed.stream)
    seq, log_view, now_us = _place(desk, deed), book.current(), desk.owner.clock_us()
    retry = _microseconds(deed.retry_s), _microseconds(deed.retry_max_s)
    settings = _microseconds(deed.ack_wait_s), deed.deliveries_max, *retry, deed.topics or None
    decision = desk.decided(book, lambda: decide.create(book.consumers, deed.name, seq, log_view, now_us, *settings))
    _say(desk, deed, decision, {"next_seq": decision.value.next_seq, "created": decision.value.created}, done)


def _reset(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    book = desk.book(deed.stream)
    seq, log_view, now_us = _place(desk, deed), book.current(), desk.owner.clock_us()
    decision = desk.decided(book, lambda: decide.reset(book.consumers, deed.name, seq, log_view, now_us))
    _say(desk, deed, decision, {"next_seq": decision.value.next_seq}, done)


def _delete(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    book = desk.book(deed.stream)
    decision = desk.decided(book, lambda: decide.delete(book.consumers, deed.name))
    _say(desk, deed, decision, {"existed": decision.value}, done)


def _leave(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    """The member has ended in order; others may have its messages."""
    _end_wait(desk, deed)
    book = desk.book(deed.stream)
    decision = desk.decided(book, lambda: decide.leave(book.consumers, deed.name, deed.member))
    _say(desk, deed, decision, {}, done)


def _say(desk: Coordinator, deed: Consume, decision: Decision[Any], value: dict[str, Any], done: OnResult) -> None:
    book = desk.book(deed.stream)
    desk.stage(
        book, decision, LoggedAnswer(done, value), [deed.name], sync=deed.ack == ACK_SYNCED, replicas=deed.replicas
    )


def _place(desk: Coordinator, deed: Consume) -> int:
    return locate(desk.owner.stream(deed.stream), list(deed.start or FROM_NEW))


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * MICROSECONDS)


def _list(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    book = desk.book(deed.stream)
    log_view, now_us = book.current(), desk.owner.clock_us()
    rows = desk.decided(book, lambda: Decision((), decide.listing(book.consumers, log_view, now_us))).value
    done({"consumers": [_row(each, log_view.log, now_us) for each in rows]})
    desk.lags.count(deed.stream, [each.name for each in rows if each.lag_at_most], log_view.next_seq)


def _row(listed: ConsumerStatus, stream_log: StreamLog, now_us: int) -> dict[str, Any]:
    row = listed._asdict()
    for setting in ("ack_wait", "retry", "retry_max"):
        row[f"{setting}_s"] = row.pop(f"{setting}_us") / MICROSECONDS
    for newer in ("topics", "lag_at_most"):
        if not row[newer]:
            del row[newer]  # a slave of an earlier release does not know it
    if listed.lag_messages and stream_log.first_seq <= listed.next_seq < stream_log.next_seq:
        row["lag_us"] = max(now_us - stream_log.entry(listed.next_seq).timestamp_us, 0)
    return row


def _away(desk: Coordinator, notice: MemberNotice, done: OnResult) -> None:
    """The member's connection is gone, unless it has come back over another one before this arrived."""
    book = desk.known(notice.stream)
    consumer = book.consumers.by_name.get(notice.name) if book is not None else None
    member = consumer.members.get(notice.member) if consumer is not None else None
    if book is not None and member is not None:
        now_us = desk.owner.clock_us()
        came_back = notice.session not in (0, member.session) and member.session
        if not came_back and member.asked_us <= now_us - 1_000 * notice.idle_ms + SLACK_US:
            _end_wait(desk, notice)
            decide.away(book.consumers, notice.name, notice.member, now_us)
            desk.schedule(book)
    done({})


def _wake(desk: Coordinator, notice: MemberNotice, done: OnResult) -> None:
    _end_wait(desk, notice)
    done({})


def _quit(desk: Coordinator, notice: MemberNotice, done: OnResult) -> None:
    """The last session of a shared subscription has ended, as far as its node knows."""
    _end_wait(desk, notice)
    book = desk.book(notice.stream)
    consumer = book.consumers.by_name.get(notice.name)
    if consumer is None or consumer.members:
        done({})
        return
    decision = desk.decided(book, lambda: decide.delete(book.consumers, notice.name))
    desk.stage(book, decision, LoggedAnswer(done, {}), [notice.name])


def _end_wait(desk: Coordinator, of: Consume | MemberNotice) -> None:
    """Answer the member's waiting get now, if there is one."""
    waiter = desk.waiters.take(of.stream, of.name, of.member)
    if waiter is not None:
        desk.answer_empty(waiter)


_DEEDS: Final[Mapping[str, Callable[[Coordinator, Consume, OnResult], None]]] = {
    "create": _create,
    "reset": _reset,
    "delete": _delete,
    "leave": _leave,
    "list": _list,
    "letters": redrive.list_letters,
    "redrive": redrive.redrive,
    "purge": redrive.purge,
}
_NOTICES: Final[Mapping[str, Callable[[Coordinator, MemberNotice, OnResult], None]]] = {
    "away": _away,
    "wake": _wake,
    "quit": _quit,
}
