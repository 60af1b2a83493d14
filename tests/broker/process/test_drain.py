"""Operations on all connections of a worker at once: watching them, and leaving."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tailrace.broker.connection import handover
from tailrace.broker.connection.base import LINGER_S, Connection, Pause
from tailrace.broker.process import drain
from tailrace.broker.routing.batch import Pending
from tailrace.broker.topics.rules import TopicRule
from tailrace.broker.worker import Worker, WorkerPhase
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.messages import Ack, Hello, Subscribe, pack
from tailrace.protocol.places import From
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.world import Peer, World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, chunk_bytes=4_096, max_lag_bytes=0) as node:
        yield node


def many(count: int) -> list[bytes]:
    return [b"%d %s" % (number, b"x" * 1_000) for number in range(count)]


def deaf_reader(node: World, name: str, slot: int = 0) -> Peer:
    """One that has subscribed and reads nothing; its socket is full."""
    peer = node.connect(slot, small=True)
    peer.deaf = True
    peer.send(f"sub {name} 0 wait")
    node.settle()
    assert node.client_of(peer).blocked
    return peer


def later(worker: Worker, seconds: float) -> None:
    worker.services.now_s += seconds


# --- watching ---------------------------------------------------------------------------------------------------------


def test_who_takes_nothing_for_too_long_is_dropped(node: World) -> None:
    worker, name = node.workers[0], node.name(0)
    node.fill(name, many(200))
    peer, quiet = deaf_reader(node, name), node.connect()
    later(worker, node.settings.stall_timeout_s - 1)
    drain.drop_stalled(worker.services)
    assert len(worker.services.clients) == 2
    peer.received += peer.sock.recv(1 << 20)
    node.client_of(peer).on_event(4)  # writable: it takes some, which counts as life
    for _ in range(3):
        worker.fanout.run(1 << 20)
    later(worker, node.settings.stall_timeout_s - 1)
    drain.drop_stalled(worker.services)
    assert len(worker.services.clients) == 2
    later(worker, 2)
    drain.drop_stalled(worker.services)
    assert list(worker.services.clients.values()) == [node.connection_of(quiet)], (
        "who has nothing to take may be silent"
    )
    assert worker.metrics.dropped.counts == {"stalled": 1, "ended": 1}


def test_who_lags_by_more_than_it_may_is_told(tmp_path: Path) -> None:
    with world(tmp_path, chunk_bytes=4_096, max_lag_bytes=100_000) as node:
        worker = node.workers[0]
        node.fill("a", many(50))
        slow = deaf_reader(node, "a")
        quick = node.connect()
        quick.send("sub a 0 wait")
        node.settle()
        drain.drop_stalled(worker.services)
        node.settle()
        assert len(worker.services.clients) == 2
        node.fill("a", many(200))
        drain.drop_stalled(worker.services)
        node.settle()
        slow.deaf = False
        node.settle()
        assert slow.ended and slow.lines[-1].startswith("err slow a: more than 100000 bytes behind, at seq ")
        assert len(quick.messages()) == 250 and not quick.ended
        seqs = [seq for _, seq, _ in slow.messages()]
        assert seqs == list(range(len(seqs))) and len(seqs) < 250


def test_another_node_may_lag_by_any_number_of_bytes(tmp_path: Path) -> None:
    with world(tmp_path, chunk_bytes=4_096, max_lag_bytes=1_000) as node:
        node.fill("a", many(200))
        follower = BinaryPeer(node, node_id="node-b", small=True)
        follower.peer.deaf = True
        follower.say(r.Follow(1, b"a", 0, 1, "", None, FROM_START))
        node.settle()
        client = node.connection_of(follower.peer)
        assert client.blocked
        drain.drop_stalled(node.workers[0].services)
        assert not client.lingering_since_s


def test_who_does_not_close_after_its_end_is_closed(node: World) -> None:
    worker = node.workers[0]
    peer = node.connect()
    assert node.ask(peer, "close") == ["ok close"]
    drain.drop_stalled(worker.services)
    assert len(worker.services.lingering) == len(worker.services.clients) == 1
    later(worker, LINGER_S + 1)
    drain.drop_stalled(worker.services)
    assert worker.services.clients == {} and worker.services.lingering == {}
    assert worker.metrics.dropped.counts == {"lingered": 1}


def test_measures(node: World) -> None:
    worker = node.workers[0]
    names = [node.name(0), node.name(1)]
    for name in names:
        node.fill(name, many(100))
    caught_up, partial = node.connect(), node.connect()
    node.ask(caught_up, *(f"sub {name} 0 wait" for name in names))
    deaf_reader(node, names[0])
    partial.send_raw(b"pub half")
    node.settle()
    drain.measure(worker.services, worker.owner, worker.links, worker.work)
    metrics = worker.metrics
    assert metrics.parked == {"caught_up": 2, "turn": 0, "socket": 1, "credit": 0}
    assert (metrics.connections, metrics.subscriptions, metrics.partial_bytes) == (3, 3, 8)
    assert 50_000 < metrics.lag_bytes_max <= 100 * 1_035
    assert (metrics.streams, metrics.damaged_streams, metrics.link_queue_bytes) == (1, 0, 0)
    assert metrics.open_streams == 3, "one to write, two to read"
    assert (worker.board.slot(0).streams, worker.board.slot(0).subscriptions) == (1, 3)


def test_filters_their_wakes_and_the_bytes_searched_for_them_are_counted(tmp_path: Path) -> None:
    with world(tmp_path, topics=(TopicRule("#", "{1}"),)) as node:
        worker, metrics = node.workers[0], node.workers[0].metrics
        for topic in ("sensors/+/temp", "sensors/+/temp", "sensors/9/#"):
            assert node.ask(node.connect(), f"sub {topic} new wait")[0].startswith("ok sub")
        publisher = node.connect()
        for topic in ("1/temp", "1/rain", "2/temp"):
            node.ask(publisher, f"pub sensors/{topic} |x")

        def measured() -> tuple[int, int, int]:
            drain.measure(worker.services, worker.owner, worker.links, worker.work)
            return metrics.topic_filters, metrics.filter_wakes, metrics.topic_scanned_bytes

        filters, wakes, scanned_bytes = measured()
        assert (filters, wakes) == (2, 4), "two subscribers of one filter, which two messages match"
        node.ask(node.connect(), "sub sensors/1/rain 0")
        stream = worker.readers.get(b"sensors")
        assert measured() == (3, 4, scanned_bytes + stream.offset_of(3) - stream.offset_of(0))


def test_who_waits_for_credit_or_for_its_turn_is_counted_as_that(node: World) -> None:
    worker = node.workers[0]
    node.fill("a", many(20))
    poor, rich = node.connect(), node.connect()
    hello = pack(Hello(1, (), ""))
    poor.send_raw(hello + pack(Subscribe(1, b"a", From("seq", 0), credit=1, wait=True)))
    rich.send_raw(
        hello
        + pack(Subscribe(1, b"a", From("seq", 0), wait=True))
        + pack(Subscribe(2, b"a", From("seq", 10), wait=True))
    )
    node.settle()
    drain.measure(worker.services, worker.owner, worker.links, worker.work)
    assert worker.metrics.parked == {"caught_up": 2, "turn": 0, "socket": 0, "credit": 1}
    for cursor in node.binary_client_of(rich).cursors.values():
        del cursor.feed.caught_up[cursor]
        cursor.client.ready.append(cursor)
        worker.fanout.make_runnable(cursor.client)
    drain.measure(worker.services, worker.owner, worker.links, worker.work)
    assert worker.metrics.parked == {"caught_up": 0, "turn": 2, "socket": 0, "credit": 1}
    assert worker.metrics.subscriptions == 3


class Untouched(dict[int, Connection]):
    """The connections of a worker, for callers that may not walk over them."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the quiet connections are looked at")

    def values(self) -> NoReturn:
        raise AssertionError("the quiet connections are looked at")


