"""Streams' metadata on its way to the disk: the helper thread writes it, never the loop.

All metadata set in one turn, and while the files before it are under way, goes to the disk together. Those that wait
for it are called in the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tailrace.broker.streams.syncer import Syncable, SyncJob
from tailrace.shard.files import Replacements

log = logging.getLogger(__name__)

Written = Callable[[OSError | None], None]
"""Called in the loop when a file is on the disk, or with what was wrong: then it is as it was before."""


class FileGroup:
    """Files that are replaced together. The contents are whole files; None takes a file away."""

    __slots__ = ("error", "files", "name", "waiting")

    def __init__(self) -> None:
        self.name = "roles"
        self.files: dict[Path, bytes | None] = {}
        self.waiting: list[Written] = []
        self.error: OSError | None = None

    def sync(self) -> None:
        """In the helper thread."""
        replacements = Replacements()
        try:
            for path, data in self.files.items():
                if data is None:
                    replacements.remove(path)
                else:
                    replacements.replace(path, data)
            replacements.finish(next(iter(self.files)).parent)
        except OSError as error:
            log.error("%d roles could not be written down: %s", len(self.files), error)
            replacements.give_up()
            self.error = error


class RoleWriter:
    """One per worker. `flush` is called at the end of each turn."""

    __slots__ = ("_request", "_under_way", "gathered")

    def __init__(self, request: Callable[[Syncable, object], None]) -> None:
        self._request = request
        self.gathered = FileGroup()
        self._under_way: FileGroup | None = None

    @property
    def pending(self) -> bool:
        """Whether anything is not on the disk yet."""
        return self._under_way is not None or bool(self.gathered.files)

    def replace(self, path: Path, data: bytes) -> None:
        """Let the file have this content, unless it is given a later one before it is written."""
        self.gathered.files[path] = data

    def remove(self, path: Path) -> None:
        """The file need not be there."""
        self.gathered.files[path] = None

    def when_written(self, done: Written) -> None:
        """Call when all that was to be written until now is on the disk."""
        if self.gathered.files:
            self.gathered.waiting.append(done)
        elif self._under_way is not None:
            self._under_way.waiting.append(done)
        else:
            done(None)

    def flush(self) -> None:
        """Hand the gathered files to the helper thread, unless it is at work for this already."""
        if self._under_way is None and self.gathered.files:
            group, self.gathered = self.gathered, FileGroup()
            self._under_way = group
            self._request(group, SyncJob(lambda: self._finished(group)))

    def _finished(self, group: FileGroup) -> None:
        self._under_way = None
        for done in group.waiting:
            done(group.error)
        self.flush()
