"""One member of a durable consumer across its connections. Pure: answers in, messages and requests out.

A program takes messages from a queue and settles each: finished, or failed. Verdicts are sent with the next GET, or in
one of their own after a short while. A GET whose answer may have been lost is repeated with the same contents; until
the loss is known, the broker is asked for the messages in flight at this member, and those that are here already are
dropped from its answer. When a connection is lost the queue is cleared: messages that are still this member's are in
the first answer on the next one.

A message is identified by its epoch and its seq: if messages were lost with a master, others have their seqs, and
verdicts on lost messages do not apply to those.

The number of messages requested follows the speed of handling: no more than take a fraction of the time after which the
broker delivers them to others. A new program takes messages that were delivered before one by one: one of these may
have killed its predecessor, and the others need not be counted with it if it does so again.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.core.backoff import Backoff
from tailrace.core.calls import PendingCall
from tailrace.core.consumed_message import ConsumedMessage, SettleCallback
from tailrace.core.options import CONSUMER_BATCH, CONSUMER_LINGER_S
from tailrace.errors import (
    ClientClosed,
    ConnectionLost,
    DamagedMessage,
    InvalidArgument,
    NoSuchConsumer,
    StaleAck,
    TailraceError,
    Trimmed,
    UnknownStream,
)
from tailrace.protocol.consuming import (
    DELAY_MAX_MS,
    FAILED_MAX,
    FINISHED_MAX,
    GET_BYTES_MAX,
    MESSAGES_MAX,
    OWN_DELAY_MS,
    REASON_BYTES_MAX,
    Consume,
    FinishedRow,
    Get,
    Got,
    MessageRange,
)
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import unpack_header
from tailrace.shard.leaves import load

WAIT_S: Final = 10.0
"""For which a GET waits at the broker; then it is asked again, which shows that the broker lives."""
PACE_DIVISOR: Final = 4
"""Messages are asked for that were handled, so far, in this part of the time until they are given to others."""
USABLE: Final = 0.9
"""The part of that time for which a message may wait in the queue."""
ACK_WAIT_S: Final = 30.0
"""What that time is taken for where it is not known."""

FrameRow = tuple[int, int, int, int, bytes, bytes]
"""seq, timestamp_us, epoch, flags, metadata, payload"""
MessageId = tuple[int, int]
"""epoch, seq"""

_parse = load("tailrace.shard.frame_cy").parse


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """A program's settings for a consumer. `answer_s`: time for an answer, beyond the time that a GET waits;
    `patience_s`: how long the broker may refuse. `ack_wait_s`: that of the consumer, None if unknown.

    `session`: by which the broker distinguishes this program from an earlier one of the same member.
    """

    stream: str
    name: str
    member: str
    batch: int = CONSUMER_BATCH
    ack_wait_s: float | None = None
    linger_s: float = CONSUMER_LINGER_S
    ack: Ack = Ack.APPENDED
    replicas: int = 0
    raise_trimmed: bool = True
    answer_s: float = math.inf
    patience_s: float = math.inf
    session: int = 0


class Verdict:
    """A verdict on one message, kept until the broker has it. `reason` is None if it is finished."""

    __slots__ = ("applied", "call", "delay_ms", "deliveries", "epoch", "key", "reason", "seq")

    def __init__(
        self, message: ConsumedMessage, reason: str | None, key: str | bytes | None, delay_ms: int = OWN_DELAY_MS
    ) -> None:
        self.epoch = message.epoch
        self.seq = message.seq
        self.deliveries = message.deliveries
        self.reason = reason
        self.delay_ms = delay_ms
        self.key = key
        self.call: PendingCall | None = None  # that carries it
        self.applied = False  # an answer shows that the broker has it


class ConsumerState:
    """One member. `post` makes a call as soon as possible; it raises ClientClosed, ConnectionLost."""

    def __init__(
        self,
        options: ConsumerOptions,
        post: Callable[[PendingCall, float], None],
        random: Callable[[], float],
        now_s: float,
    ) -> None:
        self.options = options
        self.is_over = False  # nothing more comes
        self.is_lost = False  # no more answers are handled
        self.error: TailraceError | None = None  # why, when nobody asked for that
        self.epoch = 0  # the latest one of a message that came
        self.settle: SettleCallback = lambda message, reason, delay_s: None  # the shell's
        self.message_kind = ConsumedMessage
        self._post = post
        self._queue: deque[ConsumedMessage] = deque()
        self._usable_until_s = math.inf  # seqs in the queue
        self._held: dict[MessageId, int] = {}  # deliveries of messages without a verdict
        self._verdicts: dict[MessageId, Verdict] = {}  # not known to be at the broker
        self._errors: deque[TailraceError] = deque()  # to be raised
        self._poll: PendingCall | None = None  # the GET that waits for messages
        self._acks: PendingCall | None = None  # the GET that asks for none
        self._doubtful = (
            True  # this member, or an earlier one of its name, may have messages in flight that have not arrived
        )
        self._pace = 1
        self._careful = True  # all that has come so far was delivered before
        self._asked = 0  # messages, by the last poll that asked for other than it has
        self._most = 0  # messages that the answer to the poll under way may have
        self._came = 0  # messages of the latest answer with any, not counted yet
        self._came_s = now_s
        self._hurry = Backoff(random)  # between polls that end at once, with nothing
        self._disturbed = False  # by a GET that asked for none
        self._fresh = False  # the poll under way
        self._is_member = False  # for all that the broker knows
        self._not_before_s = -math.inf
        self._linger_due_s = math.inf

    # --- what a program does ------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to return or to raise, or can report the end."""
        return bool(self._queue or self._errors) or self.is_over

    @property
    def is_asking(self) -> bool:
        """Whether a GET for messages is in flight; `take` makes one."""
        return self._poll is not None

    @property
    def is_settled(self) -> bool:
        """Whether the broker has every verdict, and the end if it is closed; or never will."""
        return self.is_lost or not (self._verdicts or (self.is_over and self._poll is not None))

    def take(self, now_s: float) -> ConsumedMessage | None:
        """Returns the next message; None for nothing now, or for ever when it is closed. Requests more if the queue is
        empty.

        Raises what went wrong; it may go on all the same.
        """
        if self._errors:
            raise self._errors.popleft()
        if self._queue and now_s >= self._usable_until_s:
            self._let_go()
        if self._queue:
            return self._queue.popleft()
        if self.is_over:
            if self.error is not None:
                raise self.error
            return None
        if self._poll is None:
            self._ask(now_s)
        return None

    def take_rest(self, now_s: float) -> list[ConsumedMessage]:
        """All that is here."""
        if now_s >= self._usable_until_s:
            self._let_go()
        rest = list(self._queue)
        self._queue.clear()
        return rest

    def record(self, message: ConsumedMessage, reason: str | None, now_s: float, delay_s: float | None = None) -> None:
        """Records the program's verdict. `delay_s`: until the next delivery, None for the consumer's own wait.

        Raises ClientClosed, UnknownStream, NoSuchConsumer if it cannot be sent any more, InvalidArgument.
        """
        delay_ms = _delay_ms(delay_s)
        if message.settled:
            return
        if self.is_over:
            if reason is None:
                raise self._finished_late(message.seq)
            return
        message_id = message.epoch, message.seq
        # First: a verdict that Control-C leaves without it would wait for the next one, which may never come.
        self._linger_due_s = min(self._linger_due_s, now_s + self.options.linger_s)
        before = self._verdicts.get(message_id)
        if before is None or before.call is not None or before.reason is not None:
            key = None if reason is None else message.key
            self._verdicts[message_id] = Verdict(message, None if reason is None else _bounded(reason), key, delay_ms)
            if key is not None:
                self._drop_key(key, message.seq)
        if self._held.get(message_id) == message.deliveries:
            del self._held[message_id]
        message.settled = True

    def _finished_late(self, seq: int) -> TailraceError:
        """The error of an acknowledgement that cannot be sent any more, and whether the message comes again."""
        stream, name = self.options.stream, self.options.name
        text = f"message {seq} was finished after"
        if isinstance(self.error, UnknownStream):
            return UnknownStream(f"{text} the stream had been deleted, and {name} with it: it has gone", stream)
        if isinstance(self.error, NoSuchConsumer):
            return NoSuchConsumer(f"{text} {name} had been deleted: there is nothing to acknowledge it to", stream)
        return ClientClosed(f"{stream}: {text} {name} had been closed; it will be delivered again")

    def flush(self, now_s: float) -> None:
        """Sends the pending verdicts now. Raises ClientClosed, ConnectionLost.

        A newer GET ends a waiting one, whose answer confirms the verdicts that it carried.
        """
        to_end = self._poll is not None and (
            self.is_over or any(each.call is self._poll for each in self._verdicts.values())
        )
        if to_end or self._linger_due_s < math.inf:
            self._linger_due_s = now_s
            self.tick(now_s)

    def check(self) -> None:
        """Raises the error about verdicts, or that some cannot be sent."""
        for error in self._errors:
            if isinstance(error, StaleAck):
                self._errors.remove(error)
                raise error
        if self.is_lost and self._verdicts:
            count, options = len(self._verdicts), self.options
            text = f"{options.stream}: {count:,} messages acknowledged by {options.name} may be delivered again"
            raise self.error or ClientClosed(f"{text}: the client was closed before the broker confirmed")

    def end(self) -> None:
        """Nothing more is asked for, and what nobody has taken is let go."""
        self.is_over = True
        self._let_go()

    def leave(self, timeout_s: float, now_s: float) -> PendingCall | None:
        """After `end`, and after the verdicts are sent: releases this member's remaining messages to others at once.

        Returns None if there is no broker to ask. Failures are ignored: the broker releases the messages some time
        later.
        """
        if self.is_lost or not self._is_member:
            return None
        self._is_member = False
        options = self.options

        def make(number: int) -> Consume:
            return Consume(
                number, "leave", options.stream.encode(), options.name.encode(), member=options.member.encode()
            )

        call = PendingCall(options.stream, f"leave of {options.name}", make, timeout_s=timeout_s)
        try:
            self._post(call, now_s)
        except (ClientClosed, ConnectionLost):
            return None
        return call

    # --- time, and what becomes of connections ------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """When to call `tick`."""
        return math.inf if self._acks is not None or self.is_lost else self._linger_due_s

    def tick(self, now_s: float) -> None:
        """Sends verdicts that have lingered."""
        if now_s >= self.due_s:
            self._disturbed = True
            self._acks = self._make_call(0, 0.0, True, now_s)
            self._post(self._acks, now_s)

    def connection_lost(self) -> None:
        """Whether this member's messages may have been delivered to another one."""
        self._let_go()
        self._doubtful = True

    def closed(self, failure: TailraceError | None) -> None:
        """The broker is asked for nothing any more."""
        if not self.is_lost:
            self.is_lost = True
            self.error = failure
        self.end()

    def recover(self, holds: Callable[[PendingCall | None], bool]) -> None:
        """Rebuilds derived state after an interrupted step; the connection is lost. `holds`: whether a call is in
        flight.
        """
        self._poll = self._poll if holds(self._poll) else None
        self._acks = self._acks if holds(self._acks) else None
        for verdict in self._verdicts.values():
            if not holds(verdict.call):
                verdict.call = None
        for message in self._queue:
            self._held[message.epoch, message.seq] = message.deliveries
        if any(verdict.call is None for verdict in self._verdicts.values()):
            self._linger_due_s = -math.inf
        self.connection_lost()

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, now_s: float) -> None:
        self._keep_pace(now_s)
        # Messages in the queue, or with unconfirmed verdicts, would be delivered again.
        self._fresh = (bool(self._held) or self._acks is not None) and not self._doubtful
        self._disturbed = False
        # All messages in flight of lost answers fit, beside those that are here.
        count = self._pace if self._fresh else max(self._pace, self._asked) + len(self._held)
        self._asked, self._most = self._pace, min(count, MESSAGES_MAX)
        self._poll = self._make_call(self._most, WAIT_S, self._fresh, now_s)
        self._poll.not_before_s = self._not_before_s
        self._is_member = True
        try:
            self._post(self._poll, now_s)
        except ClientClosed:  # it is about to be: iteration ends
            self._poll = None
            self.closed(None)

    def _keep_pace(self, now_s: float) -> None:
        """As many as are handled in time, and at most twice as many as last time."""
        if self._came:
            ack_wait_s = self.options.ack_wait_s or ACK_WAIT_S
            each_s = max(now_s - self._came_s, 1e-6) / self._came
            in_time = max(1, int(min(ack_wait_s / PACE_DIVISOR / each_s, MESSAGES_MAX)))
            self._pace = 1 if self._careful else min(self.options.batch, in_time, 2 * self._pace)
            self._came = 0

    def _make_call(self, count: int, wait_s: float, fresh: bool, now_s: float) -> PendingCall:
        """A GET with as many verdicts as it takes."""
        options, waiting = self.options, [each for each in self._verdicts.values() if each.call is None]
        failed = [each for each in waiting if each.reason is not None][:FAILED_MAX]
        ranges, finished = _ranges([each for each in waiting if each.reason is None])
        failures = tuple([(each.seq, each.epoch, each.reason or "") for each in failed])
        delays = tuple([(each.seq, each.epoch, each.delay_ms) for each in failed if each.delay_ms >= 0])

        def make(number: int) -> Get:
            return Get(
                id=number,
                stream=options.stream.encode(),
                name=options.name.encode(),
                member=options.member.encode(),
                finished=ranges,
                failed=failures,
                max_messages=count,
                wait_ms=int(wait_s * 1_000),
                fresh=fresh,
                ack=options.ack,
                replicas=options.replicas,
                session=options.session,
                delays=delays,
            )

        call = PendingCall(
            options.stream,
            f"a request of the consumer {options.name}",
            make,
            patience_s=options.patience_s,
            quiet_s=wait_s + options.answer_s,
            on_result=self._on_result,
        )
        for verdict in (*failed, *finished):
            verdict.call = call
        has_more = len(failed) + len(finished) < len(waiting)
        self._linger_due_s = now_s if has_more else math.inf
        return call

    # --- answers ------------------------------------------------------------------------------------------------------

    def _on_result(self, call: PendingCall, got: Got | None, now_s: float) -> None:
        if got is None:
            self._refused(call, now_s)
        else:
            self._take_in(call, got, now_s)
            for verdict in [each for each in self._verdicts.values() if each.call is call]:
                del self._verdicts[verdict.epoch, verdict.seq]
        if call is self._poll:
            self._poll = None
        elif call is self._acks:
            self._acks = None

    def _refused(self, call: PendingCall, now_s: float) -> None:
        """The broker does not do it, or has not in time: then it may be asked again."""
        error = call.error
        if error is not call.refusal or error is None:
            self.closed(None if isinstance(error, ClientClosed) else error)
            return
        if not any(type(each) is type(error) for each in self._errors):
            self._errors.append(error)
        self._doubtful = True
        for verdict in self._verdicts.values():
            if verdict.call is call:
                verdict.call = None
                self._linger_due_s = now_s

    def _take_in(self, call: PendingCall, got: Got, now_s: float) -> None:
        if got.stale:
            self._errors.append(_stale(self.options, got.stale))
        if got.trimmed and self.options.raise_trimmed:
            text = f"{got.trimmed:,} messages were trimmed before their delivery to the consumer {self.options.name}"
            self._errors.append(Trimmed(f"{self.options.stream}: {text}; iterate again to go on", self.options.stream))
        try:
            rows = _rows(got)
        except (ValueError, struct.error) as error:
            self._errors.append(DamagedMessage(f"{self.options.stream}: {error}"))
            rows = []
        if call is not self._poll or self.is_over:
            return
        self.epoch = max(self.epoch, *[epoch for _first, _count, _before, epoch in got.runs], 0)
        unreported = [each for each in self._verdicts.values() if each.key is not None and each.call is not call]
        new = [message for row, before in rows if (message := self._message(row, before + 1, unreported)) is not None]
        self._queue.extend(new)
        for message in new:
            self._held[message.epoch, message.seq] = message.deliveries
        if self._careful and new:
            self._careful = all(message.deliveries > 1 for message in new)
        self._adapt_to(len(rows), len(new), len(got.frames), now_s)

    def _adapt_to(self, rows: int, new: int, nbytes: int, now_s: float) -> None:
        """Adapts the next poll to this one's answer."""
        if new:
            self._came, self._came_s = new, now_s
            self._usable_until_s = now_s + USABLE * (self.options.ack_wait_s or math.inf)
        if rows:
            self._hurry.reset()
            is_all = rows < self._most and nbytes < GET_BYTES_MAX // 2  # or else more may lie behind
            if not self._fresh and (is_all or not new):
                self._doubtful = False
            return
        self._doubtful = True  # a copy may still lack the delivered messages
        waited_s = now_s - self._poll.sent_s if self._poll is not None else WAIT_S
        if waited_s < WAIT_S / 2 and not self._disturbed:
            self._not_before_s = now_s + self._hurry.next_s()  # another one has this member's name
        else:
            self._hurry.reset()

    def _message(self, row: FrameRow, deliveries: int, unreported: list[Verdict]) -> ConsumedMessage | None:
        """The message, unless it is here, was settled, or comes again behind one of its key that has failed.

        unheard: failed messages with a key, whose failure the broker did not know when it sent this answer.
        """
        seq, timestamp_us, epoch, _flags, metadata, payload = row
        message_id = epoch, seq
        verdict = self._verdicts.get(message_id)
        if verdict is not None:
            if verdict.reason is None or verdict.deliveries >= deliveries:
                return None
            verdict.applied = True
        if self._held.get(message_id, 0) >= deliveries:
            return None
        message = tuple.__new__(self.message_kind, (self.options.stream, seq, timestamp_us, payload, metadata, epoch))
        message.consumer, message.deliveries = self.options.name, deliveries
        message.settled, message._settle = False, self.settle
        for each in unreported:
            if each.seq < seq and each.key == message.key and not each.applied:
                self._doubtful = True
                return None
        return message

    def _drop_key(self, key: str | bytes, seq: int) -> None:
        """They are delivered again after the failed message, or without it if that is a dead letter."""
        dropped = [each for each in self._queue if each.seq > seq and each.key == key]
        for message in dropped:
            self._doubtful = True
            self._queue.remove(message)
            self._held.pop((message.epoch, message.seq), None)

    def _let_go(self) -> None:
        """Removes queued messages of failed keys; if they are still this member's, they must come again before new
        ones."""
        self._doubtful |= bool(self._queue)
        for message in self._queue:
            self._held.pop((message.epoch, message.seq), None)
        self._queue.clear()


