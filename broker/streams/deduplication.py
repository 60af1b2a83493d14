"""Publishes that their producers have numbered: which of them the owner appends, and which it has logged already.

The memory of a stream's producers is built from its log when the first numbered publish comes, or, on a slave, the
first numbered message; from then on it is kept up to date while the stream is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.broker.routing.batch import StampableFrames, StreamBatch
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError, StreamDamaged, peer_text
from tailrace.shard.frame import FLAG_CONTINUES, FLAG_PRODUCER, FLAGS_OFFSET, HEADER_BYTES, unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.numbering import read_numbering, write_numbering
from tailrace.shard.producer_file import CHECKPOINT_BYTES, follow, producers_path, rebuild, save
from tailrace.shard.producer_memory import ProducerMemory
from tailrace.shard.producers import Judgement, NumberVerdict, ProducerRun, Producers

if TYPE_CHECKING:
    from tailrace.broker.streams.open_stream import OpenStream

log = logging.getLogger(__name__)

_leaf = load("tailrace.shard.run_cy")
_mark_run, _find_flagged, _read_run = _leaf.mark_run, _leaf.find_flagged, _leaf.read_run

GAP_TEXT: Final = "number {number} where {expected} is the next of this producer; nothing of this was logged"
UNKNOWN_TEXT: Final = "nothing is known here of a producer whose next number is {number}; nothing of this was logged"
OLD_TEXT: Final = "number {number} was logged before, the next one is {expected}; at which seq is not known any more"


class KnownProducers:
    """The producers of an open stream; None if its log could not be read for them."""

    __slots__ = ("generation", "producers", "saved_offset")

    def __init__(self, producers: Producers | None, generation: int, saved_offset: int) -> None:
        self.producers = producers
        self.generation = generation  # of the log: after a cut all of this is to be known anew
        self.saved_offset = saved_offset  # where the content ended when it was written down, or read


class Admitted(NamedTuple):
    """`pieces` of frames, `messages` of them, are to be appended.

    `first_seq` plus the batch's messages is the end of its last message in the log, which its publishers wait for. If
    some of the batch was logged before, its first message may be at another place, which its part has.
    """

    first_seq: int
    messages: int = 0
    pieces: Sequence[StampableFrames] = ()


def is_numbered(frames: StampableFrames) -> bool:
    """Whether whole frames, which were measured, are a producer's run."""
    return bool(frames[FLAGS_OFFSET] & FLAG_PRODUCER)


def is_by_producer(frames: StampableFrames, prefix: bytes) -> bool:
    """Whether the id of the producer that has numbered these frames begins so; True if nobody has, or wrongly."""
    if not is_numbered(frames):
        return True
    try:
        return _numbering(frames)[0].startswith(prefix)
    except Refused:  # by the owner of the stream, too
        return True


class Deduplication:
    """Each owner has one."""

    def __init__(
        self, shard_path: Callable[[bytes], Path], expiry_s: float, bytes_max: int, pause: Callable[[], None]
    ) -> None:
        self._shard_path = shard_path
        self._expiry_us = int(expiry_s * 1e6)
        self._pause = pause
        self.memory = ProducerMemory(bytes_max)

    def admit(
        self, stream: OpenStream, batch: StreamBatch, seq: int, now_us: int, refusal: Refused | None = None
    ) -> list[tuple[StreamBatch, Admitted]]:
        """The new messages of a numbered batch, to be appended from `seq` on; from now on they count as appended.

        A batch that is only partly new is split. Publishers that are refused have their answer; with `refusal` all are
        refused whose messages are not all logged already.
        """
        try:
            producers = self._producers(stream, now_us)
        except Refused as refused:
            batch.refused(refused.code, refused.text)
            return []
        taken = _advance(producers, batch, seq, now_us) if refusal is None else 0
        if taken and taken == len(batch.parts):
            return [(batch, Admitted(seq, batch.count, batch.take_pieces()))]
        found: list[tuple[StreamBatch, Admitted]] = []
        for index, each in enumerate(batch.apart()):
            if index < taken:
                admitted = Admitted(seq, each.count, each.take_pieces())
            else:
                try:
                    admitted = _admit_one(producers, each, seq, now_us, refusal)
                except Refused as refused:
                    each.refused(refused.code, refused.text)
                    continue
            found.append((each, admitted))
            seq += admitted.messages
        return found

    def took(self, stream: OpenStream, pieces: Sequence[memoryview], now_us: int) -> None:
        """A slave has appended what its master had, with one `take`."""
        if not stream.log.taken_flags & (FLAG_PRODUCER | FLAG_CONTINUES):
            return
        known = stream.producers
        if known is not None and known.generation == stream.log.generation:
            if known.producers is not None:
                for frames in pieces:
                    follow(known.producers, frames)
        elif any(_find_flagged(frames, 0, len(frames)) for frames in pieces):
            try:
                self._know(stream, now_us)
            except (StorageError, OSError) as error:
                log.error("the producers of stream %r cannot be known: %s", stream.name, error)
                self.forget(stream)
                stream.producers = KnownProducers(None, stream.log.generation, stream.log.end_offset)

    def grew(self, stream: OpenStream) -> None:
        """Save the memory of producers if much was appended since the last time."""
        known = stream.producers
        if known is not None and stream.log.end_offset - known.saved_offset >= CHECKPOINT_BYTES:
            self.save(stream)

    def save(self, stream: OpenStream) -> None:
        """Save the memory of producers. Without this, building it again only takes longer."""
        known = stream.producers
        if known is None or known.producers is None or known.generation != stream.log.generation:
            return
        known.saved_offset = stream.log.end_offset
        try:
            save(self._path(stream), stream.log, known.producers)
        except (StorageError, OSError) as error:
            log.warning("the producers of stream %r are not written down: %s", stream.name, error)

    def forget(self, stream: OpenStream) -> None:
        """Drop the memory of the stream's producers; it can be built again from the log."""
        known, stream.producers = stream.producers, None
        if known is not None and known.producers is not None:
            known.producers.release()

    def _producers(self, stream: OpenStream, now_us: int) -> Producers:
        known = stream.producers
        if known is not None and known.generation == stream.log.generation and known.producers is not None:
            return known.producers
        try:
            return self._know(stream, now_us)
        except StreamDamaged as damage:
            raise Refused(Code.DAMAGED, peer_text(damage)) from damage
        except (StorageError, OSError) as error:
            text = f"the producers of this stream cannot be known now: {peer_text(error)}"
            raise Refused(Code.UNAVAILABLE, text) from error

    def _know(self, stream: OpenStream, now_us: int) -> Producers:
        """Raises StorageError, OSError."""
        producers = rebuild(self._path(stream), stream.log, self._expiry_us, now_us, self._pause)
        self.forget(stream)
        producers.count_in(self.memory)
        stream.producers = KnownProducers(producers, stream.log.generation, stream.log.end_offset)
        return producers

    def _path(self, stream: OpenStream) -> Path:
        return producers_path(self._shard_path(stream.name), stream.name.decode())


