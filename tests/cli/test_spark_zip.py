"""`tailrace spark-zip`: a package that can be imported out of the zip, by a Python that has no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def with_spark() -> None:
    pytest.importorskip("pyspark")


def test_the_package_is_imported_out_of_the_zip(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "own.zip"
    assert main.run(["spark-zip", str(path)]) == OK
    assert capsys.readouterr().out.startswith(f"{path}: ")
    names = ZipFile(path).namelist()
    assert {"pyspark_tailrace.py", "tailrace/spark/rollup/source.py", "tailrace/shard/log.py"} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".pyc", ".pxd")) or "broker/" in name]
    import numpy

    # -S: the .pth file by which this checkout is installed is not read.
    paths = [str(path), str(Path(numpy.__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {paths}; import pyspark_tailrace, tailrace.spark.rollup.source as it"
    command = [sys.executable, "-S", "-c", f"{program}; print(it.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{path}/tailrace/spark/rollup/source.py"


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        assert main.run(["spark-zip", str(tmp_path / name)]) == OK
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_what_cannot_be_written(tmp_path: Path, capsys: Captured) -> None:
    assert main.run(["spark-zip", str(tmp_path / "missing" / "a.zip")]) == REFUSED
    assert "No such file or directory" in capsys.readouterr().err
    assert main.run(["spark-zip", str(tmp_path / "a.whl")]) == USAGE
    assert "its name ends with .zip" in capsys.readouterr().err
