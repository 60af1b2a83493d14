"""The first levels of names that stay streams of their own in a data directory from before names had topics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.shard.directory import DataDirectory, make_data_dir, open_data_dir
from tailrace.shard.errors import DirectoryError
from tailrace.shard.first_levels import OWN_LEVELS_MAX, with_own_levels
from tailrace.shard.names import ALL_LEVELS
from tests.shard.helpers import filled


def older(path: Path, *names: str) -> DataDirectory:
    """A data directory of an earlier version, with these streams."""
    made = make_data_dir(path, 4)
    for name in names:
        filled(made.stream_directory(name), 1, name=name)
    node = json.loads((path / "node.json").read_text())
    del node["own_levels"]
    (path / "node.json").write_text(json.dumps(node))
    return open_data_dir(path)


def test_a_new_directory_has_none(tmp_path: Path) -> None:
    made = make_data_dir(tmp_path, 4)
    assert made.own_levels == () and with_own_levels(made) is made


def test_those_of_the_streams_that_are_there_are_found_once(tmp_path: Path) -> None:
    names = (
        "plain",
        "b/1",
        "a/x/y",
        "a/z",
        "/c",
        "reply-to/1",
        "plain/$dead",
        "$cursor/plain",
        "d/1/$dead",
        "$cursor/e/1",
    )
    found = with_own_levels(older(tmp_path, *names, "f+/1", "ä/" + "long/" * 30 + "1"))
    assert found.own_levels == ("", "a", "b", "d", "e", "ä")
    filled(found.stream_directory("later/1"), 1, name="later/1")
    assert open_data_dir(tmp_path) == found == with_own_levels(open_data_dir(tmp_path))


def test_with_very_many_of_them_all_names_stay_what_they_were(tmp_path: Path) -> None:
    most = [f"{number:02d}" for number in range(OWN_LEVELS_MAX)]
    assert with_own_levels(older(tmp_path / "some", *[f"{each}/x" for each in most])).own_levels == tuple(most)
    assert with_own_levels(older(tmp_path / "many", "a/x", *[f"{each}/x" for each in most])).own_levels == (ALL_LEVELS,)


@pytest.mark.parametrize("levels", ['"a"', "[1]", "{}"])
def test_damaged_ones_are_refused(tmp_path: Path, levels: str) -> None:
    make_data_dir(tmp_path, 2)
    (tmp_path / "node.json").write_text(f'{{"format": 1, "shards": 2, "node_id": "x", "own_levels": {levels}}}')
    with pytest.raises(DirectoryError, match="own_levels"):
        open_data_dir(tmp_path)
