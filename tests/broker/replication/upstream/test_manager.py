"""Which streams of a worker follow which node: whole nodes in this process, that follow each other."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.broker.replication.upstream import connection as uplink_module
from tailrace.broker.replication.upstream.connection import UpstreamPhase
from tailrace.broker.replication.upstream.fetchers import FetchState
from tailrace.broker.replication.upstream.manager import DEPOSED_TEXT, FENCED_TEXT, SetAsideJob
from tailrace.broker.replication.upstream.socket import ResolvedAddress
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol import messages as m
from tailrace.protocol.consuming import Consume
from tailrace.protocol.errors import Code
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role, StreamMeta, Upstream
from tests.broker.binary import BinaryPeer
from tests.broker.owning import Sink, batch
from tests.broker.replication.nodes import PATIENCE_S, Node, Tree
from tests.broker.world import world


@pytest.fixture
def pair(tree: Tree) -> tuple[Node, Node]:
    """A master of the stream s with three messages, and a slave of it that has them."""
    up, down = tree.node(), tree.node()
    up.fill(b"a", b"b", b"c")
    down.slave(up)
    tree.until(lambda: down.next_seq() == 3)
    return up, down


# --- following --------------------------------------------------------------------------------------------------------


def test_a_slave_gets_what_there_is_and_what_comes(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    assert down.messages() == [b"a", b"b", b"c"] and down.role() == "slave"
    up.fill(b"d")
    tree.until(lambda: down.next_seq() == 4)
    worker = down.world.workers[0]
    found = worker.uplinks.copy_of(b"s")
    assert found is not None and found[1].state is FetchState.FOLLOWING
    assert worker.uplinks.copy_of(b"other") is None
    assert (worker.uplinks.path_above(b"s"), worker.uplinks.path_above(b"other")) == ((up.id,), ())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_publish_goes_up_and_is_answered(tree: Tree, workers: int) -> None:
    up, down = tree.node(workers), tree.node(workers)
    name = up.world.name(workers - 1)
    up.fill(b"a", name=name)
    down.slave(up, name)
    tree.until(lambda: down.next_seq(name) == 1)
    down.peer.take()
    down.peer.send(f"pub {name} |b", "ack on", f"pub {name} |c")
    tree.until(lambda: down.next_seq(name) == 3 and f"ok pub {name} 2" in down.peer.lines)
    assert up.messages(name) == down.messages(name) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("workers", [1, 2])
def test_calls_go_up_to_the_master_through_nodes_that_follow(tree: Tree, workers: int) -> None:
    up, middle, down = (tree.node(workers) for _ in range(3))
    name = up.world.name(workers - 1)
    up.fill(b"a", name=name)
    middle.slave(up, name)
    down.slave(middle, name)
    tree.until(lambda: down.next_seq(name) == 1)

    def later(node: Node, answer: Callable[[list[object], OnResult], None]) -> None:
        node.world.workers[node.world.owner_of(name)].router.answered_later = {"consume": answer}

    existed = {"existed": True}
    later(up, lambda args, done: done(existed if args == asked else Refused(Code.CONSUMER, "no such consumer")))
    for node in (middle, down):
        owner = node.world.workers[node.world.owner_of(name)].owner
        later(node, lambda args, done, owner=owner: owner.context.call_up(name.encode(), "consume", args, done))  # type: ignore[misc]
    asked = [name.encode(), Consume(0, "delete", name.encode(), b"n")]
    outcomes: list[object] = []
    for args in (asked, [name.encode(), Consume(0, "delete", name.encode(), b"m")]):
        down.world.workers[0].router.call(name.encode(), "consume", args, outcomes.append)
    tree.until(lambda: len(outcomes) == 2)
    assert outcomes[0] == existed and isinstance(outcomes[1], Refused) and outcomes[1].code is Code.CONSUMER


def test_calls_go_up_before_a_stream_was_heard_of(tree: Tree) -> None:
    up, down = tree.node(), tree.node()
    up.fill(b"a", name="s1")
    down.slave(up, "s*")
    tree.until(lambda: down.next_seq("s1") == 1)
    up.world.workers[0].router.answered_later = {"consume": lambda args, done: done({"existed": args[0] == b"s2"})}
    outcomes: list[object] = []
    down.owner.context.call_up(b"s2", "consume", [b"s2", Consume(0, "delete", b"s2", b"n")], outcomes.append)
    tree.until(lambda: bool(outcomes))
    assert outcomes == [{"existed": True}]
    down.owner.context.call_up(b"other", "get", [b"other"], outcomes.append)
    assert isinstance(outcomes[1], Refused) and outcomes[1].code is Code.DISABLED


def test_who_was_deposed_asks_nobody(tree: Tree) -> None:
    node = tree.node()
    outcomes: list[Refused] = []
    node.owner.context.call_up(b"s", "get", [b"s"], outcomes.append)
    assert [(each.code, each.args[0]) for each in outcomes] == [(Code.DISABLED, DEPOSED_TEXT)]


def test_what_is_held_far_below_is_heard_at_the_top(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, middle = pair
    bottom = tree.node()
    bottom.slave(middle)
    tree.until(lambda: bottom.next_seq() == 3)
    nodes = up.owner.replicas.holders(b"s").nodes
    tree.until(lambda: {id: held.next_seq for id, held in nodes.items()} == {middle.id: 3, bottom.id: 3})
    tree.until(lambda: bottom.world.workers[0].uplinks.path_above(b"s") == (middle.id, up.id))
    bottom.say("unslave s")
    tree.until(lambda: set(nodes) == {middle.id})


def test_an_uplink_that_nobody_needs_is_closed(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    down.say("unslave s")
    assert down.role() == "disabled" and b"s" not in down.owner.uproutes
    tree.until(lambda: not down.uplinks)
    tree.until(lambda: not up.world.workers[0].followers.nodes)


def test_another_upstream_is_followed_in_its_stead(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    other = tree.node()
    other.slave(up)
    tree.until(lambda: other.next_seq() == 3)
    down.slave(other)
    tree.until(lambda: [uplink.port for uplink in down.uplinks] == [other.port])
    up.fill(b"d")
    tree.until(lambda: down.next_seq() == 4)


# --- patterns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_streams_follow_as_they_are_made_upstream(tree: Tree, workers: int) -> None:
    up, down = tree.node(), tree.node(workers)
    up.fill(b"x", name="log.a")
    up.fill(b"x", name="else")
    down.slave(up, "log.*")
    up.fill(b"x", name="log.b")
    tree.until(lambda: down.next_seq("log.a") == down.next_seq("log.b") == 1)
    assert down.next_seq("else") == -1
    down.say("unslave log.*")
    tree.until(lambda: not down.uplinks)


def test_a_stream_is_made_where_its_own_rule_has_it_followed(tree: Tree) -> None:
    """Names reported by one upstream may be those of streams that a narrower rule has follow another."""
    one, all_else, down = tree.node(), tree.node(), tree.node()
    all_else.fill(b"x", name="log.only-here")
    all_else.fill(b"x", name="s")
    down.slave(one, "log.*")
    down.slave(all_else, "*")
    down.slave(one, "log.*")
    tree.until(lambda: down.next_seq("s") == 1)
    assert down.next_seq("log.only-here") == -1 and one.next_seq("log.only-here") == -1


@pytest.mark.parametrize("pattern", ["s", "s*"])
@pytest.mark.parametrize("workers", [1, 2])
def test_companions_follow_with_their_stream(tree: Tree, workers: int, pattern: str) -> None:
    """Those that are there, and those that are made later; of this stream and no other."""
    up, down = tree.node(), tree.node(workers)
    bottom = tree.node()
    up.fill(b"x", name="s")
    up.owner.create(b"s/$dead")  # as the broker does, no client
    up.owner.append(batch(b"s/$dead", b"x"), 1_000.0)
    down.slave(up, pattern)
    bottom.slave(down, pattern)
    tree.until(lambda: bottom.next_seq("s/$dead") == down.next_seq("s/$dead") == 1)
    up.owner.create(b"$cursor/s")
    up.owner.create(b"$cursor/t")
    up.owner.append(batch(b"$cursor/s", b"y", b"z"), 1_000.0)
    tree.until(lambda: bottom.next_seq("$cursor/s") == down.next_seq("$cursor/s") == 2)
    assert down.role("$cursor/s") == bottom.role("$cursor/s") == "slave"
    assert down.next_seq("$cursor/t") == -1


def test_a_stream_that_was_deleted_as_a_master_is_copied_once_the_rule_is_given_again(tree: Tree) -> None:
    """The upstream had named it while this node would still have made it by itself."""
    up, down = tree.node(), tree.node()
    up.fill(b"x")
    down.slave(up, "*")
    tree.until(lambda: down.next_seq() == 1)
    down.peer.send("promote s force")
    tree.until(lambda: up.uplinks and up.copy_state() is FetchState.FOLLOWING)
    down.peer.send("delete s")
    tree.until(lambda: up.next_seq() == down.next_seq() == -1 and not up.owner.catalog.deleting)
    up.fill(b"x")
    up.fill(b"y", name="later")
    tree.until(lambda: down.next_seq("later") == 1)
    assert down.next_seq() == -1, "it is this node's own, should somebody make it here"
    down.peer.lines.clear()
    down.slave(up, "*")
    tree.until(lambda: down.next_seq() == 1)
    assert down.role() == "slave"


def test_when_a_rule_goes_its_names_are_not_made_any_more(tree: Tree) -> None:
    up, down = tree.node(), tree.node()
    up.fill(b"x", name="keep")
    down.slave(up, "keep")
    down.slave(up, "*")
    tree.until(lambda: down.next_seq("keep") == 1)
    down.say("unslave *")
    down.slave(up, "keep")
    up.fill(b"x", name="new")
    up.fill(b"y", name="keep")
    tree.until(lambda: [uplink.prefixes for uplink in down.uplinks] == [{b"keep"}])
    tree.until(lambda: down.uplinks[0].copies.by_name[b"keep"].state is not FetchState.ASKED)
    assert down.next_seq("new") == -1


# --- roles ------------------------------------------------------------------------------------------------------------


def test_a_fenced_slave_passes_nothing_to_its_upstream(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    before = up.next_seq()
    assert down.say("fence s 5") == "ok fence s slave 5"
    assert down.uplinks[0].copies.by_name[b"s"].fenced
    assert down.say("pub s |x").startswith("err disabled s: this node has learned of a later term")
    assert up.next_seq() == before
    tree.until(lambda: up.role() == "slave")  # it has learned of the term from its follower
    assert up.say("promote s force") == "ok promote s 6"
    tree.until(lambda: down.copy_state() is FetchState.FOLLOWING)
    down.peer.send("pub s |y")
    tree.until(lambda: down.messages()[-1:] == up.messages()[-1:] == [b"y"])


def test_a_node_that_was_fenced_for_a_stream_it_lacks_does_not_replicate_an_earlier_term(tree: Tree) -> None:
    """It copies nothing from a master in an earlier term, which learns of the term and takes no more messages."""
    up, down = tree.node(), tree.node()
    assert down.say("fence s 5") == "ok fence s slave 5"
    up.fill(b"old")
    up.fill(b"other", name="t")
    down.slave(up, "*")
    tree.until(lambda: down.next_seq("t") == 1 and up.role() == "slave")
    assert down.next_seq() == 0 and down.copy_state() is not FetchState.FOLLOWING
    assert up.say("promote s force") == "ok promote s 6"
    tree.until(lambda: down.messages() == [b"old"])


def test_what_is_asked_of_the_master_is_refused_while_fenced(tree: Tree, pair: tuple[Node, Node]) -> None:
    _up, down = pair
    down.say("fence s 5")
    outcomes: list[object] = []
    down.world.workers[0].uplinks.call_up(b"s", "get", [b"s"], outcomes.append)
    (refused,) = outcomes
    assert isinstance(refused, Refused) and refused.text == FENCED_TEXT


def test_a_promoted_slave_is_followed_by_its_former_master(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    assert down.say("promote s force") == "ok promote s 2"
    tree.until(lambda: up.role() == "slave")
    up.peer.send("ack on", "pub s |d")
    tree.until(lambda: up.next_seq() == down.next_seq() == 4)
    tree.until(lambda: not down.uplinks)
    assert down.owner.roles.meta(b"s").upstream is None and up.owner.roles.epoch(b"s") == 2


def test_two_masters_end_as_one_and_the_others_messages_are_set_aside(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    down.world.workers[0].uplinks.stop("cut off, for the test")
    reader, binary = up.world.connect(), BinaryPeer(up.world)
    up.world.ask(reader, "sub s #0 wait")
    binary.subscribe(1, "s")
    down.say("promote s force")
    up.fill(b"lost 1", b"lost 2")
    down.fill(b"d")
    tree.until(lambda: up.messages() == down.messages() == [b"a", b"b", b"c", b"d"])
    assert up.world.workers[0].metrics.diverged_messages == 2
    (text,) = [line for line in reader.lines if line.startswith("err")]
    assert text.startswith("err diverged s: messages from 3 on") and "#3" in text
    (ended,) = [each for each in binary.take() if isinstance(each, m.Ended)]
    assert (ended.id, ended.code) == (1, Code.DIVERGED)


def test_companions_are_promoted_and_turn_round_with_their_stream(tree: Tree, pair: tuple[Node, Node]) -> None:
    """The former master has parted from the new one in its companions too, and had one that nobody else has."""
    up, down = pair
    up.owner.create(b"$cursor/s")
    up.owner.append(batch(b"$cursor/s", b"1", b"2"), 1_000.0)
    tree.until(lambda: down.next_seq("$cursor/s") == 2)
    down.world.workers[0].uplinks.stop("cut off, for the test")
    up.owner.append(batch(b"$cursor/s", b"lost"), 1_000.0)
    up.owner.create(b"s/$dead")
    up.owner.append(batch(b"s/$dead", b"lost"), 1_000.0)
    assert down.say("promote s force") == "ok promote s 2"
    for name in (b"$cursor/s", b"s/$dead"):
        down.owner.append(batch(name, b"3", b"4"), 1_000.0)
    tree.until(lambda: up.role("$cursor/s") == up.role("s/$dead") == "slave")
    tree.until(lambda: up.messages("s/$dead") == [b"3", b"4"])
    tree.until(lambda: up.next_seq("$cursor/s") == 4 and not up.owner.stream(b"$cursor/s").busy)
    log = up.owner.stream(b"$cursor/s").log
    assert [log.entry(seq).epoch for seq in range(4)] == [1, 1, 2, 2]
    assert up.world.workers[0].metrics.diverged_messages == 2


def test_one_who_was_deposed_says_so_until_somebody_claims(tree: Tree) -> None:
    node = tree.node()
    node.fill(b"a")
    node.owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 5, None))
    assert node.say("pub s |b").startswith("err disabled s: " + DEPOSED_TEXT[:40])


def test_a_claim_is_dropped_when_its_stream_is_no_masters_any_more(tree: Tree) -> None:
    """The former upstream would follow a node that follows it."""
    node = tree.node()
    node.fill(b"a")
    for upstream in (Upstream("127.0.0.1", 9), Upstream("127.0.0.1", 10)):
        node.owner.roles.set_meta(StreamMeta("s", Role.MASTER, 5, upstream))
        assert not any(upstream.port == uplink.port for uplink in node.uplinks), "it is not on the disk yet"
        node.world.workers[0]._finish_roles()
        assert [list(uplink.claims) for uplink in node.uplinks if uplink.claims] == [[b"s"]]
        assert [uplink.port for uplink in node.uplinks if uplink.claims] == [upstream.port]
    node.say("unmaster s")
    assert not any(uplink.claims for uplink in node.uplinks)


def test_a_turns_publishes_go_where_the_stream_is_when_the_turn_ends(tree: Tree, pair: tuple[Node, Node]) -> None:
    _up, down = pair
    router, owner = down.world.workers[0].router, down.owner
    sinks = [Sink(), Sink()]

    def stage(sink: Sink) -> None:
        made = batch(b"s", b"x", sink=sink)
        router.batch(b"s").add(sink, 0, 1, made.take_frames())

    stage(sinks[0])
    owner.roles.set_meta(
        StreamMeta("s", Role.MASTER, 5, None)
    )  # as when a claim, or a sibling's call, comes in between
    down.world.workers[0]._finish_roles()
    router.flush()
    assert sinks[0].published_at == {0: 3}
    stage(sinks[1])
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 5, Upstream("127.0.0.1", 9)))
    down.world.workers[0]._finish_roles()
    router.flush()
    assert not sinks[1].published_at and [uplink.route.bytes_held for uplink in down.uplinks if uplink.port == 9] == [
        33
    ]
    owner.roles.set_meta(StreamMeta("s", Role.DISABLED, 5, None))
    down.world.workers[0]._finish_roles()
    assert sinks[1].refusals[0][0] is Code.UNAVAILABLE


# --- giving the streams up --------------------------------------------------------------------------------------------


def test_a_worker_that_is_replaced_follows_nobody(tree: Tree, pair: tuple[Node, Node]) -> None:
    up, down = pair
    worker = down.world.workers[0]
    sink = Sink()
    worker.uplinks.send_up(batch(b"s", b"x", sink=sink))
    worker._retire()
    assert not down.uplinks and not worker.owner.uproutes
    assert sink.refusals[0][0] is Code.UNAVAILABLE
    worker.uplinks.reconcile(b"s")
    worker.uplinks.tick()
    assert not down.uplinks, "its streams are its successor's"
    tree.until(lambda: not up.world.workers[0].followers.nodes)


class Held:
    """A set_aside that waits in the helper thread until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        original = SetAsideJob.sync

        def sync(setting: SetAsideJob) -> None:
            self.begun.set()
            assert self.go_on.wait(PATIENCE_S)
            original(setting)

        monkeypatch.setattr(SetAsideJob, "sync", sync)


