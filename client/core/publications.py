"""Publishes that wait: to be sent, to be answered, or to be sent once more. Pure bookkeeping.

A publish that asks for an acknowledgement stays here, with its bytes, until its answer comes. When a connection is lost
without it, it is sent again on the next one, in the order in which everything was published. What the broker could not
do at this moment (`RETRIED`) is sent again after a pause, and until it is answered nothing newer goes to its stream.
With numbers (`tailrace.core.producer_sequence`) it may be sent as often as it takes, and is logged once.
"""

from __future__ import annotations

import math
import struct
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from operator import attrgetter
from typing import Any, Final

from tailrace.core.backoff import Backoff, backoff_after
from tailrace.core.message import Receipt
from tailrace.core.producer_sequence import ProducerSequence, ProducerSequences, SequencePosition
from tailrace.errors import (
    BrokerError,
    BrokerFault,
    ConnectionLost,
    MessageTooLarge,
    NotReplicated,
    NumbersMissing,
    OperationTimeout,
    PartlyPublished,
    ProducerUnknown,
    StreamUnavailable,
    TailraceError,
    Unsupported,
    broker_error,
)
from tailrace.protocol.binary import PublishedRow
from tailrace.protocol.messages import Ack, PartResult, StreamResult
from tailrace.protocol.outgoing import OutgoingBuffer

RETRIED: Final = frozenset({"unavailable", "overloaded"})
"""Codes of what may go well a moment later."""
RETRIED_ELSEWHERE: Final = RETRIED | {"disabled"}
"""The same where there is another node to ask, which may be the stream's master: nothing was logged."""
NUMBERS_REFUSED: Final = frozenset({"gap", "producer"})
"""Codes that say of numbers that they cannot come next."""
DOUBTFUL: Final = "unavailable"
"""The code after which a publish may be logged."""
CLEAR_AFTER_DOUBT: Final = (NumbersMissing, ProducerUnknown, NotReplicated)
"""Errors that are true as well of a publish of which an earlier attempt may be logged."""
REQUEST_MAX: Final = (1 << 32) - 1
FRAME_LENGTH: Final = struct.Struct("<I")
"""What a frame begins with."""
UNKNOWN: Final = "it may or may not be logged"

_NONE: Final = Ack.NONE
_by_number = attrgetter("number")
_new_tuple = tuple.__new__  # without the Python function that a NamedTuple has


class PendingPublication:
    """One PUBLISH: the same frames for each of `streams`. Once `done` it has `receipts` or an `error`."""

    number = 0
    request = 0  # its number on the wire; those in flight are far fewer than there are numbers
    deadline_s = math.inf
    not_before_s = -math.inf
    tries: Backoff | None = None
    refusal: BrokerError | None = None  # the latest that was not taken for an answer
    was_sent = False  # or may have been
    doubtful = False  # it may be logged, but no answer confirmed it
    position: SequencePosition | None = None  # its numbers, once it has some
    marked: SequencePosition | None = None
    done = False
    receipts: tuple[Receipt, ...] = ()
    error: TailraceError | None = None
    waiter: Any = None  # for the shell's use
    waiters: list[Any] | None = None  # the same for each message, if each of them was published by itself

    def __init__(
        self,
        streams: tuple[str, ...],
        frames: OutgoingBuffer,
        count: int,
        ack: Ack,
        timeout_s: float,
        replicas: int = 0,
        retry: bool = True,
    ) -> None:
        self.streams = streams
        self.frames = frames
        self.count = count
        self.ack = ack
        self.replicas = replicas
        self.retry = retry
        self.timeout_s = timeout_s

    def fail(self, error: TailraceError) -> None:
        """It was never queued."""
        self.error = error
        self.done = True

    def outcome(self) -> tuple[Receipt, ...]:
        """Returns its receipts, one per stream; without an acknowledgement it need not be done. Raises its error."""
        if self.error is not None:
            raise self.error
        return self.receipts or tuple([Receipt(stream, -1, self.count, 0) for stream in self.streams])

    def outcomes(self) -> list[Receipt] | list[TailraceError]:
        """Returns a receipt, or an error, for each of `waiters`; to be called once it is done."""
        if self.error is not None:
            return [copy(self.error) for _ in range(self.count)]  # one that is raised belongs to who catches it
        stream, first_seq, _count, subscribers = self.receipts[0]
        return [_new_tuple(Receipt, (stream, first_seq + at, 1, subscribers)) for at in range(self.count)]

    def split(self) -> list[PendingPublication]:
        """One publish for each of `waiters`, with the numbers that their messages have."""
        parts, end = [], 0
        for at, waiter in enumerate(self.waiters or ()):
            start, end = end, end + FRAME_LENGTH.unpack_from(self.frames, end)[0]
            part = PendingPublication(self.streams, bytes(self.frames[start:end]), 1, self.ack, self.timeout_s)
            part.number = self.number + at
            part.request = part.number % REQUEST_MAX + 1
            part.deadline_s, part.refusal, part.doubtful = self.deadline_s, self.refusal, self.doubtful
            part.was_sent, part.waiters = self.was_sent, [waiter]
            if self.position is not None:
                part.position = SequencePosition(self.position.sequence, self.position.number + at)
            parts.append(part)
        return parts


