"""File systems by URL; tests/spark/rollup/test_remote.py has an object store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.cli.rollup_report import show_error
from tailrace.spark import file_systems
from tailrace.spark.file_systems import InvalidUrl, below, is_url, open_place


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/rollups", "which is not a URL of a known kind: s3, s3a"),
        ("s3://key:secret@bucket/rollups", "a URL with credentials"),
        ("s3://bucket/rollups?nonsense=1", "nonsense"),
    ],
)
def test_urls_that_are_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidUrl, match=said):
        open_place(url)


def test_a_folder_of_this_machine_by_url(tmp_path: Path) -> None:
    place = open_place(f"file://{tmp_path}/out/?x=1".partition("?")[0])
    assert place.list_files("states") == []
    place.write("states/1", b"one")
    assert (place.path, place.read("states/1")) == (f"{tmp_path}/out", b"one")
    assert [each.base_name for each in place.list_files("states")] == ["1"]


def test_folders_below_a_url() -> None:
    assert below("s3://bucket/out/?scheme=http", "_run-1") == "s3://bucket/out/_run-1?scheme=http"
    assert below("s3://bucket/out", "_run-1") == "s3://bucket/out/_run-1"
    assert [is_url(text) for text in ("s3://a", "hdfs:/a", "a/b", "a:b", "/a:/b")] == [True, True, False, False, False]


def test_google_storage_is_not_asked_for_a_quarter_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def from_uri(text: str) -> tuple[None, str]:
        asked.append(text)
        return None, "bucket/out"

    monkeypatch.setattr(file_systems, "fs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=from_uri)))
    open_place("gs://bucket/out")
    open_place("gs://anonymous@bucket/out?scheme=http")
    open_place("gs://bucket/out?retry_limit_seconds=5")
    assert [text.partition("?")[2] for text in asked] == [
        "retry_limit_seconds=60",
        "scheme=http&retry_limit_seconds=60",
        "retry_limit_seconds=5",
    ]
    with pytest.raises(InvalidUrl, match="with credentials"):
        open_place("gs://somebody@bucket/out")


def test_hdfs_without_its_library_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_uri(_text: str) -> None:
        raise OSError("Unable to load libjvm\ndlopen(a) failed\ndlopen(b) failed")

    monkeypatch.setattr(file_systems, "fs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=from_uri)))
    with pytest.raises(OSError, match="libhdfs") as failed:
        open_place("hdfs://name/out")
    said = show_error(failed.value, "out")
    assert said.startswith("hdfs://name/out: Unable to load libjvm; HDFS needs Java (JAVA_HOME) and"), "the URL once"