@pytest.fixture
def parted(tree: Tree) -> tuple[Node, Node]:
    """A node with five messages of its own, and one with others, which the first is going to follow."""
    up, down = tree.node(), tree.node()
    up.fill(b"a", b"b")
    down.fill(*(b"%d" % number for number in range(5)))
    return up, down


def test_a_cut_that_ends_after_the_streams_were_given_up_changes_nothing(
    tree: Tree, parted: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    up, down = parted
    held = Held(monkeypatch)
    worker = down.world.workers[0]
    cuts: list[bytes] = []
    monkeypatch.setattr(worker.fanout, "cut", lambda name, _seq: cuts.append(name))
    down.slave(up)
    tree.until(held.begun.is_set)
    stream = worker.owner.catalog.open[b"s"]
    worker._retire()
    held.go_on.set()
    tree.until(lambda: not stream.busy)
    assert not cuts and worker.metrics.diverged_messages == 0
    with contextlib.closing(
        StreamLog.open(worker.owner.catalog.shard_path(b"s"), "s", create=False, boot_id="x")
    ) as log:
        assert log.next_seq == 5, "its successor sees to it"


def test_while_the_end_is_set_aside_the_stream_is_read_and_not_changed(
    tree: Tree, parted: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    up, down = parted
    held = Held(monkeypatch)
    down.slave(up)
    tree.until(held.begun.is_set)
    assert down.messages() == [b"%d" % number for number in range(5)]
    for command in ("promote s force", "unslave s", "trim s #2"):
        assert down.say(command).startswith("err unavailable")
    held.go_on.set()
    tree.until(lambda: down.messages() == [b"a", b"b"])


@pytest.mark.parametrize("late", [False, True])
def test_a_cut_that_fails_is_made_again_and_told_when_it_is_one(
    tree: Tree, parted: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """`late`: after the stream was cut, on the way to the disk; the log is then closed, and opened anew."""
    up, down = parted
    worker = down.world.workers[0]
    told: list[int] = []
    original, cut = StreamLog.set_aside, worker.fanout.cut
    failures = [OSError(errno.EIO, "Input/output error")]

    def set_aside(log: StreamLog, seq: int) -> object:
        if not failures:
            return original(log, seq)
        if late:
            original(log, seq)
            log.close()
        raise failures.pop()

    def spy(name: bytes, seq: int, is_deleted: bool = False) -> None:
        told.append(len(failures))
        cut(name, seq, is_deleted)

    monkeypatch.setattr(StreamLog, "set_aside", set_aside)
    monkeypatch.setattr(worker.fanout, "cut", spy)
    reader = down.world.connect()
    down.world.ask(reader, "sub s #0 wait")
    down.slave(up)
    tree.until(
        lambda: (
            not failures and not down.owner.catalog.open[b"s"].busy if b"s" in down.owner.catalog.open else not failures
        )
    )
    tree.until(lambda: down.messages() == [b"a", b"b"])
    assert len(told) >= 1 and [line for line in reader.lines if line.startswith("err diverged")]
    assert down.world.workers[0].metrics.diverged_messages == (0 if late else 5)


# --- hosts by name ----------------------------------------------------------------------------------------------------


def test_a_host_is_looked_up_where_nobody_waits_for_the_disk(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    up, down = tree.node(), tree.node()
    up.fill(b"a")
    asked, answer = threading.Event(), threading.Event()

    def look_up(host: str, port: int) -> ResolvedAddress:
        asked.set()
        assert host == "broker-up" and answer.wait(PATIENCE_S)
        return socket.AF_INET, ("127.0.0.1", port)

    monkeypatch.setattr(uplink_module, "look_up", look_up)
    down.say(f"slave broker-up {up.port} s #0")
    tree.until(asked.is_set)
    peer = BinaryPeer(down.world)
    peer.open("other")
    peer.publish(1, b"x", ack=m.Ack.SYNCED)
    tree.until(lambda: peer.peer.received)
    assert peer.take() == [m.Published(1, ((0, 1, 0),))], "synced while the name server has not answered"
    answer.set()
    tree.until(lambda: down.next_seq() == 1)
    down.world.workers[0].uplinks.stop("it is enough")
    assert down.world.workers[0].uplinks._lookups is None


def test_a_host_that_is_no_name_is_an_upstream_that_is_down(tree: Tree) -> None:
    node = tree.node()
    assert node.say("slave a..b 5050 s #0").startswith("ok slave")
    tree.until(lambda: node.uplinks[0].phase is UpstreamPhase.DOWN and "no name of a host" in node.uplinks[0].why)


def test_connections_to_other_nodes_are_bounded(tmp_path: Path) -> None:
    """Else a peer that names many addresses has this node call them all, and keep two descriptors for each."""
    with world(tmp_path, max_upstreams=3) as made:
        peer, manager = made.connect(), made.workers[0].uplinks
        ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
        with contextlib.ExitStack() as held:
            for number, server in enumerate(ports):
                held.enter_context(server)
                (answer,) = made.ask(peer, f"slave 127.0.0.1 {server.getsockname()[1]} s{number} 0")
                assert answer.startswith("ok slave")
            manager.tick()
            assert len(list(manager)) == 3
            for number in range(3):
                made.ask(peer, f"unslave s{number}")
            for _ in range(2):
                manager.tick()
            assert {uplink.port for uplink in manager} == {server.getsockname()[1] for server in ports[3:]}
            manager.stop("its worker is replaced")
            assert not list(manager)
            for number in range(3):
                made.ask(peer, f"slave 127.0.0.1 {ports[number].getsockname()[1]} s{number} 0")
            manager.start()
            assert len(list(manager)) == 3, "the files of the streams name six addresses"
            manager.stop("the test is over")
