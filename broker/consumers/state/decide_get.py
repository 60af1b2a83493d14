"""One get: the messages that its member has finished, that have failed, and that it is given. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from tailrace.broker.consumers.state.consumer import DeadLetter, DurableConsumer, Member
from tailrace.broker.consumers.state.epoch_ranges import seqs_of_epoch, spans
from tailrace.broker.consumers.state.group import WINDOW, Candidate, ConsumedStream, again, choose, followers, own
from tailrace.broker.consumers.state.ranges import SeqRange, flat, merged, unflat
from tailrace.broker.consumers.state.records import HistoryChanged, Progress, Record
from tailrace.broker.consumers.state.requests import (
    Decision,
    GetResult,
    failed_of,
    find,
    finished_of,
)
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import DeliveredRun, FailedRow, FinishedRow, Get
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import NEVER_SEQ

TOUCH_US: Final = 60_000_000
"""A get that changes nothing is logged nevertheless where the last record of its consumer is older."""
MEMBERS_MAX: Final = 1_000
"""Of one consumer."""
PRESENT_US: Final = 120_000_000
"""A member without a get for so long, and with nothing in flight, is none any more: twice the longest wait."""
WAITING_RUNS_MAX: Final = 65_536
"""While so many runs of a consumer wait, nothing that it was not given is taken for finished."""
BEGUN_ANEW: Final = "its member has begun anew"
AT_ONCE: Final = 1
PASSED_MAX: Final = 4_096
"""Messages that a filter has passed over are logged with the next one that is given, or once there are so many."""
UNSURE_LOOKS_MAX: Final = 8
"""Pieces of a stream that are read for acknowledgements of messages given by an owner whose records are lost."""
"""As one of `Progress.delays`."""

FailedRecord: TypeAlias = tuple[int, int, str, int]
"""As a row of `Progress.failed`, and its delay."""


def get(
    consumers: ConsumerTable, wanted: Get, log_view: ConsumedStream, now_us: int, asked_us: int = 0
) -> Decision[GetResult]:
    """Finish and fail the messages that the member names, then give it messages.

    If it has some in flight and does not ask for fresh ones, it gets those again and no others. If it is another
    program than had them, under the same name, that one has failed with all of them. With nothing to give, the answer
    has no runs: waiting is the caller's task, who asks again, without `finished` and `failed`, when messages were
    appended, or when a decision about the same consumer had records. `asked_us`: when `wanted` came, 0 for now.

    Raises Refused: CONSUMER no such consumer; OVERLOADED at MEMBERS_MAX.
    """
    consumer = find(consumers, wanted.name)
    finished, failed = finished_of(wanted.finished), failed_of(wanted.failed)
    anew = _welcome(consumer, wanted, now_us, asked_us)
    records: list[Record] = []
    if log_view.history != consumers.history or consumer.next_seq > log_view.next_seq:
        records += on_line(consumers, log_view)
    letters = consumer.dead
    progress = Progress(wanted.name, wanted.member, now_us)
    stale: list[SeqRange] = []
    if finished or failed or anew:
        if consumer.topics and finished:
            _look_to_unsure(consumer, finished, log_view)
        done = merged(_done(consumers, consumer, wanted.member, finished, log_view, stale))
        if consumer.topics and done:
            done = merged([*done, *consumer.look_ahead().between(consumer.next_seq, done[-1][1] + 1)])
        consumer.finish(done)
        rows = _failed(consumers, consumer, wanted, failed, log_view, stale) if failed else []
        progress = progress._replace(finished=flat(done))
        if rows or anew:
            progress = _fail(consumers, consumer, progress, rows, anew, log_view)
    pieces: list[Candidate] = []
    trimmed = 0
    if wanted.max_messages:
        progress, trimmed = _kept(consumer, progress, wanted.fresh, log_view)
        progress, pieces = _given(consumer, progress, wanted, log_view, now_us)
    if _has_content(progress) or now_us - consumer.last_us >= TOUCH_US:
        consumer.last_us = now_us
        records.append(progress)
        if progress.given:
            consumers.give(consumer, progress)
    runs = (*_runs(consumers, pieces),)
    return Decision(
        tuple(records), GetResult(runs, tuple(merged(stale)) if stale else (), trimmed), since(consumer, letters)
    )


def rewind(consumers: ConsumerTable, log_view: ConsumedStream) -> Decision[int]:
    """Go back to where stream X has other messages, or none, than the consumers were given; how many went back.

    Each decision that reads the stream does this where the history is another than the last time. That the stream has
    lost its end without a new term shows only before it has grown again: so this is to be called after each load.
    """
    before = {name: consumer.next_seq for name, consumer in consumers.by_name.items()}
    ahead = any(seq > log_view.next_seq for seq in before.values())
    if not before or not (ahead or log_view.history != consumers.history):
        return Decision((), 0)
    records = on_line(consumers, log_view)
    return Decision(records, sum(each.next_seq < before[name] for name, each in consumers.by_name.items()))


def on_line(consumers: ConsumerTable, log_view: ConsumedStream) -> tuple[HistoryChanged]:
    """All consumers are on the stream's present line of messages."""
    line = HistoryChanged(log_view.history, log_view.next_seq)
    consumers.apply(line)
    return (line,)


