"""`tailrace rollup`, killed at random points and run again: the former tables or the new ones, nothing doubled or left.

A point is one of the command's changes of OUT, such as its moves, just before which it is killed, or a moment.
"""

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

from tailrace.shard.directory import open_data_dir
from tailrace.shard.leaves import interpreted_wanted
from tailrace.spark.rollup.engine import ChooseEngine
from tailrace.spark.rollup.job import Job, run_job
from tests.spark.data import append, make_directory, open_log, plain, trim
from tests.spark.java import with_quick_java
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US, MINUTE_US
from tests.spark.rollup.tables import differences, left_over, read_tables
from tests.spark.rollup.test_job import spread

ROUNDS = int(os.environ.get("TAILRACE_KILL_ROUNDS", "1"))  # another point in each run of the suite (docs/spark.md)
WAIT_S = 900.0  # the start of Spark alone has taken five minutes beside others
LOOK_EVERY_S = 0.5  # a look costs twenty milliseconds of processor time, and Spark takes many seconds to begin
ROOT = Path(__file__).resolve().parents[3]
NEVER = 1 << 30

Rows = dict[reference.Key, reference.Row]

pytestmark = [pytest.mark.slow, pytest.mark.system]


def start(tmp_path: Path, engine: str, number: int = NEVER) -> subprocess.Popen[bytes]:
    """Is killed just before the change of OUT with this number."""
    own = ["-m", "tests.spark.rollup.killed", str(tmp_path / "changes"), str(number)]
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    command = ["rollup", data, out, "--day", str(DAY), "--engine", engine, "--no-report"]
    with (tmp_path / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *own, *command],
            cwd=ROOT,
            env=with_quick_java(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def changes(tmp_path: Path) -> list[str]:
    return (tmp_path / "changes").read_text().splitlines()


def end(run: subprocess.Popen[bytes], *, all_at_once: bool) -> None:
    """Kills the command alone, as an operator would, or its JVM and the JVM's Python with it, as a machine does."""
    family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in family if all_at_once else family[:1]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    run.wait(WAIT_S)
    # The rest of the family leaves by itself.
    gone, alive = psutil.wait_procs(family[1:], WAIT_S)
    assert not alive, f"still there: {alive}, gone: {len(gone)}"


def run_and_kill(tmp_path: Path, engine: str, choice: random.Random, count: int) -> str:
    """Begins a run, of which the command makes `count` changes of OUT; returns how it ended."""
    if choice.random() < 0.7:
        run = start(tmp_path, engine, choice.randrange(count))
        run.wait(WAIT_S)
        return f"before {changes(tmp_path)[-1]}" if run.returncode == -signal.SIGKILL else f"exit {run.returncode}"
    run, number, then_s = start(tmp_path, engine), choice.randrange(count), choice.uniform(0, 1)
    deadline_s = time.monotonic() + WAIT_S
    while run.poll() is None and not ((tmp_path / "changes").exists() and len(changes(tmp_path)) > number):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    try:
        run.wait(then_s)
    except subprocess.TimeoutExpired:
        end(run, all_at_once=choice.random() < 0.5)
    return f"{then_s:.3f} s after change {number}" if run.returncode == -signal.SIGKILL else f"exit {run.returncode}"


@contextmanager
def looking(out: Path, before: Rows, after: Rows) -> Iterator[Future[int]]:
    """Readers look at the tables all the time, and find one of the two. Gives the number of looks, later."""
    stop = threading.Event()

    def run() -> int:
        looks = 0
        while not looks or not stop.wait(LOOK_EVERY_S):
            found = read_tables(out, DAY)
            assert not differences(found, before) or not differences(found, after)
            looks += 1
        return looks

    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(run)
        try:
            yield looks
        finally:
            stop.set()


def grow(data: Path, round_: int) -> None:
    log = open_log(open_data_dir(data), "s0")
    append(log, plain(2, DAY_START_US + 20 * HOUR_US + round_ * MINUTE_US))
    log.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_killed_at_random_points(tmp_path: Path, local_engine: ChooseEngine, engine: str) -> None:
    """Each run has other messages to add, so the tables are those before it or those after it, and never a mixture."""
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    seed = int(os.environ.get("TAILRACE_SEED", random.randrange(1 << 32)))
    print(f"TAILRACE_SEED={seed}")
    choice = random.Random(seed)
    data, out = tmp_path / "data", tmp_path / "out"
    make_directory(data, {f"s{i}": spread(50, DAY_START_US + i * HOUR_US) for i in range(4)})
    whole = reference.roll_up(data, DAY_START_US)
    job = Job({"path": str(data)}, out, DAY)
    run_job(job, local_engine, lambda _phase, _done, _total: None)
    trim(data, "s1", 40)  # from here on only the tables know
    kept = {key: row for key, row in whole.items() if key[1] == "s1"}
    assert start(tmp_path, "local").wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    count, before = len(changes(tmp_path)), whole
    assert any(line.startswith("os.rename") and line.endswith("/out/current") for line in changes(tmp_path))
    killed = 0
    for round_ in range(ROUNDS):
        grow(data, round_)
        after = {**reference.roll_up(data, DAY_START_US), **kept}
        (tmp_path / "changes").unlink()
        with looking(out, before, after) as looks:
            ending = run_and_kill(tmp_path, engine, choice, count)
        assert looks.result() > 0
        assert ending == "exit 0" or not ending.startswith("exit"), (tmp_path / "log").read_text()
        killed += ending != "exit 0"
        found = read_tables(out, DAY)
        # At once, before another run has cleaned up.
        assert not differences(found, before) or not differences(found, after)
        print(f"killed {ending}: {'new' if found == after else 'former'} tables")
        before = found
    print(f"killed {killed} of {ROUNDS} runs")
    assert run_job(job, local_engine, lambda _phase, _done, _total: None).kept == ["s1"]
    assert not differences(read_tables(out, DAY), {**reference.roll_up(data, DAY_START_US), **kept})
    assert not left_over(out)
