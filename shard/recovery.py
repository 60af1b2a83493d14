"""Opening a stream by its owner: checks the files and finds the end of the stream.

After a crash of the process (the boot id is still the same, and so is the files' place) the committed count is the
truth: bytes beyond it were never acknowledged and are cut. After the machine was down, or the volume was lost, or a
sync has failed and its messages were not written again, the index is not evidence past the synced seq: the frames from
there on are checked one by one, their entries written anew, and the first one that is not whole and right is the end.
The cut bytes are kept (`shard.torn`). If the index does not lead to the synced seq, the walk begins at an older
message. The same is done if the place is the same and the end looks torn. Damage before the trusted end is an error,
StreamDamaged, and changes nothing.

The cost does not grow with the history: the header pages, the last OPEN_CHECK_BYTES of frames with their entries, and
the unsynced messages.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailrace.shard.errors import StorageFull, StreamDamaged, is_full
from tailrace.shard.files import read_all, write_all
from tailrace.shard.frame import FAULT_SHORT, INDEX_ENTRY, INDEX_ENTRY_BYTES, MAX_FRAME_BYTES
from tailrace.shard.header import (
    CONTENT_END_OFFSET,
    CONTENT_FIRST_OFFSET,
    CONTENT_FIRST_SEQ,
    HEADER_PAGE_BYTES,
    INDEX_BOOT,
    INDEX_CUT_SEQ,
    INDEX_CUTS,
    INDEX_FIRST_SEQ,
    INDEX_NEXT_SEQ,
    INDEX_PLACE,
    INDEX_STATE,
    STATE_CLOSED,
    STATE_OPEN,
    VALUE_MAX,
    tagged,
)
from tailrace.shard.index import entry_offset, read_entry
from tailrace.shard.place import place_word
from tailrace.shard.stream_files import FilePair, HeaderPair
from tailrace.shard.torn import keep_torn
from tailrace.shard.walk import FrameWalk, check, fault_text, index_entries, looks_torn, whole_frame_seq

OPEN_CHECK_BYTES: Final = 64 * 1024
"""Frames checked at the end of the trusted part; at least one frame, however long."""
OPEN_CHECK_ENTRIES: Final = 512
"""The same window, counted in messages."""
_OPEN_WORD: Final = tagged(STATE_OPEN)


@dataclass(slots=True)
class Recovered:
    """The recovered state of the stream, and the work of opening it. `torn_bytes` were cut and kept, `lost_messages`
    had been committed but never reached the disk before the machine went down (as far as the header page knows: it
    may be an older one), or were left unreadable by a failed sync. `new_boot`: nobody has had the stream open since
    the machine came up, or the files lost their place, or messages that others may have seen were cut. `is_cut`:
    False if space to keep the torn end was missing. It is still in the content then, and the files do not record
    this boot: the next opening finds the same. `cuts`: the count in the index from now on."""

    base_seq: int
    first_seq: int
    next_seq: int
    synced_seq: int
    end_offset: int
    last_timestamp_us: int = 0
    last_epoch: int = 0
    torn_bytes: int = 0
    lost_messages: int = 0
    new_boot: bool = False
    is_cut: bool = True
    cuts: int = 0


def no_messages(base_seq: int) -> Recovered:
    """A stream that was just made."""
    return Recovered(base_seq, base_seq, base_seq, base_seq, HEADER_PAGE_BYTES)


def recover(pair: FilePair, boot: int, check_bytes: int) -> Recovered:
    """Check the end of the stream, cut what does not belong to it, and mark it as open in this boot and place.

    Raises StreamDamaged, StorageFull, OSError; the files are then as they were, but for index entries that did not fit
    their frames.
    """
    headers = pair.headers()
    index, base_seq = headers.index_words, headers.index_fixed.base_seq
    found = Recovered(base_seq, index.first_seq, index.next_seq, index.synced_seq, HEADER_PAGE_BYTES)
    place = place_word(pair.index_fd)
    found.new_boot = index.boot != boot or index.place not in (0, place)
    is_here = not found.new_boot
    if found.new_boot:
        _take_up_unsynced(pair, headers, found, check_bytes, pair.content_size)
    elif index.sync_failed:  # what lies beyond the committed end was never acknowledged
        limit = min(pair.content_size, headers.content_words.end_offset)
        _take_up_unsynced(pair, headers, found, check_bytes, limit)
    else:
        _trust_the_commit(pair, headers, found, check_bytes)
    if is_here and found.lost_messages:
        headers = _begin_cut(pair, headers, found)
    _settle(pair, headers, found)
    if found.is_cut and (index.boot, index.place) != (boot, place):
        settle_boot(pair, boot)
    return found


def _trust_the_commit(pair: FilePair, headers: HeaderPair, found: Recovered, check_bytes: int) -> None:
    """The machine has kept all that was written, unless the end does not check and looks as if it had not."""
    index = headers.index_words
    try:
        end_offset, found.last_timestamp_us, found.last_epoch = check_tail(pair, headers, index.next_seq, check_bytes)
        _check_ends(pair, headers, end_offset)
        found.end_offset = end_offset
    except StreamDamaged as damage:
        if index.synced_seq == index.next_seq:
            raise
        _take_up_unsynced(pair, headers, found, check_bytes, pair.content_size, damage)
        found.new_boot = True


def check_tail(pair: FilePair, headers: HeaderPair, trusted_seq: int, check_bytes: int) -> tuple[int, int, int]:
    """Check the frames and entries of a bounded window before message `trusted_seq`.

    Returns the offset of their end, the last timestamp and the last epoch. Raises StreamDamaged, OSError.
    """
    base_seq, paths = headers.index_fixed.base_seq, pair.paths
    if trusted_seq == base_seq:
        return HEADER_PAGE_BYTES, 0, 0
    oldest = max(base_seq, min(headers.index_words.first_seq, trusted_seq - 1))
    count = min(trusted_seq - oldest, OPEN_CHECK_ENTRIES) if check_bytes else 1
    seq = trusted_seq - count
    place = entry_offset(seq, base_seq)
    entries = read_all(pair.index_fd, INDEX_ENTRY_BYTES * count, place)
    if len(entries) < INDEX_ENTRY_BYTES * count:
        cause = f"the file ends before the entry of message {trusted_seq - 1}"
        raise paths.damaged(paths.index_file, place + len(entries), cause)
    offsets = [entry[1] for entry in INDEX_ENTRY.iter_unpack(entries)]
    timestamp_us, _, length, epoch = INDEX_ENTRY.unpack_from(entries, len(entries) - INDEX_ENTRY_BYTES)
    end = offsets[-1] + length
    skipped = bisect_left(offsets, end - check_bytes, hi=count - 1)
    start = offsets[skipped]
    possible = HEADER_PAGE_BYTES <= start <= end - length and end <= VALUE_MAX
    if not possible or end - start > check_bytes + MAX_FRAME_BYTES:
        raise paths.damaged(paths.index_file, place, f"the entries {seq} to {trusted_seq - 1} contradict each other")
    _check_window(pair, seq + skipped, start, end, memoryview(entries)[INDEX_ENTRY_BYTES * skipped :], place)
    return end, timestamp_us, epoch


def _check_window(pair: FilePair, seq: int, start: int, end: int, entries: memoryview, place: int) -> None:
    """Checks that frames start..end are the messages from `seq` on, and match `entries`. Raises StreamDamaged,
    OSError."""
    paths = pair.paths
    frames = read_all(pair.content_fd, end - start, start)
    _, good_bytes, fault = check(frames, 0, len(frames), seq)
    truth = index_entries(frames, 0, good_bytes, start)
    for i in range(0, min(len(truth), len(entries)), INDEX_ENTRY_BYTES):
        if truth[i : i + INDEX_ENTRY_BYTES] != entries[i : i + INDEX_ENTRY_BYTES]:
            raise paths.damaged(paths.index_file, place + i, "the entry does not fit the frame")
    if fault not in ("", FAULT_SHORT):
        raise paths.damaged(paths.content_file, start + good_bytes, fault_text(fault))
    if len(frames) < end - start:
        cause = f"the file ends at {start + len(frames)}, its messages at {end}"
        raise paths.damaged(paths.content_file, start + len(frames), cause)
    if fault:
        raise paths.damaged(paths.content_file, start + good_bytes, fault_text(fault))
    if len(truth) != len(entries):
        raise paths.damaged(paths.index_file, place, "the entries are not as many as the frames")


def _check_ends(pair: FilePair, headers: HeaderPair, end_offset: int) -> None:
    """The recorded lengths and those of the files fit the committed count. Raises StreamDamaged."""
    paths, recorded = pair.paths, headers.content_words.end_offset
    closed = headers.index_words.state == STATE_CLOSED
    if recorded < end_offset or (closed and recorded > end_offset):
        cause = f"recorded end {recorded}, but the messages end at {end_offset}"
        raise paths.damaged(paths.content_file, 8 * CONTENT_END_OFFSET, cause)
    if not closed:
        return
    index_end = entry_offset(headers.index_words.next_seq, headers.index_fixed.base_seq)
    ends = ((paths.content_file, pair.content_size, end_offset), (paths.index_file, pair.index_size, index_end))
    for file, size, end in ends:
        if size != end:
            raise paths.damaged(file, end, f"closed with {end} bytes, it has {size}")


def _begin_cut(pair: FilePair, headers: HeaderPair, found: Recovered) -> HeaderPair:
    """Readers may have the stream open: marks the change for them first. Returns the present headers."""
    found.new_boot = True
    pair.index_words[INDEX_CUTS] = tagged(headers.index_words.cuts | 1)
    pair.index_words[INDEX_CUT_SEQ] = tagged(found.next_seq)
    return pair.headers()


def _take_up_unsynced(
    pair: FilePair,
    headers: HeaderPair,
    found: Recovered,
    check_bytes: int,
    limit: int,
    damage: StreamDamaged | None = None,
) -> None:
    """Continues from the synced seq by the frames before `limit` alone; writes their entries if they differ. Keeps the
    torn end.

    `damage` was found behind the synced seq in the same boot: it is raised if committed messages are missing and the
    end does not look torn.
    """
    index = headers.index_words
    behind = _find_start(pair, headers, found, check_bytes)
    walk = _walk_on(pair, found, limit)
    if behind is not None and found.next_seq < index.synced_seq:
        raise behind
    is_short = found.next_seq < index.next_seq
    if damage is not None and is_short and not looks_torn(pair.content_fd, walk.offset, limit):
        raise damage
    paths = pair.paths
    try:
        found.torn_bytes = keep_torn(paths.directory, paths.stem, pair.content_fd, "content", found.end_offset, limit)
    except StorageFull:
        if not found.new_boot:  # the next opening would trust the results of this one
            raise
        found.is_cut = False
    found.lost_messages = max(0, index.next_seq - found.next_seq)
    found.first_seq = min(found.first_seq, found.next_seq)


def _find_start(pair: FilePair, headers: HeaderPair, found: Recovered, check_bytes: int) -> StreamDamaged | None:
    """The beginning of the walk: at the synced seq, or, if the index does not lead there, at the end of an older window
    that checks; the steps back double. Returns the damage in that case: the walk must reach the synced seq.

    Raises StreamDamaged, OSError.
    """
    synced_seq, base_seq = headers.index_words.synced_seq, found.base_seq
    oldest, seq, step = max(base_seq, min(found.first_seq, synced_seq - 1)), synced_seq, 1
    first_damage: StreamDamaged | None = None
    while True:
        try:
            found.end_offset, found.last_timestamp_us, found.last_epoch = check_tail(pair, headers, seq, check_bytes)
            found.next_seq = seq
            return first_damage
        except StreamDamaged as damage:
            first_damage = first_damage or damage
            if str(damage.file) != pair.paths.index_file:
                raise first_damage from None
            bad_seq = base_seq + (damage.offset - HEADER_PAGE_BYTES) // INDEX_ENTRY_BYTES
            seq, step = min(bad_seq, synced_seq - step), 2 * step
        if seq <= oldest:
            _begin_with_oldest(pair, headers, found, first_damage)
            return first_damage


def _begin_with_oldest(pair: FilePair, headers: HeaderPair, found: Recovered, damage: StreamDamaged) -> None:
    """Begins the walk with the oldest frame, at its offset in the content's header page. Raises `damage`, OSError."""
    offset = headers.content_words.first_offset
    seq = whole_frame_seq(pair.content_fd, offset, pair.content_size)
    if seq is None or not found.base_seq <= seq <= max(found.base_seq, found.first_seq):
        raise damage
    found.next_seq, found.end_offset = seq, offset


