"""Calls about the dead letters of a stream: which there are, redrive, purge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.arguments import checked_stream
from tailrace.core.calls import PendingCall
from tailrace.core.consumer_calls import checked_level
from tailrace.core.listing import Calls
from tailrace.errors import InvalidArgument, InvalidStreamName
from tailrace.protocol.consuming import FEATURE, Consume, Consumed, Deed
from tailrace.protocol.fields import NUMBER_MAX
from tailrace.protocol.messages import Ack
from tailrace.shard.names import NAME_BYTES_MAX, dead_name

LetterSeqs: TypeAlias = "int | range | None"
"""One dead letter by its seq, several (`range(3, 10)`), or all."""
AckLevel: TypeAlias = tuple[Ack, int]
"""What must be true before the answer, and of how many nodes."""


class LetterIndex(NamedTuple):
    """Which dead letters a stream has: those before `next_seq` that are in none of the `removed` ranges, which are in
    order and apart."""

    next_seq: int
    removed: Sequence[tuple[int, int]]

    def has(self, seq: int) -> bool:
        return 0 <= seq < self.next_seq and not any(first <= seq <= last for first, last in self.removed)

    def left(self, first: int, last: int) -> int:
        """How many there are from `first` to `last`."""
        last = min(last, self.next_seq - 1)
        gone = sum(max(0, min(last, gone_last) - max(first, gone_first) + 1) for gone_first, gone_last in self.removed)
        return max(0, last - first + 1) - gone if last >= first else 0


def checked_letter_stream(stream: object) -> tuple[str, str]:
    """The stream, and the name of that of its dead letters. Raises InvalidStreamName."""
    name = checked_stream(stream)
    dead = f"{name}/$dead"
    if len(dead.encode()) > NAME_BYTES_MAX:
        raise InvalidStreamName(f"{name!r} has no dead letters: its name is too long for that")
    return name, dead_name(name.encode()).decode()


def find_letters(stream: str, timeout_s: float) -> Calls[LetterIndex]:
    """Raises UnknownStream and other BrokerErrors, OperationTimeout."""
    answer = yield from _ask(stream, "letters", (0, 0), (Ack.APPENDED, 0), timeout_s)
    return LetterIndex(answer.next_seq or 0, answer.removed or ())


def redrive_letters(stream: str, seqs: LetterSeqs, level: AckLevel, timeout_s: float) -> Calls[int]:
    """Publish letters to their stream again, those that are there now; returns how many."""
    return (yield from _each(stream, "redrive", seqs, level, timeout_s))


def purge_letters(stream: str, seqs: LetterSeqs, level: AckLevel, timeout_s: float) -> Calls[int]:
    """Drop letters, those that are there now; returns how many."""
    return (yield from _each(stream, "purge", seqs, level, timeout_s))


def _each(
    stream: str, do: Literal["redrive", "purge"], seqs: LetterSeqs, level: AckLevel, timeout_s: float
) -> Calls[int]:
    first, last = _bounds(seqs)
    level = checked_level(*level)
    before = yield from find_letters(stream, timeout_s)
    next_seq, last = first, min(last, before.next_seq - 1)
    while next_seq <= last:
        answer = yield from _ask(stream, do, (next_seq, last), level, timeout_s)
        next_seq = max(answer.next_seq or 0, next_seq + 1)
    after = yield from find_letters(stream, timeout_s)
    return before.left(first, last) - after.left(first, last)


def _bounds(seqs: LetterSeqs) -> tuple[int, int]:
    if seqs is None:
        return 0, NUMBER_MAX
    if type(seqs) is int and 0 <= seqs <= NUMBER_MAX:
        return seqs, seqs
    if isinstance(seqs, range) and seqs.step == 1 and seqs.start >= 0 and seqs.stop <= NUMBER_MAX:
        return seqs.start, seqs.stop - 1
    raise InvalidArgument(f"{seqs!r} is not the seq of a dead letter, a range of seqs with step 1, or None for all")


def _ask(stream: str, do: Deed, seqs: tuple[int, int], level: AckLevel, timeout_s: float) -> Calls[Consumed]:
    name, _dead = checked_letter_stream(stream)
    ack, replicas = level

    def make(number: int) -> Consume:
        return Consume(number, do, name.encode(), ack=ack, replicas=replicas, first_seq=seqs[0], last_seq=seqs[1])

    call = yield PendingCall(name, f"dead letters: {do}", make, timeout_s=timeout_s, feature=FEATURE)
    answer: Consumed = call.outcome()
    return answer