def present(consumer: DurableConsumer, now_us: int) -> int:
    """How many members it has; those that are gone are dropped, unless they had messages in flight a moment ago."""
    members = consumer.members
    while members:
        name, oldest = next(iter(members.items()))
        if oldest.in_flight or oldest.seen_us + PRESENT_US >= now_us:
            break
        del members[name]
    return len(members)


def _welcome(consumer: DurableConsumer, wanted: Get, now_us: int, asked_us: int) -> bool:
    """The member is there; whether as another program than before. One that wants no messages does not become one."""
    count = present(consumer, now_us)
    member = consumer.members.get(wanted.member)
    if member is None:
        if not wanted.max_messages:
            return False
        if count >= MEMBERS_MAX:
            raise Refused(Code.OVERLOADED, f"this consumer has {count} members; at most {MEMBERS_MAX}")
        member = consumer.members[wanted.member] = Member()
    anew = False
    if wanted.max_messages and wanted.session:  # a request without new messages may come from a replaced one
        anew = member.session not in (0, wanted.session) and member.in_flight > 0
        member.session = wanted.session
    member.seen_us, member.leaving_us = max(now_us, 1), 0
    member.asked_us = asked_us or member.seen_us
    consumer.members.move_to_end(wanted.member)
    return anew


def _done(
    consumers: ConsumerTable,
    consumer: DurableConsumer,
    member: bytes,
    finished: Iterable[FinishedRow],
    log_view: ConsumedStream,
    stale: list[SeqRange],
) -> Iterator[SeqRange]:
    """The part of these ranges that this finishes: of this line, and in flight at the member, or at nobody.

    Of messages that nobody was given, as far as is known, those are taken that an owner of an earlier term may have
    given; the others can only be meant as messages that this line has lost.
    """
    end_seq = _end_of_given(consumer, log_view)
    for first, last, epoch in finished:
        own_first, own_last = seqs_of_epoch(consumers.history, epoch)
        if first < own_first:
            stale.append((first, min(last, own_first - 1)))
        own_last = min(own_last, end_seq - 1)
        if last > own_last:
            stale.append((max(first, own_last + 1), last))
        yield from _landed(consumer, member, max(first, own_first), min(last, own_last), stale)


def _end_of_given(consumer: DurableConsumer, log_view: ConsumedStream) -> int:
    """The first message that no member was given, as far as is known."""
    if len(consumer.waiting) + len(consumer.delayed.runs) >= WAITING_RUNS_MAX:
        return consumer.next_seq
    end_seq = min(consumer.unsure_seq, log_view.next_seq)
    if consumer.topics:
        end_seq = min(end_seq, consumer.look_ahead().end_seq)
    return max(consumer.next_seq, end_seq)


def _look_to_unsure(consumer: DurableConsumer, finished: Iterable[FinishedRow], log_view: ConsumedStream) -> None:
    """Know what matches before the last of these messages, if an owner whose records are lost may have given it."""
    ahead = consumer.look_ahead()
    end_seq = min(max(last for _first, last, _epoch in finished) + 1, consumer.unsure_seq, log_view.next_seq)
    for _ in range(UNSURE_LOOKS_MAX):
        if ahead.end_seq >= end_seq:
            return
        ahead.look(log_view, consumer.topics, NEVER_SEQ)


def _landed(
    consumer: DurableConsumer, member: bytes, first: int, last: int, stale: list[SeqRange]
) -> Iterator[SeqRange]:
    """As `_done`, of messages of this line that somebody was given."""
    if first > last:
        return
    for run in consumer.flight.overlap(first, last):
        if run.member == member:
            yield run.first, run.last
        else:
            stale.append((run.first, run.last))
    for run in consumer.unheld(first, last):
        yield run.first, run.last
    if last >= consumer.next_seq:
        yield max(first, consumer.next_seq), last


def _failed(
    consumers: ConsumerTable,
    consumer: DurableConsumer,
    wanted: Get,
    failed: Iterable[FailedRow],
    log_view: ConsumedStream,
    stale: list[SeqRange],
) -> list[FailedRecord]:
    """Those of these that are in flight at the member, in rows with one reason and one delay each."""
    delays = {(seq, epoch): 1_000 * delay_ms + 1 for seq, epoch, delay_ms in wanted.delays}
    rows: list[FailedRecord] = []
    end_seq = _end_of_given(consumer, log_view)
    for seq, epoch, reason in failed:
        delay = delays.get((seq, epoch), 0)
        own_first, own_last = seqs_of_epoch(consumers.history, epoch)
        run = next(iter(consumer.flight.overlap(seq, seq)), None)
        if not own_first <= seq <= min(own_last, end_seq - 1) or (run is not None and run.member != wanted.member):
            stale.append((seq, seq))
        elif run is None:
            continue
        elif rows and rows[-1][0] + rows[-1][1] == seq and rows[-1][2:] == (reason, delay):
            rows[-1] = (rows[-1][0], rows[-1][1] + 1, reason, delay)
        else:
            rows.append((seq, 1, reason, delay))
    return rows


