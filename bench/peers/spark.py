"""Spark over tailrace's files, and what one would do otherwise: the same messages exported as Parquet."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from bench.peers.base import Contestant, RequestStep, Site, Unavailable
from bench.peers.programs import OWN_MODULES

NAMES: Final = {
    "files": ("spark", "Spark over the log"),
    "parquet": ("spark-parquet", "Spark over Parquet"),
    "polars": ("polars", "polars, one process, columns in memory"),
}


class SparkSession(Contestant):
    """A warm session. `kind` is the source that it reads; `sizes` are streams, messages and bytes of a payload."""

    def __init__(self, kind: str, kinds: frozenset[str], sizes: tuple[int, int, int]) -> None:
        self.name, self.title = NAMES[kind]
        self.kinds = kinds
        self.kind = kind
        self.sizes = sizes

    def command(self, site: Site) -> list[str]:
        return [sys.executable, "-m", "bench.load.spark_server", str(site.port), self.kind, *map(str, self.sizes)]

    def environment(self) -> Mapping[str, str]:
        return OWN_MODULES

    def version(self) -> str:
        try:
            program = f"polars {version('polars')}" if self.kind == "polars" else f"PySpark {version('pyspark')}"
            return f"{program}, PyArrow {version('pyarrow')}"
        except PackageNotFoundError as error:
            raise Unavailable(f"{error.name} is not installed (the extra `spark`, for polars `bench` too)") from None

    def ready(self) -> list[RequestStep]:
        return [RequestStep(b"ready\n", b"!\n")]
