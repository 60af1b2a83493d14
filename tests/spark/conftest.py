"""One JVM for all tests that need Spark. Most tests of spark/ need none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

for _needed in ("numpy", "pyarrow", "pyspark"):
    pytest.importorskip(_needed, reason="needs the extra `spark` (pip install -e '.[spark]')")


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    """A Spark session with the data source registered. Starting it takes some seconds."""
    from spark.session import local_session

    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.python.worker.reuse": "true",
    }
    found = local_session("tests", cores="2", settings=settings)
    yield found
    found.stop()
