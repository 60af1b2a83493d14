"""The rows of cells: what workers store, and the sums over all of them, those that were killed included."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.broker.process import metric_cells
from tailrace.broker.process.metric_cells import COLUMNS, ROW_BYTES, STORE_S, TEXT_BYTES, MetricRow, RowWriter, sum_up
from tailrace.broker.process.metrics import (
    BUCKETS,
    MAX_LABEL_VALUES,
    MAX_NODES,
    MAX_STREAMS,
    OTHER,
    SUM,
    TABLE,
    TIME_BOUNDS_S,
    MetricFamily,
    SlaveMeasures,
    StreamMeasures,
    WorkerMetrics,
)
from tailrace.broker.process.scoreboard import ROWS_SPARE, Board
from tests.thorough import examples

FAMILIES = {family.name.removeprefix("tailrace_"): family for family in TABLE}


def shown(board: Board, name: str) -> dict[str, float]:
    return sum_up(board.metric_rows, FAMILIES[name])


def start(board: Board, generation: int) -> RowWriter:
    assert board.take_row(generation)
    return RowWriter(board.row_of(generation))


def test_no_two_cells_overlap() -> None:
    cells = [0]
    texts: list[int] = []
    for family, columns in COLUMNS.items():
        places = family.texts_max + 1 if family.texts_max else 0
        cells += range(columns.first_known, columns.first_known + len(family.known))
        cells += range(columns.texts, columns.texts + 1 + places)
        texts += range(columns.first_text, columns.first_text + places)
    assert len(set(cells)) == len(cells) and len(set(texts)) == len(texts)
    assert (max(cells) + 1) * 8 + (max(texts) + 1) * TEXT_BYTES <= ROW_BYTES
    assert TEXT_BYTES % 8 == 0


def test_a_full_set_of_labels_fits_and_the_rest_is_other() -> None:
    board = Board(1)
    writer, metrics = start(board, 1), WorkerMetrics()
    long = "host" * 64
    for number in range(MAX_LABEL_VALUES + 9):
        metrics.parked[f"reason{number}"] = 1
        metrics.copies[f"state{number}"] = 1
        metrics.upstream_links[f"{long}:{number:05}"] = 2
        metrics.slaves[f"{number:016x}"] = SlaveMeasures(1, 1, 1, 1, 1.0)
        metrics.dropped.add(f"reason{number}")
        metrics.refused.add(f"code{number}")
    writer.store(metrics)
    for family in TABLE:
        assert len(sum_up(board.metric_rows, family)) <= len(family.known) + family.texts_max + 1
    assert shown(board, "parked_cursors")[OTHER] == 9
    assert shown(board, "copies")["state63"] == 1
    links = shown(board, "upstream_links")
    assert (len(links), links[OTHER]) == (MAX_NODES + 1, 2 * (MAX_LABEL_VALUES + 9 - MAX_NODES))
    assert links[f"{long}:00031"] == 2
    assert len(shown(board, "slave_lag_bytes")) == MAX_NODES + 1
    metrics.parked = {"reason1": 5, "quite new": 7}
    writer.store(metrics)
    parked = shown(board, "parked_cursors")
    assert (parked["reason0"], parked["reason1"], parked[OTHER]) == (0, 5, 7), "what is no longer named goes to zero"


def test_places_of_streams_that_are_gone_are_given_to_others() -> None:
    """And nobody reads the number of one stream under the name of another."""
    board = Board(1)
    writer, metrics = start(board, 1), WorkerMetrics()
    for generation in range(4):
        last = shown(board, "stream_messages")
        metrics.measured_streams = {
            f"s{generation}-{number}": StreamMeasures(messages=generation * 1_000 + number)
            for number in range(MAX_STREAMS)
        }
        writer.store(metrics)
        between = shown(board, "stream_messages")
        assert not between.keys() & last.keys() and all(number // 1_000 == generation for number in between.values())
        writer.store(metrics)
        expected = {name: each.messages for name, each in metrics.measured_streams.items()}
        assert shown(board, "stream_messages") == expected
    metrics.measured_streams = {"s3-5": StreamMeasures(messages=7)}
    writer.store(metrics)
    assert shown(board, "stream_messages") == {"s3-5": 7}


def test_gauges_are_those_of_workers_that_run_and_counters_those_of_all() -> None:
    board = Board(1)
    old, metrics = start(board, 1), WorkerMetrics()
    metrics.appended_messages, metrics.connections, metrics.lag_bytes_max = 5, 3, 70
    metrics.parked = {"turn": 2}
    old.store(metrics)
    new, fresh = start(board, 2), WorkerMetrics()
    fresh.appended_messages, fresh.connections, fresh.lag_bytes_max = 1, 4, 60
    new.store(fresh)
    assert [shown(board, name) for name in ("appended_messages", "connections", "lag_bytes", "parked_cursors")] == [
        {"": 6},
        {"": 7},
        {"": 70},
        {"turn": 2},
    ]
    board.free_row(1)
    assert [shown(board, name) for name in ("appended_messages", "connections", "lag_bytes", "parked_cursors")] == [
        {"": 6},
        {"": 4},
        {"": 60},
        {},
    ]
    board.free_row(2)
    assert shown(board, "connections") == {} and shown(board, "appended_messages") == {"": 6}


@pytest.mark.parametrize("every_s", [0.05, 0.25, 1.0])
def test_all_numbers_are_stored_within_a_second_however_often_it_is_done(every_s: float) -> None:
    board = Board(1)
    writer, metrics = start(board, 1), WorkerMetrics()
    writer.store_due(metrics, 7.0)
    metrics.appended_messages, metrics.connections, metrics.open_streams = 5, 3, 2
    calls = round(STORE_S / every_s)
    for call in range(1, calls + 1):
        now_s = 7.0 + call * every_s
        before = writer._next
        writer.store_due(metrics, now_s)
        families = writer._next - before if writer._next > before else writer._next - before + len(TABLE)
        assert families <= math.ceil(len(TABLE) / calls) + 1
    assert [shown(board, name) for name in ("appended_messages", "connections", "open_streams")] == [
        {"": 5},
        {"": 3},
        {"": 2},
    ]


def test_a_killed_workers_counts_stay() -> None:
    board = Board(1)
    assert board.take_row(1)
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        writer, metrics = RowWriter(board.row_of(1)), WorkerMetrics()
        metrics.refused.add("size", 4)
        metrics.dropped.add("reset", 2)
        metrics.commit.observe(0.02)
        writer.store(metrics)
        metrics.refused.add("size", 100)
        os.write(done, b"!")
        signal.pause()
    assert os.read(ready, 1) == b"!"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(done)
    board.free_row(1)
    again, metrics = start(board, 2), WorkerMetrics()
    assert shown(board, "refused_commands")["size"] == 4, "a worker that has not stored anything takes nothing away"
    metrics.refused.add("size")
    metrics.dropped.add("slow")
    metrics.commit.observe(0.02)
    again.store(metrics)
    assert shown(board, "refused_commands")["size"] == 5
    assert shown(board, "closed_connections") == {"reset": 2, "slow": 1}
    assert shown(board, "commit_seconds")["0.025"] == 2 and shown(board, "commit_seconds")[SUM] == 0.04


def test_rows_run_out_without_harm() -> None:
    board = Board(1)
    for generation in range(1, 2 + ROWS_SPARE + 1):
        assert board.take_row(generation)
    assert not board.take_row(99)
    writer, metrics = RowWriter(board.row_of(99)), WorkerMetrics()
    metrics.connections = 7
    writer.store(metrics)
    assert shown(board, "connections") == {"": 0}


# --- a model ----------------------------------------------------------------------------------------------------------

LABELS = st.sampled_from([*"abcdef", "grün", "a b"])
COUNTED = ("appended_bytes", "closed_connections", "append_seconds", "received_messages")


@dataclass
class Running:
    """A running worker. counted: all its counts so far; stored: those up to the last store."""

    writer: RowWriter
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    stored: Counter[tuple[str, str]] = field(default_factory=Counter)
    gauges: tuple[dict[str, int], int] = ({}, 0)


class Rows(RuleBasedStateMachine):
    """Workers start, count, store, and end at any moment."""

    @initialize()
    def begin(self) -> None:
        self.board = Board(1)
        self.generation = 0
        self.running: dict[int, Running] = {}
        self.ended: Counter[tuple[str, str]] = Counter()
        self.seen: dict[tuple[str, str], float] = {}

    @precondition(lambda self: len(self.running) < 4)
    @rule()
    def start(self) -> None:
        self.generation += 1
        self.running[self.generation] = Running(start(self.board, self.generation))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 1 << 40), label=LABELS, bucket=st.integers(0, len(BUCKETS) - 1))
    def count(self, data: st.DataObject, count: int, label: str, bucket: int) -> None:
        worker = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        worker.metrics.appended_bytes += count
        worker.metrics.dropped.add(label, count)
        worker.metrics.append.observe((*TIME_BOUNDS_S, 11.0)[bucket])
        worker.metrics.binary.messages_in += count
        worker.counted["appended_bytes", ""] += count
        worker.counted["closed_connections", label] += count
        worker.counted["append_seconds", BUCKETS[bucket]] += 1
        worker.counted["received_messages", "binary"] += count

    @precondition(lambda self: self.running)
    @rule(data=st.data(), parked=st.dictionaries(LABELS, st.integers(0, 9)), lag=st.integers(0, 9))
    def store(self, data: st.DataObject, parked: dict[str, int], lag: int) -> None:
        worker = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        worker.metrics.parked, worker.metrics.lag_bytes_max = parked, lag
        worker.writer.store(worker.metrics)
        worker.stored, worker.gauges = worker.counted.copy(), (parked, lag)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.running)))
        self.ended += self.running.pop(generation).stored
        self.board.free_row(generation)

    @invariant()
    def counters_are_what_was_stored_and_never_fall(self) -> None:
        expected = sum((worker.stored for worker in self.running.values()), self.ended)
        found = {(name, label): number for name in COUNTED for label, number in shown(self.board, name).items()}
        assert {key: number for key, number in found.items() if number and key[1] != SUM} == expected
        for key, number in self.seen.items():
            assert found[key] >= number
        self.seen = found

    @invariant()
    def gauges_are_the_last_of_those_that_run(self) -> None:
        parked: Counter[str] = Counter()
        for worker in self.running.values():
            parked.update(worker.gauges[0])
        found = shown(self.board, "parked_cursors")
        assert {label: number for label, number in found.items() if number} == {
            label: number for label, number in parked.items() if number
        }
        lags = [worker.gauges[1] for worker in self.running.values()]
        assert shown(self.board, "lag_bytes") == ({"": max(lags)} if lags else {})


TestRows = Rows.TestCase
TestRows.settings = settings(max_examples=examples(15), stateful_step_count=25, deadline=None)


def test_a_text_that_is_cut_is_still_text() -> None:
    row = MetricRow()
    family: MetricFamily = FAMILIES["copies"]
    row.add_text(family, "ü" * TEXT_BYTES)
    (value,) = row.read(family)
    assert value == "ü" * (metric_cells.TEXT_BYTES // 2)
