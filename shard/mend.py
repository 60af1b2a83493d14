"""Mending: the index rebuilt from the content alone, and, when asked to, a damaged content cut where the damage begins.

Nothing is discarded: bytes are copied to NAME.torn before they are cut, and a new index takes the place of the old one
when it is whole and on the disk. Cut short itself, mending can be run again. The caller holds the shard's lock;
`shard.mend_data` takes it.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from tailrace.shard.epochs import contradiction, last_epoch, reconcile
from tailrace.shard.errors import MetaDamaged, StorageFull, StreamDamaged, StreamMissing, is_full
from tailrace.shard.files import NEW_SUFFIX, read_all, sync_directory, write_all
from tailrace.shard.frame import INDEX_ENTRY, INDEX_ENTRY_BYTES
from tailrace.shard.header import (
    CONTENT_MAGIC,
    HEADER_PAGE_BYTES,
    INDEX_MAGIC,
    STATE_CLOSED,
    ContentWords,
    FixedHeader,
    HeaderFault,
    IndexWords,
    boot_word,
    pack_page,
    parse_content,
    parse_index,
)
from tailrace.shard.index import read_entry
from tailrace.shard.meta import Role, StreamMeta, meta_path, read_meta, write_meta
from tailrace.shard.place import place_word
from tailrace.shard.reader import StreamReader, this_boot
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tailrace.shard.topic_index_build import drop_index
from tailrace.shard.torn import TORN_SUFFIX, keep_torn
from tailrace.shard.walk import FrameWalk, fault_text, looks_torn, whole_frame_seq

_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Mended:
    """The messages present now, and the bytes that were cut (`kept_in` is None without any). `disabled`: see
    `mend_meta`."""

    first_seq: int
    next_seq: int
    cut_bytes: int
    kept_in: Path | None
    disabled: bool = False


class Cut(Enum):
    """The part of a content that may be cut: nothing, a torn end after a loss of power, or all from the first damage
    on."""

    NOTHING = "nothing"
    TORN = "torn"
    DAMAGED = "damaged"


def rebuild_index(directory: Path, name: str, *, boot_id: str | None = None) -> Mended:
    """Make the index anew from the content, whose header page and committed frames must be right.

    Frames past the committed end do not come back; they are cut, and kept. Raises StreamMissing, StreamDamaged (nothing
    is changed then), StorageFull, OSError.
    """
    return _mend(stream_paths(directory, name), _boot_of(boot_id), Cut.NOTHING)


def take_up(paths: StreamPaths, boot: int) -> Mended:
    """Makes a stream of the frames that a loss of power has left of a new one, and header pages if they are lost.

    Raises StreamDamaged if the frames end in a way that a loss of power cannot cause, StorageFull, OSError.
    """
    return _mend(paths, boot, Cut.TORN)


def repair(directory: Path, name: str, *, boot_id: str | None = None) -> Mended:
    """Makes the stream openable: new header pages and a new index if needed, the content cut at its first damaged
    frame. The cut bytes are kept, but are no longer part of the stream; their seqs are given again.

    Raises StreamMissing, StreamDamaged when the files are another stream's, StorageFull, OSError.
    """
    paths = stream_paths(directory, name)
    mended = _mend(paths, _boot_of(boot_id), Cut.DAMAGED)
    return replace(mended, disabled=mend_meta(directory, name, boot_id=boot_id))


def mend_meta(directory: Path, name: str, *, boot_id: str | None = None) -> bool:
    """Makes the .meta of a stream that opens match its messages; returns whether that disables the stream.

    A file that cannot be read is kept in the .torn. Nobody knows then whether this node was the stream's master, and a
    second master is worse than none: the stream is disabled, in the epoch of its last message. Raises StreamDamaged,
    OSError.
    """
    paths = stream_paths(directory, name)
    lost = False
    try:
        meta = read_meta(directory, name)
    except MetaDamaged:
        path = meta_path(directory, name)
        with open(path, "rb") as file:
            keep_torn(directory, paths.stem, file.fileno(), "meta", 0, os.fstat(file.fileno()).st_size)
        meta, lost = StreamMeta(name, Role.DISABLED, history=()), True
    with StreamReader.open(directory, name, boot_id=boot_id) as reader:
        found, next_seq = reader.epochs(), reader.next_seq()
    epoch = max(meta.epoch, last_epoch(found))
    history = reconcile(meta.history, found, next_seq)
    if lost or contradiction(meta.history, found, next_seq) or epoch != meta.epoch:
        write_meta(directory, replace(meta, epoch=epoch, history=history))
    return lost


class _Source:
    """The content file, and the facts in both header pages. An invalid page contributes none."""

    def __init__(self, paths: StreamPaths, fd: int, boot: int) -> None:
        self.paths = paths
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.fixed: FixedHeader | None = None
        self.content: ContentWords | None = None
        self.index: IndexWords | None = None
        self.same_boot = False
        self._oldest_by_index = 0
        self._read_content()
        self._read_index(boot)

    @property
    def limit_offset(self) -> int:
        """No frame is looked for beyond: after a crash of the process what lies there was never acknowledged."""
        if self.content is None or (self.index and not self.same_boot):
            return self.size
        return min(self.size, self.content.end_offset)

    @property
    def limit_seq(self) -> int:
        """The committed end, if it is known."""
        return self.index.next_seq if self.index and self.same_boot else _NO_LIMIT

    @property
    def required_seq(self) -> int:
        """The messages before this one were promised to be there."""
        if self.index is None:
            return 0
        return self.index.next_seq if self.same_boot else self.index.synced_seq

    @property
    def known_seq(self) -> int:
        """Seqs below this one were given to messages, as far as anybody knows."""
        return max(self.index.next_seq if self.index else 0, self.content.first_seq if self.content else 0)

    @property
    def first_seq(self) -> int:
        return max(self.index.first_seq if self.index else 0, self.content.first_seq if self.content else 0)

    def damaged(self, offset: int, cause: str) -> StreamDamaged:
        return self.paths.damaged(self.paths.content_file, offset, cause)

    def start_candidates(self) -> list[int]:
        """Candidates for the beginning of the oldest frame, the likeliest first."""
        by_content = [self.content.first_offset] if self.content else []
        by_index = [self._oldest_by_index] if self._oldest_by_index else []
        return [*by_content, *by_index, HEADER_PAGE_BYTES]

    def _read_content(self) -> None:
        try:
            self.fixed, self.content = parse_content(read_all(self.fd, HEADER_PAGE_BYTES, 0))
        except HeaderFault:
            return
        if self.fixed.name != self.paths.name:
            raise self.damaged(0, f"it is a file of the stream {self.fixed.name!r}; move it there by hand")

    def _read_index(self, boot: int) -> None:
        try:
            with open(self.paths.index_file, "rb") as file:
                fixed, words = parse_index(file.read(HEADER_PAGE_BYTES))
                entry = read_entry(file.fileno(), min(words.first_seq, words.next_seq - 1), fixed.base_seq)
        except (FileNotFoundError, HeaderFault):
            return
        if fixed.name != self.paths.name or (self.fixed and self.fixed.stream_id != fixed.stream_id):
            return
        self.fixed = self.fixed or fixed
        self.index, self.same_boot = words, words.boot == boot
        self._oldest_by_index = entry.offset if entry else 0


def _boot_of(boot_id: str | None) -> int:
    return this_boot() if boot_id is None else boot_word(boot_id)


def _mend(paths: StreamPaths, boot: int, may_cut: Cut) -> Mended:
    if not (os.path.exists(paths.content_file) or os.path.exists(paths.index_file)):
        raise StreamMissing(paths.name, paths.directory)
    flags = os.O_RDWR | os.O_CLOEXEC | (0 if may_cut is Cut.NOTHING else os.O_CREAT)
    try:
        content_fd = os.open(paths.content_file, flags, 0o644)
    except FileNotFoundError:
        raise paths.damaged(paths.content_file, 0, "the file is missing") from None
    new_index = paths.index_file + NEW_SUFFIX
    try:
        index_fd = os.open(new_index, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            mended = _write_anew(_Source(paths, content_fd, boot), index_fd, boot, may_cut)
            drop_index(paths)
            os.rename(new_index, paths.index_file)
            sync_directory(paths.directory)
        except BaseException:
            os.unlink(new_index)
            raise
        finally:
            os.close(index_fd)
    except OSError as error:
        if is_full(error):
            raise StorageFull(paths.name, Path(new_index), os.fstat(content_fd).st_size) from error
        raise
    finally:
        os.close(content_fd)
    return mended


def _write_anew(source: _Source, index_fd: int, boot: int, may_cut: Cut) -> Mended:
    """Write the entries, cut the content behind the last of them, write both header pages; all of it to the disk."""
    if source.content is None and may_cut is Cut.NOTHING:
        raise source.damaged(0, "its header page is damaged: only a repair can write a new one")
    base_seq, start = _find_start(source, may_cut)
    next_seq, end, fault = _write_entries(source, index_fd, base_seq, start)
    promised_end = source.content.end_offset if source.content and source.index is None else 0
    if may_cut is Cut.TORN and fault and not looks_torn(source.fd, end, source.size):
        raise source.damaged(end, fault_text(fault))
    if may_cut is Cut.NOTHING and (next_seq < source.required_seq or end < promised_end):
        raise source.damaged(end, fault_text(fault) if fault else "the messages end before the committed ones do")
    first_seq = max(base_seq, min(source.first_seq, next_seq))
    cut_bytes = _cut_content(source, end)
    first_offset = end
    if next_seq > base_seq:
        oldest = read_entry(index_fd, min(first_seq, next_seq - 1), base_seq)
        assert oldest is not None, "an entry that was just written"
        first_offset = oldest.offset
    fixed = source.fixed or FixedHeader(secrets.randbits(64), base_seq, time.time_ns() // 1000, source.paths.name)
    content = ContentWords(first_seq, first_offset, end)
    cuts, cut_seq = (source.index.cuts, source.index.cut_seq) if source.index else (0, 0)
    failed = source.index.sync_failed if source.index else 0
    synced_seq = min(next_seq, failed - 1) if failed else next_seq  # the owner writes the rest again
    index = IndexWords(
        first_seq, next_seq, max(synced_seq, base_seq), boot, STATE_CLOSED, cuts + cuts % 2, cut_seq, failed
    )
    index = index._replace(place=place_word(index_fd))
    write_all(source.fd, pack_page(CONTENT_MAGIC, fixed, content), 0)
    write_all(index_fd, pack_page(INDEX_MAGIC, fixed._replace(base_seq=base_seq), index), 0)
    os.fsync(source.fd)
    os.fsync(index_fd)
    kept_in = source.paths.directory / (source.paths.stem + TORN_SUFFIX) if cut_bytes else None
    return Mended(first_seq, next_seq, cut_bytes, kept_in)


def _find_start(source: _Source, may_cut: Cut) -> tuple[int, int]:
    """The oldest frame there is, as (its seq, its offset); for a content without frames, the next seq and its end."""
    content = source.content
    empty = content is not None and content.first_offset == content.end_offset == HEADER_PAGE_BYTES
    if content and empty and source.required_seq <= content.first_seq:
        return content.first_seq, HEADER_PAGE_BYTES
    candidates = source.start_candidates()
    for offset in candidates[:1] if may_cut is Cut.NOTHING else candidates:
        seq = _whole_frame_at(source, offset)
        if seq is not None:
            return seq, offset
    if may_cut is Cut.NOTHING:
        raise source.damaged(candidates[0], "the oldest message is not a whole frame")
    return source.known_seq, HEADER_PAGE_BYTES


def _whole_frame_at(source: _Source, offset: int) -> int | None:
    """The seq of the frame that begins here, if one does."""
    return whole_frame_seq(source.fd, offset, source.size) if offset >= HEADER_PAGE_BYTES else None


def _write_entries(source: _Source, index_fd: int, base_seq: int, start: int) -> tuple[int, int, str]:
    """Writes entries for all whole frames from `start` to the limits; returns the next seq, their end, and the
    fault."""
    walk = FrameWalk(source.fd, start, source.limit_offset, base_seq)
    place = HEADER_PAGE_BYTES
    for run in walk:
        entries = walk.entries
        surplus = run.seq + run.messages - source.limit_seq
        if surplus > 0:
            # Frames that were written and never committed: they must not come back.
            entries = entries[: len(entries) - INDEX_ENTRY_BYTES * surplus]
            write_all(index_fd, entries, place)
            last = INDEX_ENTRY.unpack_from(entries, len(entries) - INDEX_ENTRY_BYTES) if entries else (0, run.offset, 0)
            return source.limit_seq, last[1] + last[2], ""
        write_all(index_fd, entries, place)
        place += len(entries)
    return walk.seq, walk.offset, walk.fault


def _cut_content(source: _Source, end: int) -> int:
    """Keep, then cut, what lies behind `end`, and a header page that was not right. Gives the bytes kept."""
    paths, fd = source.paths, source.fd
    kept = 0
    if source.content is None:
        kept += keep_torn(paths.directory, paths.stem, fd, "content", 0, min(source.size, HEADER_PAGE_BYTES))
    if source.size > end:
        kept += keep_torn(paths.directory, paths.stem, fd, "content", end, source.size)
        os.ftruncate(fd, end)
    return kept
