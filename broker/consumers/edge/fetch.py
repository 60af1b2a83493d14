"""The messages of a get, from the files of their stream: frames as they are, whole, as many as may go.

The owner decides which messages they are. They may be read on another node: there some may be trimmed already, or not
be there yet; or there are others under their seqs, as long as that node does not know of a promotion that lost them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.protocol import consuming as c
from tailrace.shard.files import read_all
from tailrace.shard.index import IndexRun
from tailrace.shard.reader import StreamReader


class OtherMessages(Exception):
    """This copy has other messages under the seqs that were given; the text names them."""


class Fetched(NamedTuple):
    """`frames` of each of the runs, in order. `trimmed`: how many messages are not kept any more."""

    runs: list[c.DeliveredRun]
    frames: list[bytes]
    trimmed: int


def end_of(runs: Iterable[Sequence[int]]) -> int:
    """The seq after the last message of any run; 0 of none."""
    return max((first + count for first, count, _deliveries, _epoch in runs), default=0)


def before(runs: Iterable[Sequence[int]], next_seq: int) -> list[c.DeliveredRun]:
    """The part of the runs before `next_seq`."""
    return [
        (first, min(count, next_seq - first), deliveries, epoch)
        for first, count, deliveries, epoch in runs
        if first < next_seq
    ]


def fetch(reader: StreamReader, runs: Iterable[Sequence[int]], max_bytes: int) -> Fetched:
    """Read messages, in the order of the runs, whose frames take at most `max_bytes` together, but one at least.

    Raises Trimmed if messages are trimmed in this very moment, OtherMessages, StreamCut, StreamDamaged, OSError, and
    ValueError for a message that has not come yet.
    """
    fetched: list[c.DeliveredRun] = []
    frames: list[bytes] = []
    trimmed, room, oldest = 0, max_bytes, reader.first_seq()
    for first, count, deliveries, given_epoch in runs:
        end = first + count
        start = min(max(first, oldest), end)
        trimmed += start - first
        if start == end:
            continue
        entry, last = reader.entry(start), reader.entry(end - 1)
        if given_epoch and not entry.epoch == last.epoch == given_epoch:
            text = (
                f"messages {start} to {end - 1} of epoch {given_epoch} are of epochs {entry.epoch} to {last.epoch} here"
            )
            raise OtherMessages(text)
        run = IndexRun(start, entry.offset, end, last.offset + last.length)
        end_seq, end_offset = reader.cut(run, max(room, 0) if given_epoch else 0)  # or one at a time
        if end_offset - run.offset > room and fetched:
            break
        frames.append(_read(reader, run.offset, end_offset))
        fetched.append((start, end_seq - start, deliveries, entry.epoch))
        room -= end_offset - run.offset
        if end_seq < end:
            break
    return Fetched(fetched, frames, trimmed)


def _read(reader: StreamReader, offset: int, end_offset: int) -> bytes:
    frames = read_all(reader.content_fd, end_offset - offset, offset)
    reader.next_seq()  # raises StreamCut: other messages may have come to this place while it was read
    if len(frames) < end_offset - offset:
        raise reader.damaged(offset, f"the file ends before the frames that go on to {end_offset}")
    return frames
