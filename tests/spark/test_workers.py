from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tailrace.spark.workers import KEPT

PROGRAM = """
import gc
import tailrace.spark.batch, tailrace.spark.datasource, tailrace.spark.rollup.spark_engine
print(gc.get_freeze_count())
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", [True, False])
def test_what_is_imported_is_set_apart_only_where_spark_keeps_the_process(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEPT, raising=False)
    if kept:
        monkeypatch.setenv(KEPT, "1")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 10_000) == kept


def test_spark_says_so_to_the_processes_that_it_keeps(session: Any) -> None:
    name = KEPT  # a global would be looked for in this module, which is not on their path
    assert session.sparkContext.parallelize([0], 1).map(lambda _: name in os.environ).collect() == [True]
