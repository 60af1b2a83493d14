"""Rolling up while a broker appends as fast as it can, and trims: the result is a prefix, and nothing is zeros."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tailrace.core.address import Address
from tailrace.spark.broker_source import UNKNOWN_SHARD
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.reading import index_reader, run_task
from tailrace.spark.rollup.table import NOTE, parse_note
from tailrace.spark.slices import Slice
from tailrace.spark.source import Source, SourceOptions, open_source
from tests.spark.test_beside_a_broker import CONFIG, KEPT, NAMES, PAYLOAD_BYTES, Publisher, look_beside_trims
from tests.system.node import running, wait_for
from tests.thorough import only_thorough

ROUNDS = 2

pytestmark = [pytest.mark.system, pytest.mark.slow]

Rows = list[dict[str, Any]]


class Rolled(NamedTuple):
    """The rows of today and of yesterday, as midnight may pass meanwhile; the plan for each stream; and how many
    messages of each were trimmed before they were read.
    """

    rows: Rows
    planned: dict[str, list[Slice]]
    missing: Counter[str]


def roll_up(source: Source) -> Rolled:
    today = datetime.now(UTC).date()
    plans = [plan_day(source, day, NAMES) for day in (today - timedelta(days=1), today)]
    assert not any(plan.bad for plan in plans)
    tasks = [task for plan in plans for task in plan.tasks]
    slices = [unit.slice for task in tasks for unit in task]
    batches = [batch for task in tasks for batch in run_task(task, index_reader(source), None)]
    rows, missing = pa.Table.from_batches(batches).to_pylist(), Counter[str]()
    for note in [row for row in rows if row["level"] == NOTE]:
        stream, text = parse_note(note["stream"])
        assert "trimmed meanwhile" in text
        missing[stream] += note["missing"]
    planned = {name: [slice_ for slice_ in slices if slice_.stream == name] for name in NAMES}
    return Rolled([row for row in rows if row["level"] != NOTE], planned, missing)


def check(rolled: Rolled, name: str, sent: int) -> int:
    """Every number fits messages of one size, of which none is missing but those that were trimmed meanwhile: before
    the first, or behind it if a reader over a connection was slower than the trims. Gives how many there are.
    """
    planned, counts = rolled.planned[name], set[int]()
    assert planned[-1].end_seq >= sent, "what was acknowledged before is in it"
    for level in ("minute", "hour", "day"):
        own = sorted(
            (row for row in rolled.rows if (row["level"], row["stream"]) == (level, name)), key=lambda row: row["start"]
        )
        counts.add(sum(row["messages"] for row in own))
        assert not own or own[-1]["last_seq"] == planned[-1].end_seq - 1
        if own:
            # Over a connection, messages that are trimmed while yesterday is planned are missing there.
            behind = own[-1]["last_seq"] - own[0]["first_seq"] + 1 - sum(row["messages"] for row in own)
            assert behind == 0 or (behind > 0 and planned[-1].shard == UNKNOWN_SHARD)
        for row in own:
            assert row["bytes"] == row["messages"] * PAYLOAD_BYTES
            assert {row[f"size_{each}"] for each in ("min", "p50", "p99", "max")} == {PAYLOAD_BYTES}
            assert row["gap_max_us"] is None or 0 <= row["gap_min_us"] <= row["gap_max_us"] < 60_000_000
    assert counts == {sum(slice_.messages for slice_ in planned) - rolled.missing[name]}
    return counts.pop()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["directory", *only_thorough("brokers")])
def test_rollups_beside_appends_and_trims(tmp_path: Path, way: str) -> None:
    with running(tmp_path / "data", config=CONFIG) as node, Publisher(node) as publisher:
        wait_for(lambda: min(publisher.sent.values()) > 2 * KEPT or publisher.failure, "enough is published")
        addresses = (Address("127.0.0.1", node.port),)
        options = SourceOptions(str(node.data)) if way == "directory" else SourceOptions("", addresses)
        with closing(open_source(options)) as source:

            def look(sent: dict[str, int]) -> int:
                rolled = roll_up(source)
                return sum([check(rolled, name, sent[name]) for name in NAMES])

            look_beside_trims(node, publisher, ROUNDS, look)
