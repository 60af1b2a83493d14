"""The rollup on a real cluster: Spark's own master and a worker, which get the code by --py-files and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from bench.ports import free_port
from tailrace.shard.leaves import interpreted_wanted
from tailrace.spark.session import java_home
from tests.spark.data import make_directory
from tests.spark.java import with_quick_java
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US
from tests.spark.rollup.tables import left_over, read_tables
from tests.spark.rollup.test_job import spread
from tests.system.node import running
from tests.tidy import building, tree

WAIT_S = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.system]


def build_zip(folder: Path) -> Path:
    """The wheel of this tree under a name that Spark puts on the path of its Python."""
    root = folder / "tree"
    root.mkdir()
    building.copy_sources(root)
    wheel = building.make_wheel(root, TAILRACE_DISABLE_COMPILED="1")
    return wheel.rename(folder / "tailrace.zip")


def make_python(folder: Path) -> Path:
    """This Python with the same packages but without tailrace, as a node of a cluster has it."""
    packages = Path(pyspark.__file__).parents[1]
    python = folder / "python"
    # -S: the .pth file by which this checkout is installed is not read.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


class Cluster:
    """A master and a worker, two processes, on free ports of the loopback."""

    def __init__(self, folder: Path) -> None:
        self.python = make_python(folder)
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--host", "127.0.0.1", "--port", f"{port}", "--webui-port", "0")
        self._wait("master.Master", r"I have been elected leader")
        worker = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "1g"]
        self._start("worker.Worker", *worker, "--work-dir", str(folder / "work"), self.url)
        self._wait("worker.Worker", r"Successfully registered with master")

    def environment(self) -> dict[str, str]:
        own = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**with_quick_java(), **own, "SPARK_DAEMON_MEMORY": "256m"}

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(WAIT_S)

    def _start(self, kind: str, *arguments: str) -> None:
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with (self._folder / kind).open("wb") as log:
            self._processes.append(
                subprocess.Popen([*command, *arguments], env=self.environment(), stdout=log, stderr=log)
            )

    def _wait(self, kind: str, wanted: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not re.search(wanted, text := (self._folder / kind).read_text()):
            assert self._processes[-1].poll() is None, text
            assert time.monotonic() < deadline_s, text
            time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.stop()


# What `tailrace rollup --master --py-files` does, twice in one session: starting one takes most of the time.
ROLL_UP = """
import sys
from datetime import date
from pathlib import Path
from tailrace.spark.rollup.job import Job, run_job
from tailrace.spark.rollup.sessions import make_session
from tailrace.spark.rollup.spark_engine import SparkEngine

master, py_files, day, *jobs = sys.argv[1:]
session = make_session(master, "*", "512m", [py_files], {"spark.executor.memory": "512m"})
engine = lambda _messages: SparkEngine(lambda: session)
for kind, where, out in zip(jobs[::3], jobs[1::3], jobs[2::3]):
    outcome = run_job(Job({kind: where}, Path(out), date.fromisoformat(day)), engine, lambda *_: None)
    assert not outcome.notes, outcome
"""


def test_a_cluster_rolls_up_with_the_built_package(tmp_path: Path, cluster: Cluster) -> None:
    """From the directory, and from a broker over connections."""
    make_directory(tmp_path / "data", {f"s{i}": spread(300) for i in range(5)} | {"ключ/é": spread(20)})
    import_it = [str(cluster.python), "-c", "import tailrace.spark.rollup"]
    assert subprocess.run(import_it, cwd=tmp_path, capture_output=True, check=False).returncode, "the node has tailrace"
    expected = reference.roll_up(tmp_path / "data", DAY_START_US)
    with running(tmp_path / "data") as node:
        jobs = ["path", str(tmp_path / "data"), str(tmp_path / "out")]
        jobs += ["brokers", f"127.0.0.1:{node.port}", str(tmp_path / "over")]
        done = subprocess.run(
            [sys.executable, "-c", ROLL_UP, cluster.url, str(build_zip(tmp_path)), str(DAY), *jobs],
            cwd=tree.ROOT,
            env=cluster.environment(),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_tables(tmp_path / "out", DAY) == expected
    # Nobody says over a connection which folder and files a stream is in.
    unknown = {"shard": -1, "stream_id": None}
    assert read_tables(tmp_path / "over", DAY) == {key: {**row, **unknown} for key, row in expected.items()}
    assert not left_over(tmp_path / "out")
    assert list((tmp_path / "work").glob("app-*/*/tailrace.zip")), "the executor got the code from the driver"
