"""The Spark session of a rollup: on this machine, or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark.session import java_home, local_session

LOCAL: Final = "local"
APP: Final = "tailrace rollup"
_CLUSTER_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


def make_session(
    master: str,
    cores: str,
    memory: str,
    py_files: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    *,
    background: bool = False,
) -> Any:
    """A session with the rollup's source registered.

    `master` is LOCAL, for `cores` processors of this machine, or the URL of a cluster; `py_files` are zips that its
    nodes need. `settings` go over those that are made here. `background`: on this machine, others come first.

    Raises RuntimeError where there is no Java.
    """
    from spark.rollup.source import RollupDataSource

    if master == LOCAL:
        session = local_session(APP, cores=cores, memory=memory, settings=dict(settings or {}), background=background)
    else:
        session = _cluster_session(master, memory, settings or {})
    for path in py_files:
        session.sparkContext.addPyFile(path)
    session.dataSource.register(RollupDataSource)
    return session


def _cluster_session(master: str, memory: str, settings: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home())
    builder = SparkSession.builder.appName(APP).master(master).config("spark.driver.memory", memory)
    for name, value in {**_CLUSTER_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
