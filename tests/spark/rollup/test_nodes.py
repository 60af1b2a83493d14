"""The table of nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.spark.rollup.nodes import NodeRow, commit_missing, read_nodes, stage_node
from tailrace.spark.rollup.store import NODES, Store
from tests.spark.rollup.directories import DAY
from tests.spark.rollup.made import row, write
from tests.spark.rollup.tables import left_over

NORTH, SOUTH = NodeRow("north", "id of north", "whole", None, 3, 100), NodeRow("south", "id of south", "partly")


def commit(store: Store, wanted: NodeRow, **how: bool) -> list[tuple[str, str | None, str]]:
    with store.locked():
        run = store.begin()
        stage_node(run, store.partition(NODES, DAY), wanted, **how)
        store.commit(run, DAY, (NODES,))
    return shown(store)


def shown(store: Store) -> list[tuple[str, str | None, str]]:
    return [each[:3] for each in read_nodes(store.partition(NODES, DAY))]


def test_each_node_has_the_row_of_its_last_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    assert commit(store, SOUTH) == [SOUTH[:3]]
    assert commit(store, NORTH) == [NORTH[:3], SOUTH[:3]]
    assert read_nodes(store.partition(NODES, DAY))[0] == NORTH
    whole = SOUTH._replace(state="whole")
    assert commit(store, whole, keeps_own=True) == [NORTH[:3], SOUTH[:3]], "a run for some streams says nothing"
    assert commit(store, whole) == [NORTH[:3], whole[:3]]
    renamed = whole._replace(name="sud")
    assert commit(store, renamed) == [NORTH[:3], renamed[:3]]
    assert commit(store, renamed, keeps_others=False) == [renamed[:3]]


def test_a_run_for_some_streams_keeps_the_row_of_the_same_node_whatever_its_name(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    commit(store, NORTH)
    renamed = NORTH._replace(name="nord", state="selected")
    assert commit(store, renamed, keeps_own=True) == [("nord", "id of north", "whole")]
    anew = NodeRow("nord", "another id", "selected")
    assert commit(store, anew, keeps_own=True) == [anew[:3]], "another node of that name was not read whole"


def test_a_commit_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "out")
    commit(store, NORTH)

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch, store.locked():
        patch.setattr(os, "symlink", fails)
        with pytest.raises(OSError, match="the disk is full"):
            commit_missing(store, DAY, "south", "no answer")
        assert not left_over(store.path)
    assert shown(store) == [NORTH[:3]]


def test_a_node_that_is_missing_changes_nothing_else(tmp_path: Path) -> None:
    store = write(tmp_path / "out", "days", [row("a")])
    commit(store, NORTH)
    with store.locked():
        commit_missing(store, DAY, "south", "no answer")
        commit_missing(store, DAY, "north", "no answer")
    assert shown(store) == [NORTH[:3], ("south", None, "missing")]
    assert read_nodes(store.partition(NODES, DAY))[1].cause == "no answer"
    assert len(list(store.partition("days", DAY).glob("*/*.parquet"))) == 1
    assert commit(store, SOUTH) == [NORTH[:3], SOUTH[:3]]
