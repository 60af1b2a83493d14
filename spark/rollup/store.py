"""Stores rollups, and replaces a day atomically: as a whole or not at all, at any kill.

    OUT/current                               a link to the state that readers go by, such as states/00000007
    OUT/states/N/minutes/day=YYYY-MM-DD/node=ID/*.parquet      and the same for hours and days
    OUT/states/N/nodes/day=YYYY-MM-DD/nodes.parquet
    OUT/states/N/topics/day=YYYY-MM-DD/node=ID/*.parquet       only if it was asked for
    OUT/minutes, OUT/hours, OUT/days, OUT/nodes        links to the tables of current
    OUT/reports/YYYY-MM-DD.html
    OUT/_run-ID/                              a run in progress, or the rest of one that was killed
    OUT/_LOCK                                 held by the run in progress

A state is all tables of all days, and never changes. A run writes into its own folder, makes the next state from its
files and hard links to the other files, puts it on the disk, and renames the link `current`: one step, before
which every reader sees the former state and after which the new one. A reader of several tables resolves the link once
(`Store.snapshot`). Former states are kept for `STATE_KEPT_S`, for readers that still have them open.

A state costs links for all days that there are. So several quick days share one (`Store.group`).

Spark and others pass over names that begin with an underscore.
"""

from __future__ import annotations

import errno
import fcntl
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
from urllib.parse import quote, unquote

from tailrace.shard.files import FileSystem, sync_directory

TABLES: Final = {"minute": "minutes", "hour": "hours", "day": "days"}
"""The table of each level."""
NODES: Final = "nodes"
"""Which nodes they are from (`spark.rollup.nodes`)."""
TOPICS: Final = "topics"
"""What the messages of each topic come to (`spark.rollup.topics`). A run without it leaves it as it is."""
ALL_TABLES: Final = (*TABLES.values(), NODES, TOPICS)
RUN_PREFIX: Final = "_run-"
LOCK: Final = "_LOCK"
CURRENT: Final = "current"
STATES: Final = "states"
STATE_DIGITS: Final = 8
STATE_KEPT_S: Final = 3_600
"""For how long a state is kept at least after another one has taken its place."""
STATES_KEPT_MAX: Final = 16
"""Former states that are kept at most, as when many days are rolled up one after the other."""
_NODE: Final = "node="
_EARLIER: Final = (
    "{} has tables of an earlier version, without a folder for each node; roll the days up again into a new OUT"
)
_UNLINKABLE: Final = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)


class StoreInUse(Exception):
    """Another rollup writes there."""


class Snapshot(NamedTuple):
    """One state of the tables. It does not change, and is kept for at least STATE_KEPT_S after it was replaced."""

    path: Path

    def partition(self, table: str, day: date) -> Path:
        """The folder of a day, whether it exists or not."""
        return self.path / table / f"day={day}"

    def by_node(self, table: str, day: date) -> dict[str, Path]:
        """The folder of each node that has rows of a day, by its id. Raises OSError."""
        folder = self.partition(table, day)
        if any(folder.glob("*.parquet")):
            raise OSError(_EARLIER.format(folder))
        found = sorted(folder.glob(f"{_NODE}*"))
        return {unquote(path.name.removeprefix(_NODE)): path for path in found}

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
            return Snapshot(self.path)

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
            self._refuse_earlier()
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

    def commit(
        self,
        run: Path,
        day: date,
        replaced: Collection[str] = ALL_TABLES,
        nodes: Collection[str] | None = None,
    ) -> None:
        """Make the tables in `run` (`staged_table`) the day's, instead of the former ones of `replaced`, and in those
        with a folder for each node only of `nodes` (by default of all); what is not there is removed.

        Raises OSError; readers then keep seeing the former tables.
        """
        if self._is_grouping:
            self._add(run, day, replaced, nodes)
        else:
            state = self._copy_state(run / "state")
            for table in ALL_TABLES:
                _replace(run, table, state, day, table in replaced, nodes)
            self._switch(run, state)
        shutil.rmtree(run)

    def _add(self, run: Path, day: date, replaced: Collection[str], nodes: Collection[str] | None) -> None:
        """Into the group's state, which is dropped if this fails."""
        before, self._next = self._next, None
        state = before or self._copy_state(self.begin() / "state")
        try:
            for table in ALL_TABLES:
                _replace(run, table, state, day, table in replaced, nodes)
        except BaseException:
            shutil.rmtree(state.parent, ignore_errors=True)
            raise
        self._next = state

    def _copy_state(self, state: Path) -> Path:
        for table in ALL_TABLES:
            if table == TOPICS and not (self.snapshot().path / table).is_dir():
                continue
            _link_folder(str(self.snapshot().path / table), str(state / table))
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
            is_made = table != TOPICS or any(self.path.glob(f"{STATES}/*/{TOPICS}"))
            if is_made and not os.path.lexists(self.path / table):
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

    def _refuse_earlier(self) -> None:
        if any(self.snapshot().path.glob("days/day=*/*.parquet")):
            raise OSError(_EARLIER.format(self.path))


def staged_table(run: Path, table: str) -> Path:
    """The path of a run's table before the commit."""
    return run / f"staged-{table}"


def staged_node(run: Path, table: str, node: str) -> Path:
    """The path of a node's rows before the commit."""
    return staged_table(run, table) / node_folder(node)


def node_folder(node: str) -> str:
    """The name of a node's folder below that of a day."""
    return f"{_NODE}{quote(node, safe='')}"


def _replace(run: Path, table: str, state: Path, day: date, is_replaced: bool, nodes: Collection[str] | None) -> None:
    """Move the staged table of a day into a state, instead of the former one or of those nodes' parts of it."""
    folder, staged = state / table / f"day={day}", staged_table(run, table)
    if table == TOPICS:
        _replace_topics(folder, staged)
        return
    is_whole = nodes is None or table == NODES
    if is_replaced:
        former = [folder] if is_whole else [folder / node_folder(node) for node in nodes or ()]
        for each in former:
            shutil.rmtree(each, ignore_errors=True)
    if staged.is_dir() and is_whole:
        os.rename(staged, folder)
    elif staged.is_dir():
        folder.mkdir(exist_ok=True)
        for each in staged.iterdir():
            os.rename(each, folder / each.name)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _replace_topics(folder: Path, staged: Path) -> None:
    """Only of the nodes that are staged. One that has no rows has an empty folder there."""
    for each in staged.iterdir() if staged.is_dir() else ():
        shutil.rmtree(folder / each.name, ignore_errors=True)
        if any(each.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            os.rename(each, folder / each.name)


def _link_folder(source: str, target: str) -> None:
    """Links the files of a folder and of its subfolders, if it exists. As text and without `Path`: there are thousands
    of them. Raises OSError."""
    os.makedirs(target)
    if not os.path.isdir(source):
        return
    with os.scandir(source) as found:
        for each in found:
            if each.is_dir():
                _link_folder(each.path, f"{target}/{each.name}")
            else:
                _link(each.path, f"{target}/{each.name}")


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
