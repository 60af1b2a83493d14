"""OUT and DATA in a Google Cloud Storage, which an emulator plays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from tailrace.cli import main
from tailrace.cli.ending import OK
from tailrace.spark.file_systems import open_place
from tailrace.spark.rollup.remote import open_remote, read_state
from tailrace.spark.rollup.store import NODES, StoreInUse
from tests.spark.data import make_directory, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US
from tests.spark.rollup.test_job import spread
from tests.spark.rollup.test_remote import commit, files, names_in, read_tables


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """What stands behind `bucket` in a URL."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs gcp-storage-emulator")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    port = server._api._httpd.server_address[1]
    yield f"?scheme=http&endpoint_override=127.0.0.1:{port}&retry_limit_seconds=20"
    server.stop()


@pytest.mark.thorough
def test_out_and_data_of_a_rollup(tmp_path: Path, bucket: str) -> None:
    data = tmp_path / "data"
    make_directory(data, {f"s{i}": spread(100) for i in range(3)})
    expected = reference.roll_up(data, DAY_START_US)
    out = f"gs://anonymous@bucket/out{bucket}"
    for _ in range(2):
        assert main.run(["rollup", str(data), out, "--day", str(DAY)]) == OK
    assert read_tables(out) == expected
    assert f"reports/{DAY}.html" in files(out)
    trim(data, "s1", 60)  # from here on only the tables know
    assert main.run(["rollup", str(data), out, "--day", str(DAY), "--no-report"]) == OK
    assert read_tables(out) == expected
    copy = open_place(f"gs://anonymous@bucket/data{bucket}")
    fs.copy_files(str(data), copy.path, fs.LocalFileSystem(), copy.system)
    shutil.rmtree(data)
    assert main.run(["rollup", f"gs://anonymous@bucket/data{bucket}", out, "--day", str(DAY), "--no-report"]) == OK
    assert read_tables(out) == expected


def test_of_two_runs_at_a_time_the_later_is_refused(bucket: str) -> None:
    url = f"gs://anonymous@bucket/two{bucket}"
    with open_remote(url) as one, open_remote(url) as other:
        commit(one, "one")
        with pytest.raises(StoreInUse, match="another rollup has written to gs://"):
            commit(other, "other")
    assert names_in(url) == ["one"]
    assert list(read_state(url).tables[NODES]) == [str(DAY)]
