"""Dead letters go back to their stream, or are purged: what the deeds "letters", "redrive" and "purge" do.

A letter is published to its stream with `sync`, as message 0 of a producer of its own, and removed when that is done.
So a redrive that is repeated after a crash between the two publishes nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tailrace.broker.consumers.coordinator.stream_consumers import StreamConsumers
from tailrace.broker.consumers.state import letters
from tailrace.broker.consumers.state.dead_letter import make_redriven
from tailrace.broker.consumers.state.ranges import SeqRange, merged
from tailrace.broker.process.work import NOBODY, Asker
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.owner_calls import spare
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.consuming import ACK_SYNCED, Consume
from tailrace.protocol.errors import Code
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.names import DEAD_SUFFIX, dead_name

if TYPE_CHECKING:
    from tailrace.broker.consumers.coordinator.coordinator import Coordinator

LETTERS_MAX: Final = 64
BYTES_MAX: Final = 1 << 20
"""Of the letters that one request publishes: its client asks for the rest with further ones."""

_parse = load("tailrace.shard.frame_cy").parse


def list_letters(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    """Which letters are removed, and where `X/$dead` ends."""
    book = desk.book(deed.stream)
    dead = _dead_log(desk, deed.stream)
    removed = merged([*book.consumers.removed, *_not_kept(dead)])
    done({"next_seq": 0 if dead is None else dead.next_seq, "removed": [list(each) for each in removed]})


def purge(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    book = desk.book(deed.stream)
    dead = _dead_log(desk, deed.stream)
    ranges = _wanted(book, dead, deed)
    count = sum(last - first + 1 for first, last in ranges)
    _remove(desk, book, deed, ranges, {"count": count, "next_seq": 0 if dead is None else dead.next_seq}, done)


def redrive(desk: Coordinator, deed: Consume, done: OnResult) -> None:
    book = desk.book(deed.stream)
    dead = _dead_log(desk, deed.stream)
    batches = [] if dead is None else list(_batches(dead, deed, _wanted(book, dead, deed)))
    if dead is None or not batches:
        done({"count": 0, "next_seq": 0 if dead is None else dead.next_seq})
        return
    Redrive(desk, book, deed, done).send(batches)


class Redrive:
    """Letters that are being published to their stream; `done` is called when each has its outcome."""

    asker: Asker = NOBODY

    def __init__(self, desk: Coordinator, book: StreamConsumers, deed: Consume, done: OnResult) -> None:
        self._desk = desk
        self._book = book
        self._deed = deed
        self._done = done
        self._next_seq = 0
        self._left = 0
        self._published: list[SeqRange] = []
        self._refused: Refused | None = None

    def send(self, batches: list[tuple[int, StreamBatch, bytearray]]) -> None:
        """(seq of the letter, its batch, its frame), in order."""
        self._left, self._next_seq = len(batches), batches[-1][0] + 1
        for seq, batch, frame in batches:
            batch.add(self, seq, 1, frame)
        self._desk.owner.append_row([batch for _seq, batch, _frame in batches], self._desk.clock())

    def published(self, seq: int, _first_seq: int, _subscribers: int) -> None:
        self._published.append((seq, seq))
        self._settled()

    def refused(self, _seq: int, code: Code, text: str) -> None:
        self._refused = self._refused or Refused(code, text)
        self._settled()

    def unreplicated(self, _seq: int, _first_seq: int, text: str) -> None:
        """It is in the stream; whether it stays there if this node is lost is not known, so it stays a letter."""
        self.refused(_seq, Code.UNREPLICATED, text)

    def may_create(self, _name: bytes) -> bool:
        return False

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.UNKNOWN, "no such stream here")

    def count_created(self) -> None: ...

    def _settled(self) -> None:
        self._left -= 1
        if self._left:
            return
        value = {"count": len(self._published), "next_seq": self._next_seq}
        desk, book = self._desk, self._book
        if desk.known(book.name) is not book:
            self._done(Refused(Code.UNAVAILABLE, "the consumers of this stream are read anew; ask again"))
            return
        try:
            if self._refused is None:
                _remove(desk, book, self._deed, self._published, value, self._done)
            else:
                _remove(desk, book, self._deed, self._published, value, lambda _value: None)
                self._done(self._refused)
        except Refused as refused:
            self._done(refused)


def _remove(
    desk: Coordinator,
    book: StreamConsumers,
    deed: Consume,
    ranges: list[SeqRange],
    value: dict[str, int],
    done: OnResult,
) -> None:
    """Log that these are removed, answer when that is logged, and drop the removed letters at the beginning of X/$dead.

    Raises Refused.
    """
    dead = _dead_log(desk, book.name)
    kept_seq = 0 if dead is None else dead.first_seq
    decision = desk.decided(book, lambda: letters.remove(book.consumers, ranges, kept_seq))
    answer = desk.answer_with(done, value)
    desk.stage(book, decision, answer, sync=deed.ack == ACK_SYNCED, replicas=deed.replicas)
    if dead is not None:
        seq = spare(letters.first_left(book.consumers.removed), desk.owner.context.spared_seq(dead_name(book.name)))
        if dead.first_seq < min(seq, dead.next_seq):
            desk.owner.trim(desk.owner.stream(dead_name(book.name)), min(seq, dead.next_seq))


def _dead_log(desk: Coordinator, name: bytes) -> StreamLog | None:
    """The letters of a stream; None if there never were any. Raises Refused."""
    if name.endswith(DEAD_SUFFIX):
        raise Refused(Code.USAGE, "dead letters go back to a stream that programs publish to, not to dead letters")
    dead = dead_name(name)
    return desk.owner.stream(dead).log if dead in desk.owner.catalog.names else None


def _not_kept(dead: StreamLog | None) -> list[SeqRange]:
    return [] if dead is None or not dead.first_seq else [(0, dead.first_seq - 1)]


def _wanted(book: StreamConsumers, dead: StreamLog | None, deed: Consume) -> list[SeqRange]:
    """The letters that a request is about and that are there."""
    if dead is None:
        return []
    first, last = max(deed.first_seq, dead.first_seq), min(deed.last_seq, dead.next_seq - 1)
    return letters.left(book.consumers.removed, first, last)


def _batches(dead: StreamLog, deed: Consume, ranges: list[SeqRange]) -> Iterator[tuple[int, StreamBatch, bytearray]]:
    """The first letters of these as publishes, about as many as one request may have. Raises StorageError, OSError."""
    messages = nbytes = 0
    for seq, frame in _frames(dead, deed.stream, ranges):
        batch = StreamBatch(deed.stream, 0, None, deed.replicas)
        batch.sync = batch.numbered = True
        yield seq, batch, frame
        messages, nbytes = messages + 1, nbytes + len(frame)
        if messages >= LETTERS_MAX or nbytes >= BYTES_MAX:
            return


def _frames(dead: StreamLog, stream: bytes, ranges: list[SeqRange]) -> Iterator[tuple[int, bytearray]]:
    for first, last in ranges:
        for run in dead.walk(first):
            for seq, time_us, epoch, _flags, metadata, payload in _parse(run.frames, 0, len(run.frames), True):
                if seq > last:
                    break
                yield seq, make_redriven(metadata, payload, _producer_id(stream, seq, epoch, time_us))
            else:
                continue
            break


def _producer_id(stream: bytes, seq: int, epoch: int, time_us: int) -> bytes:
    """One for each letter, as of `DeadLetter.producer_id`."""
    told = repr(("redrive", stream, seq, epoch, time_us))
    return hashlib.blake2b(told.encode(), digest_size=16).digest()
