"""The Spark session of a rollup: on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tailrace.spark.session import local_session, session_builder

LOCAL: Final = "local"
APP: Final = "tailrace rollup"


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

    Raises RuntimeError without a Java.
    """
    from tailrace.spark.rollup.source import RollupDataSource

    if master == LOCAL:
        session = local_session(APP, cores=cores, memory=memory, settings=dict(settings or {}), background=background)
    else:
        session = session_builder(APP, master, memory, settings or {}).getOrCreate()
    for path in py_files:
        session.sparkContext.addPyFile(path)
    session.dataSource.register(RollupDataSource)
    return session
