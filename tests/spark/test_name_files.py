"""Files of names in a checkpoint, in a folder and at a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.shard.names import NAME_BYTES_MAX
from tailrace.spark import name_files
from tailrace.spark.name_files import FOLDER, MissingNames, NameFiles, pack_names, unpack_names

NAMES = ["a", "a/b", "device.0001", "device.0002", "ü", "üb", "x" * NAME_BYTES_MAX]


@pytest.fixture(params=["{}", "file://{}", "FILE:{}", "viewfs"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NameFiles:
    if request.param == "viewfs":  # any file system by URL: here the one that needs no server
        monkeypatch.setattr(name_files, "_LOCAL_URL", name_files._FILE)
        return NameFiles(f"file://{tmp_path}/checkpoint", "a source")
    return NameFiles(request.param.format(tmp_path / "checkpoint"), "a source")


def test_what_was_written_is_read(files: NameFiles, tmp_path: Path) -> None:
    written = [files.write(NAMES[:count]) for count in (7, 0, 3)]
    assert [files.read(file) for file in written] == [NAMES, [], NAMES[:3]]
    assert sorted(path.name for path in (tmp_path / "checkpoint" / FOLDER).iterdir()) == written, "in their order"


def test_old_files_go_but_not_those_of_another_source(
    files: NameFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_files, "KEPT_MAX", 3)
    other = NameFiles(str(tmp_path / "checkpoint"), "another source")
    kept = other.write(["other"])
    written = [files.write([f"n{number}"]) for number in range(6)]
    assert [files.read(file) for file in written[-3:]] == [["n3"], ["n4"], ["n5"]]
    for file in written[:-3]:
        with pytest.raises(MissingNames, match=file):
            files.read(file)
    assert other.read(kept) == ["other"]


def test_the_file_that_a_query_went_on_from_stays(files: NameFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it writes another one and ends before its offset is written down."""
    monkeypatch.setattr(name_files, "KEPT_MAX", 3)
    kept = files.write(["kept"])
    for number in range(6):
        files._read.clear()  # another process
        assert files.read(kept) == ["kept"]
        written = files.write(["kept", f"n{number}"])
        assert files.write(["kept", f"n{number}"]) == written, "the same names are written once"
    assert files.read(kept) == ["kept"] and len(files._others()) == 4


def test_packed_names() -> None:
    for names in (NAMES, NAMES[:1], []):
        assert unpack_names(pack_names(names)) == names
    with pytest.raises(ValueError):
        unpack_names(b"")
