"""Finds out which streams of a data directory may have changed, by a look at their index files from outside.

Every append writes to the index file, so its time of modification and size change. A file that was written a moment ago
may be in the midst of an append, whose message is not committed yet: it has not settled, and is looked at again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from tailrace.shard.catalog import stream_names
from tailrace.shard.names import name_of_stem, stem_is_hashed
from tailrace.shard.stream_files import CONTENT_SUFFIX, INDEX_SUFFIX
from tailrace.spark.patterns import is_wanted

SETTLE_S: Final = 3.0
SETTLE_NS: Final = int(SETTLE_S * 1e9)


Signature: TypeAlias = tuple[int, int, int]
"""An index file seen from outside: its inode, size, and time of modification (ns)."""


def is_settled(signature: Signature, now_ns: int) -> bool:
    """Whether the file had not been written for SETTLE_S."""
    return signature[2] < now_ns - SETTLE_NS


class IndexScan:
    """Keeps what the names of files mean from one scan to the next."""

    def __init__(self, shard_paths: Sequence[Path], patterns: Sequence[str]) -> None:
        self._shard_paths = shard_paths
        self.patterns = patterns
        self._names: list[dict[str, str | None]] = [{} for _ in shard_paths]

    def scan(self) -> dict[str, tuple[int, Signature | None]]:
        """The wanted streams with their shards, without the signature if it is unknown. Raises OSError."""
        found: dict[str, tuple[int, Signature | None]] = {}
        for shard, path in enumerate(self._shard_paths):
            self._scan_shard(shard, path, found)
        return found

    def _scan_shard(self, shard: int, path: Path, found: dict[str, tuple[int, Signature | None]]) -> None:
        names, streams = self._names[shard], 0
        with os.scandir(path) as entries:
            for entry in entries:
                file = entry.name
                if file.endswith(CONTENT_SUFFIX):
                    streams += 1
                if not file.endswith(INDEX_SUFFIX):
                    continue
                if file not in names:
                    names[file] = self._name(file[: -len(INDEX_SUFFIX)])
                name = names[file]
                if name is not None:
                    streams -= 1
                    found[name] = shard, _sign(entry)
        if streams:  # some that are not wanted, have their names elsewhere, or lack a file
            for name in stream_names(path):
                if name not in found and is_wanted(name, self.patterns):
                    found[name] = (shard, None)

    def _name(self, stem: str) -> str | None:
        """None if the stream is not wanted, or its name is not in that of its files."""
        name = None if stem_is_hashed(stem) else name_of_stem(stem)
        return name if name is not None and is_wanted(name, self.patterns) else None


def _sign(entry: os.DirEntry[str]) -> Signature | None:
    """None if the file is gone."""
    try:
        stat = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