class Publications:
    """The publishes of one client. `settled` collects those that a caller may wait for, until the shell takes them."""

    def __init__(
        self, max_count: int, max_bytes: int, random: Callable[[], float], retried: frozenset[str] = RETRIED
    ) -> None:
        self.settled: list[PendingPublication] = []
        self.nbytes = 0
        self.count = 0  # publishes that are not done: of those that are one request together, each
        self.refused = 0  # errors about publishes that nobody waits for
        self.last_refusal: TailraceError | None = None
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._random = random
        self._codes_retried = retried
        self._undone: dict[int, PendingPublication] = {}  # all of them, by number; the others are made of it
        self.queue: list[PendingPublication] = []  # to be sent, by number
        self.in_flight: dict[int, PendingPublication] = {}  # by request
        self._retried: dict[int, PendingPublication] = {}  # those of either that were refused for the moment, by number
        self._numbers = 0
        self._sequences = ProducerSequences()
        self.due_s = math.inf  # no deadline is before it: when `expire` may have something to do
        self.resume_s = math.inf  # when `take_sendable` gives some that must wait until then

    def __len__(self) -> int:
        return len(self._undone)

    def has_room(self, count: int = 0, nbytes: int = 0) -> bool:
        """Whether there is room for one more, behind `count` others with `nbytes` that are not added yet."""
        if not (count or self._undone):
            return True
        return self.count + count < self._max_count and self.nbytes + nbytes < self._max_bytes

    def add(
        self, publication: PendingPublication, now_s: float, *, at_once: bool = False, numbered: bool = False
    ) -> bool:
        """Registers it. Returns whether it is to be sent now, if it may go `at_once`, or else it waits in `queue`.

        `numbered`: as in `take_sendable`.
        """
        number = publication.number = self._numbers + 1
        publication.request = number % REQUEST_MAX + 1
        weight = 1 if publication.waiters is None else publication.count
        self._numbers += weight
        self.count += weight
        publication.deadline_s = deadline_s = now_s + publication.timeout_s
        if deadline_s < self.due_s:
            self.due_s = deadline_s
        self._undone[number] = publication
        if at_once and not (self.queue or self._retried):
            to_number = numbered and publication.retry and publication.ack is not _NONE
            if not to_number or self._sequences.join(publication):
                self.nbytes += len(publication.frames)
                publication.was_sent = True
                self.in_flight[publication.request] = publication
                return True
        self.nbytes += len(publication.frames)
        self.queue.append(publication)
        return False

    def holds(self, publication: PendingPublication) -> bool:
        """Whether it is registered and not done."""
        return publication.number in self._undone

    def take_sendable(self, now_s: float, *, numbered: bool = False) -> list[PendingPublication]:
        """Yields the publishes that may be sent now, in order. They are in flight from here on; call `sent` for each.

        `numbered`: the broker knows producers, so those that may be sent again get numbers.
        """
        self.resume_s = math.inf
        if not self.queue:
            return []
        held: set[str] = set()
        if self._retried:
            retried = self._retried.values()
            held = {stream for each in retried if each.request in self.in_flight for stream in each.streams}
        waiting: list[PendingPublication] = []
        sendable: list[PendingPublication] = []
        for publication in self.queue:
            may_go = publication.not_before_s <= now_s and (not held or held.isdisjoint(publication.streams))
            nbytes = len(publication.frames)
            if may_go and numbered and publication.position is None and publication.retry:
                may_go = publication.ack is _NONE or self._sequences.join(publication)
            if may_go:
                if publication.position is not publication.marked:
                    self._sequences.mark(publication)
                self.nbytes += len(publication.frames) - nbytes
                sendable.append(publication)
                publication.was_sent = True
                self.in_flight[publication.request] = publication
            else:
                waiting.append(publication)
                if publication.not_before_s > now_s:
                    self.resume_s = min(self.resume_s, publication.not_before_s)
            if publication.tries or not may_go:  # nothing of its streams may overtake it
                held.update(publication.streams)
        self.queue = waiting
        return sendable

    def use_prefix(self, prefix: bytes) -> None:
        """The ids of producers that begin from now on begin with this."""
        self._sequences.prefix = prefix

    def sent(self, publication: PendingPublication) -> None:
        """It was written to the socket. Without an acknowledgement to wait for it is done."""
        if publication.ack is _NONE:
            del self.in_flight[publication.request]
            self._done(publication, failed=False)

    def published(self, request: int, results: tuple[StreamResult, ...]) -> bool:
        """The answer to a request; whether anybody waited for it."""
        if len(results) == 1:
            return self.settle([(0, 0, request, *results[0])])
        publication = self.in_flight.pop(request, None)
        if publication is None:
            return False
        if len(results) == len(publication.streams):
            publication.receipts = tuple([Receipt(*row) for row in _rows(publication.streams, results)])
            self._done(publication, failed=False)
            self.settled.append(publication)
        else:
            self._fail(publication, _miscounted(len(results), publication.count, publication))
        return True

    def settle(self, rows: Iterable[PublishedRow]) -> bool:
        """As `published`, for many answers with one result each."""
        any_waited = False
        for _opcode, _length, request, first_seq, count, subscribers in rows:
            publication = self.in_flight.pop(request, None)
            if publication is None:
                continue
            any_waited = True
            streams = publication.streams
            if len(streams) != 1 or (publication.waiters is not None and count != publication.count):
                self._fail(publication, _miscounted(1, count, publication))
                continue
            publication.receipts = (_new_tuple(Receipt, (streams[0], first_seq, count, subscribers)),)
            publication.done = True
            if publication.position is not None:
                publication.position[0].undone.pop(publication.number, None)
            self._undone.pop(publication.number, None)
            if self._retried:
                self._retried.pop(publication.number, None)
            self.count -= 1 if publication.waiters is None else publication.count
            self.nbytes -= len(publication.frames)
            publication.frames = b""
            self.settled.append(publication)
        return any_waited

    def streams_of(self, request: int) -> tuple[str, ...]:
        """The streams of a request that is in flight; () for one that is not."""
        publication = self.in_flight.get(request)
        return () if publication is None else publication.streams

    def failed(self, request: int, code: str, text: str, parts: tuple[PartResult, ...] | None, now_s: float) -> None:
        """The error that answers a request."""
        publication = self.in_flight.get(request)
        if publication is None:
            self.refuse(broker_error(code, text))
            return
        del self.in_flight[request]
        if self._once_more(publication, code, text, parts, now_s):
            return
        if parts is None:
            self._fail(publication, _last_error(publication, _refusal(publication, code, text)))
        elif len(parts) != len(publication.streams):
            self._fail(publication, _miscounted(len(parts), publication.count, publication))
        else:
            self._fail(publication, _failure(publication.streams, parts))

    def _once_more(
        self, publication: PendingPublication, code: str, text: str, parts: tuple[PartResult, ...] | None, now_s: float
    ) -> bool:
        """Whether a refused publish is retried."""
        sequence = None if publication.position is None else publication.position.sequence
        codes = {code} if parts is None else {row[3] for row in parts if row[3]}
        publication.doubtful |= DOUBTFUL in codes
        if not publication.retry or (parts is not None and sequence is None):
            return False  # those streams that took it would have it twice
        if codes <= self._codes_retried:
            self._try_again(publication, _refusal(publication, code, text), now_s)
            return True
        if sequence is None or not codes <= self._codes_retried | NUMBERS_REFUSED:
            return False
        if not sequence.is_first(publication):
            self._try_after_others(publication, sequence, _refusal(publication, code, text), now_s)
            return True
        if publication.doubtful or parts is not None:
            return False
        self._sequences.leave(publication)  # earlier messages are lost or unknown; this one is not logged
        self._queue_again(publication)
        return True

    def _try_after_others(
        self, publication: PendingPublication, sequence: ProducerSequence, refusal: BrokerError, now_s: float
    ) -> None:
        """It was refused because of an earlier one, which is retried too."""
        if next(iter(sequence.undone)) in self._retried:
            self._queue_again(publication)
        else:
            self._try_again(publication, refusal, now_s)

    def connection_lost(self, error: TailraceError) -> None:
        """Queues the publishes in flight to be sent again, or fails them without `retry`."""
        in_flight, self.in_flight = list(self.in_flight.values()), {}
        for publication in in_flight:
            publication.doubtful = True
            if publication.retry:
                self._queue_again(publication)
            else:
                self._fail(publication, ConnectionLost(f"{error}; {UNKNOWN}"))

    def recover(self, error: TailraceError) -> None:
        """Rebuilds derived state after an interrupted step; the connection is lost."""
        undone = [each for each in self._undone.values() if not each.done]
        self._undone = {each.number: each for each in undone}
        self._retried = {each.number: each for each in undone if each.tries is not None}
        self.in_flight = {each.request: each for each in undone if each.was_sent}
        self.queue = sorted((each for each in undone if not each.was_sent), key=_by_number)
        self.nbytes = sum(len(each.frames) for each in undone)
        self.count = sum(1 if each.waiters is None else each.count for each in undone)
        self.due_s = min((each.deadline_s for each in undone), default=math.inf)
        self._sequences.recover(undone)
        self.connection_lost(error)

    def refuse_numbered(self) -> None:
        """Fails queued publishes with numbers: the present broker would not recognise repeats."""
        for publication in [each for each in self.queue if each.position is not None]:
            self.queue.remove(publication)
            text = f"{_shown(publication)}: the present broker does not support producers; {UNKNOWN}"
            self._fail(publication, Unsupported(text, publication.streams[0]))

    def refuse_larger(self, room: Callable[[PendingPublication], int]) -> None:
        """Fails queued publishes that exceed the request limit: a broker would close the connection for it."""
        for publication in [each for each in self.queue if len(each.frames) > room(each)]:
            self.queue.remove(publication)
            text = f"{len(publication.frames):,} bytes; the present broker's limit is {room(publication):,}"
            self._fail(publication, MessageTooLarge(text, publication.streams[0]))

    def refuse(self, error: TailraceError) -> None:
        """Counts an error about a publish that nobody waits for."""
        self.refused += 1
        self.last_refusal = error

    def expire(self, now_s: float) -> None:
        """Fails publishes whose time is over."""
        if now_s < self.due_s:
            return
        for publication in [each for each in self._undone.values() if each.deadline_s <= now_s]:
            text = f"{_shown(publication)}: no acknowledgement within {publication.timeout_s:g} s; {UNKNOWN}"
            if self.in_flight.pop(publication.request, None) is not None:
                self._fail(publication, OperationTimeout(text))
            else:
                self.queue.remove(publication)
                refusal = publication.refusal
                self._fail(
                    publication, OperationTimeout(text) if refusal is None else _last_error(publication, refusal)
                )
        self.due_s = min((each.deadline_s for each in self._undone.values()), default=math.inf)

    def fail_all(self, error: Callable[[str], TailraceError]) -> None:
        """The client is closed: no further connection will be made."""
        for publication in list(self._undone.values()):
            self._fail(publication, error(UNKNOWN))
        self.queue.clear()
        self.in_flight.clear()

    def _try_again(self, publication: PendingPublication, refusal: BrokerError, now_s: float) -> None:
        if publication.tries is None:
            publication.tries = backoff_after(refusal.code, self._random)
            self._retried[publication.number] = publication
        publication.refusal = refusal
        publication.not_before_s = now_s + publication.tries.next_s()
        self.resume_s = min(self.resume_s, publication.not_before_s)
        self._queue_again(publication)

    def _queue_again(self, publication: PendingPublication) -> None:
        """Queues it in its place. Of messages that were published one by one each goes by itself this time: some may be
        logged and some not, and the answer to a repeat only has the seq of its first message.
        """
        if publication.waiters is None or publication.count == 1:
            insort(self.queue, publication, key=_by_number)
            return
        parts = publication.split()
        del self._undone[publication.number]
        self._undone |= {part.number: part for part in parts}
        if publication.position is not None:
            publication.position.sequence.replace(publication.number, [part.number for part in parts])
        if self._retried.pop(publication.number, None) is not None:
            self._retried[parts[0].number] = parts[0]
            parts[0].tries, parts[0].not_before_s = publication.tries, publication.not_before_s
        for part in parts:
            insort(self.queue, part, key=_by_number)

    def _fail(self, publication: PendingPublication, error: TailraceError) -> None:
        publication.error = error
        if publication.ack is _NONE:
            self.refuse(error)
        self._done(publication, failed=not _is_logged(publication))
        self.settled.append(publication)

    def _done(self, publication: PendingPublication, *, failed: bool) -> None:
        publication.done = True
        if publication.position is not None:
            self._sequences.done(publication, failed=failed)
        self._undone.pop(publication.number, None)
        if self._retried:
            self._retried.pop(publication.number, None)
        self.count -= 1 if publication.waiters is None else publication.count
        self.nbytes -= len(publication.frames)
        publication.frames = b""


