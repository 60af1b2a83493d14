"""Calls by slot: those that every worker answers itself, and those that the owner of its streams answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.broker.routing.calls import WorkerCalls
from tests.broker.world import world


def test_a_worker_answers_its_own_verbs_and_sends_on_the_rest(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        calls = WorkerCalls(
            node.workers[0].router, 0, {"double": lambda value: 2 * value, "links": lambda _name: "here"}
        )
        answers: list[Any] = []
        calls.call_slot(0, "double", [21], answers.append)
        assert answers == [42], "without a turn of the loop"
        calls.call_slot(0, "streams", [b""], answers.append)
        calls.call_slot(1, "links", [None], answers.append)
        node.settle()
        assert answers[1:] == [[], [[], 0, 0, 0, 0]], "the other worker answers with its own links"
        assert calls.answers("double") and not calls.answers("streams")
