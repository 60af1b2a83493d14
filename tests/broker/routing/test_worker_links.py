"""Workers of one node among themselves: publishes and calls passed on, growth announced, ends survived."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.routing.requests import CALL_BYTES, OwnerCall
from tailrace.broker.routing.worker_links import ForwardedPublish
from tailrace.broker.streams.refused import Refused
from tailrace.broker.worker import WorkerPhase
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol import sibling
from tailrace.protocol.consuming import Get
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import pack_frame
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.world import World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=3, affinity=False) as node:
        yield node


def test_interest_begins_with_the_first_subscription_and_ends_with_the_last(node: World) -> None:
    name = node.name(2)
    interest = node.workers[2].siblings.interest
    one, two, other = node.connect(0), node.connect(0), node.connect(1)
    for peer in (one, two, other):
        node.ask(peer, f"sub {name} 0 wait")
    assert {link.slot for link in interest.streams[name.encode()].links} == {0, 1}
    node.ask(one, f"unsub {name}")
    node.ask(other, f"unsub {name}")
    assert {link.slot for link in interest.streams[name.encode()].links} == {0}
    two.send("close")
    node.settle()
    assert not interest.streams


def test_growth_is_told_to_those_who_want_to_know(node: World) -> None:
    name, own = node.name(2), node.name(2, "own")
    here, there, idle = node.connect(2), node.connect(0), node.connect(1)
    node.ask(here, f"sub {name} 0 wait", f"sub {own} 0 wait")
    node.ask(there, f"sub {name} 0 wait")
    node.ask(idle, "ping")
    node.fill(name, [b"1", b"2", b"3"])
    node.fill(own, [b"x"])
    assert there.messages() == [(name, 0, "1"), (name, 1, "2"), (name, 2, "3")]
    assert here.messages() == [*there.messages(), (own, 0, "x")]
    assert node.workers[0].fanout.feeds[name.encode()].end_seq == 3
    assert own.encode() not in node.workers[0].fanout.feeds


def test_what_grew_while_the_interest_was_on_its_way_is_not_missed(node: World) -> None:
    name = node.name(2)
    node.fill(name, [b"0"])
    reader = node.connect(0)
    reader.send(f"sub {name} 0 wait")
    node.settle(0)
    assert reader.messages() == [(name, 0, "0")]
    owner = node.workers[2]
    batch = StreamBatch(name.encode(), 2)
    batch.add_quiet(node.client_of(reader), 1, bytearray(pack_frame(b"1")))
    owner.owner.append(batch, owner.services.now_s)
    owner.announce()  # nobody is interested yet
    node.settle()
    assert reader.messages() == [(name, 0, "0"), (name, 1, "1")]


def test_publishes_of_several_workers_to_one_stream(node: World) -> None:
    name = node.name(1)
    peers = [node.connect(slot) for slot in range(3)]
    for number in range(20):
        for slot, peer in enumerate(peers):
            peer.send("ack on", f"pub {name} |{slot} {number}")
    node.settle()
    seqs = [[int(line.split()[3]) for line in peer.lines if line.startswith("ok pub")] for peer in peers]
    assert sorted(seq for each in seqs for seq in each) == list(range(60))
    assert all(each == sorted(each) for each in seqs), "the order of each publisher holds"


def test_an_owner_that_is_gone_fails_what_was_asked_of_it(node: World) -> None:
    name = node.name(1)
    peer = node.connect(0)
    peer.send("ack on", f"pub {name} |x", f"stat {name}")
    node.settle(0)
    assert peer.take() == ["ok ack on"]
    (left,) = [link for (slot, _generation), link in node.workers[1].links.open.items() if slot == 0]
    left.close()
    node.settle(0)
    assert [" ".join(line.split()[:2]) for line in peer.take()] == ["err unavailable"] * 2
    assert node.workers[0].links.link_to(1) is None
    assert node.workers[0].links.link_to(2) is not None


def test_what_waits_for_an_owner_goes_to_the_next_one(node: World) -> None:
    """The worker of a slot is gone; until another one owns its shards, publishes wait, and lose nothing."""
    name = node.name(1)
    peer, reader = node.connect(0), node.connect(0)
    node.ask(reader, f"sub {name} 0 wait")
    for link in list(node.workers[0].links.open.values()):
        if link.slot == 1:
            node.workers[0].siblings._closed(link)
    node.settle(1)
    peer.send("ack on", f"pub {name} |x", f"pub {name} |y")
    node.settle(0)
    assert peer.lines == ["ok ack on"]
    left, right = socket.socketpair()
    node.workers[0].siblings.add(1, 9, left.detach())
    node.workers[1].siblings.add(0, 1, right.detach())
    node.workers[0].siblings.owner_is(1, 9)
    node.workers[0].siblings.owner_is(1, 77)  # a process without a link: ignored
    node.settle()
    assert peer.lines == ["ok ack on", f"ok pub {name} 0", f"ok pub {name} 1"]
    assert reader.messages() == [(name, 0, "x"), (name, 1, "y")], "the new one was told of the interest"


def test_a_worker_that_owns_nothing_any_more_says_so(node: World) -> None:
    """Its siblings keep the requests it did not do, for its successor, in order."""
    name = node.name(1)
    node.fill(name, [b"before"])
    peer = node.connect(0)
    retired = node.workers[1]
    retired._retire()
    assert retired.phase is WorkerPhase.RETIRED
    peer.send("ack on", f"pub {name} |x", f"stat {name}", f"pub {name} |y")
    node.settle(0, 1)
    route = node.workers[0].routes[1]
    assert peer.lines == ["ok ack on"] and len(route.waiting) == 3 and not route.inflight
    route.expire(node.workers[0].services.now_s + 1)
    node.settle(0, 1)
    assert [" ".join(line.split()[:2]) for line in peer.lines[1:]] == ["err unavailable"] * 3


def test_conns_are_asked_of_a_worker_that_owns_nothing(node: World) -> None:
    peer, other = node.connect(0), node.connect(1)
    node.ask(other, "ping")
    node.workers[1]._retire()
    assert [line.split()[0] for line in node.ask(peer, "conns")[1:-1]] == ["0", "1"]


def test_a_forwarded_publish_is_answered_when_all_its_streams_are() -> None:
    sent: list[bytes] = []

    class FakeLink:
        closed = False

        def queue(self, data: bytes) -> None:
            sent.append(data)

    link, siblings = FakeLink(), Mock()
    forwarded = ForwardedPublish(siblings, link, 7)  # type: ignore[arg-type]
    first, second = forwarded.part(True), forwarded.part(False)
    batch = StreamBatch(b"s", 0)
    batch.add(second, 0, 1, bytearray(40))
    assert batch.creator() is None
    first.published(0, 5, 9)
    assert sent == [] and not siblings.links.touch.called
    batch.refused(Code.STREAMS, "no more")
    assert len(sent) == 1
    siblings.links.touch.assert_called_once_with(link)
    late = ForwardedPublish(siblings, link, 8)  # type: ignore[arg-type]
    part = late.part(True)
    link.closed = True
    part.published(0, 1, 0)
    assert len(sent) == 1, "nobody is there to hear it"


@pytest.mark.parametrize("open_for", [(False, True), (True, True, False)])
def test_a_stream_that_is_opened_or_closed_between_two_reads_of_a_turn_keeps_its_order(
    node: World, open_for: tuple[bool, ...]
) -> None:
    """A turn with publishes to very many streams reads the links several times."""
    name, peer, worker = node.name(1), node.connect(0), node.workers[1]
    node.fill(name, [b"0"])
    node.wait_synced()
    for number, is_open in enumerate(open_for, start=1):
        stream = worker.owner.stream(name.encode())
        if not is_open:
            worker.owner.forget(stream)
        peer.send(f"pub {name} |{number}")
        node.workers[0].turn()
        worker._handle(worker.poller.poll(1))
    node.settle()
    peer.send(f"sub {name} #0 wait")
    node.settle()
    assert [int(payload) for _name, _seq, payload in peer.messages()] == list(range(len(open_for) + 1))


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("ack", [Ack.SYNCED, Ack.REPLICATED])
def test_a_publish_that_is_to_wait_is_not_answered_with_its_stream_open(
    node: World, monkeypatch: pytest.MonkeyPatch, slot: int, ack: Ack
) -> None:
    name, peer, worker = node.name(1), BinaryPeer(node, slot), node.workers[1]
    peer.open(name)
    node.fill(name, [b"0"])
    node.wait_synced()
    monkeypatch.setattr(worker.upkeep, "sync_urgent", lambda: None)
    for payload in (b"1", b"2"):
        peer.publish(1, payload, ack=ack, replicas=int(ack is Ack.REPLICATED))
    node.settle()
    assert worker.owner.stream(name.encode()).log.next_seq == 3 and peer.take() == []
    monkeypatch.undo()
    worker.owner.replicas.refuse_all()
    answers, deadline_s = peer.take(), time.monotonic() + 10
    while len(answers) < 2:
        node.settle()
        answers += peer.take()
        assert time.monotonic() < deadline_s


def test_what_waits_for_other_nodes_holds_back_nothing_else(node: World) -> None:
    name = node.name(1)
    peer = BinaryPeer(node, 0)
    peer.open(name)
    payload = b"x" * 10_000
    peer.publish(1, payload, ack=Ack.REPLICATED, replicas=1)
    route = node.workers[0].routes[1]
    node.workers[0].turn()
    assert route.bytes_held > len(payload)
    node.settle()
    assert route.bytes_held == CALL_BYTES and len(route.inflight) == 1, "it is logged: only its answer is out"
    peer.publish(1, b"y")
    node.settle()
    assert peer.take() == [m.Published(2, ((1, 1, 0),))]
    owner = node.workers[1].owner
    owner.replicas.refuse_all()
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, m.Failed) and answer.code == "unreplicated" and route.bytes_held == 0


def waiting(node: World) -> tuple[BinaryPeer, str]:
    """A client of the first worker, whose publish to the second's stream waits for another node."""
    peer, name = BinaryPeer(node, 0), node.name(1)
    peer.open(name)
    peer.publish(1, b"x", ack=Ack.REPLICATED, replicas=1)
    node.settle()
    assert peer.take() == []
    return peer, name


