"""The numbers by which a broker knows a publish that is sent again. Pure.

Publishes to the same streams form a `ProducerSequence`, which has an id of its own and counts their messages. It goes
on while all of them are acknowledged. When one fails the sequence is given up, since its next number may be wrong:
later publishes form another one.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

import msgpack

from tailrace.protocol.outgoing import OutgoingBuffer
from tailrace.shard.frame import HEADER, HEADER_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering

SEQUENCES_MAX: Final = 65_536
"""Of one client; of more, those that nothing is under way in are forgotten, the longest idle first."""
ID_BYTES: Final = 16

_mark_run = load("tailrace.shard.run_cy").mark_run
_pack_number = msgpack.Packer().pack
_new_tuple = tuple.__new__  # without the Python function that a NamedTuple has


class Numberable(Protocol):
    """What a sequence needs of a publish. `position`: its own, `marked`: the one that its frames carry."""

    number: int
    count: int
    streams: tuple[str, ...]
    frames: OutgoingBuffer
    position: SequencePosition | None
    marked: SequencePosition | None


class ProducerSequence:
    """`next`: the number of the next message; `undone`: publishes that have no outcome yet, the earliest first.

    `numbers`: the metadata of a message that has no other metadata, up to its number.
    """

    __slots__ = ("id", "is_over", "next", "numbers", "undone")

    def __init__(self, sequence_id: bytes) -> None:
        self.id = sequence_id
        self.numbers = write_numbering(b"", sequence_id, 0)[:-1]
        self.next = 0
        self.undone: dict[int, None] = {}
        self.is_over = False

    def is_first(self, publication: Numberable) -> bool:
        """Whether all earlier ones have their result."""
        return next(iter(self.undone), publication.number) == publication.number

    def replace(self, number: int, parts: Iterable[int]) -> None:
        """The publish with this number continues as these."""
        del self.undone[number]
        self.undone = dict.fromkeys(sorted((*self.undone, *parts)))


class SequencePosition(NamedTuple):
    """In a sequence: the publish's first message has this number."""

    sequence: ProducerSequence
    number: int


class ProducerSequences:
    """The sequences of one client.

    An exception such as KeyboardInterrupt may come between any two statements; `recover` is called before anything else
    then. So what must never be, a number that is given twice, is left to no order of statements but to that.
    """

    def __init__(self, make_id: Callable[[], bytes] = lambda: os.urandom(ID_BYTES)) -> None:
        self._sequences: OrderedDict[tuple[str, ...], ProducerSequence] = OrderedDict()
        self._make_id = make_id
        self.prefix = b""
        """Of the ids of new sequences: the broker tells users apart by it."""

    def join(self, publication: Numberable) -> bool:
        """Gives it the next numbers, and writes them into its frames.

        False if it must wait: it would overtake other publishes of a sequence that is given up.
        """
        streams = publication.streams
        sequence = self._sequences.get(streams)
        if sequence is None or sequence.is_over:
            if sequence is not None and sequence.undone:
                return False
            sequence = self._begin(streams)
        self._sequences.move_to_end(streams)
        number = sequence.next
        publication.position = position = _new_tuple(SequencePosition, (sequence, number))
        sequence.next = number + publication.count
        sequence.undone[publication.number] = None
        frames = publication.frames
        if HEADER.unpack_from(frames)[-1]:
            self.mark(publication)
        else:
            publication.frames = _mark_run(frames, sequence.numbers + _pack_number(number))
            publication.marked = position
        return True

    def mark(self, publication: Numberable) -> None:
        """Writes its position into its frames, unless it is there."""
        position = publication.position
        if position is None or publication.marked is position:
            return
        frames = publication.frames
        metadata = bytes(frames[HEADER_BYTES : HEADER_BYTES + HEADER.unpack_from(frames)[-1]])
        numbered = write_numbering(metadata, position.sequence.id, position.number)
        publication.frames = _mark_run(frames, numbered)
        publication.marked = position

    def leave(self, publication: Numberable) -> None:
        """Its numbers are wrong: it joins another sequence."""
        self.done(publication, failed=True)
        publication.position = None

    def done(self, publication: Numberable, *, failed: bool) -> None:
        """It has its result."""
        if publication.position is not None:
            sequence = publication.position.sequence
            sequence.undone.pop(publication.number, None)
            sequence.is_over |= failed

    def recover(self, publications: Iterable[Numberable]) -> None:
        """These are all that have no outcome; an exception has come between two steps."""
        for sequence in self._sequences.values():
            sequence.undone.clear()
        for publication in publications:
            if publication.position is not None:
                sequence, number = publication.position
                sequence.undone[publication.number] = None
                sequence.next = max(sequence.next, number + publication.count)

    def _begin(self, streams: tuple[str, ...]) -> ProducerSequence:
        if len(self._sequences) >= SEQUENCES_MAX:
            self._forget_one()
        sequence = self._sequences[streams] = ProducerSequence(self.prefix + self._make_id())
        return sequence

    def _forget_one(self) -> None:
        idle = next((streams for streams, sequence in self._sequences.items() if not sequence.undone), None)
        if idle is not None:
            del self._sequences[idle]
