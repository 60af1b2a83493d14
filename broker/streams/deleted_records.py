"""The records of deleted streams in the shards of a worker: a bounded number, and the latest term of those before.

Each has the term in which a stream of its name begins, so that nothing of the former stream is taken for the new one's.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tailrace.shard.deletion import (
    DELETED_SUFFIX,
    FORGOTTEN_FILE,
    RECORDS_MAX,
    DeletedStream,
    finish_deletion,
    forget_record,
    read_deleted,
    read_forgotten,
)
from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import MetaDamaged
from tailrace.shard.files import NEW_SUFFIX
from tailrace.shard.names import base_of, shard_of

log = logging.getLogger(__name__)


class DeletedRecords(dict[bytes, DeletedStream]):
    """By name, the earliest deletion first. `forgotten`: by shard, the term of streams whose record is dropped."""

    def __init__(self, directory: DataDirectory) -> None:
        super().__init__()
        self._directory = directory
        self.forgotten: dict[int, int] = {}

    def keep(self, shard: int, records: list[DeletedStream]) -> None:
        """The records found in a shard, the earliest first. Raises OSError."""
        path = self._directory.shard_path(shard)
        for deleted in records[:-RECORDS_MAX]:
            forget_record(path, deleted)
        self.update({each.name.encode(): each for each in records[-RECORDS_MAX:]})
        if epoch := read_forgotten(path):
            self.forgotten[shard] = epoch

    def forget_oldest(self, shard: int) -> DeletedStream | None:
        """Drop the oldest record of a shard that has more than RECORDS_MAX; the caller drops its files."""
        records = [each for name, each in self.items() if shard_of(name, self._directory.shards) == shard]
        if len(records) <= RECORDS_MAX:
            return None
        del self[records[0].name.encode()]
        self.forgotten[shard] = max(self.forgotten.get(shard, 0), records[0].epoch)
        return records[0]

    def before(self, name: bytes) -> DeletedStream | None:
        """The record of the deleted stream of this name, or a record for all whose own is forgotten."""
        if (known := self.get(name)) is not None or base_of(name) != name:
            return known
        epoch = self.forgotten.get(shard_of(name, self._directory.shards), 0)
        return DeletedStream(name.decode(), epoch, "", ()) if epoch else None


def finish_deletions(path: Path) -> list[DeletedStream]:
    """The records in a shard, the earliest first. Raises OSError.

    A crash may have left a deletion in its middle, or before its record had its name.
    """
    found: list[tuple[int, DeletedStream]] = []
    for file in path.glob(f"*{DELETED_SUFFIX}{NEW_SUFFIX}"):
        file.unlink(missing_ok=True)
    for file in path.glob(f"*{DELETED_SUFFIX}"):
        if file.name == FORGOTTEN_FILE:
            continue
        try:
            deleted, written_ns = read_deleted(file), file.stat().st_mtime_ns
        except MetaDamaged as damage:
            log.error("the record of a deleted stream is damaged: %s", damage)
            continue
        if deleted.stems:
            log.warning("stream %r: finishing its deletion", deleted.name)
            finish_deletion(path, deleted)
        if deleted.epoch:
            found.append((written_ns, deleted._replace(stems=())))
    return [deleted for _written_ns, deleted in sorted(found)]
