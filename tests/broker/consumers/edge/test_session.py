"""What a connection asks of consumers: its bounds, messages that are not here yet, its members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.connection import handover
from tailrace.broker.connection.base import OUT_HIGH_BYTES, Pause
from tailrace.broker.consumers.edge import session
from tailrace.broker.streams import owner_calls
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.opcodes import Op
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tests.broker.connection.test_binary import failed
from tests.broker.consumers.edge.test_binary import get, payloads
from tests.broker.consumers.owning import Member, Owners, given
from tests.broker.world import World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_gets_without_an_answer_are_bounded(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    assert peer.ask(*(get(number, "s") for number in range(session.GETS_MAX))) == []
    assert failed(peer.ask(get(999, "s"))) == [("overloaded", Op.GET, 999, False)]
    owners.answer()
    assert peer.take() == [c.Got(0, (), (), 0, memoryview(b""))]
    assert peer.ask(get(1_000, "s")) == []
    assert len(owners.asked) == session.GETS_MAX


def test_members_of_a_connection_are_bounded(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MEMBERS_MAX", 2)
    owners, peer = Owners(node), Member(node)
    peer.ask(*(c.Get(number, b"s", b"n", b"m%d" % number) for number in range(2)))
    assert failed(peer.ask(c.Get(9, b"s", b"n", b"m2"))) == [("overloaded", Op.GET, 9, False)]
    assert peer.ask(c.Get(10, b"s", b"n", b"m1")) == [], "one that it has"
    owners.answer(Refused(Code.CONSUMER, "no such consumer"))
    peer.take()
    assert peer.ask(c.Get(11, b"s", b"n", b"m2")) == [], "in place of the one that there is not"


def test_who_does_not_read_gets_no_more_at_once(node: World) -> None:
    owners, peer, name = Owners(node), Member(node), node.name(0)
    large = b"x" * 100_000
    for _ in range(15):
        node.fill(name, [large])
    peer.peer.deaf = True
    client = node.binary_client_of(peer.peer)
    peer.ask(*(get(number, name) for number in range(4)))
    for _ in range(4):
        owners.answer(given([0, 15, 0]))
    assert OUT_HIGH_BYTES < len(client.out) < 2 * OUT_HIGH_BYTES, "one of them"
    assert node.workers[0].services.held_gets and client.awaited == 3
    answered = []
    peer.peer.deaf = False
    for _ in range(4):
        node.settle()
        answered += peer.take()
    assert [payloads(each) for each in answered] == [[large] * 15] * 4
    assert not node.workers[0].services.held_gets


def test_a_list_is_not_for_who_does_not_read(node: World) -> None:
    owners, peer = Owners(node), Member(node, small=True)
    peer.peer.deaf = True
    node.binary_client_of(peer.peer).out += m.pack(m.Ping()) * (OUT_HIGH_BYTES // 5 + 1)
    peer.ask(c.Consume(1, "list", b"s"))
    assert owners.asked == []
    peer.peer.deaf = False
    node.settle()
    answers = [each for each in peer.take() if each != m.Ping()]
    assert failed(answers) == [("overloaded", Op.CONSUME, 1, False)]


# --- messages that are not here yet -----------------------------------------------------------------------------------


def test_messages_that_this_node_does_not_have_yet_are_waited_for(node: World) -> None:
    owners, peer, name = Owners(node), Member(node), node.name(1)
    peer.ask(get(1, name))
    owners.answer(given([0, 2, 0]))
    node.fill(name, [b"a"])
    assert peer.take() == [] and node.workers[0].services.held_gets, "neither the stream nor all of its messages"
    node.fill(name, [b"b"])
    (got,) = peer.take()
    assert payloads(got) == [b"a", b"b"]
    assert not node.workers[0].services.held_gets


def test_but_no_longer_than_it_may(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the messages available, and in the end nothing: the owner has them in flight, and gives them again."""
    owners, peer, name = Owners(node), Member(node), node.name(1)
    node.fill(name, [b"a"])
    peer.ask(get(1, name), get(2, "absent"))
    owners.answer(given([0, 2, 0], stale=([4, 5],)))
    owners.answer(given([0, 2, 0]))
    assert peer.take() == []
    monkeypatch.setattr(session, "COPY_WAIT_MIN_S", 0.0)
    peer.ask(get(3, name, wait_ms=1))
    owners.answer(given([0, 3, 0]))
    monkeypatch.undo()
    _let_time_pass(node)
    found = {each.id: (each.runs, each.stale) for each in peer.take() if isinstance(each, c.Got)}
    assert found == {1: (((0, 1, 0, 1),), ((4, 5),)), 2: ((), ()), 3: (((0, 1, 0, 1),), ())}


