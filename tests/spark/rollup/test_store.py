"""Days are put in their place whole or not at all, wherever a run is killed."""

from __future__ import annotations

import os
import shutil
from datetime import date
from pathlib import Path

import pytest

from spark.rollup.store import COMMIT, TABLES, Store, StoreInUse, staged_table

DAY = date(2026, 11, 20)
ALL = tuple(TABLES.values())


def stage(run: Path, text: str, *tables: str) -> None:
    for table in tables:
        folder = staged_table(run, table)
        folder.mkdir()
        (folder / "part.parquet").write_text(f"{text} {table}")


def contents(store: Store) -> dict[str, str]:
    return {
        table: (store.partition(table, DAY) / "part.parquet").read_text()
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
    assert sorted(path.name for path in store.path.iterdir()) == sorted(["_LOCK", *ALL])


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


@pytest.mark.parametrize("staged", [ALL, ("minutes", "days"), ()])
def test_killed_between_any_two_steps_the_next_run_finishes_or_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: tuple[str, ...]
) -> None:
    """Every rename and every removal is a step; the run dies before the first, the second … until it gets through."""
    rename, rmtree = os.rename, shutil.rmtree
    seen = set()
    for survived in range(20):
        store = Store(tmp_path / f"out{survived}")
        with store.locked():
            run = store.begin()
            stage(run, "old", *ALL)
            store.commit(run, DAY)
        steps = iter(range(survived))

        def dying(step: object, *arguments: object, left: object = steps) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise Killed
            step(*arguments)  # type: ignore[operator]

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", lambda *arguments: dying(rename, *arguments))
            patch.setattr(shutil, "rmtree", lambda path, **_: dying(rmtree, path))
            try:
                with store.locked():
                    run = store.begin()
                    stage(run, "new", *staged)
                    store.commit(run, DAY)
                is_done = True
            except Killed:
                is_done = False
        was_committed = is_done or (run / COMMIT).exists()
        with store.locked():
            pass
        assert contents(store) == (written("new", *staged) if was_committed else written("old", *ALL))
        assert not list(store.path.glob("_run-*"))
        seen.add((was_committed, is_done))
        if is_done:
            break
    assert seen == {(False, False), (True, False), (True, True)}


def test_a_run_that_never_committed_is_forgotten(store: Store) -> None:
    run = store.begin()
    stage(run, "new", *ALL)
    (run / "raw").mkdir()
    with store.locked():
        assert contents(store) == written("old", *ALL)
    assert not run.exists()