def _advance(producers: Producers, batch: StreamBatch, seq: int, now_us: int) -> int:
    """How many publishes, from the first on, are the next ones of producers that are known. They are noted.

    This is the path of nearly all, and costs each of them one look at its frame.
    """
    parts, taken, frames_of, advance = batch.parts, 0, batch.frames, producers.advance
    last = len(parts) - 1
    for index, frames in enumerate(frames_of):
        found = _read_run(frames, HEADER_BYTES, HEADER_BYTES + frames[30] + (frames[31] << 8))
        count = (batch.count if index == last else parts[index + 1][2]) - parts[index][2]
        if found is None or not advance(found[0], found[1], count, seq, now_us):
            break
        seq += count
        taken += 1
    return taken


def _admit_one(
    producers: Producers, batch: StreamBatch, seq: int, now_us: int, refusal: Refused | None = None
) -> Admitted:
    """Judge a batch with one publish. Raises Refused, and `refusal` if any of it is not logged yet."""
    producer_id, number = _numbering(batch.frames[0])
    judged = producers.judge(producer_id, number, batch.count, now_us)
    if refusal is not None and judged.kind not in (NumberVerdict.REPEAT, NumberVerdict.OLD):
        raise refusal
    match judged.kind:
        case NumberVerdict.NEW:
            producers.note(producer_id, ProducerRun(number, batch.count, seq), now_us)
            return Admitted(seq, batch.count, batch.take_pieces())
        case NumberVerdict.REPEAT:
            return Admitted(_align_to_end(batch, judged.seq, judged.end_seq))
        case NumberVerdict.REST:
            rest = _rest(batch, producer_id, number, judged)
            messages = number + batch.count - judged.expected
            producers.note(producer_id, ProducerRun(judged.expected, messages, seq), now_us)
            return Admitted(_align_to_end(batch, judged.seq, seq + messages), messages, (rest,))
        case NumberVerdict.GAP:
            raise Refused(Code.GAP, GAP_TEXT.format(number=number, expected=judged.expected))
        case NumberVerdict.UNKNOWN:
            raise Refused(Code.PRODUCER, UNKNOWN_TEXT.format(number=number))
        case NumberVerdict.OLD:
            raise Refused(Code.PRODUCER, OLD_TEXT.format(number=number, expected=judged.expected))


def _align_to_end(batch: StreamBatch, first_seq: int, end_seq: int) -> int:
    """Let a batch with one publish count from its last message, which is the one before `end_seq`, and let its
    publisher be answered with `first_seq`. Returns the seq that the batch counts from.
    """
    counted_from = end_seq - batch.count
    sink, key, _ = batch.parts[0]
    batch.parts[0] = sink, key, first_seq - counted_from
    return counted_from


def _numbering(frames: StampableFrames) -> tuple[bytes, int]:
    """Raises Refused."""
    metadata_bytes = unpack_header(frames).metadata_bytes
    try:
        return read_numbering(memoryview(frames)[HEADER_BYTES : HEADER_BYTES + metadata_bytes])
    except ValueError as error:
        raise Refused(Code.USAGE, str(error)) from error


def _rest(batch: StreamBatch, producer_id: bytes, number: int, judged: Judgement) -> StampableFrames:
    """The messages of a batch from number `judged.expected` on, as a run of their own."""
    frames = batch.take_frames()
    start = 0
    for _ in range(judged.expected - number):
        start += unpack_header(frames, start).length
    metadata_bytes = unpack_header(frames, start).metadata_bytes
    metadata = bytes(frames[start + HEADER_BYTES : start + HEADER_BYTES + metadata_bytes])
    try:
        metadata = write_numbering(metadata, producer_id, judged.expected)
        rest: bytearray = _mark_run(memoryview(frames)[start:], metadata)
    except ValueError as error:
        raise Refused(Code.USAGE, str(error)) from error
    return rest
