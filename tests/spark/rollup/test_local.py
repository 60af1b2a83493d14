"""The processes of the local engine: the errors they raise, how they die, and that they end with the command."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from tailrace.core.address import Address
from tailrace.errors import ConnectFailed
from tailrace.shard.directory import open_data_dir
from tailrace.shard.leaves import interpreted_wanted
from tailrace.spark.rollup import tasks
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.engine import EngineError
from tailrace.spark.rollup.local import LocalEngine
from tailrace.spark.rollup.store import Store, StoreInUse
from tailrace.spark.rollup.tasks import TaskResult, Work
from tailrace.spark.rollup.units import Task, Unit
from tailrace.spark.slices import Slice
from tailrace.spark.source import SourceOptions, open_source
from tests.spark.data import append, make_directory, open_log, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US
from tests.spark.rollup.tables import left_over, read_tables
from tests.spark.rollup.test_job import spread
from tests.system.node import wait_for

ROUNDS = int(os.environ.get("TAILRACE_KILL_ROUNDS", "1"))  # another moment in each run of the suite
TASKS: list[Task] = [(Unit(Slice(name, 0, 0, 1), ("day",)),) for name in "abcde"]


def run(path: Path, monkeypatch: pytest.MonkeyPatch, does: object = None) -> list[TaskResult]:
    monkeypatch.setattr(tasks, "run_task", does)  # the processes are forks of this one
    node_id = make_directory(path / "data", {}).node_id
    work = Work(SourceOptions(str(path / "data")), str(path), node_id)
    return LocalEngine(2).run(work, TASKS, lambda _phase, _done, _total: None)


def children() -> set[int]:
    """The children of this process: also the Java of other tests, if they ran before."""
    return {child.pid for child in psutil.Process().children()}


def test_every_task_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    results = run(tmp_path, monkeypatch, lambda *_: iter(()))
    assert sorted(results) == [TaskResult(number, {}, []) for number in range(5)]
    assert children() <= before


def test_a_process_that_is_killed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(task: Task, *_readers: object) -> object:
        if task[0].slice.stream == "d":
            os.kill(os.getpid(), signal.SIGKILL)
        return iter(())

    before = children()
    with pytest.raises(EngineError, match=r"a worker process: was killed by SIGKILL while it read d$"):
        run(tmp_path, monkeypatch, dies)
    assert children() <= before


def test_what_a_task_raises_is_raised(tmp_path: Path) -> None:
    """Errors of all kinds must survive the way from one process to the other."""
    engine = LocalEngine(1, background=True)
    work = Work(SourceOptions("", (Address("127.0.0.1", 1),)), str(tmp_path), "node")
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
        engine.run(work, TASKS, lambda _phase, _done, _total: None)
    node_id = make_directory(tmp_path / "data", {"a": spread(1)}).node_id
    work = Work(SourceOptions(str(tmp_path / "data")), str(tmp_path / "not there"), node_id)
    with closing(open_source(work.source)) as source, pytest.raises(FileNotFoundError, match="not there"):
        engine.run(work, plan_day(source, DAY).tasks, lambda _phase, _done, _total: None)


ENDLESS = """
import os, sys, time
from pathlib import Path
from tailrace.shard.directory import open_data_dir
from tailrace.shard.leaves import interpreted_wanted
from tailrace.spark.rollup import tasks
from tailrace.spark.rollup.local import LocalEngine
from tailrace.spark.source import SourceOptions

def endless(*_):
    os.write(1, b"%d\\n" % os.getpid())  # at once: the other worker writes to the same pipe
    time.sleep(1_000)

tasks.run_task = endless
node_id = open_data_dir(Path(sys.argv[1])).node_id
work = tasks.Work(SourceOptions(sys.argv[1]), sys.argv[1], node_id)
LocalEngine(2).run(work, [(), ()], lambda *_: None)
"""


def test_processes_end_with_the_one_that_is_killed(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {})
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        workers = [psutil.Process(int(engine.stdout.readline())) for _ in range(2)]
        engine.kill()
        wait_for(lambda: not any(worker.is_running() for worker in workers), "they are gone")


def is_free(out: Path) -> bool:
    with suppress(StoreInUse), Store(out).locked():
        return True
    return False


@pytest.mark.thorough
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """The whole command, cold: the tables are as they were or as they should be, and a last run ends it."""
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    seed = int(os.environ.get("TAILRACE_SEED", random.randrange(1 << 32)))
    print(f"TAILRACE_SEED={seed}")
    choice = random.Random(seed)
    make_directory(tmp_path / "data", {f"s{i}": spread(200) for i in range(20)})
    command = [sys.executable, "-m", "tailrace.cli.main", "rollup", "data", "out", "--day", str(DAY), "--no-report"]
    begun_s = time.monotonic()
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    took_s = time.monotonic() - begun_s
    before = read_tables(tmp_path / "out", DAY)
    assert before == reference.roll_up(tmp_path / "data", DAY_START_US)
    log = open_log(open_data_dir(tmp_path / "data"), "s0")
    append(log, [each._replace(epoch=4) for each in spread(5, DAY_START_US + 20 * HOUR_US)])
    log.close()
    trim(tmp_path / "data", "s1", 100)  # from here on only the tables know
    kept = {key: row for key, row in before.items() if key[1] == "s1"}
    after = {**reference.roll_up(tmp_path / "data", DAY_START_US), **kept}
    for _ in range(ROUNDS):
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as run:
            try:
                run.wait(choice.uniform(took_s / 2, took_s))
            except subprocess.TimeoutExpired:
                run.kill()
        wait_for(lambda: is_free(tmp_path / "out"), "its processes are gone, too")
        with Store(tmp_path / "out").locked():
            assert read_tables(tmp_path / "out", DAY) in (before, after)
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert read_tables(tmp_path / "out", DAY) == after
    assert not left_over(tmp_path / "out")
