"""Where rollups are kept, and how a day is put there: as a whole or not at all, whenever the process is killed.

    OUT/minutes/day=YYYY-MM-DD/*.parquet      and the same for hours and days
    OUT/reports/YYYY-MM-DD.html
    OUT/_run-ID/                              a run that goes on, or was killed
    OUT/_LOCK                                 held by the run that goes on

A run writes into its own folder. When everything is there and on the disk, it writes the file COMMIT into that folder
and then moves the folders of the three tables into place. A run that finds the folder of a killed one finishes the
moves if COMMIT is there, and otherwise removes it. (Spark's own dynamic overwrite removes the old folder before it
moves the new one: killed in between it leaves neither, and what has been trimmed since could not be made again.)

Spark and others pass over names that begin with an underscore.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Final

from shard.files import replace_file, sync_directory

TABLES: Final = {"minute": "minutes", "hour": "hours", "day": "days"}
"""The table of each level."""
RUN_PREFIX: Final = "_run-"
COMMIT: Final = "COMMIT"
LOCK: Final = "_LOCK"


class StoreInUse(Exception):
    """Another rollup writes there."""


class Store:
    """A directory of rollups. Several may read, one may write (`locked`)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def table(self, table: str) -> Path:
        return self.path / table

    def partition(self, table: str, day: date) -> Path:
        """The folder of a day, whether it is there or not."""
        return self.path / table / f"day={day}"

    def report(self, day: date) -> Path:
        return self.path / "reports" / f"{day}.html"

    def days(self) -> list[date]:
        """The days there are, in order."""
        found = self.table("days").glob("day=*")
        return sorted(date.fromisoformat(path.name.removeprefix("day=")) for path in found)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, and clean up after runs that were killed. Raises StoreInUse, OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreInUse(f"another rollup writes to {self.path}") from None
            self.sweep()
            yield
        finally:
            os.close(fd)

    def sweep(self) -> None:
        """Finish or remove what killed runs have left. For the holder of the lock. Raises OSError."""
        for run in sorted(self.path.glob(f"{RUN_PREFIX}*")):
            if (run / COMMIT).exists():
                self._move(run)
            # Processes of the killed run may write on for a moment; `job` sweeps once more when they surely have ended.
            shutil.rmtree(run, ignore_errors=True)

    def begin(self) -> Path:
        """An empty folder for a run. Raises OSError."""
        run = self.path / f"{RUN_PREFIX}{secrets.token_hex(4)}"
        run.mkdir()
        return run

    def commit(self, run: Path, day: date) -> None:
        """Make the tables in `run` (`staged`) the day's, in place of those that were; one that is not there is cleared.

        Raises OSError; what was there before stays when COMMIT was not yet written.
        """
        staged = {table: staged_table(run, table).is_dir() for table in TABLES.values()}
        _sync_tree(run)
        replace_file(run / COMMIT, json.dumps({"day": str(day), "staged": staged}).encode())
        self._move(run)
        shutil.rmtree(run)

    def _move(self, run: Path) -> None:
        """Does what was not yet done, so that it may be done again."""
        commit = json.loads((run / COMMIT).read_text())
        day = date.fromisoformat(commit["day"])
        for table, is_replaced in commit["staged"].items():
            final, staged = self.partition(table, day), staged_table(run, table)
            if is_replaced and not staged.exists():
                continue  # moved already
            final.parent.mkdir(exist_ok=True)
            if final.exists():
                os.rename(final, run / f"old-{table}")
            if is_replaced:
                os.rename(staged, final)
            sync_directory(final.parent)


def staged_table(run: Path, table: str) -> Path:
    """Where a run puts a table before it is committed."""
    return run / f"staged-{table}"


def _sync_tree(path: Path) -> None:
    """Every file of it on the disk."""
    for folder, _, files in os.walk(path):
        for name in files:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_directory(Path(folder))
