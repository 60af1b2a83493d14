"""Rollups on a file system by URL, such as an object store, which has neither links nor renames.

    OUT/states/00000007.json                     a state: the files of all tables and days; the greatest is the current
    OUT/files/minutes/day=YYYY-MM-DD/node=ID/*.parquet   and the same for hours and days; a file never changes
    OUT/files/nodes/day=YYYY-MM-DD/*.parquet
    OUT/reports/YYYY-MM-DD.html

As on a local disk a state never changes. A commit puts its files first, under new names, and then the state: one file,
which appears whole, so a reader sees the former state or the new one at any kill. The run itself works in a temporary
folder of this machine (`Store`), which gets the former tables of the days that it needs.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from pyarrow import fs

from tailrace.shard.directory import NODE_FILE, find_data_dir
from tailrace.spark.file_systems import InvalidUrl, Place, open_place
from tailrace.spark.rollup.store import (
    ALL_TABLES,
    NODES,
    STATE_DIGITS,
    STATE_KEPT_S,
    STATES,
    STATES_KEPT_MAX,
    Store,
    StoreInUse,
    node_folder,
)
from tailrace.spark.rollup.summary import GROWTH_DAYS

VERSION: Final = 2
"""In version 1 there was no folder for each node."""
TRANSFERS: Final = 8
"""Files that are sent or fetched at one time."""
Tables = dict[str, dict[str, list[str]]]
"""By table and day, the paths of the files below OUT."""


class State(NamedTuple):
    """`number` is 0 for none."""

    number: int
    tables: Tables

    def files(self, table: str) -> list[str]:
        """The paths of all files of a table, in the order of the days."""
        return [file for _, files in sorted(self.tables.get(table, {}).items()) for file in files]


def read_state(url: str) -> State:
    """The current state, for readers. Raises InvalidUrl, OSError."""
    return _read_last(open_place(url))


class RemoteStore(Store):
    """A store in a temporary folder, `path`, whose commits become visible at a URL. `open_remote` makes one.

    There is no lock: of two runs at the same time, the one that commits later is refused, unless both commit within
    the same instant.
    """

    def __init__(self, path: Path, place: Place) -> None:
        super().__init__(path)
        self._place = place
        self._state = _read_last(place)
        self._fetched: set[tuple[str, date]] = set()
        self._changed: set[tuple[str, date, str]] = set()  # the last is a folder below that of the day, or empty
        with self.locked():
            for table in ALL_TABLES:
                (self.path / "_run-first" / "state" / table).mkdir(parents=True)
            super()._switch(self.path / "_run-first", self.path / "_run-first" / "state")

    def prepare_catch_up(self) -> None:
        self._fetch((NODES, date.fromisoformat(day)) for day in self._state.tables.get(NODES, {}))

    def prepare(self, day: date) -> None:
        self._fetch((table, day) for table in ALL_TABLES)

    def prepare_report(self, day: date) -> None:
        self._fetch(("days", day - timedelta(days=back)) for back in range(GROWTH_DAYS))

    def publish_report(self, day: date) -> str:
        name = f"reports/{day}.html"
        self._place.write(name, self.report(day).read_bytes())
        return f"{self._place.shown}/{name}"

    def commit(
        self,
        run: Path,
        day: date,
        replaced: Collection[str] = ALL_TABLES,
        nodes: Collection[str] | None = None,
    ) -> None:
        """Raises OSError and, if another run has committed meanwhile, StoreInUse."""
        for table in replaced:
            folders = [""] if nodes is None or table == NODES else map(node_folder, nodes)
            self._changed |= {(table, day, folder) for folder in folders}
        super().commit(run, day, replaced, nodes)

    def _switch(self, run: Path, state: Path) -> None:
        super()._switch(run, state)
        tables = {table: dict(days) for table, days in self._state.tables.items()}
        with ThreadPoolExecutor(TRANSFERS) as pool:
            jobs = {each: pool.submit(self._send, *each) for each in sorted(self._changed)}
        for (table, day, folder), job in jobs.items():
            replaced = f"{_folder_name(table, day, folder)}/"
            former = tables.setdefault(table, {}).pop(str(day), [])
            if files := [name for name in former if not name.startswith(replaced)] + job.result():
                tables[table][str(day)] = sorted(files)
        if _last_number(self._place) != self._state.number:
            raise StoreInUse(f"another rollup has written to {self._place.shown} meanwhile")
        self._state = State(self._state.number + 1, tables)
        content = json.dumps({"version": VERSION, "tables": tables}, sort_keys=True).encode()
        self._place.write(_name(self._state.number), content)
        self._fetched |= {(table, day) for table, day, _ in self._changed}
        self._changed.clear()
        _remove_former(self._place)

    def _send(self, table: str, day: date, folder: str) -> list[str]:
        found = []
        source = self.partition(table, day) / folder
        for file in sorted(source.rglob("*.parquet")):
            within = _folder_name(table, day, str(file.parent.relative_to(self.partition(table, day))))
            name = f"{within}/{secrets.token_hex(4)}-{file.name}"
            self._place.system.create_dir(f"{self._place.path}/{within}", recursive=True)
            fs.copy_files(str(file), f"{self._place.path}/{name}", fs.LocalFileSystem(), self._place.system)
            found.append(name)
        return found

    def _fetch(self, wanted: Iterable[tuple[str, date]]) -> None:
        """Bring former tables here, those that are not here yet. Raises OSError."""
        missing = [each for each in wanted if each not in self._fetched]
        with ThreadPoolExecutor(TRANSFERS) as pool:
            for job in [pool.submit(self._fetch_day, *each) for each in missing]:
                job.result()
        self._fetched |= set(missing)

    def _fetch_day(self, table: str, day: date) -> None:
        files = self._state.tables.get(table, {}).get(str(day), [])
        folder = self.partition(table, day)
        for name in files:
            target = folder / name.removeprefix(f"{_folder_name(table, day)}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.copy_files(f"{self._place.path}/{name}", str(target), self._place.system, fs.LocalFileSystem())


@contextmanager
def open_remote(url: str) -> Iterator[RemoteStore]:
    """The store at a URL, for a run. Raises InvalidUrl, also for a copy of a data directory, OSError."""
    place = open_place(url)
    if found := _find_data_dir(place):
        raise InvalidUrl(f"{url!r}: {found} is the data directory of a broker; give a folder outside it")
    with TemporaryDirectory(prefix="tailrace-rollup-") as folder:
        yield RemoteStore(Path(folder), place)


def _find_data_dir(place: Place) -> Path | str | None:
    """The data directory that the place is, or lies in on this machine: credentials may be for the folder alone."""
    if place.system.type_name == "local":
        return find_data_dir(Path(place.path))
    is_there = place.system.get_file_info(f"{place.path}/{NODE_FILE}").type != fs.FileType.NotFound
    return place.shown if is_there else None


def _folder_name(table: str, day: date, folder: str = "") -> str:
    """Below OUT."""
    return "/".join(["files", table, f"day={day}", *([folder] if folder not in ("", ".") else [])])


def _name(number: int) -> str:
    return f"{STATES}/{number:0{STATE_DIGITS}}.json"


def _list_states(place: Place) -> list[Any]:
    return [each for each in place.list_files(STATES) if each.base_name.removesuffix(".json").isdecimal()]


def _last_number(place: Place) -> int:
    return max((int(each.base_name.removesuffix(".json")) for each in _list_states(place)), default=0)


def _read_last(place: Place) -> State:
    number = _last_number(place)
    return State(number, _read_tables(place, number) if number else {})


def _read_tables(place: Place, number: int) -> Tables:
    try:
        found = json.loads(place.read(_name(number)))
        if found["version"] != VERSION:
            cause = f"is of version {found['version']}, not {VERSION}; roll the days up again into a new OUT"
            raise OSError(f"{place.shown}/{_name(number)}: {cause}")
        tables: Tables = found["tables"]
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{place.shown}/{_name(number)}: is not a state of rollups: {error}") from None
    return tables


def _remove_former(place: Place) -> None:
    """Remove states that no reader should need any more, and the files that only these have. Raises OSError."""
    states = _list_states(place)
    kept_since_s = time.time() - STATE_KEPT_S
    unneeded = [
        state
        for number, (state, successor) in enumerate(pairwise(states))
        if successor.mtime.timestamp() < kept_since_s or number < len(states) - 1 - STATES_KEPT_MAX
    ]
    if not unneeded:
        return
    # A day's files are in a row of states, so what is in no later neighbour is in none.
    needed = _files_of(place, states[len(unneeded)])
    for state in unneeded:
        for file in _files_of(place, state) - needed:
            if place.system.get_file_info(f"{place.path}/{file}").type != fs.FileType.NotFound:
                place.system.delete_file(f"{place.path}/{file}")
        place.system.delete_file(f"{place.path}/{STATES}/{state.base_name}")


def _files_of(place: Place, state: Any) -> set[str]:
    tables = _read_tables(place, int(state.base_name.removesuffix(".json")))
    return {file for days in tables.values() for files in days.values() for file in files}