def test_a_retired_worker_has_its_successor_wait_for_other_nodes(node: World) -> None:
    peer, name = waiting(node)
    retired = node.workers[1]
    retired._retire()
    (request,) = retired.routes[1].waiting
    sent: list[bytes] = []

    class FakeLink:
        def queue(self, data: bytes) -> None:
            sent.append(data)

    request.send(FakeLink())
    assert sibling.unpack_call(sent[0][HEAD_BYTES:])[1:] == ("await", [name.encode(), 0, 1, 1, 1])
    retired.routes[1].waiting.clear()
    assert isinstance(request, OwnerCall)
    request.answered(4, "", "")
    node.settle(0, 1)
    assert peer.take() == [m.Published(1, ((0, 1, 4),))]


def test_what_waits_too_long_for_other_nodes_is_told_by_the_timer(node: World) -> None:
    peer, _name = waiting(node)
    worker = node.workers[1]
    worker.owner.replicas._clock = lambda: float("inf")
    worker._often()
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, m.Failed) and answer.code == "unreplicated"


def test_what_followers_of_a_worker_held_goes_with_the_worker(node: World) -> None:
    name = node.name(1)
    node.fill(name, [b"a"])
    follower = BinaryPeer(node, 0, node_id="node-b")
    follower.ask(r.Follow(1, name.encode(), 0, 1, "", None, FROM_START))
    follower.ask(r.Held(((1, "node-b", 1, 1),)))
    nodes = node.workers[1].owner.replicas.holders(name.encode()).nodes
    assert list(nodes) == ["node-b"]
    siblings = node.workers[1].siblings
    siblings._closed(siblings.links.open[0, 1])
    assert not nodes


