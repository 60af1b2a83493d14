"""Live queries that are killed between and amid their batches, and started again: every message once, none missing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import tailrace
from tailrace.shard.leaves import interpreted_wanted
from tests.spark.live_driver import copy, follow
from tests.system.node import Node, running, wait_for
from tests.tidy import tree

ROUNDS = int(os.environ.get("TAILRACE_KILL_ROUNDS", "0"))  # of all queries at once (docs/spark.md)
BETWEEN = int(os.environ.get("TAILRACE_KILLS_BETWEEN", "0"))  # exactly between two batches of one
GAP_S = 6
"""From the beginning of a batch to that of the next one, if the kill is to come between them."""
TRIES = 5
QUERIES = ("path", "brokers")
COPY = "copy"
ALL = (*QUERIES, COPY)
MARKS = ("checkpoint/offsets", "rows/_spark_metadata", "checkpoint/commits")
"""What a query writes in each batch, in this order; the copy has no rows there."""
COPIED_MIN = 2
"""Batches of the copy before a kill."""
BATCHES_MAX = 4
EARLY_EVERY = 5
"""In each round of so many the kill may come before the first batch."""
WAIT_S = 600.0
STREAMS, STREAMS_MAX = 4, 12
AT_ONCE = 5
"""Messages of a stream: one by one they took more of the processor than Spark."""

pytestmark = [pytest.mark.slow, pytest.mark.system]


class Point(NamedTuple):
    """The moment when a driver is killed: `then_s` after a query has begun `batches` batches, or come to another mark
    in them.
    """

    query: str
    mark: str
    batches: int
    then_s: float
    is_between: bool = False


def choose_between(choice: random.Random, queries: Sequence[str]) -> Point:
    return Point(choice.choice(queries), "checkpoint/commits", choice.randint(1, 2), 0, True)


def choose(choice: random.Random, queries: Sequence[str], number: int) -> Point:
    query = choice.choice(queries)
    mark = choice.choice([each for each in MARKS if query != COPY or each.startswith("checkpoint")])
    if number % EARLY_EVERY == EARLY_EVERY - 1:
        return Point(query, mark, 0, choice.uniform(0, 10))
    return Point(query, mark, choice.randint(2, BATCHES_MAX), choice.choice([0.0, choice.uniform(0, 0.5)]))


class Publisher:
    """Publishes to streams all the time, to one stream more from round to round."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stop = threading.Event()
        self.sent: Counter[str] = Counter()
        self.streams = STREAMS

    @contextmanager
    def publishing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        with tailrace.connect(f"127.0.0.1:{self._node.port}") as client:
            while not self._stop.wait(0.1):
                for number in range(self.streams):
                    name = f"live.{number}"
                    seqs = range(self.sent[name], self.sent[name] + AT_ONCE)
                    client.publish_many(name, [b"%s %d" % (name.encode(), seq) for seq in seqs])
                    self.sent[name] += AT_ONCE
            client.flush()


