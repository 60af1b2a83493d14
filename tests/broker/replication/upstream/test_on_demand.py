"""Copies that a node makes only for readers: a fetcher, and whole nodes in this process, whose owner is not always the
reader's.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tailrace.broker.process.settings import StreamPolicy
from tailrace.broker.replication.upstream import fetchers, on_demand
from tailrace.broker.replication.upstream.fetchers import RETRY_MAX_S, FetchState, ReplicaFetcher
from tailrace.broker.streams import owner_calls
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.errors import Code
from tailrace.shard.stream_files import NewPair
from tests.broker.mqtt import MqttPeer
from tests.broker.replication.nodes import Node, Tree
from tests.broker.replication.slaving import ONE, A, S, Slave
from tests.broker.world import Peer
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5
from tests.thorough import only_thorough

IDLE_S = 0.4
MANY = 12
CURSORS_MAX = 4
SUBACK = 9


def observe(up: Node, down: Node) -> None:
    """All streams of `up`, on demand."""
    assert down.say(f"slave 127.0.0.1 {up.port} * 0 on-demand").startswith("ok ")


def copies(node: Node) -> dict[str, ReplicaFetcher]:
    found = [copy for uplink in node.uplinks for copy in uplink.copies.by_name.values()]
    return {copy.name.decode(): copy for copy in found}


def resting(node: Node, *names: str) -> bool:
    """Whether these streams, or all, are known and not copied."""
    known = copies(node)
    return all(name in known and known[name].state is FetchState.IDLE for name in names or known or ("",))


def pass_time(tree: Tree, seconds: float = 1.5 * IDLE_S) -> None:
    """Long enough for a copy without readers to be dropped."""
    end_s = time.monotonic() + seconds
    tree.until(lambda: time.monotonic() > end_s)


def payloads(peer: Peer) -> list[str]:
    return [payload for *_, payload in peer.messages()]


@pytest.fixture(params=[2, *only_thorough(1)])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def pair(tree: Tree, workers: int) -> tuple[Node, Node]:
    """A master of the streams s and t, and a node that copies them on demand."""
    kept = (StreamPolicy("s", last_values=True),)
    up, down = tree.node(workers, streams=kept), tree.node(workers, streams=kept, copy_idle_s=IDLE_S, affinity=False)
    up.fill(b"a", b"b", b"c")
    up.fill(b"x", name="t")
    observe(up, down)
    tree.until(lambda: resting(down, "s", "t"))
    return up, down


# --- one stream -------------------------------------------------------------------------------------------------------


def test_nothing_is_copied_before_it_is_read(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    up.fill(b"d")
    pass_time(tree)
    assert (down.role(), down.next_seq()) == ("slave", 0) and resting(down)


def test_a_subscription_gets_all_and_what_comes(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    peer = down.world.connect()
    peer.send("sub s #0")
    tree.until(lambda: payloads(peer) == ["a", "b", "c"])
    up.fill(b"d")
    tree.until(lambda: payloads(peer) == ["a", "b", "c", "d"])
    assert down.next_seq("t") == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "expected"), [("new", []), ("-1", ["c"]), ("#1", ["b", "c"])])
def test_places_are_those_of_the_whole_stream(
    tree: Tree, pair: tuple[Node, Node], place: str, expected: list[str]
) -> None:
    up, down = pair
    peer = down.world.connect()
    peer.send(f"sub s {place}")
    tree.until(lambda: "ok sub" in " ".join(peer.lines))
    up.fill(b"d")
    tree.until(lambda: payloads(peer) == [*expected, "d"])


def test_a_publish_goes_up_without_a_copy_and_is_read_then(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    peer = down.world.connect()
    peer.send("ack on", "pub s |mine", "pub new |first")
    tree.until(lambda: {"ok pub s 3", "ok pub new 0"} <= set(peer.lines))
    assert (down.next_seq(), down.next_seq("new"), up.messages("new")) == (0, 0, [b"first"])
    peer.send("sub s -1", "sub new #0")
    tree.until(lambda: sorted(payloads(peer)) == ["first", "mine"])


def test_a_copy_without_readers_is_dropped_and_taken_again(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    for _ in range(10):
        up.fill(b"x" * 100_000)
    owner = down.world.workers[down.world.owner_of("s")].owner
    path = owner.catalog.shard_path(b"s")
    peer = down.world.connect()
    peer.send("sub s -1")
    tree.until(lambda: len(peer.messages()) == 1)
    assert disk_bytes(path) > 1_000_000
    pass_time(tree)
    assert down.next_seq() == 13
    peer.send("unsub s")
    tree.until(lambda: resting(down, "s"))
    assert down.next_seq() == 0 and disk_bytes(path) < 100_000
    up.fill(b"last")
    peer.take()
    peer.send("sub s -1")
    tree.until(lambda: payloads(peer) == ["last"])
    assert down.next_seq() == 14


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.glob("s.*"))


@pytest.mark.thorough
def test_a_node_below_is_a_reader(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    below = tree.node()
    below.slave(down, "s")
    tree.until(lambda: below.next_seq() == 3)
    up.fill(b"d")
    tree.until(lambda: below.next_seq() == 4)
    below.say("unslave s")
    tree.until(lambda: resting(down, "s"))


def test_last_values(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    peer = up.world.connect()
    peer.send("ack on", "pub s topic one |1", "pub s topic two |2", "pub s topic one |3")
    tree.until(lambda: len(peer.lines) == 4)
    peer = down.world.connect()
    peer.send("last s")
    tree.until(lambda: any(line.startswith("ok last") for line in peer.lines))
    assert {"3", "2"} <= {line.rpartition("|")[2] for line in peer.lines}


def test_a_durable_consumer(tree: Tree, pair: tuple[Node, Node]) -> None:
    _up, down = pair
    peer = down.world.connect()
    peer.send("consume s n #0", "get s n 0 2")
    tree.until(lambda: "ok get s n 2" in peer.lines)
    assert payloads(peer) == ["a", "b"]
    peer.send("ack s n 0 1", "get s n 60000 9")
    tree.until(lambda: "ok get s n 1" in peer.lines)
    peer.send("ack s n 2", "get s n 60000 1")
    pass_time(tree)
    assert down.next_seq() == 3  # a get that waits is a reader
    _up.fill(b"d")
    tree.until(lambda: payloads(peer) == ["a", "b", "c", "d"])


def device(node: Node) -> MqttPeer:
    """A client with a durable session, which this node keeps."""
    peer = MqttPeer(node.world, V5, opened=False)
    peer.send(wire.connect(V5, "device", clean=False, raw=b"\x11\0\0\x0e\x10"))
    return peer


def has_got(peer: MqttPeer, count: int) -> bool:
    peer.collect()
    return len(peer.got) >= count


def test_a_durable_mqtt_session_goes_on_where_it_was(tree: Tree, workers: int) -> None:
    up, down = tree.node(workers), tree.node(workers, copy_idle_s=IDLE_S)
    up.fill(b"before", name="s")
    assert down.say(f"slave 127.0.0.1 {up.port} s* 0 on-demand").startswith("ok ")
    tree.until(lambda: resting(down, "s"))
    first = device(down)
    first.send(wire.subscribe(V5, 1, ("s", 1)))
    tree.until(lambda: first.collect() and first.answers[-1].kind == SUBACK)
    up.fill(b"1", b"2", name="s")
    tree.until(lambda: has_got(first, 2))
    first.send(wire.ack(wire.PUBACK, first.got[0].packet_id))
    pass_time(tree, 0.1)
    first.peer.close()
    tree.until(lambda: resting(down, "s") and down.next_seq() == 0)
    up.fill(b"3", name="s")
    second = device(down)
    tree.until(lambda: has_got(second, 2))
    assert [(each.payload, each.dup) for each in second.got] == [(b"2", True), (b"3", False)]


# --- many streams -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def many(tree: Tree, workers: int) -> Iterator[tuple[Node, Node, list[str]]]:
    """More streams than a connection may have cursors in."""
    up, down = tree.node(workers), tree.node(workers, copy_idle_s=IDLE_S, max_subscriptions=CURSORS_MAX)
    names = [f"w.{number:02}" for number in range(MANY)]
    for name in names:
        up.fill(f"{name} old".encode(), name=name)
    observe(up, down)
    tree.until(lambda: len(copies(down)) == MANY and resting(down))
    yield up, down, names


def test_a_wide_subscription_gets_what_is_new_in_every_stream(tree: Tree, workers: int) -> None:
    with many(tree, workers) as (up, down, names):
        peer = down.world.connect()
        peer.send("sub w.* new")
        tree.until(lambda: peer.lines)
        assert peer.lines[0].startswith("ok sub")
        pass_time(tree)
        assert not peer.messages()
        for name in (*names, "w.made"):
            up.fill(f"{name} new".encode(), name=name)
        tree.until(lambda: len(peer.messages()) == MANY + 1)
        assert sorted(payloads(peer)) == sorted(f"{name} new" for name in (*names, "w.made"))
        peer.send("unsub w.*")
        tree.until(lambda: resting(down))


@pytest.mark.thorough
def test_a_wide_subscription_that_ends_before_all_copies_are_begun_leaves_none_behind(
    tree: Tree, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with many(tree, workers) as (_up, down, _names):
        peer = down.world.connect()
        with monkeypatch.context() as patched:
            patched.setattr(fetchers, "FOLLOWS_AT_ONCE", 0)
            peer.send("sub w.* new")
            tree.until(lambda: any(copy.is_awake for copy in copies(down).values()))
            peer.close()
            tree.until(lambda: not any(worker.patterns.wide.subscriptions for worker in down.world.workers))
        tree.until(lambda: resting(down))


@pytest.mark.thorough
def test_a_wide_subscription_from_the_beginning(tree: Tree, workers: int) -> None:
    with many(tree, workers) as (up, down, names):
        peer = down.world.connect()
        peer.send("sub w.* 0")
        tree.until(lambda: len(peer.messages()) == MANY)
        up.fill(b"new", name=names[3])
        tree.until(lambda: len(peer.messages()) == MANY + 1)
        assert sorted(payloads(peer)) == sorted([*(f"{name} old" for name in names), "new"])


@pytest.mark.thorough
def test_few_streams_are_dropped_at_once(tree: Tree, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "DROPS_AT_ONCE", 2)
    with many(tree, workers) as (_up, down, _names):
        peer = down.world.connect()
        peer.send("sub w.* new")
        tree.until(lambda: peer.lines and all(copy.is_ready for copy in copies(down).values()))
        peer.send("unsub w.*")
        dropping: list[int] = []

        def ends() -> bool:
            for uplink in down.uplinks:
                dropping.append(sum(copy.state is FetchState.CUTTING for copy in uplink.copies.by_name.values()))
            return resting(down)

        tree.until(ends)
        assert 1 <= max(dropping) <= 2


@pytest.mark.thorough
def test_a_pattern_gets_streams_that_are_made_later(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    peer = down.world.connect()
    peer.send("sub m* 0 wait")
    tree.until(lambda: peer.lines)
    up.fill(b"here", name="made")
    tree.until(lambda: payloads(peer) == ["here"])


def test_a_stream_that_is_waited_for_is_copied_when_it_is_made(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    peer = down.world.connect()
    peer.send("sub made 0 wait")
    tree.until(lambda: peer.lines)
    pass_time(tree)
    up.fill(b"here", name="made")
    tree.until(lambda: payloads(peer) == ["here"])
    pass_time(tree)
    up.fill(b"more", name="made")
    tree.until(lambda: payloads(peer) == ["here", "more"])


def test_listings_have_the_numbers_of_whole_streams(tree: Tree, pair: tuple[Node, Node]) -> None:
    _up, down = pair
    worker = down.world.workers[down.world.owner_of("s")]
    mark, _, _ = owner_calls.call(worker.owner, "grown", [""])
    assert owner_calls.call(worker.owner, "grown", [mark])[2] is None, "they are looked at one by one"
    assert owner_calls.call(worker.owner, "list_ends", [b"s", [b"s"]]) == []
    answers: list[object] = []
    worker.router.call(b"s", "list_stream", [b"s"], answers.append)
    tree.until(lambda: answers)
    assert answers[0][:5] == ["s", "slave", 1, 0, 3]  # type: ignore[index]
    assert [row[0] for row in owner_calls.call(worker.owner, "list_ends", [b"s", [b"s"]])] == [b"s"]


def test_a_node_is_no_candidate_before_its_copies_are_whole(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair

    def lacks() -> set[str]:
        lines = down.world.ask(down.peer, "isr *")
        return {line for line in lines if line.startswith(down.id)}

    assert len(lacks()) == 1 and all(line.split()[3] == "0" for line in lacks())
    down.slave(up, "*")
    tree.until(lambda: not lacks())
    assert (down.next_seq(), down.next_seq("t")) == (3, 1)


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_node_that_becomes_a_replica_copies_everything(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    down.slave(up, "*")
    tree.until(lambda: (down.next_seq(), down.next_seq("t")) == (3, 1))
    pass_time(tree)
    assert (down.next_seq(), down.next_seq("t")) == (3, 1)
    observe(up, down)
    tree.until(lambda: resting(down, "s", "t"))


def test_nothing_is_dropped_while_the_upstream_is_away(
    tree: Tree, pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    up, down = pair
    monkeypatch.setattr(on_demand, "WAIT_S", 0.2)
    peer = down.world.connect()
    peer.send("sub s -1")
    tree.until(lambda: len(peer.messages()) == 1)
    tree.end(up)
    tree.until(lambda: copies(down)["s"].state is FetchState.DOWN)
    peer.send("unsub s", "sub t #0")
    tree.until(lambda: any(line.startswith("err unavailable") for line in peer.lines))
    pass_time(tree)
    assert down.next_seq() == 3
    peer.take()
    peer.send("sub s -1")  # of the copy that there is
    tree.until(lambda: payloads(peer) == ["c"])


def test_readers_that_have_waited_since_before_a_worker_began_wake_its_copies(
    tree: Tree, pair: tuple[Node, Node]
) -> None:
    up, down = pair
    up.say("trim t #1")
    peer = down.world.connect()
    peer.send("sub t new", "sub s new")
    tree.until(lambda: len(peer.lines) == 2)
    for worker in down.world.workers:
        worker.uplinks.stop("for the test")
        worker.uplinks.start()
    pass_time(tree)
    up.fill(b"1")
    up.fill(b"2", name="t")
    tree.until(lambda: sorted(payloads(peer)) == ["1", "2"])


def test_a_drop_that_was_interrupted_is_ended_before_anything_is_read(tree: Tree) -> None:
    up, down = tree.node(), tree.node(copy_idle_s=IDLE_S)
    up.fill(b"a", b"b", b"c")
    down.slave(up, "*")
    tree.until(lambda: down.next_seq() == 3)
    log = down.owner.stream(b"s").log
    log.trim(3)
    observe(up, down)
    for uplink in down.uplinks:
        uplink.fail("for the test")
    copies(down)["s"].is_sound = False  # as after a start
    tree.until(lambda: resting(down, "s"))
    peer = down.world.connect()
    peer.send("sub s #0")
    tree.until(lambda: payloads(peer) == ["a", "b", "c"])


def test_calls_that_wait_are_refused_when_there_are_too_many_or_the_worker_leaves(
    tree: Tree, pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    up, down = pair
    monkeypatch.setattr(on_demand, "WAITS_MAX", 1)
    tree.end(up)
    tree.until(lambda: copies(down)["s"].state in (FetchState.DOWN, FetchState.IDLE) and not down.uplinks[0].copies.up)
    worker = down.world.workers[down.world.owner_of("s")]
    answers: list[object] = []
    for _ in range(2):
        worker.router.call(b"s", "end", [b"s"], answers.append)
    assert [answer.code for answer in answers] == [Code.OVERLOADED]  # type: ignore[attr-defined]
    worker.uplinks.stop("for the test")
    assert [answer.code for answer in answers] == [Code.OVERLOADED, Code.UNAVAILABLE]  # type: ignore[attr-defined]
    worker.uplinks.start()


@pytest.mark.thorough
def test_a_reader_that_waits_is_served_by_the_next_leader(tree: Tree, workers: int) -> None:
    up, other, down = tree.node(workers), tree.node(workers), tree.node(workers, copy_idle_s=IDLE_S)
    up.fill(b"a", b"b")
    other.slave(up, "*")
    observe(up, down)
    tree.until(lambda: other.next_seq() == 2 and resting(down, "s"))
    tree.end(up)
    peer = down.world.connect()
    peer.send("sub s #0")
    assert other.say("promote s force").startswith("ok ")
    observe(other, down)
    tree.until(lambda: payloads(peer) == ["a", "b"])


@pytest.mark.thorough
def test_a_wide_subscription_gets_nothing_old_if_the_leader_changes_before_its_copies_are_begun(
    tree: Tree, workers: int
) -> None:
    with many(tree, workers) as (up, down, names):
        for _ in range(200):
            up.fill(*[b"old" * 1_000] * 3, name=names[3])  # more than comes in one turn
        other = tree.node(workers)
        other.slave(up, "*")
        tree.until(lambda: len(copies(other)) == MANY and other.next_seq(names[3]) == 601)
        tree.end(up)
        tree.until(lambda: not any(uplink.copies.up for uplink in down.uplinks))
        peer = down.world.connect()
        peer.send("sub w.* new")
        tree.until(lambda: all(copy.is_woken for copy in copies(down).values()))
        assert other.say("promote * force").startswith("ok ")
        observe(other, down)
        tree.until(lambda: peer.lines and all(copy.is_ready for copy in copies(down).values()))
        other.fill(b"new", name=names[3])
        tree.until(lambda: "new" in payloads(peer))
        assert payloads(peer) == ["new"]


def test_readers_of_a_stream_that_was_deleted_are_told_when_that_is_known(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    up.peer.send("delete s")
    tree.until(lambda: up.next_seq() == -1)
    began_s = time.monotonic()
    peer = down.world.connect()
    peer.send("sub s #0")
    tree.until(lambda: peer.lines)
    assert peer.lines[0].startswith("err unknown") and time.monotonic() - began_s < on_demand.WAIT_S


# --- one fetcher ------------------------------------------------------------------------------------------------------


def test_a_copy_on_demand_asks_when_it_is_woken(slave: Slave) -> None:
    slave.be(FetchState.IDLE)
    assert slave.copies.lead_to_master and slave.owner.roles.copies.unready == {S}
    slave.copies.wake(slave.copy)
    (asked,) = slave.tick()
    assert (asked.stream, asked.next_seq) == (S, 0)
    slave.followed()
    assert (slave.copy.is_begun, slave.copy.is_ready, slave.owner.roles.copies.quiet) == (True, False, {S: 20})
    slave.chunk(0, 12)
    assert not slave.ready
    slave.chunk(12, 20)
    assert slave.ready == [S] and slave.copy.is_ready and not slave.owner.roles.copies.unready
    assert slave.reports() == [], "nobody may count on it"


def test_a_copy_is_dropped_only_while_its_upstream_has_everything(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.copies.set_on_demand(slave.copy, on_demand=True)
    slave.copies.drop(slave.copy, slave.now_s)
    assert slave.copy.state is FetchState.CUTTING and [type(each) for each in slave.heard()] == [m.Unsubscribe]
    slave.finish_cut()
    slave.tick()
    assert (slave.log.first_seq, slave.log.next_seq, slave.copy.state) == (0, 0, FetchState.IDLE)
    for state in (FetchState.WAITING, FetchState.ASKED, FetchState.QUEUED):
        slave.copy.state = state
        slave.copies.drop(slave.copy, slave.now_s)
        assert (slave.copy.state, slave.set_aside) == (state, [])


def test_a_drop_that_fails_is_made_again(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.copies.set_on_demand(slave.copy, on_demand=True)
    slave.copies.drop(slave.copy, slave.now_s)
    slave.log.trim(slave.log.next_seq)
    slave.finish_cut("no space")
    states = [slave.copy.state]
    slave.tick(RETRY_MAX_S)  # it would begin later than its stream
    states.append(slave.copy.state)
    slave.finish_cut()
    slave.tick()
    states.append(slave.copy.state)
    assert states == [FetchState.WAITING, FetchState.CUTTING, FetchState.IDLE] and slave.log.next_seq == 0


def test_a_drop_gives_up_all_messages_or_none(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.copies.set_on_demand(slave.copy, on_demand=True)
    slave.copies.drop(slave.copy, slave.now_s)

    def fail(_pair: NewPair) -> NoReturn:
        raise OSError(errno.EIO, "killed")

    with monkeypatch.context() as patched:
        patched.setattr(NewPair, "put", fail)
        slave.finish_cut()
    slave.copies.set_on_demand(slave.copy, on_demand=False)  # a replica that is to have everything
    slave.tick(RETRY_MAX_S)
    assert (slave.log.first_seq, slave.log.next_seq, slave.copy.state) == (0, 10, FetchState.ASKED)


def test_a_copy_whose_stream_changes_is_not_dropped(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.copies.set_on_demand(slave.copy, on_demand=True)
    slave.owner.stream(S).busy = True
    with pytest.raises(Refused):
        slave.copies.drop(slave.copy, slave.now_s)
    assert slave.copy.state is FetchState.FOLLOWING


def test_messages_of_another_upstream_that_ends_earlier_are_new(slave: Slave) -> None:
    slave.be(FetchState.IDLE)
    slave.copies.wake(slave.copy)
    slave.tick()
    slave.followed()
    slave.copies.went_down("for the test")
    slave.up()
    slave.copies.followed(
        r.Followed(slave.copy.id, "following", 0, 0, 15, "master", ONE, (A,), awaited=True),
        slave.now_s,
    )
    assert slave.owner.roles.copies.quiet == {S: 15}


def test_a_copy_of_another_upstream_goes_on_with_what_is_known(slave: Slave) -> None:
    slave.be(FetchState.IDLE)
    slave.copies.wake(slave.copy)
    former = slave.copy
    slave.copies.remove(S)
    slave.copies.add(S, former, on_demand=True, is_awake=True)
    slave.tick()
    slave.followed()
    assert slave.owner.roles.copies.quiet == {S: 20}, "readers were there after these messages"


def test_a_copy_that_is_kept_from_now_on_is_no_part_once_it_is_ready(slave: Slave) -> None:
    slave.be(FetchState.IDLE)
    slave.copies.set_on_demand(slave.copy, on_demand=False)
    assert slave.owner.roles.copies.filling == {S} and not slave.owner.roles.copies.unready
    assert [each.stream for each in slave.tick()] == [S]
    slave.followed()
    slave.chunk(0, 20)
    assert not slave.owner.roles.copies.filling and [each.rows for each in slave.reports()] == [((1, slave.id, 20, 0),)]
    slave.copies.set_on_demand(slave.copy, on_demand=True)
    assert [each.gone for each in slave.reports()] == [((1, slave.id),)]
