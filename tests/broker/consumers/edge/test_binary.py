"""CONSUME and GET on a binary connection: the requests to the owner, and the answers to the client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.opcodes import Op
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.leaves import load
from tests.broker.binary import BinaryPeer
from tests.broker.connection.test_binary import failed
from tests.broker.consumers.owning import Member, Owners, given
from tests.broker.world import World, world
from tests.protocol.wires import STANDING

_parse = load("tailrace.shard.frame_cy").parse


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def payloads(answer: m.Response) -> list[bytes]:
    """Those of a GOT, whose frames are right and are those of its runs."""
    assert isinstance(answer, c.Got)
    found, place = [], 0
    for seq in [first + each for first, count, *_ in answer.runs for each in range(count)]:
        end = place + int.from_bytes(answer.frames[place : place + 4], "little")
        ((number, *_rest, payload),) = _parse(answer.frames, place, end, True)
        assert number == seq
        found.append(bytes(payload))
        place = end
    assert place == len(answer.frames)
    return found


def get(number: int, name: str, **more: object) -> c.Get:
    return c.Get(number, name.encode(), b"n", b"m", **{"max_messages": 9, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [0, 1])
def test_create_asks_the_owner_and_makes_no_stream(node: World, where: int) -> None:
    owners, peer, name = Owners(node), Member(node), node.name(where)
    stream = name.encode()
    assert peer.ask(c.Consume(1, "create", stream, b"n", From("seq", 7), 0.5, 3, 3, 2)) == []
    assert owners.asked == [c.Consume(1, "create", stream, b"n", From("seq", 7), 0.5, 3, 3, 2)]
    assert stream not in node.workers[where].owner.catalog.names
    owners.answer({"next_seq": 7, "created": True})
    assert peer.take() == [c.Consumed(1, 7, True)]


def test_reset_delete_and_list(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    requests = [
        c.Consume(1, "reset", b"s", b"n", FROM_NEW, ack=2),
        c.Consume(2, "delete", b"s", b"n"),
        c.Consume(3, "list", b"s"),
    ]
    peer.ask(*requests)
    assert owners.asked == requests
    owners.answer({"next_seq": 4})
    owners.answer({"existed": False})
    caught_up = {key: value for key, value in asdict(STANDING).items() if key != "lag_us"}
    owners.answer({"consumers": [caught_up | {"lag_us": 5}, caught_up]})
    told = peer.take()
    assert told[:2] == [c.Consumed(1, 4), c.Consumed(2, existed=False)]
    assert isinstance(told[2], c.Consumed) and told[2].consumers is not None
    assert [row.lag_us for row in told[2].consumers] == [5, None]


def test_a_get_is_answered_with_the_frames_of_its_runs(node: World) -> None:
    owners, peer, name = Owners(node), Member(node, 1), node.name(0)
    node.fill(name, [b"a", b"b", b"c", b"d"])
    wanted = get(4, name, finished=((0, 1, 1),), failed=((2, 1, "why"),), max_bytes=5, wait_ms=70, fresh=True, ack=2)
    peer.ask(wanted)
    assert owners.asked == [wanted]
    owners.answer(given([3, 1, 0], stale=([0, 0],), trimmed=2))
    (got,) = peer.take()
    assert isinstance(got, c.Got)
    assert (got.id, got.runs, got.stale, got.trimmed, payloads(got)) == (4, ((3, 1, 0, 1),), ((0, 0),), 2, [b"d"])
    peer.ask(get(5, name))
    owners.answer(given([3, 1, 1], [0, 2, 0]))
    (got,) = peer.take()
    assert payloads(got) == [b"d", b"a", b"b"]
    assert node.workers[1].metrics.binary.messages_out == 4


def test_an_answer_without_messages(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    peer.ask(get(1, "nowhere", max_messages=0))
    owners.answer()
    assert peer.take() == [c.Got(1, (), (), 0, memoryview(b""))]


def test_what_the_owner_refuses(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    peer.ask(get(1, "s"), c.Consume(2, "delete", b"s", b"n"))
    owners.answer(Refused(Code.CONSUMER, "no such consumer"))
    owners.answer(Refused(Code.UNKNOWN, "no such stream"))
    assert failed(peer.take()) == [("consumer", Op.GET, 1, False), ("unknown", Op.CONSUME, 2, False)]
    assert node.workers[0].metrics.refused.counts == {"consumer": 1, "unknown": 1}


def test_a_get_that_waits_holds_nothing_up(node: World) -> None:
    owners, peer, name = Owners(node), Member(node), node.name(0)
    peer.open(name)
    peer.say(get(1, name, wait_ms=60_000), m.Ping())
    peer.publish(1, b"a")
    node.settle()
    assert peer.take() == [m.Pong(), m.Published(1, ((0, 1, 0),))]
    owners.answer(given([0, 1, 0]))
    (got,) = peer.take()
    assert payloads(got) == [b"a"]


def test_close_ends_the_waiting_and_comes_after_the_answers(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    assert peer.ask(get(1, "s", wait_ms=60_000), m.Close()) == []
    assert owners.told == [c.MemberNotice("wake", b"s", b"n", b"m")] and not peer.peer.ended
    owners.answer()
    assert peer.take() == [c.Got(1, (), (), 0, memoryview(b""))]
    assert peer.peer.ended


def test_a_connection_that_is_gone_is_told_and_answered_nothing(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    peer.ask(get(1, "s", wait_ms=60_000), c.Consume(2, "list", b"s"))
    peer.peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.peer.close()
    node.workers[0].services.clients[next(iter(node.workers[0].services.clients))].close("reset")
    (told,) = owners.told
    assert told.do == "away" and told.idle_ms >= 0
    owners.answer(given([0, 1, 0]))
    owners.answer({"consumers": []})
    assert not node.workers[0].services.clients and not node.workers[0].services.held_gets


def test_who_has_not_agreed_on_it(node: World) -> None:
    peer = BinaryPeer(node)
    assert failed(peer.ask(get(1, "s"), c.Consume(2, "list", b"s"))) == [
        ("protocol", Op.GET, 0, False),
        ("protocol", Op.CONSUME, 0, False),
    ]
