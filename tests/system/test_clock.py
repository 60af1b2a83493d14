"""A node whose clock has jumped: retention by age waits until the jump has lasted, across restarts of workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tailrace.broker.streams.aging import CLOCK_FILE
from tests.system.node import Node, rows, running, wait_for
from tests.system.processes import worker_pid

pytestmark = pytest.mark.system

JUMP_S = 3_600
WAIT_S = 4
CONFIG = f"""
[timing]
retention_interval_s = "100 ms"
clock_jump_wait_s = "{WAIT_S} s"

[[stream]]
pattern = "*"
max_age_s = 1
"""


def first_seq(node: Node) -> int:
    with node.client() as client:
        table = rows(client.ask_table("stat s"))
    return next(int(row["value"]) for row in table if row["field"] == "first_seq")


def test_a_clock_that_was_set_forward_drops_nothing_at_once(tmp_path: Path) -> None:
    """Seen from what the node has written down, the clock is an hour ahead."""
    with running(tmp_path / "data", workers=1) as node, node.client() as client:
        client.send("ack on", "pub s |0", "pub s |1", "pub s |2")
        client.read_answers(4)
        clock = tmp_path / "data" / CLOCK_FILE
        believed = wait_for(lambda: clock.exists() and json.loads(clock.read_text()), "what is believed is written")
    believed["wall_us"] -= JUMP_S * 1_000_000
    clock.write_text(json.dumps(believed))
    with running(tmp_path / "data", workers=1, config=CONFIG) as node:
        wait_for(lambda: node.metric("tailrace_clock_jump_seconds") > JUMP_S - 60, "the jump is noticed")
        assert first_seq(node) == 0
        os.kill(worker_pid(node, 0), signal.SIGKILL)
        wait_for(
            lambda: node.log().count("(it has jumped") == 2 or "has stayed" in node.log(), "so does the next worker"
        )
        assert "has stayed" in node.log() or first_seq(node) == 0
        wait_for(lambda: first_seq(node) == 3, "a jump that has lasted is believed")
        assert "has stayed" in node.log()
        wait_for(lambda: node.metric("tailrace_clock_jump_seconds") == 0, "and that is told")
