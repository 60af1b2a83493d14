"""Finds out which streams of a data directory may have changed, by a look at their index files from outside.

At every append the time of modification of the index file is at most a second old (`shard.window.FRESH_S`). A file that
was written a moment ago may get more messages at the same time, or be in the midst of an append, whose message is not
committed yet: it has not settled, and is looked at again. So is a directory in which files came or went a moment ago.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from tailrace.shard.catalog import stream_names
from tailrace.shard.names import name_of_stem, stem_is_hashed
from tailrace.shard.stream_files import CONTENT_SUFFIX, INDEX_SUFFIX
from tailrace.spark.patterns import is_wanted
from tailrace.spark.source import Scan, StreamRef

SETTLE_S: Final = 3.0
SETTLE_NS: Final = int(SETTLE_S * 1e9)


Signature: TypeAlias = tuple[int, int, int]
"""An index file seen from outside: its inode, size, and time of modification (ns)."""


def settled_before_ns(now_ns: int) -> int:
    """Files that were modified before this have settled."""
    return now_ns - SETTLE_NS


def sign_all(files: Sequence[str]) -> list[Signature | None]:
    """None for those that are gone."""
    try:
        return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in map(os.stat, files)]
    except FileNotFoundError:
        return [_sign(file) for file in files]


def _sign(file: str) -> Signature | None:
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class IndexScan:
    """Keeps its findings from one scan to the next: a directory is listed again only if files came or went."""

    def __init__(self, shard_paths: Sequence[Path], patterns: Sequence[str]) -> None:
        self.patterns = patterns
        self._shards = [_ShardScan(shard, path, patterns) for shard, path in enumerate(shard_paths)]
        self._refs: dict[str, StreamRef] | None = None
        self._missing: set[str] = set()

    def scan(self, named: Iterable[StreamRef] = ()) -> Scan:
        """Scans the wanted streams, and those `named`, which may not exist. Raises OSError."""
        settled_ns = settled_before_ns(time.time_ns())
        renewed = [shard.renew(settled_ns) for shard in self._shards]
        if self._refs is None or any(renewed):
            found = {name: StreamRef(each.shard, name) for each in self._shards for name in each.all_names()}
            self._missing = {ref.stream for ref in named} - found.keys()
            found |= {ref.stream: ref for ref in named}
            self._refs = {name: found[name] for name in sorted(found)}
        changed, unsettled = set[str](), set(self._missing)
        for shard in self._shards:
            shard.look(settled_ns, changed, unsettled)
        return Scan(self._refs, changed, unsettled)


class _ShardScan:
    """The streams of a shard whose names are in those of their index files, and the others."""

    def __init__(self, shard: int, path: Path, patterns: Sequence[str]) -> None:
        self.shard = shard
        self._path = path
        self._patterns = patterns
        self._modified_ns = -1  # the directory, when it was listed; -1: list it again
        self._known: dict[str, str | None] = {}  # names by files, None if the stream is not wanted or is among _others
        self._names: list[str] = []
        self._files: list[str] = []
        self._signatures: list[Signature | None] = []
        self._others: list[str] = []

    def all_names(self) -> list[str]:
        return self._names + self._others

    def renew(self, settled_ns: int) -> bool:
        """Returns whether the streams may be others than before."""
        modified_ns = os.stat(self._path).st_mtime_ns
        if modified_ns == self._modified_ns:
            return False
        before, signatures = self.all_names(), dict(zip(self._names, self._signatures, strict=True))
        contents, known = self._index_files()
        self._known = known
        self._files = [f"{self._path}/{file}" for file, name in known.items() if name is not None]
        self._names = [name for name in known.values() if name is not None]
        self._signatures = [signatures.get(name) for name in self._names]
        self._others = []
        if contents != len(self._names):  # some are not wanted, have their names elsewhere, or lack a file
            listed = set(self._names)
            names = stream_names(self._path)
            self._others = [name for name in names if name not in listed and is_wanted(name, self._patterns)]
        self._modified_ns = modified_ns if modified_ns < settled_ns else -1
        return before != self.all_names()

    def look(self, settled_ns: int, changed: set[str], unsettled: set[str]) -> None:
        """Adds streams that look different from the look before, and those that may change without looking so."""
        found = sign_all(self._files)
        changed.update(
            name for name, now, before in zip(self._names, found, self._signatures, strict=True) if now != before
        )
        unsettled.update(
            name for name, now in zip(self._names, found, strict=True) if now is None or now[2] >= settled_ns
        )
        unsettled.update(self._others)
        self._signatures = found

    def _index_files(self) -> tuple[int, dict[str, str | None]]:
        """How many content files there are, and the names that index files have."""
        contents, known = 0, dict[str, str | None]()
        for file in os.listdir(self._path):
            if file.endswith(CONTENT_SUFFIX):
                contents += 1
            elif file.endswith(INDEX_SUFFIX):
                known[file] = self._known[file] if file in self._known else self._name(file[: -len(INDEX_SUFFIX)])
        return contents, known

    def _name(self, stem: str) -> str | None:
        """None if the stream is not wanted, or its name is not in that of its files."""
        name = None if stem_is_hashed(stem) else name_of_stem(stem)
        return name if name is not None and is_wanted(name, self._patterns) else None
