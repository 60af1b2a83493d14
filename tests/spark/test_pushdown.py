"""Why the data source has no `pushFilters`: filters pushed by one query stay for the next one on the same DataFrame.
And why its columns are chosen by the schema: Spark passes those of a query to no Python source.

Once one of these tests fails, a release of Spark has changed that, and filters or columns may be taken.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType


class Letters(DataSource):
    """20 rows, half of them `a`. Its reader takes an equality, and gives those rows alone."""

    @classmethod
    def name(cls) -> str:
        return "letters"

    def schema(self) -> str:
        return "k string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return LettersReader()


class LettersReader(DataSourceReader):
    wanted = ""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for each in filters:
            if isinstance(each, EqualTo):
                self.wanted = each.value
            else:
                yield each

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self.wanted)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield from ((k,) for k in "ab" * 10 if partition.value in ("", k))


def test_spark_passes_filters_and_no_columns() -> None:
    """The class that scans a Python source takes filters but no columns; the one for Parquet takes columns."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_*.jar")
    folder = "org/apache/spark/sql/execution/datasources/v2"
    with zipfile.ZipFile(jar) as file:
        python, parquet = (
            file.read(f"{folder}/{name}.class") for name in ("python/PythonScanBuilder", "FileScanBuilder")
        )
    assert b"SupportsPushDownFilters" in python
    assert b"SupportsPushDownRequiredColumns" in parquet
    assert b"SupportsPushDownRequiredColumns" not in python
    assert not [name for name in vars(DataSourceReader) if "column" in name.lower() or "prune" in name.lower()]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.xfail(reason="Spark 4.3.0 keeps pushed filters with the relation", strict=True, raises=AssertionError)
def test_a_data_frame_can_be_filtered_and_used_again(session: Any) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    session.conf.set(name, "true")
    try:
        session.dataSource.register(Letters)
        frame = session.read.format("letters").load()
        if frame.count() != 20 or frame.filter("k = 'a'").count() != 10:
            raise RuntimeError("the example is broken")
        assert frame.count() == 20
    finally:
        session.conf.unset(name)