def test_quiet_connections_cost_nothing(tmp_path: Path) -> None:
    """Watching and measuring look at those who are behind, blocked or lingering, and at nobody else."""
    with world(tmp_path, chunk_bytes=4_096, max_lag_bytes=1 << 30) as node:
        worker = node.workers[0]
        node.fill("a", many(200))
        for _ in range(20):
            node.ask(node.connect(), "sub a new wait")
        deaf_reader(node, "a")
        clients = worker.services.clients
        worker.services.clients = Untouched(clients)
        later(worker, node.settings.stall_timeout_s - 1)
        worker._seldom()
        worker._measure()
        assert worker.metrics.parked == {"caught_up": 20, "turn": 0, "socket": 1, "credit": 0}
        assert (worker.metrics.connections, worker.metrics.subscriptions) == (21, 21)
        later(worker, 2)
        worker._seldom()
        worker._measure()
        assert (worker.metrics.connections, worker.metrics.subscriptions) == (20, 20)
        worker.services.clients = dict(dict.items(worker.services.clients))


def test_rows_of_connections(node: World) -> None:
    node.fill("a", many(100))
    deaf_reader(node, "a")
    idle = node.connect()
    node.ask(idle, "ping")
    (_slot, peer, age_s, subscriptions, unsent_bytes, lag), other = drain.connections(node.workers[0].services, 0)
    assert (peer, subscriptions, unsent_bytes) == ("peer:2", 1, 0)
    assert 0 <= age_s < 60 and 50 < lag <= 100
    assert other[0] == 0 and other[3:] == [0, 0, 0]


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_a_node_that_stops_answers_what_was_sent_and_says_why_it_ends(node: World) -> None:
    worker = node.workers[0]
    there = node.name(1)
    busy, idle, reader = node.connect(), node.connect(), node.connect()
    node.ask(reader, "sub a 0 wait")
    busy.send("ack on", *[f"pub {there} |x"] * 50)
    worker._drain()
    for _ in range(3):
        assert not drain.drained(worker.services, worker.routes, worker.drain_began_s)
        node.settle()
    assert busy.lines[:51] == ["ok ack on", *(f"ok pub {there} {seq}" for seq in range(50))]
    for peer in (busy, idle, reader):
        assert peer.lines[-1].startswith("err closing this node is stopping") and peer.ended
    late = node.connect()
    drain.drained(worker.services, worker.routes, worker.drain_began_s)
    node.settle()
    assert late.lines[-1].startswith("err closing ")
    later(worker, drain.DRAIN_LINGER_S + 1)
    assert drain.drained(worker.services, worker.routes, worker.drain_began_s)


