"""Who gets what: which messages of a consumer a member may have now. Pure; nothing is changed here but `keys`.

One member gets the waiting messages, then the next ones of the stream: two looks, however many messages. With several
members, a message whose key is in flight at another member is passed over, and with it, as it stays there, all later
ones of that key. So the messages of a key come in their order: those in flight are at one member, and none of them
comes after one that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from tailrace.broker.consumers.state.consumer import DELAYED_MAX, FLIGHT_MAX, DurableConsumer
from tailrace.broker.consumers.state.keys import Keys
from tailrace.broker.consumers.state.lookahead import MatchedPiece
from tailrace.broker.consumers.state.ranges import DeliveryRun, SeqRange, merged
from tailrace.shard.epochs import NEVER_SEQ, History

WINDOW: Final = 4_096
"""Messages that one get looks at, for those whose key is in flight at no other member."""
KEYS_CHUNK: Final = 64
"""Keys that are asked for at once at least."""


class ConsumedStream(Protocol):
    """Stream X as it is now. What these raise goes on to the caller (none of them raises Refused)."""

    @property
    def first_seq(self) -> int: ...

    @property
    def next_seq(self) -> int: ...

    @property
    def history(self) -> History:
        """Best the same object each time as long as it has not changed."""

    def fit(self, first_seq: int, last_seq: int, max_bytes: int) -> tuple[int, int]:
        """How many of these messages, from the first on, have frames of at most `max_bytes` together; and how many.

        (0, 0) where the first alone is longer. All of them are kept: first_seq <= these < next_seq of the stream.
        """

    def keys(self, first_seq: int, last_seq: int) -> Sequence[bytes | None]:
        """The key of each of these messages; None for a message without a key, or that is not kept any more.

        Called if a consumer has several members, and for messages given together with messages that have failed.
        """

    def matching(self, first_seq: int, topics: bytes, ranges_max: int) -> MatchedPiece:
        """Which of the next messages match a filter: of as many as it reads at once, none if it has read enough now.

        At most `ranges_max` ranges of them. The message `first_seq` is kept.
        """


class Candidate(NamedTuple):
    """Messages in a row, delivered so often before."""

    first: int
    last: int
    deliveries: int


class _Room:
    """The room left in an answer: messages and bytes. One message has room in any."""

    def __init__(self, log_view: ConsumedStream, messages: int, nbytes: int) -> None:
        self._look = log_view
        self.messages = messages
        self._bytes = nbytes
        self.pieces: list[Candidate] = []

    def take(self, first: int, last: int, deliveries: int) -> bool:
        """Put in what fits of these; whether there may be room for more."""
        wanted = min(last - first + 1, self.messages)
        if wanted < 1:
            return False
        count, nbytes = self._look.fit(first, first + wanted - 1, self._bytes)
        if not count and not self.pieces:
            count = 1
        if count:
            self.pieces.append(Candidate(first, first + count - 1, deliveries))
        self.messages = self.messages - count if count == wanted else 0
        self._bytes -= nbytes
        return self.messages > 0


def again(
    consumer: DurableConsumer, member: bytes, log_view: ConsumedStream, max_messages: int, max_bytes: int
) -> list[Candidate]:
    """What the member has in flight, in order, as much as the answer takes."""
    return _filled(log_view, map(_piece, own(consumer, member)), max_messages, max_bytes)


def own(consumer: DurableConsumer, member: bytes) -> Iterator[DeliveryRun]:
    """What the member has in flight, in order."""
    held = consumer.members.get(member)
    if held is None or not held.in_flight:
        return iter(())
    return (run for run in consumer.flight if run.member == member)


def choose(
    consumer: DurableConsumer, member: bytes, log_view: ConsumedStream, max_messages: int, max_bytes: int
) -> list[Candidate]:
    """The waiting and new messages that the member, which is one of the consumer's, is given now.

    Failed messages whose time has not come hold up the later ones of their keys, and no others.
    """
    room = min(max_messages, FLIGHT_MAX - consumer.flight.count)
    if room < 1:
        return []
    if len(consumer.members) == 1 and not consumer.delayed.runs.count:
        consumer.keys = None
        return _filled(log_view, _candidates(consumer, log_view), room, max_bytes)
    if consumer.keys is None:
        consumer.keys = _of_flight(consumer, log_view)
    consumer.delayed.learn(log_view)
    room = min(room, _share(consumer, member, log_view))
    return _filled(log_view, _free(consumer, consumer.keys, member, log_view, room), room, max_bytes)


def followers(
    consumer: DurableConsumer, member: bytes, failed: Iterable[SeqRange], log_view: ConsumedStream
) -> list[SeqRange]:
    """Messages in flight at the member that must wait again: an earlier one of their key is in `failed`.

    `failed` is in order. Only failed messages that wait now hold up others; dead ones do not.
    """
    again_due = [run for first, last in failed for run in consumer.unheld(first, last)]
    if not again_due:
        return []
    later = [run for run in own(consumer, member) if run.last > again_due[0].first]
    if not later:
        return []
    keys = consumer.keys or Keys()
    for run in (*again_due, *later):
        keys.learn(log_view, run.first, run.last)
    by_seq = keys.by_seq
    first_of: dict[bytes | None, int] = {None: NEVER_SEQ}
    for run in again_due:
        for seq in range(run.first, run.last + 1):
            first_of.setdefault(by_seq[seq], seq)
    return merged(
        (seq, seq)
        for run in later
        for seq in range(run.first, run.last + 1)
        if first_of.get(by_seq[seq], NEVER_SEQ) < seq
    )


def _filled(log_view: ConsumedStream, candidates: Iterable[Candidate], messages: int, nbytes: int) -> list[Candidate]:
    room = _Room(log_view, messages, nbytes)
    for piece in candidates:
        if not room.take(*piece):
            break
    return room.pieces


def _piece(run: DeliveryRun) -> Candidate:
    return Candidate(run.first, run.last, run.deliveries)


def _candidates(consumer: DurableConsumer, log_view: ConsumedStream) -> Iterator[Candidate]:
    """The messages that no member has and that may be delivered, in order."""
    yield from map(_piece, consumer.waiting)
    if consumer.delayed.runs.count >= DELAYED_MAX:
        return
    next_seq = log_view.next_seq
    if consumer.topics:
        yield from (Candidate(first, last, 0) for first, last in consumer.look_ahead().ranges)
    elif consumer.next_seq < next_seq:
        yield Candidate(consumer.next_seq, next_seq - 1, 0)


def _free(
    consumer: DurableConsumer, keys: Keys, member: bytes, log_view: ConsumedStream, messages: int
) -> Iterator[Candidate]:
    """The candidates that the member may have, about `messages` of them, among the first WINDOW ones."""
    left, window = messages, WINDOW
    blocks = consumer.delayed.blocks if consumer.delayed.runs.count else None
    for piece in _candidates(consumer, log_view):
        first = piece.first
        while first <= piece.last:
            if left < 1 or window < 1:
                return
            last = min(piece.last, first + min(max(KEYS_CHUNK, left), window) - 1)
            keys.learn(log_view, first, last)
            for free_first, free_last in keys.free(first, last, member, blocks):
                yield Candidate(free_first, free_last, piece.deliveries)
                left -= free_last - free_first + 1
            window -= last - first + 1
            first = last + 1


def _share(consumer: DurableConsumer, member: bytes, log_view: ConsumedStream) -> int:
    """How many more messages a member may have: its even share of all, or of those left; at least one."""
    members = len(consumer.members)
    new = consumer.look_ahead().count if consumer.topics else max(0, log_view.next_seq - consumer.next_seq)
    left = consumer.waiting.count + new
    even = -(-(left + consumer.flight.count) // members) - consumer.members[member].in_flight
    return max(even, -(-left // members), 1)


def _of_flight(consumer: DurableConsumer, log_view: ConsumedStream) -> Keys:
    keys = Keys()
    for run in consumer.flight:
        keys.learn(log_view, run.first, run.last)
        keys.took_off(run)
    return keys
