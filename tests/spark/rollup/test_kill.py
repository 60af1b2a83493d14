"""`tailrace rollup`, killed at random points and run again: the same tables each time, nothing doubled or left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tailrace.shard.leaves import interpreted_wanted
from tailrace.spark.rollup.engine import ChooseEngine
from tailrace.spark.rollup.job import Job, run_job
from tests.spark.data import make_directory, trim
from tests.spark.java import with_quick_java
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US
from tests.spark.rollup.tables import left_over, read_tables
from tests.spark.rollup.test_job import spread

ROUNDS = int(os.environ.get("TAILRACE_KILL_ROUNDS", "1"))  # another point in each run of the suite (docs/spark.md)
WAIT_S = 900.0  # the start of Spark alone has taken five minutes beside others
LOOK_EVERY_S = 0.25  # a look costs twenty milliseconds of processor time, and Spark takes many seconds to begin
MARKS = ("", "raw", "raw/*", "staged-*", "staged-days/*", "state", "state/days/*", "current")
"""What a run's folder gets, in this order."""
ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.system]


def start(tmp_path: Path, engine: str) -> subprocess.Popen[bytes]:
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    command = [sys.executable, "-m", "tailrace.cli.main", "rollup", data, out, "--day", str(DAY), "--engine", engine]
    with (tmp_path / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=with_quick_java(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def kill(run: subprocess.Popen[bytes], *, all_at_once: bool) -> None:
    """The command alone, as an operator would, or its JVM and the JVM's Python with it, as a machine does."""
    family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in family if all_at_once else family[:1]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    run.wait(WAIT_S)
    # What is left of the family leaves by itself.
    gone, alive = psutil.wait_procs(family[1:], WAIT_S)
    assert not alive, f"still there: {alive}, gone: {len(gone)}"


def wait_for(out: Path, run: subprocess.Popen[bytes], mark: str) -> None:
    """Until the run's folder has this in it, or the run is over."""
    deadline_s = time.monotonic() + WAIT_S
    while run.poll() is None and not list(out.glob(f"_run-*/{mark}")):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@contextmanager
def looking(out: Path, expected: dict[reference.Key, reference.Row]) -> Iterator[Future[int]]:
    """Readers look at the tables all the time, and find the same whole ones. Gives the number of looks, later."""
    stop = threading.Event()

    def run() -> int:
        looks = 0
        while not looks or not stop.wait(LOOK_EVERY_S):
            assert read_tables(out, DAY) == expected
            looks += 1
        return looks

    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(run)
        try:
            yield looks
        finally:
            stop.set()


@pytest.mark.parametrize("name", ["local", "spark"])
def test_killed_at_random_points(tmp_path: Path, local_engine: ChooseEngine, name: str) -> None:
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    seed = int(os.environ.get("TAILRACE_SEED", random.randrange(1 << 32)))
    print(f"TAILRACE_SEED={seed}")
    choice = random.Random(seed)
    make_directory(tmp_path / "data", {f"s{i}": spread(200, DAY_START_US + i * HOUR_US) for i in range(4)})
    job = Job({"path": str(tmp_path / "data")}, tmp_path / "out", DAY)
    run_job(job, local_engine, lambda _phase, _done, _total: None)
    expected = reference.roll_up(tmp_path / "data", DAY_START_US)
    assert read_tables(tmp_path / "out", DAY) == expected
    trim(tmp_path / "data", "s1", 120)  # from here on only the tables know
    killed = 0
    for _ in range(ROUNDS):
        run = start(tmp_path, name)
        mark, then_s = choice.choice(MARKS), choice.choice([0.0, choice.uniform(0, 1)])
        with looking(tmp_path / "out", expected) as looks:
            wait_for(tmp_path / "out", run, mark)
            try:
                run.wait(then_s)
            except subprocess.TimeoutExpired:
                kill(run, all_at_once=choice.random() < 0.5)
        assert looks.result() > 0
        print(f"{mark or 'begun'} and {then_s:.3f} s: {run.returncode}")
        assert run.returncode in (0, -signal.SIGKILL), (tmp_path / "log").read_text()
        killed += run.returncode != 0
        assert read_tables(tmp_path / "out", DAY) == expected, "at once, before another run has cleaned up"
    print(f"killed {killed} of {ROUNDS} runs")
    assert run_job(job, local_engine, lambda _phase, _done, _total: None).kept == ["s1"]
    assert read_tables(tmp_path / "out", DAY) == expected
    assert not left_over(tmp_path / "out")