def test_a_client_that_never_stops_sending_does_not_hold_the_node(node: World) -> None:
    worker = node.workers[0]
    chatty = node.connect()
    worker._drain()
    chatty.send("ping")
    assert (
        not drain.drained(worker.services, worker.routes, worker.drain_began_s)
        and not node.client_of(chatty).lingering_since_s
    )
    later(worker, drain.DRAIN_READ_S + 1)
    assert not drain.drained(worker.services, worker.routes, worker.drain_began_s)
    assert node.client_of(chatty).lingering_since_s


def test_a_worker_that_is_late_leaves_all_the_same(node: World) -> None:
    worker = node.workers[0]
    node.fill("a", many(200))
    deaf_reader(node, "a")
    worker._drain()
    worker._move_on()
    phases = [worker.phase]
    worker.drain_deadline_s = 0.0
    worker._move_on()
    assert [*phases, worker.phase] == [WorkerPhase.DRAINING, WorkerPhase.DRAINED]


def test_a_retired_worker_hands_on_whom_it_can_and_reads_the_others_no_more(node: World) -> None:
    worker = node.workers[0]
    ready, waiting = node.connect(), node.connect()
    node.ask(ready, "sub a 0 wait")
    client = node.client_of(waiting)
    pending = Pending(client.answers_ready)
    client.pend(pending)
    worker._retire()
    drain.hand_all_over(worker.services, worker.links, 0, worker.drain_began_s)
    assert len(worker.services.clients) == 2, "the successor owns nothing yet"
    worker.routes[0].switch(next(iter(worker.links.open.values())))  # the other worker plays the successor
    drain.hand_all_over(worker.services, worker.links, 0, worker.drain_began_s)
    assert list(worker.services.clients.values()) == [client] and client.paused == Pause.LEAVING
    pending.settle(b"settled\r\n")
    drain.hand_all_over(worker.services, worker.links, 0, worker.drain_began_s)
    node.settle()
    assert worker.services.clients == {} and waiting.lines == ["settled"]
    assert node.ask(waiting, "ping") == ["ok pong"] and node.worker_of(node.client_of(ready)) is node.workers[1]


def replicating(node: World) -> tuple[BinaryPeer, BinaryPeer]:
    """A client that waits until another node holds its messages, and that node, which publishes too."""
    follower, client = BinaryPeer(node, node_id="node-b"), BinaryPeer(node)
    name = node.name(0)
    follower.ask(r.Follow(1, name.encode(), 0, 1, "", None, FROM_START), m.Open(1, name.encode()))
    client.open(name)
    for peer in (client, follower):
        peer.publish(1, b"x", ack=Ack.REPLICATED, replicas=1)
        node.settle()  # else they are one batch
    (news,) = follower.take()
    assert client.take() == [] and isinstance(news, r.Followed) and news.awaited
    return client, follower


