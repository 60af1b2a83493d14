"""Checking: compares every byte of a stream with every other that describes it. Read only.

It may run beside a broker: only committed bytes are checked, and after a fault a stream that changed meanwhile is
checked again (a trim may have punched bytes away that were about to be read).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from tailrace.shard.catalog import list_shard
from tailrace.shard.directory import DataDirectory
from tailrace.shard.diverged import DivergedTail, diverged_path, read_tails
from tailrace.shard.epochs import EPOCHS_MAX, EpochStart, contradiction, epoch_at
from tailrace.shard.errors import MetaDamaged, StreamDamaged, StreamMissing, TailsDamaged
from tailrace.shard.files import read_all
from tailrace.shard.frame import (
    CRC_OFFSET,
    FAULT_EPOCH,
    FAULT_TIME,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    IndexEntry,
)
from tailrace.shard.header import (
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
from tailrace.shard.index import entry_offset, read_entry
from tailrace.shard.meta import Role, meta_path, read_meta
from tailrace.shard.names import base_of
from tailrace.shard.newborn import Left, left_of_newborn
from tailrace.shard.reader import this_boot
from tailrace.shard.report import FileFault, StreamReport
from tailrace.shard.stream_files import StreamPaths, check_identity, is_begun_anew, open_fds, stream_paths
from tailrace.shard.torn import data_end
from tailrace.shard.walk import FrameRun, FrameWalk, fault_text, frame_seq, index_entries, looks_torn

FAULTS_MAX: Final = 16
"""Faults named for one stream; there may be more."""
TAILS_MAX: Final = 1_000
"""Tails of one stream that are listed; all are verified."""
ATTEMPTS_MAX: Final = 3
"""How often a stream that changes meanwhile is looked at before its faults are believed."""

_NEWBORN: Final = {
    Left.NOTHING: "the stream was being created; it has no message",
    Left.FRAMES: "power was lost soon after the stream was made; its owner takes up the messages when it opens it",
}
_Words = TypeVar("_Words")


def check_data(data: DataDirectory, *, boot_id: str | None = None) -> Iterator[StreamReport]:
    """Check every stream of the node, one report each, shard by shard. Raises OSError.

    A file that does not belong to a stream gives a report with the file's name and a note. `boot_id` is for tests.
    """
    for shard in range(data.shards):
        yield from check_shard(data, shard, boot_id=boot_id)


def check_shard(data: DataDirectory, shard: int, *, boot_id: str | None = None) -> Iterator[StreamReport]:
    """As `check_data`, for the streams in one shard's folder."""
    directory = data.shard_path(shard)
    listing = list_shard(directory)
    for file in sorted(listing.strays):
        yield StreamReport(shard, file, notes=(f"{directory / file} does not belong to a stream",))
    for name in sorted(listing.names):
        report = check_stream(directory, name, shard=shard, boot_id=boot_id)
        home = data.shard_of(name)
        if home != shard:
            misplaced = FileFault(directory, 0, f"stream {name!r} belongs in {data.shard_path(home)}")
            report = replace(report, faults=(*report.faults, misplaced))
        yield report


def check_stream(directory: Path, name: str, *, shard: int = -1, boot_id: str | None = None) -> StreamReport:
    """Checks one stream whole. Damage is in the report; raises OSError if a file cannot be read at all."""
    paths = stream_paths(directory, name)
    boot = this_boot() if boot_id is None else boot_word(boot_id)
    for _ in range(ATTEMPTS_MAX):
        checker = _Checker(paths, boot)
        changed = checker.run()
        if not checker.faults or not changed:
            break
    return checker.report(shard)


class MessageOrder:
    """Timestamps and epochs, message after message: neither ever goes back."""

    def __init__(self) -> None:
        self.next_seq = 0
        self._last_us = self._last_epoch = 0
        self._starts: list[EpochStart] = []
        self._broken = False

    @property
    def history(self) -> tuple[EpochStart, ...] | None:
        """The epochs that were found; None when they make no history."""
        return None if self._broken or len(self._starts) > EPOCHS_MAX else tuple(self._starts)

    def follow(self, seq: int, entries: bytes | bytearray) -> Iterator[tuple[int, str]]:
        """The entries of messages from `seq` on; gives the places among them of those that go back, and how."""
        times = memoryview(entries).cast("Q")[::3].tolist()
        epochs = memoryview(entries).cast("I")[5::6].tolist()
        self.next_seq = seq + len(times)
        if self._last_us <= times[0] and times == sorted(times) and epochs.count(self._last_epoch or -1) == len(epochs):
            self._last_us = times[-1]
            return
        for place, (timestamp_us, epoch) in enumerate(zip(times, epochs, strict=True)):
            if timestamp_us < self._last_us:
                yield place, FAULT_TIME
            if epoch < max(self._last_epoch, 1):
                self._broken = True
                yield place, FAULT_EPOCH
            elif epoch > self._last_epoch and len(self._starts) <= EPOCHS_MAX:
                self._starts.append(EpochStart(epoch, seq + place))
            self._last_us, self._last_epoch = timestamp_us, epoch


