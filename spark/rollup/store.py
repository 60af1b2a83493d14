"""Stores rollups, and replaces a day atomically: as a whole or not at all, at any kill.

    OUT/current                               a link to the state that readers go by, such as states/00000007
    OUT/states/N/minutes/day=YYYY-MM-DD/*.parquet      and the same for hours, days and nodes
    OUT/minutes, OUT/hours, OUT/days, OUT/nodes        links to the tables of current
    OUT/reports/YYYY-MM-DD.html
    OUT/_run-ID/                              a run in progress, or the rest of one that was killed
    OUT/_LOCK                                 held by the run in progress

A state is all tables of all days, and never changes. A run writes into its own folder, makes the next state from its
files and hard links to the other days' files, puts it on the disk, and renames the link `current`: one step, before
which every reader sees the former state and after which the new one. A reader of several tables resolves the link once
(`Store.snapshot`). Former states are kept for `STATE_KEPT_S`, for readers that still have them open.

A state costs links for all days that there are. So several quick days share one (`Store.group`).

Spark and others pass over names that begin with an underscore.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.shard.files import FileSystem, sync_directory

TABLES: Final = {"minute": "minutes", "hour": "hours", "day": "days"}
"""The table of each level."""
NODES: Final = "nodes"
"""Which nodes they are from (`spark.rollup.nodes`)."""
ALL_TABLES: Final = (*TABLES.values(), NODES)
RUN_PREFIX: Final = "_run-"
LOCK: Final = "_LOCK"
CURRENT: Final = "current"
STATES: Final = "states"
STATE_DIGITS: Final = 8
STATE_KEPT_S: Final = 3_600
"""For how long a state is kept at least after another one has taken its place."""
STATES_KEPT_MAX: Final = 16
"""Former states that are kept at most, as when many days are rolled up one after the other."""
OLD_COMMIT: Final = "COMMIT"
"""In the folder of a complete run of earlier versions, which moved the tables into place one after the other."""
_UNLINKABLE: Final = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)


class StoreInUse(Exception):
    """Another rollup writes there."""


class Snapshot(NamedTuple):
    """One state of the tables. It does not change, and is kept for at least STATE_KEPT_S after it was replaced."""

    path: Path

    def partition(self, table: str, day: date) -> Path:
        """The folder of a day, whether it exists or not."""
        return self.path / table / f"day={day}"

    def days(self) -> list[date]:
        """The days there are, in order."""
        found = (self.path / "days").glob("day=*")
        return sorted(date.fromisoformat(path.name.removeprefix("day=")) for path in found)


class Store:
    """A directory of rollups. Several may read, one may write (`locked`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next: Path | None = None  # a state to be, in a folder of its own, while a group of days is collected
        self._is_grouping = False
        self._disk: FileSystem | None = None  # open for as long as the lock is held, so that no failed write is missed

    def snapshot(self) -> Snapshot:
        """The present state; within a group the one to be. Before the first commit it has no tables. Raises OSError."""
        if self._next is not None:
            return Snapshot(self._next)
        try:
            return Snapshot(self.path / os.readlink(self.path / CURRENT))
        except FileNotFoundError:
            return Snapshot(self.path)  # tables of earlier versions, if there are any

    def partition(self, table: str, day: date) -> Path:
        """The folder of a day in the state of this moment, whether it exists or not. Raises OSError."""
        return self.snapshot().partition(table, day)

    def report(self, day: date) -> Path:
        return self.path / "reports" / f"{day}.html"

    def days(self) -> list[date]:
        """The days there are, in order. Raises OSError."""
        return self.snapshot().days()

    def prepare_catch_up(self) -> None:
        """Called before the table of nodes of all days is read. Raises OSError, as do the next two."""

    def prepare(self, day: date) -> None:
        """Called before a day is rolled up."""

    def prepare_report(self, day: date) -> None:
        """Called before the report of a day is made."""

    def publish_report(self, day: date) -> str:
        """Called when the report of a day is written; returns where readers find it. Raises OSError."""
        return str(self.report(day))

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
            self._disk = FileSystem(self.path)
            self._adopt()
            self.sweep()
            yield
        finally:
            if self._disk is not None:
                self._disk.close()
            self._disk = None
            os.close(fd)

    def sweep(self) -> None:
        """Remove what killed runs have left, and states that nobody needs. Only with the lock. Raises OSError."""
        for run in self.path.glob(f"{RUN_PREFIX}*"):
            # Processes of the killed run may write on for a moment; `job` sweeps once more when they surely have ended.
            if self._next is None or run != self._next.parent:
                shutil.rmtree(run, ignore_errors=True)
        for state in self._unneeded():
            shutil.rmtree(state, ignore_errors=True)

    @contextmanager
    def run(self) -> Iterator[Path]:
        """An empty folder for a run, which is removed in the end. Raises OSError."""
        run = self.begin()
        try:
            yield run
        finally:
            shutil.rmtree(run, ignore_errors=True)

    def begin(self) -> Path:
        """An empty folder for a run, which the next `sweep` removes. Raises OSError."""
        run = self.path / f"{RUN_PREFIX}{secrets.token_hex(4)}"
        run.mkdir()
        return run

    @contextmanager
    def group(self) -> Iterator[None]:
        """Let the commits within become visible at once, in the end; also if an exception ends it, unless it came
        amid a commit. With the lock. Raises OSError; readers then keep seeing the former tables.
        """
        self._is_grouping = True
        try:
            yield
        finally:
            self._is_grouping, state, self._next = False, self._next, None
            if state is not None:
                try:
                    self._switch(state.parent, state)
                finally:
                    shutil.rmtree(state.parent, ignore_errors=True)

    def commit(self, run: Path, day: date, replaced: Collection[str] = ALL_TABLES) -> None:
        """Make the tables in `run` (`staged_table`) the day's, instead of the former ones of `replaced`; one of these
        that is not there is removed.

        Raises OSError; readers then keep seeing the former tables.
        """
        if self._is_grouping:
            self._add(run, day, replaced)
        else:
            state = run / "state"
            for table in ALL_TABLES:
                _link_days(self.snapshot().path / table, state / table, f"day={day}" if table in replaced else "")
                _take(run, table, state, day)
            self._switch(run, state)
        shutil.rmtree(run)

    def _add(self, run: Path, day: date, replaced: Collection[str]) -> None:
        """Into the group's state, which is dropped if this fails."""
        before, self._next = self._next, None
        state = before or self._copy_state()
        try:
            for table in replaced:
                shutil.rmtree(state / table / f"day={day}", ignore_errors=True)
            for table in ALL_TABLES:
                _take(run, table, state, day)
        except BaseException:
            shutil.rmtree(state.parent, ignore_errors=True)
            raise
        self._next = state

    def _copy_state(self) -> Path:
        state = self.begin() / "state"
        for table in ALL_TABLES:
            _link_days(self.snapshot().path / table, state / table)
        return state

    def _switch(self, run: Path, state: Path) -> None:
        """Put a state in its place and make it the current one."""
        states = self.path / STATES
        states.mkdir(exist_ok=True)
        name = f"{1 + max((int(each.name) for each in self._states()), default=0):0{STATE_DIGITS}}"
        os.rename(state, states / name)
        self._link_tables()
        # The files, folders and links of thousands of days: one sync of the file system takes less than one of each.
        assert self._disk is not None, "only with the lock"
        self._disk.sync()
        os.symlink(f"{STATES}/{name}", run / CURRENT)
        os.rename(run / CURRENT, self.path / CURRENT)
        sync_directory(self.path)

    def _link_tables(self) -> None:
        for table in ALL_TABLES:
            if not os.path.lexists(self.path / table):
                os.symlink(f"{CURRENT}/{table}", self.path / table)

    def _unneeded(self) -> Iterator[Path]:
        """States that never became the current one, and former ones that no reader should need any more."""
        states = self._states()
        current = os.readlink(self.path / CURRENT).rpartition("/")[2] if states else ""
        former = [state for state in states if state.name <= current]
        yield from states[len(former) :]
        kept_since_s = time.time() - STATE_KEPT_S
        for place, (state, successor) in enumerate(pairwise(former)):
            # A state was replaced when the one that followed it was made.
            if successor.stat().st_mtime < kept_since_s or place < len(former) - 1 - STATES_KEPT_MAX:
                yield state

    def _states(self) -> list[Path]:
        """In the order in which they were made."""
        return sorted((self.path / STATES).glob("[0-9]" * STATE_DIGITS))

    def _adopt(self) -> None:
        """Make tables of earlier versions, which are folders in OUT, the first state. May be done again when killed."""
        folders = [self.path / table for table in TABLES.values() if _is_folder(self.path / table)]
        if not folders:
            if os.path.lexists(self.path / CURRENT):
                self._link_tables()
            return
        run = self.begin()
        if not os.path.lexists(self.path / CURRENT):
            for complete in self.path.glob(f"{RUN_PREFIX}*/{OLD_COMMIT}"):
                self._finish_moves(complete.parent)
            for table in ALL_TABLES:
                _link_days(self.path / table, run / "state" / table)
            self._switch(run, run / "state")
        for folder in folders:
            os.rename(folder, run / folder.name)
        self._link_tables()
        sync_directory(self.path)

    def _finish_moves(self, run: Path) -> None:
        """Finishes a complete run of an earlier version. Skips finished steps, so that it may be repeated."""
        commit = json.loads((run / OLD_COMMIT).read_text())
        for table, is_replaced in commit["staged"].items():
            final, staged = self.path / table / f"day={commit['day']}", staged_table(run, table)
            if is_replaced and not staged.exists():
                continue  # moved already
            final.parent.mkdir(exist_ok=True)
            if final.exists():
                os.rename(final, run / f"old-{table}")
            if is_replaced:
                os.rename(staged, final)


def staged_table(run: Path, table: str) -> Path:
    """The path of a run's table before the commit."""
    return run / f"staged-{table}"


def _take(run: Path, table: str, state: Path, day: date) -> None:
    """Move what a run has staged into a state."""
    staged = staged_table(run, table)
    if staged.is_dir():
        os.rename(staged, state / table / f"day={day}")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _link_days(table: Path, into: Path, but: str = "") -> None:
    """A table whose days have the same files, but for one day. Raises OSError."""
    into.mkdir(parents=True)
    for day in table.glob("day=*"):
        if day.name != but:
            _link_files(str(day), f"{into}/{day.name}")


def _link_files(day: str, into: str) -> None:
    """Links the files of a folder without subfolders. As text and without `Path`: there are thousands of them."""
    os.mkdir(into)
    for file in os.listdir(day):
        _link(f"{day}/{file}", f"{into}/{file}")


def _link(source: str, target: str) -> str:
    """Makes a hard link, or a copy if links are impossible. Raises OSError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _UNLINKABLE:
            raise
        shutil.copyfile(source, target)
        _sync(target)
    return target


def _sync(path: str | Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
