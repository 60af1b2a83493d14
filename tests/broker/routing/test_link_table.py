"""The links of one worker: who owns a slot, which messages are queued, and when they are sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tailrace.broker.process.poller import Poller
from tailrace.broker.routing.link import WorkerLink
from tailrace.broker.routing.link_table import LinkTable
from tailrace.protocol import sibling

WINDOW_BYTES = 1 << 20


@pytest.fixture
def table() -> Iterator[LinkTable]:
    poller = Poller()
    yield LinkTable(3, 1, WINDOW_BYTES, poller, lambda: 0.0)
    poller.close()


@pytest.fixture
def pair(table: LinkTable) -> Iterator[tuple[WorkerLink, WorkerLink]]:
    """A link of the table to slot 0, and its other end."""
    left, right = socket.socketpair()
    links = WorkerLink(left, 0, 1, WINDOW_BYTES), WorkerLink(right, 1, 2, WINDOW_BYTES)
    table.open[0, 1] = links[0]
    table.poller.register(links[0].fileno(), 0, lambda _mask: None)
    yield links
    for link in links:
        if not link.closed:
            link.close()


def test_there_is_a_route_to_every_other_slot_and_after_retiring_to_its_own(table: LinkTable) -> None:
    assert table.routes.keys() == {0, 2}
    table.follow_successor(1)
    assert table.routes.keys() == {0, 1, 2} and table.routes[1].link is None


def test_a_slot_has_a_link_once_its_owner_is_known(table: LinkTable, pair: tuple[WorkerLink, WorkerLink]) -> None:
    assert table.link_to(0) is None and table.link_to(1) is None
    table.routes[0].switch(pair[0])
    assert table.link_to(0) is pair[0] and table.link_to(2) is None


def test_a_former_owner_is_told_that_it_may_leave(table: LinkTable, pair: tuple[WorkerLink, WorkerLink]) -> None:
    ours, theirs = pair
    left, right = socket.socketpair()
    successor = table.open[0, 2] = WorkerLink(left, 0, 2, WINDOW_BYTES)
    table.routes[0].switch(ours)
    table.routes[0].switch(successor)
    assert ours.wants_write and not successor.wants_write
    table.send()
    assert [opcode for opcode, _body in theirs.receive()] == [sibling.SWITCHED]
    successor.close()
    right.close()


def test_what_is_queued_goes_when_it_is_sent(table: LinkTable, pair: tuple[WorkerLink, WorkerLink]) -> None:
    ours, theirs = pair
    ours.queue(sibling.pack_switched())
    table.touch(ours)
    assert table.queued_bytes() == ours.queued_bytes > 0 and list(theirs.receive()) == []
    table.send()
    assert [opcode for opcode, _body in theirs.receive()] == [sibling.SWITCHED] and not table.queued_bytes()


def test_a_link_whose_other_end_is_gone_drops_what_is_queued(
    table: LinkTable, pair: tuple[WorkerLink, WorkerLink]
) -> None:
    ours, theirs = pair
    theirs.close()
    ours.queue(sibling.pack_switched())
    table.touch(ours)
    table.send()
    assert not table.queued_bytes()