def _delay_ms(delay_s: float | None) -> int:
    if delay_s is None:
        return OWN_DELAY_MS
    if not 0 <= delay_s <= DELAY_MAX_MS / 1_000:
        raise InvalidArgument(f"delay_s is {delay_s!r}; it is 0 to {DELAY_MAX_MS // 1_000:,} s")
    return round(delay_s * 1_000)


def _bounded(reason: str) -> str:
    """Takes as many verdicts as one request can hold."""
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")


def _stale(options: ConsumerOptions, ranges: tuple[MessageRange, ...]) -> StaleAck:
    shown = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in ranges[:3])
    more = f" and {len(ranges) - 3:,} ranges more" if len(ranges) > 3 else ""
    hint = "they may be handled twice (a longer ack_wait_s gives more time), or were lost with the stream's master"
    what = f"messages {shown}{more} were acknowledged here, but were no longer this member's of {options.name}"
    text = f"{options.stream}: {what}: {hint}"
    return StaleAck(text, options.stream, "", options.name, ranges)


def _ranges(verdicts: Iterable[Verdict]) -> tuple[tuple[FinishedRow, ...], list[Verdict]]:
    """At most FINISHED_MAX ranges of seqs in a row, of one epoch each, and the verdicts that are in them."""
    rows: list[list[int]] = []
    taken: list[Verdict] = []
    for verdict in sorted(verdicts, key=lambda each: (each.epoch, each.seq)):
        if rows and rows[-1][1] == verdict.seq - 1 and rows[-1][2] == verdict.epoch:
            rows[-1][1] = verdict.seq
        elif len(rows) == FINISHED_MAX:
            break
        else:
            rows.append([verdict.seq, verdict.seq, verdict.epoch])
        taken.append(verdict)
    return tuple([(first, last, epoch) for first, last, epoch in rows]), taken


def _rows(got: Got) -> list[tuple[FrameRow, int]]:
    """Each message, and how often it was delivered before. ValueError, struct.error for frames that are damaged, or not
    those of the runs.
    """
    found: list[tuple[FrameRow, int]] = []
    frames, position = got.frames, 0
    for first_seq, count, before, epoch in got.runs:
        end = position
        for _ in range(count) if len(got.runs) > 1 else ():
            end += unpack_header(frames, end).length
        rows = _parse(frames, position, end if len(got.runs) > 1 else len(frames), True)
        if len(rows) != count or rows[0][0] != first_seq or not rows[0][2] == rows[-1][2] == epoch:
            text = f"{count} from seq {first_seq} on of epoch {epoch} were announced"
            raise ValueError(f"{len(rows)} messages came, but {text}")
        found += [(row, before) for row in rows]
        position = end
    return found
