"""Days are put in their place whole or not at all, wherever a run is killed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Final

import pytest

from tailrace.spark.rollup.store import (
    STATE_KEPT_S,
    STATES_KEPT_MAX,
    TABLES,
    Store,
    StoreInUse,
    node_folder,
    staged_node,
)

KILLS = int(os.environ.get("TAILRACE_KILL_ROUNDS", "4"))
DAY = date(2026, 11, 20)
ALL = tuple(TABLES.values())


def stage(run: Path, text: str, *tables: str) -> None:
    for table in tables:
        stage_file(run, table, "one").write_text(f"{text} {table}")


def stage_file(run: Path, table: str, node: str) -> Path:
    folder = staged_node(run, table, node)
    folder.mkdir(parents=True)
    return folder / "part.parquet"


def contents(store: Store, node: str = "one") -> dict[str, str]:
    return {
        table: (store.partition(table, DAY) / node_folder(node) / "part.parquet").read_text()
        for table in ALL
        if store.partition(table, DAY).exists()
    }


def written(text: str, *tables: str) -> dict[str, str]:
    return {table: f"{text} {table}" for table in tables}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "out")
    with store.locked():
        run = store.begin()
        stage(run, "old", *ALL)
        store.commit(run, DAY)
    assert contents(store) == written("old", *ALL)
    return store


def test_a_commit_replaces_the_day_and_leaves_nothing_else(store: Store) -> None:
    with store.locked():
        run = store.begin()
        stage(run, "new", *ALL)
        store.commit(run, DAY)
    assert contents(store) == written("new", *ALL)
    assert sorted(path.name for path in store.path.iterdir()) == sorted(["_LOCK", "current", "states", "nodes", *ALL])
    assert (store.path / "minutes" / f"day={DAY}" / "node=one" / "part.parquet").read_text() == "new minutes"


def test_what_was_not_staged_is_cleared(store: Store) -> None:
    with store.locked():
        run = store.begin()
        stage(run, "new", "days")
        store.commit(run, DAY)
    assert contents(store) == written("new", "days")


def test_other_days_are_left_alone(store: Store) -> None:
    with store.locked():
        store.commit(store.begin(), date(2026, 11, 19))
    assert contents(store) == written("old", *ALL)
    assert store.days() == [DAY]


def test_a_second_writer_is_refused(store: Store) -> None:
    with store.locked(), pytest.raises(StoreInUse, match="another rollup writes"), Store(store.path).locked():
        pass
    with store.locked():
        pass


class Killed(BaseException):
    """The process ends here."""


def die_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Each link, rename and removal is a step."""
    left = iter(range(steps))

    def dying(step: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: object, **named: object) -> None:
            if next(left, None) is None:
                raise Killed
            step(*arguments, **named)

        return run

    for module, name in ((os, "rename"), (os, "symlink"), (os, "link"), (shutil, "rmtree")):
        patch.setattr(module, name, dying(getattr(module, name)))


@pytest.mark.few(1)
@pytest.mark.parametrize("staged", [ALL, ("minutes", "days"), ()])
def test_killed_between_any_two_steps_the_tables_are_the_old_or_the_new_ones_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: tuple[str, ...]
) -> None:
    """Each link, rename and removal is a step; the run dies before the first, the second … until it gets through.
    Readers look at the tables before any other run cleans up."""
    seen = []
    for survived in range(40):
        store = Store(tmp_path / f"out{survived}")
        with store.locked():
            run = store.begin()
            stage(run, "old", *ALL)
            store.commit(run, DAY)
        with monkeypatch.context() as patch:
            die_after(patch, survived)
            try:
                with store.locked():
                    run = store.begin()
                    stage(run, "new", *staged)
                    store.commit(run, DAY)
                is_done = True
            except Killed:
                is_done = False
        found = contents(store)
        assert found in (written("new", *staged), written("old", *ALL))
        with store.locked():
            assert contents(store) == found
        assert not list(store.path.glob("_run-*"))
        seen.append((found == written("new", *staged), is_done))
        if is_done:
            break
    assert seen == sorted(seen)
    assert {(False, False), (True, False), (True, True)} == set(seen)


def test_a_run_that_never_committed_is_forgotten(store: Store) -> None:
    run = store.begin()
    stage(run, "new", *ALL)
    (run / "raw").mkdir()
    with store.locked():
        assert contents(store) == written("old", *ALL)
    assert not run.exists()


