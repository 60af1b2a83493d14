"""Reading frames offline, whole and verified, from wherever they stand: a stream, its .diverged or its .torn file.

The output is runs of valid frames and, in between, the damaged ranges. After damage a stream is resumed by its index,
any other file by the length in the damaged frame, if a valid frame follows there.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.shard.diverged import read_tails
from tailrace.shard.errors import Trimmed
from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES, MAX_FRAME_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.reader import StreamReader
from tailrace.shard.torn import read_torn
from tailrace.shard.walk import FrameRun, FrameWalk, fault_text, frame_seq, index_entries, whole_frame_seq

END: Final = 1 << 64
"""Behind every seq and every timestamp."""


class Bounds(NamedTuple):
    """Selects messages: from first_seq and first_us on, before end_seq and end_us."""

    first_seq: int = 0
    end_seq: int = END
    first_us: int = 0
    end_us: int = END


class Section(NamedTuple):
    """Bytes offset..end_offset of a file that should be frames, message `seq` the first; `title` describes them,
    `number` counts them in the file, from 1 on.

    `following` returns the offset and seq of the next frame after a damaged one, from its offset and seq; None if
    unknown. `require` raises if the bytes just read may have been replaced.
    """

    title: str
    number: int
    file: Path
    fd: int
    offset: int
    end_offset: int
    seq: int
    following: Callable[[int, int], tuple[int, int] | None]
    require: Callable[[], object]


class Bad(NamedTuple):
    """Bytes offset..end_offset of a file cannot be read; message `seq` should begin there."""

    file: Path
    offset: int
    end_offset: int
    seq: int
    cause: str

    def __str__(self) -> str:
        lost = self.end_offset - self.offset
        return f"message {self.seq}: {self.cause} ({self.file} at byte {self.offset}, {lost:,} bytes)"


def stream_section(reader: StreamReader, file: Path, bounds: Bounds) -> Section:
    """The part of a stream within the bounds. Raises StreamCut, StreamDamaged, OSError."""
    next_seq = reader.next_seq()
    first = max(reader.first_seq(), bounds.first_seq, reader.seq_at(bounds.first_us) if bounds.first_us else 0)
    end = min(next_seq, bounds.end_seq, reader.seq_at(bounds.end_us) if bounds.end_us < END else END)
    first, end = min(first, next_seq), max(min(first, next_seq), end)

    def following(_offset: int, seq: int) -> tuple[int, int] | None:
        if seq < (oldest := reader.first_seq()):
            raise Trimmed(reader.name, seq, oldest)
        return (reader.offset_of(seq + 1), seq + 1) if seq + 1 < end else None

    offset, end_offset = reader.offset_of(first), reader.offset_of(end)
    title = f"stream {reader.name!r}"
    return Section(title, 1, file, reader.content_fd, offset, end_offset, first, following, reader.next_seq)


def diverged_sections(fd: int, file: Path, name: str) -> Iterator[Section]:
    """The tails in a .diverged file. Raises TailsDamaged, OSError."""
    for kept in read_tails(fd, file, name):
        end = kept.offset + kept.tail.nbytes
        title = f"tail {kept.number} of {name!r}"
        yield Section(title, kept.number, file, fd, kept.offset, end, kept.tail.first_seq, _by_length(fd, end), tuple)


def torn_sections(fd: int, file: Path, name: str) -> Iterator[Section]:
    """The frames in a .torn file; header pages and other files that were kept there are left out.

    Raises TailsDamaged, OSError.
    """
    for number, part in enumerate(read_torn(fd, file, name), 1):
        if part.kind == "content" and part.cut_offset >= HEADER_PAGE_BYTES and part.nbytes >= HEADER_BYTES:
            end = part.offset + part.nbytes
            seq = frame_seq(fd, part.offset)
            title = f"cut {number} of {name!r}"
            yield Section(title, number, file, fd, part.offset, end, seq, _by_length(fd, end), tuple)


def read_section(section: Section, bounds: Bounds) -> Iterator[FrameRun | Bad]:
    """Yields the valid frames within the bounds, run by run, and damaged ranges. Raises Trimmed, StreamCut, OSError."""
    offset, seq = section.offset, section.seq
    while offset < section.end_offset:
        walk = FrameWalk(section.fd, offset, section.end_offset, seq)
        for run in walk:
            section.require()
            within = clip(run, bounds)
            if within is not None:
                yield within
        section.require()
        if not walk.fault:
            return
        next_offset, next_seq = section.following(walk.offset, walk.seq) or (section.end_offset, walk.seq)
        if next_offset <= walk.offset:  # an index that leads back
            next_offset = section.end_offset
        yield Bad(section.file, walk.offset, next_offset, walk.seq, fault_text(walk.fault))
        offset, seq = next_offset, next_seq


def clip(run: FrameRun, bounds: Bounds) -> FrameRun | None:
    """The part of a run that is within the bounds; None when nothing is."""
    first, end = 0, run.messages
    entries = index_entries(run.frames, 0, len(run.frames), 0)
    if bounds.first_us or bounds.end_us < END:
        times = memoryview(entries).cast("Q")[::3].tolist()
        first, end = bisect_left(times, bounds.first_us), bisect_left(times, bounds.end_us)
    first, end = max(first, bounds.first_seq - run.seq), min(end, bounds.end_seq - run.seq)
    if first >= end:
        return None
    if (first, end) == (0, run.messages):
        return run
    offsets = [*memoryview(entries).cast("Q")[1::3].tolist(), len(run.frames)]
    return FrameRun(
        run.seq + first, end - first, run.offset + offsets[first], run.frames[offsets[first] : offsets[end]]
    )


def _by_length(fd: int, end: int) -> Callable[[int, int], tuple[int, int] | None]:
    """Continues after a damaged frame by its length, if a valid frame is there."""

    def following(offset: int, _seq: int) -> tuple[int, int] | None:
        next_offset = offset + int.from_bytes(os.pread(fd, 4, offset), "little")
        if not offset + HEADER_BYTES <= next_offset <= min(offset + MAX_FRAME_BYTES, end - HEADER_BYTES):
            return None
        seq = whole_frame_seq(fd, next_offset, end)
        return None if seq is None else (next_offset, seq)

    return following


assert INDEX_ENTRY_BYTES == 3 * 8
