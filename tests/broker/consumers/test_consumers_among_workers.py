"""Gets that wait at the owner of their stream, which is another worker than the one that was asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.streams.refused import Refused
from tailrace.broker.worker import WorkerPhase
from tailrace.protocol.consuming import Consume, Get
from tailrace.protocol.errors import Code
from tailrace.protocol.places import From
from tests.broker.world import World, world

C, M = b"c", b"m"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def ask(node: World, request: Consume | Get, slot: int = 0) -> list[Any]:
    """What the worker of a slot is answered by the stream's owner."""
    answers: list[Any] = []
    verb = type(request).__name__.lower()
    node.workers[slot].router.call(request.stream, verb, [request.stream, request], answers.append)
    node.settle()
    return answers


def get(node: World, name: str, wait_ms: int = 0, slot: int = 0, most: int = 10) -> list[Any]:
    return ask(node, Get(1, name.encode(), C, M, max_messages=most, wait_ms=wait_ms), slot)


@pytest.fixture
def name(node: World) -> str:
    """A stream of the second worker's, with a consumer that has nothing to do."""
    name = node.name(1)
    node.ask(node.connect(1), f"master {name}")
    created = {"next_seq": 0, "created": True}
    assert ask(node, Consume(1, "create", name.encode(), C, From("seq", 0))) == [created]
    return name


def code_of(answers: list[Any]) -> Code:
    (answer,) = answers
    assert isinstance(answer, Refused)
    return answer.code


@pytest.mark.parametrize("slot", [0, 1])
def test_what_is_published_is_given_in_the_same_turn(node: World, name: str, slot: int) -> None:
    waiting = get(node, name, 60_000, slot)
    assert not waiting
    node.fill(name, [b"one"])
    runs = [[0, 1, 0, 1]] if slot == 0 else ((0, 1, 0, 1),)
    assert waiting[0]["runs"] == runs


def test_a_get_that_waits_long_is_not_given_up_and_holds_nobody_up(
    node: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = get(node, name, 60_000)
    route = node.workers[0].routes[1]
    assert len(route.inflight) == 1 and not route.bytes_held
    route.expire(float("inf"))
    node.settle()
    assert not waiting
    node.fill(name, [b"one"])
    assert waiting[0]["runs"] == [[0, 1, 0, 1]] and not route.inflight


@pytest.mark.parametrize("slot", [0, 1])
def test_who_waits_while_the_owner_is_replaced_asks_its_successor(node: World, name: str, slot: int) -> None:
    waiting = get(node, name, 60_000, slot)
    owner = node.workers[1]
    owner._retire()
    node.settle()
    assert len(waiting) == 1 and not waiting[0]["runs"]
    assert not owner.owner.catalog.owning and not owner.desk.books
    later = get(node, name, 60_000, slot)
    assert not later, "that waits for who comes next"


def test_who_waits_when_the_owner_dies_hears_it(node: World, name: str) -> None:
    waiting = get(node, name, 60_000)
    asked = node.workers[0]
    asked.siblings._closed(asked.links.open[1, 2])
    assert code_of(waiting) is Code.UNAVAILABLE


def test_nobody_waits_while_the_node_stops(node: World, name: str) -> None:
    waiting = get(node, name, 60_000)
    node.workers[1]._drain()
    node.settle()
    assert len(waiting) == 1 and not waiting[0]["runs"]
    assert len(get(node, name, 60_000)) == 1
    assert node.workers[1].phase in (WorkerPhase.DRAINING, WorkerPhase.DRAINED)


def test_what_is_due_is_given_by_the_timer(node: World, name: str) -> None:
    node.fill(name, [b"one"])
    assert get(node, name)[0]["runs"] == [[0, 1, 0, 1]]
    owner = node.workers[1].owner
    clock_us = owner.clock_us
    answers: list[Any] = []
    node.workers[0].router.call(
        name.encode(),
        "get",
        [name.encode(), Get(1, name.encode(), C, b"other", max_messages=1, wait_ms=60_000)],
        answers.append,
    )
    node.settle()
    began_us = clock_us()
    for later_s in (31, 33):  # its deadline, and the wait after that
        assert not answers
        owner.clock_us = itertools.repeat(began_us + later_s * 1_000_000).__next__
        node.workers[1]._often()
        node.settle()
    assert answers[0]["runs"] == [[0, 1, 1, 1]]


def test_nothing_of_it_costs_anything_while_nobody_consumes(node: World) -> None:
    node.fill(node.name(1), [b"x"] * 10)
    for worker in node.workers:
        assert not worker.desk.books and not worker.desk.pending and not worker.desk.waiters.count
