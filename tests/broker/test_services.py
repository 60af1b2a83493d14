"""The state that the connections of one worker share: the list of them, and the work that is due for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.world import World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def test_connections_are_counted_on_the_board_while_they_are_open(node: World) -> None:
    services, cells = node.workers[1].services, node.board.slot(1)
    peers = [node.connect(1) for _ in range(3)]
    node.settle()
    assert len(services.clients) == cells.connections == 3
    peers[0].close()
    node.settle()
    assert len(services.clients) == cells.connections == 2
    assert services.metrics.dropped.counts == {"ended": 1}


def test_a_connection_that_shows_what_it_speaks_takes_the_place_of_the_newcomer(node: World) -> None:
    services, peer = node.workers[0].services, node.connect(0)
    (newcomer,) = services.clients.values()
    services.note_answered(newcomer)
    assert node.ask(peer, "ping") == ["ok pong"]
    (client,) = services.clients.values()
    assert client is not newcomer and client.fd == newcomer.fd and newcomer not in services.answered


def test_nothing_is_kept_of_a_closed_connection(node: World) -> None:
    services, peer = node.workers[0].services, node.connect(0)
    client = node.client_of(peer)
    services.note_answered(client)
    services.note_lingering(client)
    client.close("reset")
    services.client_closed(client, "twice")
    assert not (services.clients or services.answered or services.lingering)
    assert services.metrics.dropped.counts == {"reset": 1}


def test_streams_of_other_workers_are_remote(node: World) -> None:
    services = node.workers[0].services
    assert not services.is_remote(node.name(0).encode()) and services.is_remote(node.name(1).encode())


class _Held:
    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def holds(self) -> bool:
        return self.looks > 0

    def retry(self) -> None:
        self.looks -= 1


def test_held_gets_are_looked_at_until_they_are_answered(node: World) -> None:
    services = node.workers[0].services
    soon, late = _Held(1), _Held(2)
    services.held_gets.update({soon: None, late: None})
    services.retry_held_gets()
    assert list(services.held_gets) == [late]
    services.retry_held_gets()
    assert not services.held_gets