def test_a_snapshot_stays_as_it_is_while_others_follow(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.snapshot()
    for text in ("second", "third"):
        with store.locked():
            run = store.begin()
            stage(run, text, *ALL)
            store.commit(run, DAY)
    for table in ALL:
        assert (before.partition(table, DAY) / "node=one" / "part.parquet").read_text() == f"old {table}"
    assert contents(store) == written("third", *ALL)
    with store.locked():
        assert before.path.exists()
    monkeypatch.setattr(time, "time", lambda left=time.time: left() + STATE_KEPT_S + 1)
    with store.locked():
        assert not before.path.exists()
        assert contents(store) == written("third", *ALL)


def test_former_states_are_bounded(store: Store) -> None:
    for day in range(1, STATES_KEPT_MAX + 3):
        with store.locked():
            run = store.begin()
            stage(run, "new", *ALL)
            store.commit(run, date(2026, 10, day))
    with store.locked():
        assert len(list((store.path / "states").iterdir())) == STATES_KEPT_MAX + 1
    assert len(store.days()) == STATES_KEPT_MAX + 3
    # The files of a day are there once, however many states have it.
    assert (store.partition("days", DAY) / "node=one" / "part.parquet").stat().st_nlink == STATES_KEPT_MAX + 1


def test_where_files_cannot_be_linked_they_are_copied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_source: str, _target: str) -> None:
        raise PermissionError(errno.EPERM, "as for files of others")

    monkeypatch.setattr(os, "link", refuses)
    with store.locked():
        store.commit(store.begin(), date(2026, 11, 19))
    assert contents(store) == written("old", *ALL)


# --- several days in one commit ---------------------------------------------------------------------------------------

NEXT = date(2026, 11, 21)


def commit_days(store: Store) -> None:
    for day in (DAY, NEXT):
        run = store.begin()
        stage(run, "new", *ALL)
        store.commit(run, day)
        store.sweep()


def test_days_of_a_group_become_visible_at_once(store: Store) -> None:
    with store.locked():
        with store.group():
            commit_days(store)
            assert contents(store) == written("new", *ALL), "the writer sees its own uncommitted days"
            assert contents(Store(store.path)) == written("old", *ALL)
        assert not list(store.path.glob("_run-*"))
    assert Store(store.path).days() == [DAY, NEXT]
    assert contents(Store(store.path)) == written("new", *ALL)
    assert len(list((store.path / "states").iterdir())) == 2, "the first, and one for the group"


def test_an_exception_behind_a_day_of_a_group_takes_nothing_from_it(store: Store) -> None:
    with store.locked(), suppress(KeyboardInterrupt), store.group():
        commit_days(store)
        raise KeyboardInterrupt
    assert Store(store.path).days() == [DAY, NEXT]


def test_killed_in_a_group_the_tables_are_the_old_or_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for survived in range(80):
        store = Store(tmp_path / f"out{survived}")
        with store.locked():
            run = store.begin()
            stage(run, "old", *ALL)
            store.commit(run, DAY)
        is_done = False
        with monkeypatch.context() as patch:
            die_after(patch, survived)
            with suppress(Killed), store.locked():
                with store.group():
                    commit_days(store)
                is_done = True
        after = Store(store.path)
        found = contents(after), len(after.days())
        assert found in ((written("old", *ALL), 1), (written("new", *ALL), 1), (written("new", *ALL), 2))
        with after.locked():
            assert (contents(after), len(after.days())) == found
        assert not list(store.path.glob("_run-*"))
        seen.add(found[1])
        if is_done:
            break
    assert is_done
    assert seen == {1, 2}


# --- a folder for each node -------------------------------------------------------------------------------------------

ODD: Final = ("..", "a/b=c", "%41", "ключ", "0012", "1e5", "two words", "x" * 60)


def commit_node(store: Store, text: str, node: str, tables: tuple[str, ...] = ALL) -> None:
    run = store.begin()
    for table in tables:
        stage_file(run, table, node).write_text(f"{text} {table}")
    store.commit(run, DAY, nodes=[node])


def test_a_commit_for_one_node_touches_no_other(store: Store) -> None:
    for node in ODD:
        with store.locked():
            commit_node(store, node, node)
    inodes = {path.parent.name: path.stat().st_ino for path in store.partition("days", DAY).glob("*/*")}
    with store.locked():
        commit_node(store, "new", ODD[0])
    for node in ODD[1:]:
        assert contents(store, node) == written(node, *ALL)
    assert contents(store, ODD[0]) == written("new", *ALL)
    assert contents(store) == written("old", *ALL)
    found = store.snapshot().by_node("days", DAY)
    assert set(found) == {"one", *ODD}
    assert all(path.parent == store.partition("days", DAY) for path in found.values())
    now = {path.parent.name: path.stat().st_ino for path in store.partition("days", DAY).glob("*/*")}
    assert {node for node, inode in inodes.items() if now[node] != inode} == {node_folder(ODD[0])}


