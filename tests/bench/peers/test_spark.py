from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from bench.peers import spark
from bench.peers.base import Site, Unavailable
from bench.peers.spark import SparkSession

SIZES = (8, 1_000, 100)


def test_each_kind_has_its_name_and_server() -> None:
    files, parquet = (SparkSession(kind, frozenset({"spark-scan"}), SIZES) for kind in ("files", "parquet"))
    assert (files.name, parquet.name) == ("spark", "spark-parquet")
    assert files.command(Site(Path("/tmp"), 7, 8))[-5:] == ["7", "files", "8", "1000", "100"]
    assert parquet.command(Site(Path("/tmp"), 7, 8))[-4] == "parquet"
    with pytest.raises(NotImplementedError):
        files.publish("a", b"")


def test_without_pyspark_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(spark, "version", missing)
    with pytest.raises(Unavailable, match="the extra `spark`"):
        SparkSession("files", frozenset({"spark-scan"}), SIZES).version()


def test_versions_are_those_of_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "version", {"pyspark": "4", "polars": "2", "pyarrow": "26"}.__getitem__)
    of = {kind: SparkSession(kind, frozenset({"rollup"}), SIZES).version() for kind in spark.NAMES}
    assert of == {
        "files": "PySpark 4, PyArrow 26",
        "parquet": "PySpark 4, PyArrow 26",
        "polars": "polars 2, PyArrow 26",
    }
