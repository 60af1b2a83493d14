"""Checking: every byte of a stream against every other that says something about it. Read only.

It may run beside a broker: only what is committed is looked at, and what is found wrong is looked at again when the
stream changed meanwhile (a trim may have punched away what was about to be read).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from shard.catalog import list_shard
from shard.directory import DataDirectory
from shard.errors import MetaDamaged, StreamDamaged, StreamMissing
from shard.files import read_all
from shard.frame import INDEX_ENTRY, INDEX_ENTRY_BYTES, IndexEntry
from shard.header import (
    CONTENT_END_OFFSET,
    HEADER_PAGE_BYTES,
    STATE_CLOSED,
    ContentWords,
    FixedHeader,
    HeaderFault,
    IndexWords,
    boot_word,
    parse_content,
    parse_index,
)
from shard.index import entry_offset, read_entry
from shard.meta import read_meta
from shard.reader import this_boot
from shard.report import Fault, StreamReport
from shard.stream_files import StreamPaths, check_identity, is_unborn, open_fds, stream_paths
from shard.torn import data_end
from shard.walk import FrameWalk, Run, fault_text, frame_seq, index_entries

FAULTS_MAX: Final = 16
"""Faults named for one stream; there may be more."""
ATTEMPTS_MAX: Final = 3
"""How often a stream that changes meanwhile is looked at before its faults are believed."""

_Words = TypeVar("_Words")


def check_data(data: DataDirectory, *, boot_id: str | None = None) -> Iterator[StreamReport]:
    """Check every stream of the node, one report each, shard by shard. Raises OSError.

    A file that belongs to no stream gives a report with the file's name and a note. `boot_id` is for tests.
    """
    for shard in range(data.shards):
        yield from check_shard(data, shard, boot_id=boot_id)


def check_shard(data: DataDirectory, shard: int, *, boot_id: str | None = None) -> Iterator[StreamReport]:
    """As `check_data`, for the streams in one shard's folder."""
    directory = data.shard_path(shard)
    listing = list_shard(directory)
    for file in sorted(listing.strays):
        yield StreamReport(shard, file, notes=(f"{directory / file} belongs to no stream",))
    for name in sorted(listing.names):
        report = check_stream(directory, name, shard=shard, boot_id=boot_id)
        home = data.shard_of(name)
        if home != shard:
            misplaced = Fault(directory, 0, f"stream {name!r} belongs into {data.shard_path(home)}")
            report = replace(report, faults=(*report.faults, misplaced))
        yield report


def check_stream(directory: Path, name: str, *, shard: int = -1, boot_id: str | None = None) -> StreamReport:
    """Check one stream whole. Damage is in the report; raises OSError where a file cannot be read at all."""
    paths = stream_paths(directory, name)
    boot = this_boot() if boot_id is None else boot_word(boot_id)
    for _ in range(ATTEMPTS_MAX):
        checker = _Checker(paths, boot)
        changed = checker.run()
        if not checker.faults or not changed:
            break
    checker.check_meta()
    return checker.report(shard)