def _let_time_pass(node: World) -> None:
    """As if the time of the held gets were over."""
    for worker in node.workers:
        for each in worker.services.held_gets:
            assert isinstance(each, session.ConsumerSession)
            for getting in each._gets:
                getting.until_s = 0.0
    node.settle()


def test_a_tail_that_was_set_aside_is_never_given(node: World) -> None:
    owners, peer, name = Owners(node), Member(node), node.name(0)
    node.fill(name, [b"a", b"b"])
    peer.ask(get(1, name))
    owners.answer(given([0, 1, 0]))
    peer.take()
    node.workers[0].owner.stream(name.encode()).log.set_aside(1)
    peer.ask(get(2, name))
    owners.answer(given([0, 2, 0]))
    assert peer.take() == []
    node.fill(name, [b"c"])
    (got,) = peer.take()
    assert payloads(got) == [b"a", b"c"]


def test_a_copy_that_has_other_messages_does_not_give_them(node: World) -> None:
    """It has not learned of the promotion that lost them; once it has, it has the right ones."""
    owners, peer, name = Owners(node), Member(node), node.name(0)
    node.fill(name, [b"a", b"lost"])
    peer.ask(get(1, name), get(2, name))
    owners.answer(given([1, 1, 0, 2]))
    owners.answer(given([0, 1, 0, 2]))
    assert peer.take() == [] and node.workers[0].services.held_gets
    owner = node.workers[0].owner
    owner.stream(name.encode()).log.set_aside(1)
    owner_calls.call(owner, "unmaster", [name.encode()])
    owner_calls.call(owner, "promote", [name.encode()])
    node.fill(name, [b"b"])
    (got,) = peer.take()
    assert isinstance(got, c.Got) and (payloads(got), got.runs) == ([b"b"], ((1, 1, 0, 2),))
    _let_time_pass(node)
    assert failed(peer.take()) == [("unavailable", Op.GET, 2, False)]


def test_a_damaged_stream_says_so(node: World) -> None:
    owners, peer, name = Owners(node), Member(node), node.name(0)
    node.fill(name, [b"a", b"b"])
    path = Path(stream_paths(node.workers[0].owner.catalog.shard_path(name.encode()), name).index_file)
    path.write_bytes(path.read_bytes()[:100])
    peer.ask(get(1, name))
    owners.answer(given([0, 2, 0]))
    assert failed(peer.take()) == [("damaged", Op.GET, 1, False)]


