from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.shard import directory
from tailrace.shard.directory import data_dir_exists, find_data_dir, make_data_dir, make_node_id, open_data_dir
from tailrace.shard.errors import DirectoryError


def test_made_once_opened_often(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    assert not data_dir_exists(path)
    made = make_data_dir(path, 4)
    assert data_dir_exists(path)
    assert open_data_dir(path) == made
    assert made.shards == 4
    assert [shard.name for shard in made.shard_paths()] == ["shard-00", "shard-01", "shard-02", "shard-03"]
    assert made.stream_directory("25") == path / f"shard-{made.shard_of('25'):02d}"
    assert len(made.node_id) == 16


@pytest.mark.parametrize(("below", "synced"), [("", ["."]), ("data", ["there"]), ("a/b/data", ["a/b", "a", "there"])])
def test_every_name_that_was_made_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str, synced: list[str]
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    found: list[Path] = []
    monkeypatch.setattr(directory, "sync_directory", found.append)
    make_data_dir(there / below, 2)
    places = {"there": there, ".": tmp_path}
    assert found == [places.get(each, there / each) for each in synced]


def test_the_data_directory_that_a_path_lies_in(tmp_path: Path) -> None:
    data = make_data_dir(tmp_path / "data", 2).path
    (tmp_path / "link").symlink_to(data / "shard-00")
    for path in (data, data / "new" / "out", tmp_path / "link"):
        assert find_data_dir(path) == data.resolve()
    assert find_data_dir(tmp_path) is find_data_dir(tmp_path / "out") is None


def test_two_nodes_have_two_ids(tmp_path: Path) -> None:
    assert make_data_dir(tmp_path / "a", 1).node_id != make_data_dir(tmp_path / "b", 1).node_id


def test_an_id_is_never_taken_for_a_number() -> None:
    """As `1234567890123456` and `12345678901234e5` would be by programs that guess types."""
    ids = {make_node_id() for _ in range(2_000)}
    assert len(ids) == 2_000
    assert all(len(each) == 16 and each[0] in "abcdef" and int(each, 16) >= 0 for each in ids)


def test_an_attempt_that_was_cut_short_is_taken_up_again(tmp_path: Path) -> None:
    for name in ("shard-00", "shard-01", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / "LOCK").touch()
    (tmp_path / "node.json.new").write_text("{")
    assert make_data_dir(tmp_path, 4).shards == 4


@pytest.mark.parametrize("file", ["notes.txt", "shard-00/25.content"])
def test_a_directory_of_something_else_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(DirectoryError, match=r"not a tailrace data directory, and is not empty: .(notes.txt|shard-00)"):
        make_data_dir(tmp_path)


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        ("", "damaged"),
        ("[]", "does not hold a table"),
        ('{"format": 2}', "has format 2"),
        ('{"format": 1, "shards": 0, "node_id": "x"}', "shards = 0"),
        ('{"format": 1, "shards": true, "node_id": "x"}', "shards = True"),
        ('{"format": 1, "shards": 2, "node_id": ""}', "node_id = ''"),
        ('{"format": 1, "shards": 3, "node_id": "x"}', "shard-02 is missing"),
    ],
)
def test_a_damaged_node_file_is_refused(tmp_path: Path, node: str, cause: str) -> None:
    make_data_dir(tmp_path, 2)
    (tmp_path / "node.json").write_text(node)
    with pytest.raises(DirectoryError, match=cause):
        open_data_dir(tmp_path)


def test_unreadable_and_missing_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match=r"it has no node\.json"):
        open_data_dir(tmp_path / "missing")
    (tmp_path / "node.json").mkdir()
    with pytest.raises(DirectoryError, match="cannot be read"):
        open_data_dir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryError, match="cannot be made"):
        make_data_dir(tmp_path / "file")
    with pytest.raises(DirectoryError, match="0 shards"):
        make_data_dir(tmp_path / "new", 0)


def test_node_file_is_readable_by_people(tmp_path: Path) -> None:
    make_data_dir(tmp_path, 2)
    assert json.loads((tmp_path / "node.json").read_text())["shards"] == 2
