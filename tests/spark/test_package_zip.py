"""The zip for a cluster: it can be imported, by a Python that has no other tailrace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy

from tailrace.spark.package_zip import write_zip


def test_the_package_is_imported_out_of_the_zip(tmp_path: Path) -> None:
    path = tmp_path / "own.zip"
    count = write_zip(path)
    names = ZipFile(path).namelist()
    assert len(names) == count
    assert {"pyspark_tailrace.py", "tailrace/spark/rollup/spark_engine.py", "tailrace/shard/log.py"} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".pyc", ".pxd")) or "broker/" in name]
    # -S: the .pth file by which this checkout is installed is not read.
    paths = [str(path), str(Path(numpy.__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {paths}; import pyspark_tailrace, tailrace.spark.rollup.spark_engine as it"
    command = [sys.executable, "-S", "-c", f"{program}; print(it.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{path}/tailrace/spark/rollup/spark_engine.py"


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_zip(tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