def test_a_call_that_is_not_answered_at_once_holds_nobody_up(node: World) -> None:
    name = node.name(1).encode()
    answers: list[object] = []
    waiting: list[Callable[[object], None]] = []
    asked, owner, _other = node.workers
    owner.router.answered_later = {"get": lambda _args, done: waiting.append(done)}
    asked.router.call(name, "get", [name, Get(1, name, b"c", b"m")], answers.append)
    asked.router.call(name, "streams", [b"no such"], answers.append)
    route = asked.routes[1]
    assert route.bytes_held == 2 * CALL_BYTES
    node.settle()
    assert answers == [[]] and route.bytes_held == 0 and len(route.inflight) == 1
    (done,) = waiting
    done("value")
    node.settle()
    assert answers == [[], "value"] and not route.inflight


def test_a_late_answer_to_a_worker_that_is_gone_is_dropped(node: World) -> None:
    name = node.name(1).encode()
    waiting: list[Callable[[object], None]] = []
    answers: list[object] = []
    asked, owner, _other = node.workers
    owner.router.answered_later = {"get": lambda _args, done: waiting.append(done)}
    asked.router.call(name, "get", [name, Get(1, name, b"c", b"m")], answers.append)
    node.settle()
    owner.siblings._closed(owner.links.open[0, 1])
    asked.siblings._closed(asked.links.open[1, 2])
    waiting[0]("value")
    node.settle()
    (refused,) = answers
    assert isinstance(refused, Refused) and refused.code is Code.UNAVAILABLE
