"""Mending a whole data directory, one damaged stream after the other, under its locks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tailrace.shard.check import check_shard, check_stream
from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StorageError, StreamDamaged
from tailrace.shard.journal_replay import replay_all
from tailrace.shard.lock import DirectoryLock, ShardLock
from tailrace.shard.mend import Mended, mend_meta, rebuild_index, repair
from tailrace.shard.report import MendReport, StreamReport


def mend_data(
    data: DataDirectory, *, may_rebuild: bool, may_repair: bool, boot_id: str | None = None
) -> Iterator[StreamReport | MendReport]:
    """Check every stream and mend those with faults: a StreamReport for each that is right, a MendReport for the rest.

    `may_rebuild` allows a new index if the content is valid, `may_repair` to cut a damaged content as well. No broker
    may run: raises ShardLocked at the first step otherwise. OSError if a disk fails.
    """
    with DirectoryLock(data.path):
        replay_all(data)
        for shard in range(data.shards):
            with ShardLock(data.shard_path(shard)):
                for report in check_shard(data, shard, boot_id=boot_id):
                    if report.ok:
                        yield report
                    else:
                        yield mend_stream(data.shard_path(shard), report, may_rebuild, may_repair, boot_id=boot_id)


def mend_stream(
    directory: Path, report: StreamReport, may_rebuild: bool, may_repair: bool, *, boot_id: str | None = None
) -> MendReport:
    """Mends one stream that has faults, checks it again, and reports the result. The caller holds the lock."""
    failed = MendReport(report.shard, report.name, report, error=str(report.faults[0]))
    try:
        mended = _try_mend(directory, report.name, may_rebuild, may_repair, boot_id)
    except StorageError as error:
        return replace(failed, error=str(error))
    if mended is None:
        return failed
    # A stream in the wrong shard's folder must be moved by hand; its files are mended in place.
    misplaced = [fault for fault in report.faults if fault.file == directory]
    after = check_stream(directory, report.name, shard=report.shard, boot_id=boot_id)
    return MendReport(
        report.shard,
        report.name,
        report,
        messages=mended.next_seq - mended.first_seq,
        next_seq=mended.next_seq,
        cut_bytes=mended.cut_bytes,
        kept_in=mended.kept_in,
        disabled=mended.disabled,
        error="".join([str(fault) for fault in (*after.faults, *misplaced)][:1]),
    )


def _try_mend(directory: Path, name: str, may_rebuild: bool, may_repair: bool, boot_id: str | None) -> Mended | None:
    """None if the allowed means do not help and the only error is the known one."""
    if may_rebuild:
        try:
            mended = rebuild_index(directory, name, boot_id=boot_id)
            disabled = mend_meta(directory, name, boot_id=boot_id) if may_repair else False
            return replace(mended, disabled=disabled)
        except StreamDamaged:
            if not may_repair:
                raise
    return repair(directory, name, boot_id=boot_id) if may_repair else None