class _Checker:
    """One pass over one stream: `run` it, then take the `report`."""

    def __init__(self, paths: StreamPaths, boot: int) -> None:
        self.faults: list[FileFault] = []
        self.notes: list[str] = []
        self._paths = paths
        self._boot = boot
        self._content_fd = self._index_fd = -1
        self._words: IndexWords | None = None
        self._base_seq = 0
        self._messages = self._message_bytes = 0
        self._unsynced = self._torn_bytes = 0
        self._order = MessageOrder()
        self._tails: list[DivergedTail] = []

    def run(self) -> bool:
        """Look; gives whether the header pages changed meanwhile."""
        try:
            self._content_fd, self._index_fd = open_fds(self._paths, os.O_RDONLY)
        except (StreamMissing, StreamDamaged) as error:
            self._missing(error)
            self._check_meta()
            return True  # its owner may be making it in this very moment
        try:
            before = self._pages()
            self._look(*before)
            self._check_meta()
            self._check_tails()
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
            diverged=tuple(self._tails[:TAILS_MAX]),
            diverged_file=diverged_path(self._paths.directory, self._paths.stem) if self._tails else None,
        )

    def _check_meta(self) -> None:
        """Checks that it can be read, and does not contradict the epochs of the messages."""
        directory, name = self._paths.directory, self._paths.name
        try:
            meta = read_meta(directory, name)
        except MetaDamaged as error:
            self._fault(str(error.file), error.offset, error.cause)
            return
        found = self._order.history
        if found is None:
            return
        wrong = contradiction(meta.history, found, self._order.next_seq)
        if wrong is not None:
            here = epoch_at(meta.history, wrong.first_seq)
            cause = f"message {wrong.first_seq} has epoch {wrong.epoch} in its frame, {here} here"
            self._fault(str(meta_path(directory, name)), 0, cause)
            return
        epoch = max(meta.epoch, self._base_epoch())
        if meta.role is Role.MASTER and found and found[-1].epoch > epoch:
            self.notes.append(f"its last message has epoch {found[-1].epoch}, but its master here epoch {epoch}")

    def _base_epoch(self) -> int:
        """The epoch of the stream whose companion this is, which is that of the companion, too; 0 of any other."""
        name, base = self._paths.name, base_of(self._paths.name.encode()).decode()
        try:
            return read_meta(self._paths.directory, base).epoch if base != name else 0
        except MetaDamaged:  # its own report has that
            return 0

    def _check_tails(self) -> None:
        """Every frame that was set aside is whole and right."""
        path = diverged_path(self._paths.directory, self._paths.stem)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            for kept in read_tails(fd, path, self._paths.name):
                self._tails.append(kept)
                self._check_tail(fd, path, kept)
            end, size = self._tails[-1].end_offset if self._tails else 0, os.fstat(fd).st_size
            if size > end:
                self.notes.append(f"{path} has {size - end} bytes of a tail that is, or is still, incomplete")
        except TailsDamaged as error:
            self._fault(str(error.file), error.offset, error.cause)
        finally:
            os.close(fd)
        if len(self._tails) > TAILS_MAX:
            self.notes.append(f"{len(self._tails) - TAILS_MAX} more tails were set aside")

    def _check_tail(self, fd: int, path: Path, kept: DivergedTail) -> None:
        tail, start = kept.tail, kept.offset
        walk = FrameWalk(fd, start, start + tail.nbytes, tail.first_seq)
        fault = walk.finish()
        if fault or walk.seq != tail.next_seq:
            cause = fault_text(fault) if fault else f"the tail ends here, not at message {tail.next_seq}"
            self._fault(str(path), walk.offset, f"tail {kept.number}, message {walk.seq}: {cause}")
        elif self._words and self._words.first_seq <= tail.first_seq < self._words.next_seq:
            entry = read_entry(self._index_fd, tail.first_seq, self._base_seq)
            frame = os.pread(self._content_fd, 4, entry.offset + CRC_OFFSET) if entry else b""
            if frame == os.pread(fd, 4, start + CRC_OFFSET):
                self.notes.append(f"tail {kept.number} was set aside and then not cut off: the stream has it as well")

    def _pages(self) -> tuple[bytes, bytes]:
        index_page = read_all(self._index_fd, HEADER_PAGE_BYTES, 0)
        return read_all(self._content_fd, HEADER_PAGE_BYTES, 0), index_page

    def _missing(self, error: StreamMissing | StreamDamaged) -> None:
        if not self._is_newborn() and isinstance(error, StreamDamaged):
            self._fault(str(error.file), error.offset, error.cause)

    def _is_newborn(self) -> bool:
        """Returns whether the files may be left by a loss of power soon after the stream was made; the notes have
        it."""
        left = left_of_newborn(self._paths, self._boot)
        if left is not None:
            self.faults.clear()
            self.notes.append(_NEWBORN[left])
        if left is Left.FRAMES:
            self._check_newborn()
        return left is not None

    def _check_newborn(self) -> None:
        """Checks that the frames that the owner will take up end where they look torn."""
        with open(self._paths.content_file, "rb") as file:
            fd, start, first_seq = file.fileno(), HEADER_PAGE_BYTES, 0
            with suppress(HeaderFault):
                _, words = parse_content(read_all(fd, HEADER_PAGE_BYTES, 0))
                start, first_seq = words.first_offset, words.first_seq
            size = os.fstat(fd).st_size
            walk = FrameWalk(fd, start, size, frame_seq(fd, start))
            for run in walk:
                self._count(run.seq, run.messages, len(run.frames), first_seq)
            if walk.fault and not looks_torn(fd, walk.offset, size):
                self._fault(self._paths.content_file, walk.offset, f"message {walk.seq}: {fault_text(walk.fault)}")

    def _look(self, content_page: bytes, index_page: bytes) -> None:
        index = self._parse(self._paths.index_file, index_page, parse_index)
        content = self._parse(self._paths.content_file, content_page, parse_content)
        if (content is None or index is None) and self._is_newborn():
            return
        if content and index:
            try:
                check_identity(self._paths, content[0], index[0])
            except StreamDamaged as error:
                if is_begun_anew(self._paths):
                    self.notes.append("its messages were just set aside; it has none until its owner opens it")
                else:
                    self._fault(str(error.file), error.offset, error.cause)
                return
        if index:
            self._base_seq, self._words = index[0].base_seq, index[1]
            self._check_by_index(index[1], content[1] if content else None)
        elif content:
            self._check_by_content(content[1])

    def _parse(
        self, file: str, page: bytes, parse: Callable[[bytes], tuple[FixedHeader, _Words]]
    ) -> tuple[FixedHeader, _Words] | None:
        try:
            return parse(page)
        except HeaderFault as fault:
            self._fault(file, fault.offset, fault.cause)
            return None

    def _check_by_content(self, words: ContentWords) -> None:
        """The index is unusable: checks the frames alone."""
        seq = frame_seq(self._content_fd, words.first_offset)
        walk = FrameWalk(self._content_fd, words.first_offset, words.end_offset, seq)
        for run in walk:
            self._count(run.seq, run.messages, len(run.frames), words.first_seq)
        if walk.fault:
            self._fault(self._paths.content_file, walk.offset, fault_text(walk.fault))

    def _check_by_index(self, words: IndexWords, content: ContentWords | None) -> None:
        """Walks the frames from the content's own beginning; every entry must match its frame."""
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
            self._check_past_synced(end, trusted_seq)

    def _check_size(self, file: str, fd: int, needed: int, *, exact: bool) -> None:
        size = os.fstat(fd).st_size
        if size < needed:
            self._fault(file, size, f"the file ends at {size}, its contents at {needed}")
        elif exact and size > needed:
            self._fault(file, needed, f"{size - needed} bytes lie past the end of a stream that was closed")

    def _walk_trusted(self, words: IndexWords, content: ContentWords | None, trusted_seq: int) -> int | None:
        """Walks all kept messages; returns their end, None if it is unknown."""
        if trusted_seq == self._base_seq:
            return HEADER_PAGE_BYTES
        oldest_seq = max(self._base_seq, min(words.first_seq, trusted_seq - 1))
        if content and content.first_seq == words.first_seq:
            start: int | None = content.first_offset
            # When all was trimmed the last message stayed, and may have got successors since.
            if frame_seq(self._content_fd, content.first_offset) == words.first_seq - 1 >= self._base_seq:
                oldest_seq = words.first_seq - 1
            elif content.first_offset == content.end_offset and words.first_seq == trusted_seq:
                return start  # trimmed up to messages that were then lost with the power: nothing is left
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
            walk = FrameWalk(self._content_fd, start, end, seq, ordered=False)
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

    def _take(self, run: FrameRun, surplus: int, first_seq: int) -> int:
        """Compares the entries of a run, without its last `surplus` messages, and counts it; returns its end."""
        entries = index_entries(run.frames, 0, len(run.frames), run.offset)
        truth = entries[: len(entries) - INDEX_ENTRY_BYTES * surplus]
        for place, fault in self._order.follow(run.seq, truth):
            _, offset, _, _ = INDEX_ENTRY.unpack_from(truth, INDEX_ENTRY_BYTES * place)
            self._fault(self._paths.content_file, offset, f"message {run.seq + place}: {fault_text(fault)}")
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

    def _check_past_synced(self, end: int, seq: int) -> None:
        """Notes the result of the next opening, after the machine was down."""
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
            self.faults.append(FileFault(Path(file), offset, cause))
