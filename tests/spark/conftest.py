"""One JVM for all tests that need Spark; most of spark/ needs none. Without the extra `spark` none of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.spark.forked_python import forked_python
from tests.spark.java import QUICK

MISSING = [name for name in ("numpy", "pyarrow", "pyspark") if find_spec(name) is None]


class LeftOut(pytest.Module):
    """A module of tests that cannot even be imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        reason = f"needs the extra `spark` (pip install -e '.[dev,spark]'): there is no {MISSING[0]}"
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return LeftOut.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session with the data source registered. Starting it takes some seconds. Its Python processes are forks;
    the driver of test_live_kill.py, the rollups of the command and the cluster start them as users do."""
    from tailrace.spark import session as sessions

    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": QUICK,
        # Few rows: plans that are looked at once more, and compiled, cost more than they save. Those of an example are.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    with forked_python(tmp_path_factory.mktemp("python")) as program, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "quick_python", lambda: program)
        found = sessions.local_session("tests", cores="2,2", settings=settings)
        yield found
        found.stop()
