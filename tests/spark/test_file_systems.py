"""File systems by URL; tests/spark/rollup/test_remote.py has an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

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