def _fail(
    consumers: ConsumerTable,
    consumer: DurableConsumer,
    progress: Progress,
    rows: list[FailedRecord],
    anew: bool,
    log_view: ConsumedStream,
) -> Progress:
    """These have failed at the member, and all that it has besides if it has begun `anew`."""
    failed = _with_failed(progress, rows)
    consumers.fail(consumer, failed)
    if anew:
        lost = [(run.first, len(run), BEGUN_ANEW, AT_ONCE) for run in own(consumer, progress.member)]
        consumers.fail(consumer, _with_failed(progress, lost))
        return _with_failed(progress, [*rows, *lost])
    back = followers(consumer, progress.member, [(first, first + count - 1) for first, count, *_ in rows], log_view)
    consumer.back(back)
    return failed._replace(back=flat(back))


def _with_failed(progress: Progress, rows: list[FailedRecord]) -> Progress:
    delays = tuple([delay for *_row, delay in rows])
    failed = tuple([(first, count, reason) for first, count, reason, _delay in rows])
    return progress._replace(failed=failed, delays=delays if any(delays) else ())


def _kept(consumer: DurableConsumer, progress: Progress, fresh: bool, log_view: ConsumedStream) -> tuple[Progress, int]:
    """Move on to what the stream still has; how many messages the member does not get for that.

    What others have in flight is theirs to finish. This member's messages are lost to it if it asks for them again.
    """
    kept_seq, trimmed = log_view.first_seq, 0
    if consumer.floor_seq >= kept_seq:
        return progress, 0
    if not fresh:
        lost = [run.part(run.first, kept_seq - 1) for run in own(consumer, progress.member) if run.first < kept_seq]
        if lost:
            gone = [(run.first, run.last) for run in lost]
            trimmed += sum(map(len, lost))
            consumer.finish(gone)
            progress = progress._replace(finished=flat([*unflat(progress.finished), *gone]))
    if min(consumer.first_unheld(kept_seq), consumer.next_seq) < kept_seq:
        trimmed += sum(map(len, consumer.unheld(0, kept_seq - 1))) + consumer.unseen(consumer.next_seq, kept_seq)
        consumer.keep(kept_seq)
        progress = progress._replace(kept_seq=kept_seq)
    return progress, trimmed


def _given(
    consumer: DurableConsumer, progress: Progress, wanted: Get, log_view: ConsumedStream, now_us: int
) -> tuple[Progress, list[Candidate]]:
    max_bytes = max(wanted.max_bytes, 1)  # the first message comes even if it is larger
    if not wanted.fresh:
        pieces = again(consumer, wanted.member, log_view, wanted.max_messages, max_bytes)
        if pieces:
            return progress, pieces
    if consumer.delayed.runs.count:
        consumer.wake(now_us)
    if consumer.topics:
        _look_ahead(consumer, wanted.max_messages, log_view)
    pieces = choose(consumer, wanted.member, log_view, wanted.max_messages, max_bytes)
    if consumer.topics:
        progress = _passed(consumer, progress, pieces)
    if pieces:
        progress = progress.with_given(flat((piece.first, piece.last) for piece in pieces))
    return progress, pieces


def _look_ahead(consumer: DurableConsumer, max_messages: int, log_view: ConsumedStream) -> None:
    """Read a piece more, if the consumer's filter has matched too few messages yet to choose from."""
    alone = len(consumer.members) == 1 and not consumer.delayed.runs.count
    wanted = max_messages if alone else WINDOW
    consumer.look_ahead().look(log_view, consumer.topics, wanted - consumer.waiting.count)


def _passed(consumer: DurableConsumer, progress: Progress, pieces: list[Candidate]) -> Progress:
    """Finish the messages that do not match, up to the first match that is not given."""
    ahead, next_seq = consumer.look_ahead(), consumer.next_seq
    last = pieces[-1].last if pieces else 0
    end_seq = ahead.next_match(max(last + 1, next_seq))
    is_new = pieces and last >= next_seq
    if not is_new and end_seq - next_seq < PASSED_MAX and progress.time_us - consumer.last_us < TOUCH_US:
        return progress
    gaps = ahead.between(next_seq, end_seq)
    if not gaps:
        return progress
    consumer.finish(gaps)
    return progress._replace(finished=flat([*unflat(progress.finished), *gaps]))


def _runs(consumers: ConsumerTable, pieces: Iterable[Candidate]) -> Iterator[DeliveredRun]:
    """The pieces, each of one epoch."""
    for piece in pieces:
        for first, last, epoch in spans(consumers.history, piece.first, piece.last):
            yield first, last - first + 1, piece.deliveries, epoch


def _has_content(progress: Progress) -> bool:
    return bool(progress.finished or progress.failed or progress.kept_seq or progress.given)


def since(consumer: DurableConsumer, letters: int) -> tuple[DeadLetter, ...]:
    """The dead letters that are not published, from this number on."""
    if consumer.dead == letters:
        return ()
    return tuple([letter for letter in consumer.dying.values() if letter.number >= letters])
