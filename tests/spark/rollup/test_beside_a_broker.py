"""Rolling up while a broker appends as fast as it can, and trims: what comes out is a prefix, and nothing is zeros."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark.rollup.day_plan import plan_day
from spark.rollup.reading import index_reader, run_task
from spark.rollup.table import NOTE, parse_note
from spark.source import Source, SourceOptions, open_source
from tailrace.address import Address
from tests.spark.test_beside_a_broker import (
    CONFIG,
    KEPT,
    NAMES,
    PAYLOAD_BYTES,
    ROUNDS_MAX,
    Publisher,
    has_holes,
    trimming,
)
from tests.system.node import running, wait_for

ROUNDS = 2

pytestmark = [pytest.mark.system, pytest.mark.slow]

Rows = list[dict[str, Any]]


def roll_up(source: Source) -> tuple[Rows, int]:
    """The rows of today and of yesterday, as midnight may pass meanwhile; and how many messages were trimmed while
    they were to be read."""
    today = datetime.now(UTC).date()
    plans = [plan_day(source, day, NAMES) for day in (today - timedelta(days=1), today)]
    assert not any(plan.bad for plan in plans)
    tasks = [task for plan in plans for task in plan.tasks]
    batches = [batch for task in tasks for batch in run_task(task, index_reader(source), None)]
    rows = pa.Table.from_batches(batches).to_pylist()
    notes = [row for row in rows if row["level"] == NOTE]
    for note in notes:
        assert "trimmed meanwhile" in parse_note(note["stream"])[1]
    return [row for row in rows if row["level"] != NOTE], sum(note["missing"] for note in notes)


def check(rows: Rows, name: str, sent: int) -> None:
    """Every number fits messages of one size, of which none is missing behind the first."""
    for level in ("minute", "hour", "day"):
        own = sorted(
            (row for row in rows if (row["level"], row["stream"]) == (level, name)), key=lambda row: row["start"]
        )
        assert own[-1]["last_seq"] >= sent - 1, "what was acknowledged before is in it"
        assert sum(row["messages"] for row in own) == own[-1]["last_seq"] - own[0]["first_seq"] + 1
        for row in own:
            assert row["bytes"] == row["messages"] * PAYLOAD_BYTES
            assert {row[f"size_{each}"] for each in ("min", "p50", "p99", "max")} == {PAYLOAD_BYTES}
            assert row["gap_max_us"] is None or 0 <= row["gap_min_us"] <= row["gap_max_us"] < 60_000_000


@pytest.mark.parametrize("way", ["directory", "brokers"])
def test_rollups_beside_appends_and_trims(tmp_path: Path, way: str) -> None:
    with running(tmp_path / "data", config=CONFIG) as node, Publisher(node) as publisher:
        wait_for(lambda: min(publisher.sent.values()) > 2 * KEPT or publisher.failure, "enough is published")
        addresses = (Address("127.0.0.1", node.port),)
        options = SourceOptions(str(node.data)) if way == "directory" else SourceOptions("", addresses)
        with trimming(node, publisher) as trims, closing(open_source(options)) as source:
            after_holes = 0
            for _ in range(ROUNDS_MAX):
                sent = dict(publisher.sent)
                rows, _ = roll_up(source)
                for name in NAMES:
                    check(rows, name, sent[name])
                after_holes += has_holes(node)
                if after_holes == ROUNDS:
                    break
            assert after_holes == ROUNDS
            assert trims[0] > ROUNDS
