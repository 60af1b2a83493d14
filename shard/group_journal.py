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
    if len(logs) < JOURNAL_STREAMS_MIN:
        return set()
    begun = {each: found for each in logs if (found := _begin(each)) is not None}
    rows = [found for found in begun.values() if found.record.frames]
    if len(begun) < JOURNAL_STREAMS_MIN:
        return set()
    try:
        ends = {found.record.name: found.seq for found in rows}
        if rows and not journal.write([found.record for found in rows], ends):
            return set()
    except OSError as error:
        log.error("cannot write the journal %s, which is not used any more: %s", journal.path, error)
        return set()
    for each, found in begun.items():
        each.finish_journaling(found)
    return set(begun)


def _begin(stream_log: StreamLog) -> BegunJournaling | None:
    """None if the frames cannot go to a journal, or are not valid."""
    begun = stream_log.begin_journaling()
    if begun is None:
        return None
    record = begun.record
    if not record.frames:
        return begun
    count, size, _ = check(record.frames, 0, len(record.frames), record.first_seq)
    if size < begun.end_offset - record.offset:
        return None
    return BegunJournaling(record, record.first_seq + count, begun.end_offset, begun.generation)