def test_other_nodes_go_last_and_have_their_publishes_back(node: World) -> None:
    worker = node.workers[0]
    client, follower = replicating(node)
    idle = BinaryPeer(node, node_id="node-c")
    worker.drain_began_s = worker.services.now_s
    drain.let_nodes_go(worker.services, "why", worker.drain_began_s)
    assert not node.connection_of(idle.peer).lingering_since_s
    follower.publish(1, b"late")
    node.settle()
    (back,) = follower.take()
    assert isinstance(back, m.Failed) and (back.code, back.id, back.fatal) == ("closing", 2, False)
    assert follower.ask(r.Held(((1, "node-b", 1, 1),))) == [] and client.take() == [m.Published(1, ((0, 1, 1),))]
    drain.let_nodes_go(worker.services, "why", worker.drain_began_s)
    assert not node.connection_of(follower.peer).lingering_since_s, "the client is not seen to yet"
    client.peer.close()
    node.settle()
    drain.let_nodes_go(worker.services, "why", worker.drain_began_s)
    assert not node.connection_of(follower.peer).lingering_since_s, "a publish of its own is not answered yet"
    assert follower.ask(r.Held(((1, "node-b", 2, 2),))) == [m.Published(1, ((1, 1, 1),))]
    drain.let_nodes_go(worker.services, "why", worker.drain_began_s)
    node.settle()
    (end,) = follower.take()
    assert isinstance(end, m.Failed) and (end.code, end.text, end.fatal) == ("closing", "why", True)
    assert follower.peer.ended and worker.owner.stream(node.name(0).encode()).log.next_seq == 2


def test_another_node_is_not_handed_over(node: World) -> None:
    worker = node.workers[0]
    follower = BinaryPeer(node, node_id="node-b")
    client = node.connection_of(follower.peer)
    assert not handover.possible(client)
    worker._retire()
    worker.routes[0].switch(next(iter(worker.links.open.values())))  # the other worker plays the successor
    drain.hand_all_over(worker.services, worker.links, 0, worker.drain_began_s)
    assert client.lingering_since_s and list(worker.services.clients.values()) == [client]
    assert not client.paused, "what it holds is heard to the end"


def test_a_node_that_is_awaited_too_long_hears_that_no_more_is_known(node: World) -> None:
    worker = node.workers[0]
    _client, follower = replicating(node)
    worker.drain_began_s = worker.services.now_s
    drain.let_nodes_go(worker.services, "why", worker.drain_began_s)
    assert not node.connection_of(follower.peer).lingering_since_s
    worker.drain_began_s = worker.services.now_s - drain.NODES_STAY_S - 1
    drain.let_nodes_go(worker.services, "why", worker.drain_began_s)
    node.settle()
    (end,) = follower.take()
    assert isinstance(end, m.Failed) and (end.code, end.fatal) == ("unavailable", True)


def test_when_there_is_no_successor_clients_hear_why_they_are_closed(node: World) -> None:
    peer = node.connect()
    node.ask(peer, "sub a 0 wait")
    drain.finish_all(node.workers[0].services)
    peer.read()
    assert peer.lines[-1].startswith("err closing this worker is being replaced") and peer.ended


def test_one_that_cannot_be_handed_on_in_time_hears_why(node: World) -> None:
    peer = node.connect()
    node.ask(peer, "ping")
    drain.finish_all(node.workers[0].services)
    node.settle()
    assert peer.lines[-1].startswith("err closing this worker is being replaced") and peer.ended
    assert not node.workers[0].services.clients


def test_one_in_the_middle_of_a_chunk_does_not_get_the_reason_in_it(tmp_path: Path) -> None:
    with world(tmp_path, chunk_bytes=65_536) as node:
        node.fill("a", many(200))
        peer = deaf_reader(node, "a")
        client = node.client_of(peer)
        peer.received += peer.sock.recv(1 << 20)
        client.on_event(select.EPOLLOUT)
        assert client.current is not None and not client.blocked, "there is room for an answer"
        drain.finish_all(node.workers[0].services)
        peer.deaf = False
        node.settle()
        assert b"err" not in peer.received and peer.ended
