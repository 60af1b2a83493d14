"""Many streams put on the disk with one write of their journal, instead of a sync of their own files.

That takes as long for many as for one. Only what publishers wait for goes there, and only of streams whose header pages
are on the disk; their own files are synced soon after that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from tailrace.shard.durable_end import BegunJournaling
from tailrace.shard.journal_writer import JournalWriter
from tailrace.shard.log import StreamLog
from tailrace.shard.walk import check

log = logging.getLogger(__name__)

JOURNAL_STREAMS_MIN: Final = 2
"""A single stream's own files are synced: no sync of the file system is needed for that."""


def journal_together(logs: Sequence[StreamLog], journal: JournalWriter) -> set[StreamLog]:
    """Put the unsynced frames of these logs on the disk, in any thread; returns the logs that are durable then.

    The others must be synced.
    """
    begun = _begin(logs)
    if len(begun) < JOURNAL_STREAMS_MIN:
        return set()
    records = [found for _, found in begun if found.frames]
    try:
        if records and not journal.write(records, {found.name: found.seq for found in records}):
            return set()
    except OSError as error:
        log.error("cannot write the journal %s, which is not used any more: %s", journal.path, error)
        return set()
    for each, found in begun:
        each.finish_journaling(found)
    return {each for each, _ in begun}


def _begin(logs: Sequence[StreamLog]) -> list[tuple[StreamLog, BegunJournaling]]:
    """Without the logs whose frames cannot go to a journal, or are not valid; empty if there are too few logs."""
    begun: list[tuple[StreamLog, BegunJournaling]] = []
    if len(logs) < JOURNAL_STREAMS_MIN:
        return begun
    for each in logs:
        found = each.begin_journaling()
        if found is None:
            continue
        frames, first_seq = found.frames, found.first_seq
        if frames:
            count, size, _ = check(frames, 0, len(frames), first_seq)
            if size < found.end_offset - found.offset:
                continue
            if first_seq + count != found.seq:  # more was appended meanwhile
                found = found._replace(seq=first_seq + count)
        begun.append((each, found))
    return begun
