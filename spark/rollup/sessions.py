"""The Spark session of a rollup: on this machine, or on a cluster."""

from __future__ import annotations

from typing import Any, Final

from spark.session import local_session

LOCAL: Final = "local"


def make_session(master: str, cores: str, memory: str, py_files: str) -> Any:
    """A session with the rollup's source registered. `master` is LOCAL, for `cores` processors of this machine, or a
    cluster's URL; `py_files` are then zips that its nodes need, separated by commas.

    Raises RuntimeError where there is no Java.
    """
    from spark.rollup.source import RollupDataSource

    settings: dict[str, str] = {}
    if master != LOCAL:
        settings["spark.master"] = master
    if py_files:
        settings["spark.submit.pyFiles"] = py_files
    session = local_session("tailrace rollup", cores=cores, memory=memory, settings=settings)
    session.dataSource.register(RollupDataSource)
    return session