def _walk_on(pair: FilePair, found: Recovered, limit: int) -> FrameWalk:
    """Take up every whole frame from the end that is found so far to `limit`. Raises StorageFull, OSError."""
    last = (found.last_timestamp_us, found.last_epoch)
    walk = FrameWalk(pair.content_fd, found.end_offset, limit, found.next_seq, *last)
    try:
        for run in walk:
            place = entry_offset(run.seq, found.base_seq)
            if read_all(pair.index_fd, len(walk.entries), place) != walk.entries:
                write_all(pair.index_fd, walk.entries, place)
                pair.index_size = max(pair.index_size, place + len(walk.entries))
    except OSError as error:
        if is_full(error):
            raise StorageFull(pair.paths.name, Path(pair.paths.index_file), limit - walk.offset) from error
        raise
    found.next_seq, found.end_offset = walk.seq, walk.offset
    found.last_timestamp_us, found.last_epoch = walk.timestamp_us, walk.epoch
    return walk


def settle_boot(pair: FilePair, boot: int) -> None:
    """Records that the stream was opened in this boot and place. This comes last: until then the next opening finds
    the same."""
    place = place_word(pair.index_fd)
    pair.index_words[INDEX_PLACE] = tagged(place) if place else 0
    pair.index_words[INDEX_BOOT] = tagged(boot)