def test_messages_that_go_while_they_are_read(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at again, and counted then."""
    owners, peer, name = Owners(node), Member(node), node.name(0)
    node.fill(name, [b"a", b"b"])
    first_seq = StreamReader.first_seq
    said = iter([0])
    monkeypatch.setattr(StreamReader, "first_seq", lambda self: next(said, first_seq(self)))
    peer.ask(get(1, name))
    node.workers[0].owner.stream(name.encode()).log.trim(1)
    owners.answer(given([0, 2, 0], trimmed=3))
    (got,) = peer.take()
    assert payloads(got) == [b"b"]
    assert isinstance(got, c.Got) and got.trimmed == 4


# --- members ----------------------------------------------------------------------------------------------------------


def test_members_are_away_when_their_connection_has_ended(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    peer.ask(c.Get(1, b"s", b"n", b"m"), c.Get(2, b"s", b"n", b"m"), c.Get(3, b"t", b"n", b"m"))
    peer.ask(c.Get(4, b"u", b"gone", b"m"))
    for _ in range(3):
        owners.answer()
    owners.answer(Refused(Code.CONSUMER, "no such consumer"))
    assert owners.told == []
    peer.ask(m.Close())
    peer.peer.close()
    node.settle()
    assert [(each.do, each.name, each.member) for each in owners.told] == [("away", b"n", b"m")] * 2


def test_a_member_that_has_left_is_not_away(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    for number, member in enumerate((b"left", b"refused", b"stays")):
        peer.ask(c.Get(number, b"s", b"n", member))
        owners.answer()
    peer.take()
    assert peer.ask(*(c.Consume(7, "leave", b"s", b"n", ack=2, member=each) for each in (b"left", b"refused"))) == []
    assert owners.asked[0] == c.Consume(7, "leave", b"s", b"n", ack=2, member=b"left")
    owners.answer({})
    owners.answer(Refused(Code.UNAVAILABLE, "not now"))
    answers = peer.take()
    assert answers[0] == c.Consumed(7) and failed(answers[1:]) == [("unavailable", Op.CONSUME, 7, False)]
    peer.ask(m.Close())
    peer.peer.close()
    node.settle()
    assert [(each.do, each.member) for each in owners.told] == [("away", b"refused"), ("away", b"stays")]


def test_a_member_that_asks_again_before_its_leave_is_answered_is_one(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    for number in (1, 2):
        peer.ask(c.Get(number, b"s", b"n", b"m%d" % number))
        owners.answer()
    peer.take()
    for number in (1, 2):
        peer.ask(c.Consume(7, "leave", b"s", b"n", ack=2, member=b"m%d" % number))
    peer.ask(c.Get(8, b"s", b"n", b"m1"))
    owners.answer({})
    owners.answer({})
    owners.answer()
    peer.ask(m.Close())
    peer.peer.close()
    node.settle()
    assert [(each.do, each.member) for each in owners.told] == [("away", b"m1")]


def test_the_members_of_a_deleted_consumer_are_gone_with_it(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MEMBERS_MAX", 2)
    owners, peer = Owners(node), Member(node)
    for number, (name, member) in enumerate(((b"n", b"m"), (b"other", b"m"))):
        peer.ask(c.Get(number, b"s", name, member))
        owners.answer()
    peer.take()
    peer.ask(c.Consume(7, "delete", b"s", b"n"))
    owners.answer(Refused(Code.UNAVAILABLE, "not now"))
    peer.take()
    assert failed(peer.ask(c.Get(8, b"s", b"next", b"m"))) == [("overloaded", Op.GET, 8, False)]
    peer.ask(c.Consume(9, "delete", b"s", b"n"))
    owners.answer({})
    assert peer.take() == [c.Consumed(9)]
    assert peer.ask(c.Get(10, b"s", b"next", b"m")) == [], "in place of the one that is deleted"
    owners.answer()
    peer.ask(m.Close())
    peer.peer.close()
    node.settle()
    assert [(each.do, each.name) for each in owners.told] == [("away", b"other"), ("away", b"next")]


def test_members_go_along_when_the_connection_is_handed_over(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    peer.ask(get(1, "s"))
    owners.answer()
    client = node.binary_client_of(peer.peer)
    node.workers[0].links.hand_over(node.workers[0].links.link_to(1), *handover.detach(client))  # type: ignore[arg-type]
    node.settle()
    assert node.worker_of(node.binary_client_of(peer.peer)) is node.workers[1]
    assert owners.told == []
    peer.ask(get(2, "s"))
    owners.answer()
    peer.ask(m.Close())
    peer.peer.close()
    node.settle()
    assert [each.do for each in owners.told] == ["away"]


@pytest.mark.parametrize("reason", [Pause.MOVE, Pause.LEAVING])
def test_a_connection_that_is_to_move_waits_for_nothing(node: World, reason: Pause) -> None:
    owners, peer = Owners(node), Member(node)
    peer.ask(get(1, "s", wait_ms=60_000))
    client = node.binary_client_of(peer.peer)
    assert not handover.possible(client)
    client.pause(reason)
    client.pause(reason)
    assert [each.do for each in owners.told] == ["wake"], "once"
    owners.answer()
    assert peer.take() == [c.Got(1, (), (), 0, memoryview(b""))]
    assert handover.possible(client)


def test_what_was_given_and_is_not_here_does_not_hold_it_up(node: World) -> None:
    owners, peer, name = Owners(node), Member(node), node.name(0)
    node.fill(name, [b"a"])
    peer.ask(get(1, name, wait_ms=60_000))
    owners.answer(given([0, 2, 0]))
    client = node.binary_client_of(peer.peer)
    client.pause(Pause.LEAVING)
    node.settle()
    (got,) = peer.take()
    assert payloads(got) == [b"a"] and owners.told == [] and handover.possible(client)


def test_a_pause_of_another_kind_is_none(node: World) -> None:
    owners, peer = Owners(node), Member(node)
    peer.ask(get(1, "s", wait_ms=60_000))
    client = node.binary_client_of(peer.peer)
    client.pause(Pause.LINK)
    assert owners.told == []
    client.resume(Pause.LINK)
