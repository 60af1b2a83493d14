"""The Spark of a rollup: on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from tailrace.spark.session import idle, local_conf, spark_conf

LOCAL: Final = "local"
APP: Final = "tailrace rollup"
QUICK_JAVA: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""On this machine Java only hands out the tasks: it ends before its better compiler has paid for itself."""


def make_context(
    master: str,
    cores: str,
    memory: str,
    py_files: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    *,
    background: bool = False,
) -> Any:
    """A SparkContext; a rollup needs no session.

    `master` is LOCAL, for `cores` processors of this machine, or the URL of a cluster; `py_files` are zips that its
    nodes need. `settings` go over those that are made here. `background`: on this machine, others come first.

    Raises RuntimeError without a Java.
    """
    from pyspark import SparkContext

    if master == LOCAL:
        conf = local_conf(APP, cores, memory, {**QUICK_JAVA, **(settings or {})})
    else:
        conf = spark_conf(APP, master, memory, settings or {})
    start = partial(SparkContext.getOrCreate, conf)
    context = idle(start) if background and master == LOCAL else start()
    for path in py_files:
        context.addPyFile(path)
    return context
