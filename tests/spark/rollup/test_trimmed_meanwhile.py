"""`tailrace rollup` with Spark, as a program of its own, beside a broker that trims."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tailrace.cli.ending import OK
from tailrace.shard.leaves import interpreted_wanted
from tests.spark.java import with_quick_java
from tests.spark.rollup.tables import read_tables
from tests.spark.test_beside_a_broker import KEPT, NAMES, PAYLOAD_BYTES, Publisher
from tests.system.node import Node, running, wait_for
from tests.tidy import tree

pytestmark = [pytest.mark.slow, pytest.mark.system]


@contextmanager
def trimming_slowly(node: Node) -> Iterator[None]:
    """Trims some messages of each stream all the time, but always leaves some to read."""
    stop = threading.Event()

    def run() -> None:
        with node.client() as client:
            for step in range(1, KEPT):
                for name in NAMES:
                    assert client.ask(f"trim {name} #{step}").startswith("ok trim")
                if stop.wait(0.1):
                    return

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
        done.result()


@pytest.mark.thorough
def test_a_broker_that_trims_all_the_time(tmp_path: Path) -> None:
    """The command as a program of its own: while it starts Spark, messages it has planned to read are trimmed."""
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    with running(tmp_path / "data") as node, Publisher(node) as publisher:
        wait_for(lambda: min(publisher.sent.values()) > 2 * KEPT or publisher.failure, "enough is published")
        publisher.slowly(2.0)
        today = datetime.now(UTC).date()
        command = [sys.executable, "-m", "tailrace.cli.main", "rollup", str(node.data), str(tmp_path / "out")]
        with trimming_slowly(node):
            done = subprocess.run(
                [*command, "--day", str(today), "--no-report", "--engine", "spark"],
                cwd=tree.ROOT,
                env=with_quick_java(),
                capture_output=True,
                text=True,
                timeout=900,  # beside others the start of Java alone has taken five minutes
                check=False,
            )
    assert done.returncode == OK, done.stderr
    assert all(line.startswith("tailrace: ") for line in done.stderr.splitlines()), "nothing of Java's is heard"
    for name in NAMES:
        assert f"tailrace: {name}: " in done.stderr
        assert "messages were trimmed meanwhile" in done.stderr
    rows = {stream: row for (level, stream, _), row in read_tables(tmp_path / "out", today).items() if level == "day"}
    assert rows.keys() == set(NAMES)
    for row in rows.values():
        assert row["missing"] > 0
        assert row["messages"] == row["last_seq"] - row["first_seq"] + 1
        assert row["bytes"] == PAYLOAD_BYTES * row["messages"]
