"""Many streams put on the disk with one sync of their file system.

Each fdatasync of a file that has grown makes the file system commit its journal and the disk write its cache, twice a
stream. One syncfs does that once for all of them. It does not say which file could not be written, so every file is
asked for an error of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from shard.errors import StorageError
from shard.files import FileSystem, raise_write_error
from shard.log import StreamLog
from shard.rewrite import BegunSync

Outcome = OSError | StorageError | None


def sync_together(logs: Sequence[StreamLog], file_system: FileSystem) -> list[Outcome]:
    """As `StreamLog.sync` of each, in any thread; gives what each raised. No log may be there twice.

    Streams that are marked after a failed sync are synced by themselves, as are all when the file system reports an
    error, which need not be theirs.
    """
    outcomes: dict[StreamLog, Outcome] = {}
    begun: dict[StreamLog, BegunSync] = {}
    with ExitStack() as held:
        for log in logs:
            held.enter_context(log.syncing)
            try:
                sync = log.begin_sync()
            except OSError as error:
                outcomes[log] = error
                continue
            if sync is None:
                outcomes[log] = None
            elif sync.failed:
                sync.close()
            else:
                held.callback(sync.close)
                begun[log] = sync
        if begun and _sync(file_system, begun):
            outcomes |= {log: _finish(log, sync) for log, sync in begun.items()}
    return [outcomes[log] if log in outcomes else _sync_alone(log) for log in logs]


def _sync(file_system: FileSystem, begun: dict[StreamLog, BegunSync]) -> bool:
    """Whether everything is on the disk, but for files that say otherwise."""
    try:
        file_system.sync()
        if not file_system.flushes_always:
            os.fdatasync(next(iter(begun.values())).content_fd)
    except OSError:
        return False
    return True


def _finish(log: StreamLog, sync: BegunSync) -> Outcome:
    try:
        raise_write_error(sync.content_fd)
        raise_write_error(sync.index_fd)
        log.finish_sync(sync)
    except OSError as error:
        log.mark_sync_failed(sync)
        return error
    return None


def _sync_alone(log: StreamLog) -> Outcome:
    try:
        log.sync()
    except (StorageError, OSError) as error:
        return error
    return None