def test_a_node_without_rows_has_no_folder_and_a_day_without_nodes_is_gone(store: Store) -> None:
    with store.locked():
        commit_node(store, "new", "two")
        commit_node(store, "new", "one", ())
    assert list(store.snapshot().by_node("days", DAY)) == ["two"]
    with store.locked(), store.group():
        commit_node(store, "new", "two", ())
    assert store.days() == []


def test_killed_in_the_commit_of_one_node_all_tables_are_the_old_or_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for survived in range(40):
        store = Store(tmp_path / f"out{survived}")
        with store.locked():
            commit_node(store, "old", "one")
            commit_node(store, "old", "two")
        is_done = False
        with monkeypatch.context() as patch:
            die_after(patch, survived)
            with suppress(Killed), store.locked():
                commit_node(store, "new", "two")
                is_done = True
        assert contents(store) == written("old", *ALL)
        assert contents(store, "two") in (written("old", *ALL), written("new", *ALL))
        seen.add(contents(store, "two")["days"])
        if is_done:
            break
    assert is_done
    assert len(seen) == 2


@pytest.mark.parametrize("is_state", [False, True], ids=["folders in OUT", "a state"])
def test_tables_of_earlier_versions_are_refused_and_stay(tmp_path: Path, is_state: bool) -> None:
    out = tmp_path / "out"
    tables = out / "states" / "00000001" if is_state else out
    for table in ALL:
        (tables / table / f"day={DAY}").mkdir(parents=True)
        (tables / table / f"day={DAY}" / "part.parquet").write_text("old")
    if is_state:
        (out / "current").symlink_to("states/00000001")
    files = sorted(path for path in out.rglob("*.parquet"))
    text = "has tables of an earlier version, without a folder for each node; roll the days up again into a new OUT"
    with pytest.raises(OSError, match=text), Store(out).locked():
        pass
    with pytest.raises(OSError, match=text):
        Store(out).snapshot().by_node("days", DAY)
    assert sorted(path for path in out.rglob("*.parquet")) == files


# --- readers beside runs that are killed ------------------------------------------------------------------------------

WRITER = """
import itertools, sys
from datetime import date
from pathlib import Path
from tailrace.spark.rollup.store import TABLES, Store, staged_node

store = Store(Path(sys.argv[1]))
for number in itertools.count(int(sys.argv[2])):
    with store.locked():
        run = store.begin()
        for table in TABLES.values():
            staged_node(run, table, "one").mkdir(parents=True)
            for part in range(2):
                (staged_node(run, table, "one") / f"part-{number}-{part}.parquet").write_text(str(number))
        store.commit(run, date(2026, 11, 20))
        store.sweep()
    print(number, flush=True)
"""


def look(store: Store) -> int:
    """Which run the tables are of: all three, whole, of the same one."""
    snapshot = store.snapshot()
    runs = [[int(path.read_text()) for path in snapshot.partition(table, DAY).glob("*/*")] for table in ALL]
    assert runs == [[runs[0][0]] * 2] * 3, runs
    return runs[0][0]


@pytest.mark.thorough
@pytest.mark.system
def test_thousands_of_looks_beside_runs_that_are_killed_see_whole_states(tmp_path: Path) -> None:
    """A writer that does nothing but commit is killed at random points, and begun again."""
    seed = int(os.environ.get("TAILRACE_SEED", random.randrange(1 << 32)))
    print(f"TAILRACE_SEED={seed}")
    choice, store, looks, seen, next_number = random.Random(seed), Store(tmp_path / "out"), 0, set[int](), 0
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(store.path), str(next_number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            committed = [int(writer.stdout.readline())]
            end_s = time.monotonic() + choice.uniform(0, 0.5)
            while time.monotonic() < end_s:
                seen.add(look(store))
                looks += 1
            writer.kill()
            committed += [int(line) for line in writer.stdout]
        now = look(store)  # before anybody cleans up
        assert now in (committed[-1], committed[-1] + 1)
        seen.add(now)
        next_number = now + 1
    print(f"{looks} looks, {len(seen)} states seen, {next_number} runs")
    assert looks > KILLS
    assert len(seen) >= KILLS
