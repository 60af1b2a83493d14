"""Which workers learn of the growth of all streams, and from which message on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.routing import growth_watch
from tailrace.broker.streams.open_stream import Growth
from tests.broker.world import World, world

OWN, OTHER = (0, 1), (1, 2)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2) as node:
        node.stop_timers()
        node.fill(node.name(0, "a"), [b"0"])
        yield node


def test_growth_begins_where_it_was_announced_last(node: World) -> None:
    """Only the last of several appends in one turn is at hand."""
    watch, name = node.workers[0].siblings.watch, node.name(0, "a").encode()
    watch.tick(float("inf"))
    assert watch.early is None and not watch.watchers
    node.fill(name.decode(), [b"1", b"2"])
    assert watch.watch(*OWN, True) is None
    assert watch.announce({name: Growth(7, 9, 0, bytearray())}) == [(name, 3)]
    assert watch.announce({name: Growth(9, 10, 0, bytearray())}) == [(name, 9)]
    assert watch.announce({name: Growth(2, 3, 0, bytearray())}) == [(name, 2)], "it was cut"
    assert watch.announce({b"gone": Growth(2, 3, 0, bytearray())}) == [(b"gone", 2)]
    assert watch.announce({b"$last/a": Growth(2, 3, 0, bytearray()), b"a/$dead": Growth(2, 3, 0, bytearray())}) == []
    assert watch.watch(*OWN, False) is None and not watch.watchers


def test_messages_that_were_there_before_a_copy_was_begun_are_no_growth(node: World) -> None:
    worker = node.workers[0]
    watch, quiet = worker.siblings.watch, worker.owner.roles.copies.quiet
    watch.watch(*OWN, True)
    quiet.update({b"a": 5, b"b": 5})
    grown = {b"a": Growth(0, 4, 0, bytearray()), b"b": Growth(3, 7, 0, bytearray()), b"c": Growth(1, 2, 0, bytearray())}
    assert watch.announce(grown) == [(b"b", 5), (b"c", 1)]
    assert watch.announce({b"a": Growth(4, 5, 0, bytearray()), b"b": Growth(7, 8, 0, bytearray())}) == [(b"b", 7)]
    assert watch.announce({b"a": Growth(5, 6, 0, bytearray())}) == [(b"a", 5)] and not quiet


def test_a_worker_that_is_gone_is_forgotten(node: World) -> None:
    watch, name = node.workers[0].siblings.watch, node.name(0, "a").encode()
    for key in (OTHER, (1, 9)):
        watch.watch(*key, True)
    assert watch.announce({name: Growth(1, 2, 0, bytearray())}) == []
    assert list(watch.watchers) == [OTHER]


def test_what_grew_at_first_is_known_for_a_while(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = node.workers[0].siblings.watch
    watch.owns(10.0)
    for number in range(3):
        watch.announce({b"a": Growth(number, number + 1, 0, bytearray()), b"b": Growth(5, 6, 0, bytearray())})
    watch.tick(10.0)
    assert watch.watch(*OTHER, True) == [(b"a", 0), (b"b", 5)]
    watch.forget(b"a")
    assert watch.watch(*OTHER, True) == [(b"b", 5)]
    watch.tick(10.0 + growth_watch.EARLY_S)
    assert watch.watch(*OTHER, True) is None
    watch.owns(10.0)
    monkeypatch.setattr(growth_watch, "EARLY_STREAMS_MAX", 1)
    watch.announce({b"a": Growth(0, 1, 0, bytearray()), b"b": Growth(5, 6, 0, bytearray())})
    assert watch.watch(*OTHER, True) is None, "they were too many"
