"""The rollup on a real cluster: Spark's own master and two workers, which get the code by `tailrace spark-zip` and
nothing else. One of them sees other directories at some paths, in a mount namespace of its own."""

from __future__ import annotations

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

pytestmark = [pytest.mark.slow, pytest.mark.system]


def make_python(folder: Path) -> Path:
    """This Python with the same packages but without tailrace, as a node of a cluster has it."""
    packages = Path(pyspark.__file__).parents[1]
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
        self.python = make_python(folder)
        self._folder = folder
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

    def environment(self) -> dict[str, str]:
        own = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**with_quick_java(), **own, "SPARK_DAEMON_MEMORY": "256m"}

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(WAIT_S)

    def _start(self, kind: str, *arguments: str, log: str, before: Sequence[str] = ()) -> None:
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with (self._folder / f"{log}.log").open("wb") as file:
            self._processes.append(
                subprocess.Popen([*before, *command, *arguments], env=self.environment(), stdout=file, stderr=file)
            )

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


@pytest.fixture
def cluster(tmp_path: Path, url: str) -> Iterator[Cluster]:
    """Its workers have the credentials for `url`."""
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    in_other_directories({})  # before anything is started
    (tmp_path / "empty").mkdir()
    for name in ("lacking", "another"):
        make_night(tmp_path / name)
    for name in ("unshared", "scratch"):
        (tmp_path / name).mkdir()
    # In this order.
    hidden = {"another": "lacking", "lacking": "empty", "unshared": "empty", "scratch": "empty"}
    made = Cluster(tmp_path, {tmp_path / path: tmp_path / seen for path, seen in hidden.items()})
    try:
        yield made
    finally:
        made.stop()


# What `tailrace rollup --master --py-files` does, several times in one session: starting one takes most of the time.
ROLL_UP = """
import sys
from datetime import date
from functools import partial
from pathlib import Path
from tailrace.cli.rollup import fetched, show_error
from tailrace.spark.rollup import job
from tailrace.spark.rollup.engine import EngineError
from tailrace.spark.rollup.sessions import make_session
from tailrace.spark.rollup.spark_engine import SparkEngine

master, py_files, day, *jobs = sys.argv[1:]
job.plan_day = partial(job.plan_day, task_rows=20_000)  # several tasks, for both workers
# All workers, and no other attempt, which might come to the other worker and do.
settings = {"spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.task.maxFailures": "1"}
settings |= {"spark.scheduler.maxRegisteredResourcesWaitingTime": "900s", "spark.executor.memory": "512m"}
settings |= {"spark.cores.max": "2", "spark.ui.enabled": "false"}
session = make_session(master, "*", "512m", [py_files], settings)
urls = {}
engine = lambda _messages: SparkEngine(lambda: session, "", urls)
for kind, where, out in zip(jobs[::3], jobs[1::3], jobs[2::3]):
    try:
        with fetched([("", {kind: where})], (), urls) as [(_, source)]:
            wanted = job.Job(source, Path(out), date.fromisoformat(day))
            outcome = job.run_job(wanted, engine, lambda *_: None)
        print("done", len(outcome.notes))
    except EngineError as error:
        print(show_error(error, out))
"""


def make_night(folder: Path) -> None:
    make_directory(folder, {f"s{i}": spread(30) for i in range(25)} | {"ключ/é": spread(20)})


def make_zip(folder: Path) -> Path:
    path = folder / "tailrace.zip"
    command = [sys.executable, "-m", "tailrace.cli.main", "spark-zip", str(path)]
    subprocess.run(command, cwd=tree.ROOT, check=True, stdout=subprocess.DEVNULL)
    return path


def roll_up(tmp_path: Path, cluster: Cluster, *jobs: str) -> list[str]:
    """A line for each job, of a kind, a place and the name of OUT."""
    command = [sys.executable, "-c", ROLL_UP, cluster.url, str(make_zip(tmp_path)), str(DAY), *jobs]
    done = subprocess.run(
        command,
        cwd=tree.ROOT,
        env={**cluster.environment(), "TMPDIR": str(tmp_path / "scratch")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_cluster_rolls_up_with_the_zip_and_names_the_paths_that_a_worker_lacks(
    tmp_path: Path, url: str, cluster: Cluster
) -> None:
    """From the directory, every cell of a hard night too, from a broker over connections, and from an object store, of
    which the driver's copy is in a folder that a worker lacks."""
    make_night(tmp_path / "data")
    make_hard_night(tmp_path / "hard")
    # Each request takes the server 10 ms of a processor, and it reads the whole file for each part of it.
    make_hard_night(tmp_path / "hard-bucket", MANY // 8, 1 << 20)
    import_it = [str(cluster.python), "-c", "import tailrace.spark.rollup"]
    assert subprocess.run(import_it, cwd=tmp_path, capture_output=True, check=False).returncode, "the node has tailrace"
    expected = reference.roll_up(tmp_path / "data", DAY_START_US)
    with running(tmp_path / "data") as node:
        wanted = [("data", "out"), ("hard", "cells"), ("lacking", "no"), ("another", "no")]
        jobs = [["path", str(tmp_path / where), str(tmp_path / out)] for where, out in wanted]
        jobs.append(["brokers", f"127.0.0.1:{node.port}", str(tmp_path / "over")])
        jobs.append(["path", upload(tmp_path / "hard-bucket", url), str(tmp_path / "from-bucket")])
        jobs.append(["path", str(tmp_path / "data"), str(tmp_path / "unshared")])
        found = roll_up(tmp_path, cluster, *(word for job in jobs for word in job))
    done, hard, lacking, another, over, bucket, unshared = found
    assert (done, over) == ("done 0", "done 0")
    assert hard == bucket == f"done {len(CONTRADICTORY)}"
    assert read_tables(tmp_path / "out", DAY) == expected
    cells = reference.roll_up(tmp_path / "hard", DAY_START_US, unreadable=UNREADABLE)
    assert not differences(read_tables(tmp_path / "cells", DAY), cells)
    cells = reference.roll_up(tmp_path / "hard-bucket", DAY_START_US, unreadable=UNREADABLE)
    assert not differences(read_tables(tmp_path / "from-bucket", DAY), cells)
    # A connection does not show which folder and files a stream is in.
    unknown = {"shard": -1, "stream_id": None}
    assert read_tables(tmp_path / "over", DAY) == {key: {**row, **unknown} for key, row in expected.items()}
    assert f"{tmp_path}/lacking: is not a tailrace data directory" in lacking
    assert f"{tmp_path}/another: is on this machine the data directory of node" in another
    assert f"{tmp_path}/unshared/_run-" in unshared
    assert all(socket.gethostname() in text for text in (lacking, another, unshared))
    assert not left_over(tmp_path / "out")
    for name in ("first", "second"):
        assert list((tmp_path / name).glob("app-*/*/tailrace.zip")), "the executor got the code from the driver"
