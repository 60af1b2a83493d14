"""`tailrace spark-zip`; tests/spark/test_package_zip.py tests the contents of the zip."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import is_zipfile

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def with_spark() -> None:
    pytest.importorskip("pyspark")


def test_the_zip_is_where_it_was_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["spark-zip", "--json"]) == OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["file"] == "tailrace.zip" and shown["files"] > 10
    for words, name in (([], "tailrace.zip"), (["own.zip"], "own.zip")):
        assert main.run(["spark-zip", *words]) == OK
        assert capsys.readouterr().out.startswith(f"{name}: ")
        assert is_zipfile(name)


def test_what_cannot_be_written(tmp_path: Path, capsys: Captured) -> None:
    assert main.run(["spark-zip", str(tmp_path / "missing" / "a.zip")]) == REFUSED
    assert "No such file or directory" in capsys.readouterr().err
    assert main.run(["spark-zip", str(tmp_path / "a.whl")]) == USAGE
    assert "its name ends with .zip" in capsys.readouterr().err
