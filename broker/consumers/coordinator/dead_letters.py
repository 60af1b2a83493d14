"""Dead letters on their way to `X/$dead`.

A letter is published with `sync`, and the consumer's message is finished only after that: a message is in one of the
two streams, even after a failure in between. The producer's number of each letter keeps it from being there twice.

While the node refuses publishes for want of room (`DiskSpace.is_met`) letters wait. They are logged in `$cursor/X` and
bounded by DYING_MAX of each consumer; further messages that have failed too often are delivered again meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tailrace.broker.consumers.coordinator.stream_consumers import StreamConsumers
from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.consumer import DeadLetter
from tailrace.broker.consumers.state.dead_letter import make_frame
from tailrace.broker.process.work import NOBODY, Asker
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError
from tailrace.shard.frame import unpack_header
from tailrace.shard.names import dead_name

if TYPE_CHECKING:
    from tailrace.broker.consumers.coordinator.coordinator import Coordinator

log = logging.getLogger(__name__)

LETTERS_A_TURN: Final = 64
"""Of one stream: they are written together."""
LETTER_BYTES_A_TURN: Final = 1 << 20
"""Of messages that are read for letters, of all streams together; but at least one letter."""


class LetterPublish:
    """Is notified of the outcome of a letter's publish."""

    __slots__ = ("_book", "_letter", "_post")

    asker: Asker = NOBODY

    def __init__(self, post: DeadLetters, book: StreamConsumers, letter: DeadLetter) -> None:
        self._post = post
        self._book = book
        self._letter = letter

    def published(self, _key: int, _first_seq: int, _subscribers: int) -> None:
        self._post.arrived(self._book, self._letter)

    def refused(self, _key: int, code: Code, text: str) -> None:
        self._post.failed(self._book, self._letter, f"{code}: {text}")

    def unreplicated(self, key: int, first_seq: int, _text: str) -> None:
        self.published(key, first_seq, 0)

    def may_create(self, _name: bytes) -> bool:
        return False

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.UNKNOWN, "no such stream here")

    def count_created(self) -> None: ...


class DeadLetters:
    """One per coordinator. `waiting`: streams with letters that are to be sent in this turn."""

    def __init__(self, desk: Coordinator) -> None:
        self._desk = desk
        self.waiting: dict[bytes, None] = {}
        self._failed: dict[bytes, None] = {}  # those to be tried again later
        self._warned: set[bytes] = set()  # those of them that are in the log already
        self._is_held = False  # the node has no room for letters, and the log says so

    def reconcile(self, book: StreamConsumers) -> None:
        """There may be letters."""
        if book.consumers.has_unburied:
            self.waiting[book.name] = None

    def try_again(self) -> None:
        """From a slow timer."""
        failed, self._failed = self._failed, {}
        self._warned.intersection_update(failed)
        self._desk.owner.metrics.held_letter_streams = len(failed)
        self.waiting.update(failed)

    def send(self) -> None:
        """Publish the letters whose death is logged already, if the node has room for them."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, {}
        if not self._has_room():
            self._failed.update(waiting)
            return
        left_bytes = LETTER_BYTES_A_TURN
        for name in waiting:
            book = self._desk.known(name)
            if book is None:
                continue
            if book.log.staged or left_bytes <= 0:
                self.waiting[name] = None
                continue
            try:
                left_bytes -= self._send_some(book, left_bytes)
            except (Refused, StorageError, OSError, ValueError) as error:
                self._put_off(name, str(error))

    def _has_room(self) -> bool:
        """Whether the node takes messages. The log has one line when letters begin to wait, and one when they go on."""
        is_met = self._desk.owner.space.is_met
        if is_met and not self._is_held:
            log.warning("dead letters wait until this node takes publishes again: it has met a bound on disk space")
        elif self._is_held and not is_met:
            log.info("dead letters are published again")
        self._is_held = is_met
        return not is_met

    def arrived(self, book: StreamConsumers, letter: DeadLetter) -> None:
        """It is in the stream of dead letters, or its message is not kept any more."""
        book.posted.discard(_key(letter))
        desk = self._desk
        if desk.known(book.name) is not book:
            return  # the next reader of the log sends it again, and that stream drops the duplicate
        try:
            desk.stage(book, desk.decided(book, lambda: decide.bury(book.consumers, letter)))
        except Refused as refused:
            log.warning("a dead letter of stream %r: %s", book.name, refused.text)

    def failed(self, book: StreamConsumers, letter: DeadLetter, why: str) -> None:
        book.posted.discard(_key(letter))
        self._put_off(book.name, why)

    def _put_off(self, name: bytes, why: str) -> None:
        self._failed[name] = None
        if name not in self._warned:
            self._warned.add(name)
            log.warning("dead letters of stream %r cannot be published now: %s", name, why)

    def _send_some(self, book: StreamConsumers, most_bytes: int) -> int:
        """Publish letters of one stream; returns how many bytes of messages were read for them.

        Raises Refused, StorageError, OSError, and ValueError if a letter would be too long.
        """
        owner, log_view, name = self._desk.owner, book.current(), dead_name(book.name)
        row, posted, nbytes = [], [], 0
        letters = [each for each in book.consumers.unburied() if _key(each) not in book.posted]
        for place, letter in enumerate(letters):
            if place >= LETTERS_A_TURN or nbytes >= most_bytes:
                self.waiting[book.name] = None
                break
            if not log_view.first_seq <= letter.seq < log_view.next_seq:
                self.arrived(book, letter)
                continue
            frame = _read(book, letter.seq)
            nbytes += len(frame)
            batch = StreamBatch(name, 0)
            batch.sync = batch.numbered = True
            batch.add(LetterPublish(self, book, letter), 0, 1, make_frame(book.name, letter, frame))
            row.append(batch)
            posted.append(_key(letter))
        if row:
            if name not in owner.catalog.names:
                owner.create(name, by_command=True)
            book.posted.update(posted)
            owner.append_row(row, self._desk.clock())
        return nbytes


def _key(letter: DeadLetter) -> tuple[bytes, int, int]:
    return letter.consumer, letter.era_us, letter.number


def _read(book: StreamConsumers, seq: int) -> memoryview:
    """The message's frame. Raises StorageError, OSError."""
    run = next(iter(book.log_view.log.walk(seq)))
    return run.frames[: unpack_header(run.frames).length]
