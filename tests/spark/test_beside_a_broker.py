"""Reading while a broker appends as fast as it can, and trims, and is killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sql

import tailrace
from tailrace.core.address import Address
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.spark.columns import SCHEMA, BatchMaker
from tailrace.spark.plan import make_plan
from tailrace.spark.reading import read_task
from tailrace.spark.source import Source, SourceOptions, open_source
from tests.system.node import Node, running, wait_for
from tests.thorough import only_thorough

NAMES = ("orders.a", "orders.b", "orders.c")
PAYLOAD_BYTES = 100
KEPT = 8_000  # messages of each stream that are not trimmed
ROUNDS = 3
LIVE_PATIENCE_S = 300.0  # several starts of Python processes, beside other tests
CONFIG = '[timing]\ntrim_grace_s = "2 s"\n'
HOLES_PATIENCE_S = 60.0  # the first holes are there after the grace, or later where the disk is busy

pytestmark = [pytest.mark.system, pytest.mark.slow]


class Publisher:
    """Publishes to all streams until it is stopped. Each payload begins with the number of the message."""

    def __init__(self, node: Node, chunk: int = 1_000) -> None:
        self.sent = dict.fromkeys(NAMES, 0)  # the number of messages in each stream
        self.failure: BaseException | None = None
        self._address, self._chunk = f"127.0.0.1:{node.port}", chunk
        self._stop = threading.Event()
        self._pause_s = 0.0
        self._thread = threading.Thread(target=self._run)

    def slowly(self, pause_s: float) -> Publisher:
        self._pause_s = pause_s
        return self

    def _run(self) -> None:
        try:
            with tailrace.connect(self._address, idempotent=False) as client:
                while not self._stop.wait(self._pause_s):
                    for name in NAMES:
                        numbers = range(self.sent[name], self.sent[name] + self._chunk)
                        receipt = client.publish_many(name, [b"%012d" % i + bytes(PAYLOAD_BYTES - 12) for i in numbers])
                        self.sent[name] = receipt.seq + receipt.count
        except BaseException as failure:  # noqa: BLE001 (for the test that waits for it)
            self.failure = failure

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure


def query(source: Source, sent: dict[str, int]) -> int:
    """Plan and read everything, and check it; gives how many messages it was."""
    plan = make_plan(source, NAMES, rows_per_task=5_000)
    assert not plan.bad
    maker = BatchMaker(SCHEMA, "binary")
    table = pa.Table.from_batches([b for task in plan.tasks for b in read_task(source, task, maker, False)], SCHEMA)
    after = {slice_.stream: slice_.first_seq for task in make_plan(source, NAMES).tasks for slice_ in task}
    for name in NAMES:
        planned = [slice_ for task in plan.tasks for slice_ in task if slice_.stream == name]
        assert planned[-1].end_seq >= sent[name], "what was acknowledged before is in it"
        check(
            table.filter(pa.compute.equal(table["stream"], name)),
            planned[0].first_seq,
            after[name],
            planned[-1].end_seq,
        )
    return len(table)


def check(rows: pa.Table, first_seq: int, kept_seq: int, end_seq: int) -> None:
    """Each message once, in order, with its own payload; none is missing but those that were trimmed meanwhile."""
    seqs = rows["seq"].to_pylist()
    assert seqs == sorted(set(seqs))
    assert not seqs or seqs[0] >= first_seq
    assert [seq for seq in seqs if seq >= kept_seq] == list(range(max(kept_seq, first_seq), end_seq))
    assert [int(payload[:12]) for payload in rows["payload"].to_pylist()] == seqs
    assert all(len(payload) == PAYLOAD_BYTES for payload in rows["payload"].to_pylist())


def trim_all(node: Node, sent: dict[str, int]) -> None:
    with node.client() as client:
        for name, count in sent.items():
            assert client.ask(f"trim {name} #{max(0, count - KEPT)}").startswith("ok trim")


@contextmanager
def trimming(node: Node, publisher: Publisher) -> Iterator[list[int]]:
    """Trims all the time, beside the block. Gives how often it did."""
    stop, done = threading.Event(), [0]

    def run() -> None:
        while not stop.wait(0.02):
            trim_all(node, dict(publisher.sent))
            done[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(60)


def has_holes(node: Node) -> bool:
    """Whether the broker has given back space of every stream."""
    return all(begins_with_hole(next(node.data.glob(f"shard-*/{name}.content"))) for name in NAMES)


def begins_with_hole(path: Path) -> bool:
    """Whether there is a hole where the first message was, and messages behind it."""
    with path.open("rb") as file:
        return os.lseek(file.fileno(), HEADER_PAGE_BYTES, os.SEEK_DATA) > HEADER_PAGE_BYTES


def look_beside_trims(node: Node, publisher: Publisher, rounds: int, look: Callable[[dict[str, int]], int]) -> None:
    """Until `rounds` looks have found messages, with holes before them, beside more trims than that. `look` is given
    the counts sent before.

    One that finds nothing does not count: over connections all that it has planned may be trimmed meanwhile.
    """
    with trimming(node, publisher) as trims:
        publisher.slowly(0.05)  # queries of the messages sent while there are no holes prove nothing
        wait_for(lambda: has_holes(node) or publisher.failure, "there are holes", HOLES_PATIENCE_S)
        publisher.slowly(0)
        deadline_s, left, before = time.monotonic() + HOLES_PATIENCE_S, rounds, trims[0]
        while left > 0 or trims[0] - before <= rounds:
            assert time.monotonic() < deadline_s, f"{trims[0] - before} trims, and {left} of {rounds} looks to come"
            found = look(dict(publisher.sent))
            left -= found > 0 and has_holes(node)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["directory", *only_thorough("brokers")])
def test_queries_beside_appends_and_trims(tmp_path: Path, way: str) -> None:
    with running(tmp_path / "data", config=CONFIG) as node, Publisher(node) as publisher:
        wait_for(lambda: min(publisher.sent.values()) > 2 * KEPT or publisher.failure, "enough is published")
        addresses = (Address("127.0.0.1", node.port),)
        options = SourceOptions(str(node.data), check_crc=True) if way == "directory" else SourceOptions("", addresses)
        with closing(open_source(options)) as source:
            look_beside_trims(node, publisher, ROUNDS, lambda sent: query(source, sent))


class Live:
    """A live query that notes what each batch had of each stream; a batch that comes again replaces itself."""

    def __init__(self, session: Any, node: Node, checkpoint: Path) -> None:
        self._session, self._node, self._checkpoint = session, node, checkpoint
        self.batches: dict[int, dict[str, tuple[int, int, int]]] = {}

    def take(self, batch: Any, number: int) -> None:
        rows = batch.groupBy("stream").agg(sql.min("seq"), sql.max("seq"), sql.count("seq")).collect()
        self.batches[number] = {row[0]: (row[1], row[2], row[3]) for row in rows}

    def seen(self) -> dict[str, int]:
        """How far each stream was read. Every seq exactly once up to there, or this fails."""
        ends = dict.fromkeys(NAMES, 0)
        for number in sorted(self.batches):
            for name, (low, high, count) in self.batches[number].items():
                assert (low, high - low + 1) == (ends[name], count), f"batch {number} of {name}"
                ends[name] = high + 1
        return ends

    def wait_for_more(self, messages: int) -> None:
        enough = sum(self.seen().values()) + messages
        wait_for(lambda: sum(self.seen().values()) >= enough, "the query goes on", LIVE_PATIENCE_S)

    @contextmanager
    def running(self) -> Iterator[None]:
        stream = self._session.readStream.format("tailrace").option("streams", "orders.*")
        stream = stream.schema("stream string, seq bigint").load(str(self._node.data))
        writing = stream.writeStream.foreachBatch(self.take)
        query = writing.option("checkpointLocation", str(self._checkpoint)).trigger(processingTime="300 milliseconds")
        started = query.start()
        try:
            yield
            assert started.exception() is None
        finally:
            started.stop()


@pytest.mark.thorough
def test_live_across_restarts_of_the_query_and_of_the_broker(session: Any, tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        live = Live(session, node, tmp_path / "checkpoint")
        with Publisher(node, 50).slowly(0.02) as publisher:
            with live.running():
                live.wait_for_more(2_000)
            with live.running():
                live.wait_for_more(2_000)
                node.kill()
                node.start()
                live.wait_for_more(2_000)
        with live.running():
            wait_for(lambda: live.seen() == publisher.sent, "all has come", LIVE_PATIENCE_S)