class Followed:
    """The queries that are run, some of ALL, and how far they are."""

    def __init__(self, node: Node, folder: Path, names: Sequence[str]) -> None:
        self.node, self.folder, self.names = node, folder, names
        broker = f"127.0.0.1:{node.port}"
        self.options = {"path": {"path": str(node.data)}, "brokers": {"brokers": broker}}
        self.command = [sys.executable, "-m", "tests.spark.live_driver", str(node.data), broker, str(folder)]

    def count(self, query: str, mark: str) -> int:
        """How many batches have come so far. Spark removes none of the first hundred."""
        return 1 + max(
            (int(path.name.split(".")[0]) for path in (self.folder / query / mark).glob("[0-9]*")), default=-1
        )

    def committed(self) -> dict[str, int]:
        return {query: self.count(query, "checkpoint/commits") for query in self.names}

    def is_between(self, query: str) -> bool:
        """Whether its last batch is committed, and none was begun since."""
        commits = self.count(query, "checkpoint/commits")
        return commits > 0 and self.count(query, "checkpoint/offsets") == commits

    def run_and_kill(self, point: Point) -> str:
        """Returns a description of the kill."""
        log_file, before = self.folder / "driver.log", self.committed()
        gap_s = GAP_S if point.is_between else 0
        with log_file.open("wb") as log:
            command = [*self.command, str(gap_s), *self.names]
            driver = subprocess.Popen(command, cwd=tree.ROOT, stdout=log, stderr=log, start_new_session=True)
        try:

            def wait(query: str, mark: str, goal: int) -> None:
                def is_there() -> bool:
                    assert driver.poll() is None, log_file.read_text()
                    return self.count(query, mark) >= goal

                wait_for(is_there, f"{point} ({log_file})", WAIT_S, 0.002)

            if point.batches and COPY in self.names:
                wait(COPY, "checkpoint/commits", before[COPY] + (1 if point.is_between else COPIED_MIN))
            if point.batches:
                wait(point.query, point.mark, self.count(point.query, point.mark) + point.batches)
            if point.is_between:
                wait_for(lambda: self.is_between(point.query), f"{point} ({log_file})", WAIT_S, 0.002)
            time.sleep(point.then_s)
        finally:
            kill(driver)
        after = self.committed()
        return ", ".join(
            f"{query} {after[query] - before[query]} batches" + " and amid one" * (not self.is_between(query))
            for query in self.names
        )

    def finish(self, session: Any, query: str) -> Any:
        """Returns all rows that the query has ever written, after it has read all messages."""
        rest = follow(session, self.options[query], self.folder / query, to_the_end=True)
        assert rest.awaitTermination(WAIT_S)
        return session.read.parquet(str(self.folder / query / "rows")).toArrow()

    def finish_copy(self, session: Any, sent: Counter[str]) -> None:
        """Copies all the rest, and its last batch twice; each message of these counts is copied once, in its order."""
        done, commits = self.count(COPY, "checkpoint/commits"), self.folder / COPY / "checkpoint" / "commits"
        self._copy(session)
        last = self.count(COPY, "checkpoint/commits") - 1
        assert last >= done
        for path in commits.glob(f"*{last}*"):  # as if the driver had died before it wrote this
            path.unlink()
        self._copy(session)
        with tailrace.connect(f"127.0.0.1:{self.node.port}") as client:
            for name, count in sent.items():
                copied = [each.payload.decode() for each in client.subscribe(f"copy.{name}", end=tailrace.NOW)]
                assert copied == [f"{name} {seq}" for seq in range(count)]

    def _copy(self, session: Any) -> None:
        data, broker = self.options["path"]["path"], self.options["brokers"]["brokers"]
        rest = copy(session, data, broker, self.folder / COPY, to_the_end=True)
        assert rest.awaitTermination(WAIT_S)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """With its Java and that one's Python, as a machine does. They are in its session."""
    family = [each for each in psutil.process_iter() if is_in_session(each.pid, driver.pid)]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    driver.wait(WAIT_S)
    _, alive = psutil.wait_procs(family, WAIT_S)
    assert not alive


def is_in_session(pid: int, session: int) -> bool:
    with suppress(ProcessLookupError):
        return os.getsid(pid) == session
    return False


def kill_between(queries: Followed, point: Point) -> int:
    """Kills the driver when the query of `point` has committed a batch in this run, and has not begun the next one.
    Returns for how many of the queries it was so. Another kill is tried if the next batch was quicker."""
    for _ in range(TRIES):
        print(f"{time.strftime('%X')} {point}: {queries.run_and_kill(point)}", flush=True)
        if queries.is_between(point.query):
            return sum(map(queries.is_between, queries.names))
    raise AssertionError(f"none of {TRIES} kills came between two batches")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    with running(tmp_path / "data", workers=1) as node:
        yield node


@pytest.mark.thorough
def test_killed_at_random_points_every_message_comes_once(session: Any, node: Node, tmp_path: Path) -> None:
    seed = int(os.environ.get("TAILRACE_SEED", random.randrange(1 << 32)))
    print(f"TAILRACE_SEED={seed}")
    choice = random.Random(seed)
    rounds, between = ROUNDS, BETWEEN
    names: Sequence[str] = ALL
    if not rounds + between:  # one kill of one query in each run of the suite, as each of them starts a Java
        between, names = choice.randrange(2), (choice.choice(ALL),)
        rounds = 1 - between
    queries, publisher = Followed(node, tmp_path, names), Publisher(node)
    with publisher.publishing():
        for number in range(rounds):
            point = choose(choice, names, number)
            print(f"{time.strftime('%X')} {point}: {queries.run_and_kill(point)}", flush=True)
            publisher.streams = min(publisher.streams + 1, STREAMS_MAX)
        hits = [kill_between(queries, choose_between(choice, names)) for _ in range(between)]
        print(f"{len(hits)} kills between two batches of the query that was waited for, {sum(hits)} of all queries")
        before = publisher.sent.total()
        wait_for(lambda: publisher.sent.total() > before, "there is more to copy")
    wanted = Counter(f"{name} {seq}" for name, count in publisher.sent.items() for seq in range(count))
    for query in (each for each in QUERIES if each in names):
        found = queries.finish(session, query)
        assert Counter(payload.decode() for payload in found["payload"].to_pylist()) == wanted, query
        assert Counter(f"{row['stream']} {row['seq']}" for row in found.to_pylist()) == wanted, query
    if COPY in names:
        queries.finish_copy(session, publisher.sent)
    assert sum(wanted.values()) > rounds + between
