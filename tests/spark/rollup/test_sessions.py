"""The rollup on a real cluster: Spark's own master and two workers, which get the code by `tailrace spark-zip` and
nothing else. One of them sees other directories at some paths, in a mount namespace of its own."""

from __future__ import annotations

import ast
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
from tests.spark.rollup.hard_night import CONTRADICTORY, MANY, UNREADABLE, make_hard_night
from tests.spark.rollup.tables import differences, left_over, read_tables
from tests.spark.rollup.test_fetched import upload
from tests.spark.rollup.test_job import spread
from tests.system.mounts import CannotMount
from tests.system.node import running
from tests.system.volumes import with_own_mounts
from tests.tidy import tree

WAIT_S = 900.0
SPARK = Path(pyspark.__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.system]


def make_python(folder: Path) -> Path:
    """This Python with the same packages but without tailrace, as a node of a cluster has it."""
    packages = SPARK.parent
    python = folder / "python"
    # -S: the .pth file by which this checkout is installed is not read. The installed PySpark is compiled; Spark's zip
    # of it, behind it, would be compiled by each process.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


class Cluster:
    """A master and two workers, three processes, on free ports of the loopback. The first worker sees `hidden[path]`
    at each path of `hidden`."""

    def __init__(self, folder: Path, hidden: dict[Path, Path]) -> None:
        self._folder = folder
        java = java_home()  # once: it runs each Java that it finds, to learn its version
        own = {"JAVA_HOME": str(java), "PYSPARK_PYTHON": str(make_python(folder)), "SPARK_LOCAL_IP": "127.0.0.1"}
        # What spark-class finds out, by a Java of its own for each process.
        scala = next((SPARK / "jars").glob("spark-core_*")).name.removeprefix("spark-core_").partition("-")[0]
        self.environment = {**with_quick_java(), **own, "SPARK_HOME": str(SPARK), "SPARK_SCALA_VERSION": scala}
        self._command = [str(java / "bin" / "java"), "-Xmx256m", "-cp", f"{SPARK}/jars/*"]
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--host", "127.0.0.1", "--port", f"{port}", "--webui-port", "0", log="master")
        self._wait("master.log", r"I have been elected leader")
        worker = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        for name, before in (("first", in_other_directories(hidden)), ("second", [])):
            options = ["--work-dir", str(folder / name), self.url]
            self._start("worker.Worker", *worker, *options, before=before, log=name)
        for name in ("first", "second"):
            self._wait(f"{name}.log", r"Successfully registered with master")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(WAIT_S)

    def _start(self, kind: str, *arguments: str, log: str, before: Sequence[str] = ()) -> None:
        command = [*before, *self._command, f"org.apache.spark.deploy.{kind}", *arguments]
        with (self._folder / f"{log}.log").open("wb") as file:
            self._processes.append(subprocess.Popen(command, env=self.environment, stdout=file, stderr=file))

    def _wait(self, log: str, wanted: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not re.search(wanted, text := (self._folder / log).read_text()):
            assert self._processes[-1].poll() is None, text
            assert time.monotonic() < deadline_s, text
            time.sleep(0.05)


def in_other_directories(hidden: dict[Path, Path]) -> list[str]:
    """What to put before a command so that it sees other directories at these paths."""
    mounts = [f"mount --bind {shlex.quote(str(seen))} {shlex.quote(str(path))}" for path, seen in hidden.items()]
    try:
        return with_own_mounts("sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh")
    except CannotMount as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(folder: Path, server: str) -> Iterator[Cluster]:
    """Its workers have the credentials for `server`."""
    assert server
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    in_other_directories({})  # before anything is started
    (folder / "empty").mkdir()
    for name in ("data", "lacking", "another"):
        make_night(folder / name)
    for name in ("unshared", "scratch"):
        (folder / name).mkdir()
    # In this order.
    hidden = {"another": "lacking", "lacking": "empty", "unshared": "empty", "scratch": "empty"}
    made = Cluster(folder, {folder / path: folder / seen for path, seen in hidden.items()})
    try:
        yield made
    finally:
        made.stop()


# What `tailrace rollup --master --py-files` does, for each line of input: starting a session takes most of the time.
ROLL_UP = """
import sys
from datetime import date
from functools import partial
from pathlib import Path
from tailrace.cli.rollup import fetched, show_error
from tailrace.spark.rollup import job
from tailrace.spark.rollup.engine import EngineError
from tailrace.spark.rollup.sessions import make_context
from tailrace.spark.rollup.spark_engine import SparkEngine

master, py_files, day = sys.argv[1:]
job.plan_day = partial(job.plan_day, task_rows=20_000)  # several tasks, for both workers
# All workers, and no other attempt, which might come to the other worker and do.
settings = {"spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.task.maxFailures": "1"}
settings |= {"spark.scheduler.maxRegisteredResourcesWaitingTime": "900s", "spark.executor.memory": "512m"}
settings |= {"spark.cores.max": "2", "spark.ui.enabled": "false"}
context = make_context(master, "*", "512m", [py_files], settings)
urls = {}
engine = lambda _messages: SparkEngine(lambda: context, "", urls)
for line in sys.stdin:
    kind, where, out = line.split()
    try:
        with fetched([("", {kind: where})], (), urls) as [(_, source)]:
            wanted = job.Job(source, Path(out), date.fromisoformat(day))
            outcome = job.run_job(wanted, engine, lambda *_: None)
        print("done", sorted((note.stream, note.text) for note in outcome.notes), flush=True)
    except EngineError as error:
        print(show_error(error, out), flush=True)
"""


class Driver:
    """A program with a session on the cluster, for one rollup after the other."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._log = folder / "driver.log"
        command = [sys.executable, "-c", ROLL_UP, cluster.url, str(make_zip(folder)), str(DAY)]
        env = {**cluster.environment, "TMPDIR": str(folder / "scratch")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=tree.ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def roll_up(self, kind: str, where: str | Path, out: Path) -> str:
        """The line that tells how it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(kind, where, out, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        return line.rstrip()

    def stop(self) -> None:
        _, _ = self._process.communicate(timeout=WAIT_S)
        assert self._process.returncode == 0, self._log.read_text()


@pytest.fixture(scope="module")
def driver(cluster: Cluster, folder: Path) -> Iterator[Driver]:
    made = Driver(cluster, folder)
    yield made
    made.stop()


def make_night(folder: Path) -> None:
    make_directory(folder, {f"s{i}": spread(30) for i in range(25)} | {"ключ/é": spread(20)})


def make_zip(folder: Path) -> Path:
    path = folder / "tailrace.zip"
    command = [sys.executable, "-m", "tailrace.cli.main", "spark-zip", str(path)]
    subprocess.run(command, cwd=tree.ROOT, check=True, stdout=subprocess.DEVNULL)
    return path


def noted(line: str) -> set[str]:
    """The streams that a rollup has notes about."""
    assert line.startswith("done "), line
    return {stream for stream, _text in ast.literal_eval(line.removeprefix("done "))}


@pytest.mark.thorough
def test_workers_get_the_code_from_the_zip(cluster: Cluster, driver: Driver, folder: Path) -> None:
    import_it = [cluster.environment["PYSPARK_PYTHON"], "-c", "import tailrace.spark.rollup"]
    assert subprocess.run(import_it, cwd=folder, capture_output=True, check=False).returncode, "the node has tailrace"
    assert driver.roll_up("path", folder / "data", folder / "out") == "done []"
    assert read_tables(folder / "out", DAY) == reference.roll_up(folder / "data", DAY_START_US)
    assert not left_over(folder / "out")
    for name in ("first", "second"):
        assert list((folder / name).glob("app-*/*/tailrace.zip")), "the executor got the code from the driver"


@pytest.mark.thorough
def test_every_cell_of_a_hard_night_on_a_cluster(driver: Driver, tmp_path: Path) -> None:
    make_hard_night(tmp_path / "hard")
    assert noted(driver.roll_up("path", tmp_path / "hard", tmp_path / "out")) == CONTRADICTORY
    cells = reference.roll_up(tmp_path / "hard", DAY_START_US, unreadable=UNREADABLE)
    assert not differences(read_tables(tmp_path / "out", DAY), cells)


@pytest.mark.thorough
def test_what_a_worker_lacks_is_named_with_the_worker(driver: Driver, folder: Path) -> None:
    lacking = driver.roll_up("path", folder / "lacking", folder / "no")
    assert f"{folder}/lacking: is not a tailrace data directory" in lacking
    another = driver.roll_up("path", folder / "another", folder / "no")
    assert f"{folder}/another: is on this machine the data directory of node" in another
    unshared = driver.roll_up("path", folder / "data", folder / "unshared")
    assert f"{folder}/unshared/_run-" in unshared
    assert all(socket.gethostname() in text for text in (lacking, another, unshared))


@pytest.mark.thorough
def test_a_cluster_rolls_up_over_connections(driver: Driver, folder: Path, tmp_path: Path) -> None:
    with running(folder / "data") as node:
        assert driver.roll_up("brokers", f"127.0.0.1:{node.port}", tmp_path / "out") == "done []"
    unknown = {"shard": -1}  # a connection does not show which folder a stream is in
    expected = reference.roll_up(folder / "data", DAY_START_US)
    assert read_tables(tmp_path / "out", DAY) == {key: {**row, **unknown} for key, row in expected.items()}


@pytest.mark.thorough
def test_a_cluster_rolls_up_from_an_object_store(driver: Driver, url: str, tmp_path: Path) -> None:
    """The driver's copy is in a folder that a worker lacks."""
    # Each request takes the server 10 ms of a processor, and it reads the whole file for each part of it.
    make_hard_night(tmp_path / "hard", MANY // 8, 1 << 20)
    line = driver.roll_up("path", upload(tmp_path / "hard", url), tmp_path / "out")
    assert noted(line) == CONTRADICTORY
    cells = reference.roll_up(tmp_path / "hard", DAY_START_US, unreadable=UNREADABLE)
    assert not differences(read_tables(tmp_path / "out", DAY), cells)