def _last_error(publication: PendingPublication, refusal: BrokerError) -> BrokerError:
    """The error of the last attempt. It does not cover an earlier attempt that had no answer."""
    if not publication.doubtful or isinstance(refusal, CLEAR_AFTER_DOUBT):
        return refusal
    text = f"an earlier attempt had no answer, so {UNKNOWN}; the last one: {refusal.text}"
    return StreamUnavailable(text, refusal.stream)


def _is_logged(publication: PendingPublication) -> bool:
    """Whether it is known to be in all of its streams."""
    match publication.error:
        case None:
            return True
        case NotReplicated():
            return True
        case PartlyPublished(outcomes=outcomes):
            return all(isinstance(each, Receipt | NotReplicated) for each in outcomes)
    return False


def _miscounted(answers: int, count: int, publication: PendingPublication) -> BrokerFault:
    if count != publication.count:
        text = f"an answer about {count} messages to a publish of {publication.count}"
    else:
        text = f"{answers} answers to a publish to {len(publication.streams)} streams"
    return BrokerFault(f"{_shown(publication)}: {text}; {UNKNOWN}")


def _rows(streams: tuple[str, ...], results: tuple[StreamResult, ...]) -> Iterator[tuple[str, int, int, int]]:
    for stream, (first_seq, count, subscribers) in zip(streams, results, strict=True):
        yield stream, first_seq, count, subscribers


def _failure(streams: tuple[str, ...], parts: tuple[PartResult, ...]) -> BrokerError | PartlyPublished:
    outcomes = [_outcome(stream, part) for stream, part in zip(streams, parts, strict=True)]
    first = outcomes[0]
    return first if len(outcomes) == 1 and isinstance(first, BrokerError) else PartlyPublished(outcomes)


def _refusal(publication: PendingPublication, code: str, text: str) -> BrokerError:
    """The error of a whole request. With several streams, the text begins with that which it is about, or with none."""
    first, *others = publication.streams
    named = (each for each in publication.streams if text.startswith(f"{each}: "))
    return broker_error(code, text, next(named, "" if others else first))


def _outcome(stream: str, part: PartResult) -> Receipt | BrokerError:
    first_seq, count, subscribers, code, text = part
    receipt = Receipt(stream, first_seq, count, subscribers)
    if code == NotReplicated.code:
        return NotReplicated(f"{receipt.shown()}: {text}", stream, receipt=receipt)
    return broker_error(code, text, stream) if code else receipt


def _shown(publication: PendingPublication) -> str:
    first, *others = publication.streams
    return f"{first} and {len(others)} others" if others else first
