"""A subscription of more streams than a connection may have, on a real node, over deaths of its other worker."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.system.node import Node, running, wait_for

pytestmark = pytest.mark.system

STREAMS = 24
CONFIG = "[node]\naffinity = false\n\n[limits]\nmax_subscriptions = 8\n"


def has_replaced(node: Node, killed: int) -> bool:
    return len(node.worker_pids()) == 2 and killed not in node.worker_pids()


def test_nothing_that_was_acknowledged_is_missing_over_deaths_of_the_other_worker(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(STREAMS)]
    with (
        running(tmp_path / "data", workers=2, config=CONFIG) as node,
        node.client_of(0) as reader,
        node.client_of(0) as writer,
    ):
        writer.ask("ack on")
        writer.send(*(f"pub {name} |first" for name in names))
        writer.read_answers(STREAMS)
        assert reader.ask("sub s* new") == "ok sub s* many"
        acknowledged: set[str] = set()
        for death in range(3):
            killed = node.worker_pids()[1]
            os.kill(killed, signal.SIGKILL)
            for times in range(20):
                payload = f"{death}.{times}"
                writer.answers.clear()
                writer.send(*(f"pub {name} |{payload}" for name in names))
                answers = writer.read_answers(STREAMS)
                assert len(answers) == STREAMS
                acknowledged |= {f"{each.split()[2]} {payload}" for each in answers if each.startswith("ok pub ")}
            wait_for(partial(has_replaced, node, killed), "the killed worker is replaced")

        def found() -> list[str]:
            return [f"{each.stream} {each.payload.decode()}" for each in reader.messages]

        reader.read_until(lambda: acknowledged <= set(found()))
        assert len(found()) == len(set(found())), "none came twice"
        assert reader.answers == ["ok sub s* many"]