def _settle(pair: FilePair, headers: HeaderPair, found: Recovered) -> None:
    """Writes the results into the files."""
    content, index = pair.content_words, pair.index_words
    if found.is_cut and pair.content_size > found.end_offset:
        os.ftruncate(pair.content_fd, found.end_offset)
    index_end = entry_offset(found.next_seq, found.base_seq)
    if pair.index_size > index_end:
        os.ftruncate(pair.index_fd, index_end)
    first_offset = headers.content_words.first_offset
    if headers.content_words.first_seq != found.first_seq or first_offset > found.end_offset:
        first_offset = oldest_offset(pair, found)
    if headers.content_words != (found.first_seq, first_offset, found.end_offset):
        content[CONTENT_FIRST_OFFSET] = tagged(first_offset)
        content[CONTENT_FIRST_SEQ] = tagged(found.first_seq)
        content[CONTENT_END_OFFSET] = tagged(found.end_offset)
    # first_seq never passes next_seq, nor synced_seq it: so the order when both go back, or forth.
    if headers.index_words[:2] != (found.first_seq, found.next_seq):
        index[INDEX_FIRST_SEQ] = tagged(found.first_seq)
        index[INDEX_NEXT_SEQ] = tagged(found.next_seq)
    found.cuts = headers.index_words.cuts
    if found.cuts % 2:
        found.cuts += 1
        index[INDEX_CUTS] = tagged(found.cuts)
    index[INDEX_STATE] = _OPEN_WORD


def oldest_offset(pair: FilePair, found: Recovered) -> int:
    """The offset of the oldest frame that must stay: message first_seq, or the last one if all are trimmed."""
    if found.next_seq == found.base_seq:
        return HEADER_PAGE_BYTES
    seq = min(found.first_seq, found.next_seq - 1)
    entry = read_entry(pair.index_fd, seq, found.base_seq)
    if entry is None or entry.offset > found.end_offset:
        place = entry_offset(seq, found.base_seq)
        raise pair.paths.damaged(pair.paths.index_file, place, f"there is no entry of message {seq}")
    return entry.offset
