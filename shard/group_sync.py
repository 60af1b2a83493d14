"""Many streams put on the disk with one sync of their file system.

Each fdatasync of a file that has grown makes the file system commit its journal and the disk write its cache, twice a
stream. One syncfs does that once for all of them, also if there is only one. The kernel writes all of them in a single
thread then. So a group begins to write by itself, as the groups of other workers do at the same time.

An error of syncfs may be of any file, and is reported once: every stream is then synced by itself at its next turn,
which shows whether it was its error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tailrace.shard.begun_sync import BegunSync
from tailrace.shard.errors import StorageError
from tailrace.shard.files import FileSystem
from tailrace.shard.log import StreamLog

SyncError = OSError | StorageError | None


def sync_together(logs: Sequence[StreamLog], file_system: FileSystem, *, mends: bool = True) -> list[SyncError]:
    """As `StreamLog.sync` of each, in any thread; returns the error of each. No log may be there twice.

    Streams that are marked after a failed sync are synced by themselves, and those that may have been meant by an
    earlier error of the file system. Without `mends` the marked ones are left alone: something may be appended to them.
    """
    held: list[StreamLog] = []
    try:
        for log in logs:
            log.syncing.acquire()
            held.append(log)
        return _sync_held(logs, file_system, mends)
    finally:
        for log in held:
            log.syncing.release()


def _sync_held(logs: Sequence[StreamLog], file_system: FileSystem, mends: bool) -> list[SyncError]:
    errors = file_system.errors
    begun, alone = _begin(logs, errors)
    if not mends:
        alone = [log for log in alone if log.sync_failed_seq is None]
    if len(begun) > 1:
        for log in begun:
            log.start_writing()
    outcomes: dict[StreamLog, SyncError] = {}
    is_synced = (len(begun) > 1 or (begun and file_system.flushes_always)) and _sync(file_system, errors)
    if is_synced and not file_system.flushes_always:
        is_synced = _flush_disk(begun, outcomes)
    if is_synced:
        for log, sync in begun.items():
            log.finish_sync(sync)
    else:
        alone += begun
    errors = file_system.errors
    outcomes |= {log: _sync_alone(log, errors) for log in alone}
    return [outcomes.get(log) for log in logs]


def _begin(logs: Sequence[StreamLog], errors: int) -> tuple[dict[StreamLog, BegunSync], list[StreamLog]]:
    """The syncs that the file system's can stand for, and the logs that are synced by themselves."""
    begun: dict[StreamLog, BegunSync] = {}
    alone: list[StreamLog] = []
    for log in logs:
        sync = log.begin_sync(fds=False)
        if sync is not None and not sync.failed and log.errors_seen == errors:
            begun[log] = sync
        elif sync is not None:
            alone.append(log)
    return begun, alone


def _sync(file_system: FileSystem, errors: int) -> bool:
    """Returns whether all written bytes are on the disk: no thread has had an error since this count."""
    try:
        file_system.sync()
    except OSError:
        return False
    return file_system.errors == errors


def _flush_disk(begun: dict[StreamLog, BegunSync], outcomes: dict[StreamLog, SyncError]) -> bool:
    """Make the disk write its cache, with one fdatasync of any file. False if it did not.

    An error is that log's outcome; it is taken out of `begun`.
    """
    for log in begun:
        sync = log.begin_sync()
        if sync is None:
            continue  # closed meanwhile
        try:
            os.fdatasync(sync.content_fd)
        except OSError as error:
            log.mark_sync_failed(sync)
            outcomes[log] = error
            del begun[log]
            return False
        finally:
            sync.close()
        return True
    return False


def _sync_alone(log: StreamLog, errors: int) -> SyncError:
    try:
        log.sync()
    except (StorageError, OSError) as error:
        return error
    log.errors_seen = errors
    return None