class _Checker:
    """One look at one stream: `run` it, then ask for the `report`."""

    def __init__(self, paths: StreamPaths, boot: int) -> None:
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self._paths = paths
        self._boot = boot
        self._content_fd = self._index_fd = -1
        self._words: IndexWords | None = None
        self._base_seq = 0
        self._messages = self._message_bytes = 0
        self._unsynced = self._torn_bytes = 0

    def run(self) -> bool:
        """Look; gives whether the header pages changed meanwhile."""
        try:
            self._content_fd, self._index_fd = open_fds(self._paths, os.O_RDONLY)
        except (StreamMissing, StreamDamaged) as error:
            self._missing(error)
            return True  # its owner may be making it in this very moment
        try:
            before = self._pages()
            self._look(*before)
            return before != self._pages()
        finally:
            os.close(self._content_fd)
            os.close(self._index_fd)

    def report(self, shard: int) -> StreamReport:
        words = self._words or IndexWords(0, 0, 0, 0, 0)
        return StreamReport(
            shard,
            self._paths.name,
            messages=self._messages,
            message_bytes=self._message_bytes,
            first_seq=words.first_seq,
            next_seq=words.next_seq,
            synced_seq=words.synced_seq,
            unsynced_messages=self._unsynced,
            torn_bytes=self._torn_bytes,
            faults=tuple(self.faults),
            notes=tuple(self.notes),
        )

    def check_meta(self) -> None:
        try:
            read_meta(self._paths.directory, self._paths.name)
        except MetaDamaged as error:
            self._fault(str(error.file), error.offset, error.cause)

    def _pages(self) -> tuple[bytes, bytes]:
        index_page = read_all(self._index_fd, HEADER_PAGE_BYTES, 0)
        return read_all(self._content_fd, HEADER_PAGE_BYTES, 0), index_page

    def _missing(self, error: StreamMissing | StreamDamaged) -> None:
        if is_unborn(self._paths):
            self.notes.append("the stream was just being made; it has no message")
        elif isinstance(error, StreamDamaged):
            self._fault(str(error.file), error.offset, error.cause)

    def _look(self, content_page: bytes, index_page: bytes) -> None:
        index = self._parse(self._paths.index_file, index_page, parse_index)
        content = self._parse(self._paths.content_file, content_page, parse_content)
        if content is None and index is None and is_unborn(self._paths):
            self.faults.clear()
            self.notes.append("the stream was just being made; it has no message")
            return
        if content and index:
            try:
                check_identity(self._paths, content[0], index[0])
            except StreamDamaged as error:
                self._fault(str(error.file), error.offset, error.cause)
                return
        if index:
            self._base_seq, self._words = index[0].base_seq, index[1]
            self._look_by_index(index[1], content[1] if content else None)
        elif content:
            self._look_by_content(content[1])

    def _parse(
        self, file: str, page: bytes, parse: Callable[[bytes], tuple[FixedHeader, _Words]]
    ) -> tuple[FixedHeader, _Words] | None:
        try:
            return parse(page)
        except HeaderFault as fault:
            self._fault(file, fault.offset, fault.cause)
            return None

    def _look_by_content(self, words: ContentWords) -> None:
        """The index tells nothing: are the frames whole, at least?"""
        seq = frame_seq(self._content_fd, words.first_offset)
        walk = FrameWalk(self._content_fd, words.first_offset, words.end_offset, seq)
        for run in walk:
            self._count(run.seq, run.messages, len(run.frames), words.first_seq)
        if walk.fault:
            self._fault(self._paths.content_file, walk.offset, fault_text(walk.fault))

    def _look_by_index(self, words: IndexWords, content: ContentWords | None) -> None:
        """The frames are walked from the content's own beginning; every entry must say what they are."""
        exact = words.state == STATE_CLOSED and words.boot == self._boot
        trusted_seq = words.next_seq if words.boot == self._boot else words.synced_seq
        index_end = entry_offset(trusted_seq, self._base_seq)
        self._check_size(self._paths.index_file, self._index_fd, index_end, exact=exact)
        end = self._walk_trusted(words, content, trusted_seq)
        if end is None:
            return
        self._check_size(self._paths.content_file, self._content_fd, end, exact=exact)
        if content and (content.end_offset < end or (exact and content.end_offset > end)):
            cause = f"recorded end {content.end_offset}, but the messages end at {end}"
            self._fault(self._paths.content_file, 8 * CONTENT_END_OFFSET, cause)
        if words.boot != self._boot:
            self._look_past_synced(end, trusted_seq)

    def _check_size(self, file: str, fd: int, needed: int, *, exact: bool) -> None:
        size = os.fstat(fd).st_size
        if size < needed:
            self._fault(file, size, f"the file ends at {size}, what belongs into it at {needed}")
        elif exact and size > needed:
            self._fault(file, needed, f"{size - needed} bytes lie past the end of a stream that was closed")

    def _walk_trusted(self, words: IndexWords, content: ContentWords | None, trusted_seq: int) -> int | None:
        """Walk all messages that are kept; gives where they end, None when that cannot be told."""
        if trusted_seq == self._base_seq:
            return HEADER_PAGE_BYTES
        oldest_seq = max(self._base_seq, min(words.first_seq, trusted_seq - 1))
        if content and content.first_seq == words.first_seq:
            start: int | None = content.first_offset
            # When all was trimmed the last message stayed, and may have got successors since.
            if frame_seq(self._content_fd, content.first_offset) == words.first_seq - 1 >= self._base_seq:
                oldest_seq = words.first_seq - 1
        else:
            oldest = self._entry(oldest_seq)
            start = oldest.offset if oldest else None
        if content:
            end: int | None = content.end_offset
        else:
            last = self._entry(trusted_seq - 1)
            end = last.offset + last.length if last else None
        if start is None or end is None:
            return None
        return self._walk(start, end, oldest_seq, trusted_seq, words.first_seq)

    def _walk(self, start: int, end: int, seq: int, trusted_seq: int, first_seq: int) -> int | None:
        """Frames and entries from `seq` to `trusted_seq`; after a bad frame it goes on at the next one by the index."""
        while len(self.faults) < FAULTS_MAX:
            walk = FrameWalk(self._content_fd, start, end, seq)
            for run in walk:
                surplus = run.seq + run.messages - trusted_seq
                place = self._take(run, max(0, surplus), first_seq)
                if surplus >= 0:
                    return place
            cause = fault_text(walk.fault) if walk.fault else "the messages end here, the index has more"
            self._fault(self._paths.content_file, walk.offset, f"message {walk.seq}: {cause}")
            following = self._entry(walk.seq + 1) if walk.seq + 1 < trusted_seq else None
            if following is None or not walk.offset < following.offset < end:
                return None
            start, seq = following.offset, walk.seq + 1
        return None

    def _take(self, run: Run, surplus: int, first_seq: int) -> int:
        """Compare the entries of a run, without its last `surplus` messages, and count it; gives where it ends."""
        entries = index_entries(run.frames, 0, len(run.frames), run.offset)
        truth = entries[: len(entries) - INDEX_ENTRY_BYTES * surplus]
        _, last_offset, last_bytes, _ = INDEX_ENTRY.unpack_from(truth, len(truth) - INDEX_ENTRY_BYTES)
        end: int = last_offset + last_bytes
        self._count(run.seq, run.messages - surplus, end - run.offset, first_seq)
        place = entry_offset(run.seq, self._base_seq)
        found = read_all(self._index_fd, len(truth), place)
        for i in range(0, len(truth) if found != truth else 0, INDEX_ENTRY_BYTES):
            if found[i : i + INDEX_ENTRY_BYTES] != truth[i : i + INDEX_ENTRY_BYTES]:
                seq = run.seq + i // INDEX_ENTRY_BYTES
                self._fault(self._paths.index_file, place + i, f"the entry of message {seq} does not fit its frame")
        return end

    def _look_past_synced(self, end: int, seq: int) -> None:
        """What opening the stream will find, after the machine was down."""
        size = os.fstat(self._content_fd).st_size
        walk = FrameWalk(self._content_fd, end, size, seq)
        for run in walk:
            self._count(run.seq, run.messages, len(run.frames), 0)
        self._unsynced = walk.seq - seq
        self._torn_bytes = data_end(self._content_fd, walk.offset, size) - walk.offset

    def _entry(self, seq: int) -> IndexEntry | None:
        entry = read_entry(self._index_fd, seq, self._base_seq)
        if entry is None:
            place = entry_offset(seq, self._base_seq)
            self._fault(self._paths.index_file, place, f"there is no entry of message {seq}")
        return entry

    def _count(self, seq: int, messages: int, size: int, first_seq: int) -> None:
        """A run was verified. The last message stays in the files when all are trimmed, but counts no more."""
        kept = seq + messages - max(seq, first_seq)
        if kept > 0:
            self._messages += kept
            self._message_bytes += size

    def _fault(self, file: str, offset: int, cause: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(Path(file), offset, cause))
