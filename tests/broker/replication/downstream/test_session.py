"""A node that follows streams of this one: the verdict on its copy, the frames sent to it, the messages it reports to
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.connection.client import ANSWERS_PENDING_MAX
from tailrace.broker.replication.downstream import session as follower_module
from tailrace.broker.replication.downstream.calls import SHORT_BYTES_MAX
from tailrace.broker.replication.downstream.session import WATCHES_MAX, compare
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.consuming import REQUEST_VERBS, Consume, Get, pack_body
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ack, Op
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.epochs import EpochStart, History
from tailrace.shard.frame import IndexEntry
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.world import World, world

B, C = "node-b", "node-c"


@pytest.fixture(params=[1, 2])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Followers are served by worker 0; the stream they follow is that of the last worker."""
    with world(tmp_path, workers=request.param) as node:
        yield node


@pytest.fixture
def name(node: World) -> str:
    return node.name(len(node.workers) - 1)


def follower(node: World, node_id: str = B) -> BinaryPeer:
    return BinaryPeer(node, node_id=node_id)


def followed(answers: list[m.Response]) -> r.Followed:
    (answer,) = answers
    assert isinstance(answer, r.Followed), answer
    return answer


def refused(answers: list[m.Response]) -> tuple[str, int, int]:
    (answer,) = answers
    assert isinstance(answer, m.Failed), answer
    return answer.code, answer.op, answer.id


def last_of(node: World, name: str, seq: int) -> tuple[int, int]:
    log = node.workers[node.owner_of(name)].owner.stream(name.encode()).log
    return log.entry(seq).epoch, log.frame_crc(seq)


def new(number: int, name: str, start: From = FROM_START) -> r.Follow:
    """The FOLLOW of a copy without a message."""
    return r.Follow(number, name.encode(), 0, 1, "", None, start)


def copy(node: World, number: int, name: str, next_seq: int) -> r.Follow:
    """The FOLLOW of a true copy of the messages before `next_seq`."""
    return r.Follow(number, name.encode(), next_seq, 1, "", last_of(node, name, next_seq - 1))


# --- how a copy is judged ---------------------------------------------------------------------------------------------


class Stream:
    """Messages first_seq..next_seq; message n has epoch 2 and a CRC of 100 + n."""

    def __init__(self, first_seq: int, next_seq: int) -> None:
        self._first_seq, self._next_seq = first_seq, next_seq

    def first_seq(self) -> int:
        return self._first_seq

    def next_seq(self) -> int:
        return self._next_seq

    def entry(self, seq: int) -> IndexEntry:
        assert self._first_seq <= seq < self._next_seq
        return IndexEntry(1_000 * seq, 0, 32, 2)

    def frame_crc(self, seq: int) -> int:
        return 100 + seq

    def seq_at(self, timestamp_us: int, _skip: int = 0) -> int:
        return timestamp_us // 1_000


HISTORY: History = (EpochStart(1, 0, "a"), EpochStart(2, 4, "b"))


@pytest.mark.parametrize(
    ("next_seq", "last", "answer"),
    [
        (8, (2, 107), ("following", 8)),
        (10, (2, 109), ("following", 10)),
        (8, (2, 106), ("parted", 0)),
        (8, (1, 107), ("parted", 0)),
        (11, (2, 110), ("behind", 0)),
        (6, (2, 105), ("following", 6)),
        (5, (2, 999), ("following", 5)),  # message 4 is trimmed here: its term is all that is known
        (5, (1, 104), ("parted", 0)),
        (2, (1, 5), ("following", 5)),  # the next message is trimmed
        (2, (2, 5), ("parted", 0)),
    ],
)
def test_a_copy_goes_on_where_its_last_message_is_the_one_here(
    next_seq: int, last: tuple[int, int], answer: tuple[str, int]
) -> None:
    stream = Stream(5, 10)
    assert compare(r.Follow(1, b"s", next_seq, 2, "b", last), stream, HISTORY, 10) == answer


@pytest.mark.parametrize(
    ("start", "seq"),
    [(("seq", 0), 5), (("seq", 7), 7), (("seq", 99), 10), (("time", 8_000), 8), (("new", 0), 12)],
)
def test_an_empty_copy_begins_where_it_asks(start: Any, seq: int) -> None:
    """`new` is the end that the owner reported, which may be further than the end seen here."""
    follow = r.Follow(1, b"s", 0, 0, "", None, From(*start))
    assert compare(follow, Stream(5, 10), HISTORY, 12) == ("following", seq)


# --- following --------------------------------------------------------------------------------------------------------


def test_frames_follow_the_answer(node: World, name: str) -> None:
    node.fill(name, [b"a", b"b", b"c"])
    peer = follower(node)
    answer = followed(peer.ask(new(4, name)))
    here = node.directory.node_id
    history = (EpochStart(1, 0, here),)
    assert answer == r.Followed(4, "following", 0, 0, 3, "master", history, (here,), awaited=False)
    assert peer.got[4] == [(0, b"a"), (1, b"b"), (2, b"c")]
    node.fill(name, [b"d"])
    peer.take()
    assert peer.got[4][-1] == (3, b"d")


def test_a_copy_is_resumed(node: World, name: str) -> None:
    node.fill(name, [b"a", b"b", b"c"])
    peer = follower(node)
    assert followed(peer.ask(copy(node, 1, name, 2))).start_seq == 2
    assert peer.got[1] == [(2, b"c")]


def test_copies_that_cannot_go_on_hear_how_they_stand(node: World, name: str) -> None:
    node.fill(name, [b"a", b"b", b"c"])
    peer = follower(node)
    parted = followed(peer.ask(r.Follow(1, name.encode(), 2, 1, "", (1, 12345))))
    assert (parted.state, parted.start_seq, parted.next_seq) == ("parted", 0, 3)
    behind = followed(peer.ask(r.Follow(1, name.encode(), 9, 1, "", (1, 12345))))
    assert (behind.state, behind.next_seq) == ("behind", 3)
    assert followed(peer.ask(copy(node, 1, name, 3))).state == "following", "the id was not taken"
    assert not peer.got


def test_an_unknown_stream_is_made(node: World, name: str) -> None:
    peer = follower(node)
    assert followed(peer.ask(new(1, name, FROM_NEW))).next_seq == 0
    node.fill(name, [b"a"])
    peer.take()
    assert peer.got[1] == [(0, b"a")]


def test_a_node_may_follow_more_streams_than_a_client_may_subscribe_to(tmp_path: Path) -> None:
    with world(tmp_path, max_subscriptions=2, max_streams_connection=2, max_handles=2) as node:
        peer = follower(node)
        for number in range(5):
            assert followed(peer.ask(new(number, f"stream-{number}"))).state == "following"
            assert peer.ask(m.Open(number, b"made-%d" % number)) == [m.Opened(number)]
            peer.publish(number, b"x")
            node.settle()
            assert peer.take() == [m.Published(number + 1, ((0, 1, 0),))]


def test_who_follows_says_which_node_it_is(node: World, name: str) -> None:
    peer = BinaryPeer(node, hello=False)
    peer.codec = ClientCodec(features=frozenset({r.FEATURE}))
    (welcome,) = peer.ask(m.Hello(1, (r.FEATURE, "else"), "test"))
    assert isinstance(welcome, m.Welcome) and welcome.features == (r.FEATURE,)
    assert refused(peer.ask(new(1, name))) == ("usage", Op.FOLLOW, 1)


def test_an_id_in_use_is_refused(node: World, name: str) -> None:
    peer = follower(node)
    peer.ask(new(1, name))
    assert refused(peer.ask(new(1, name))) == ("usage", Op.FOLLOW, 1)


def test_a_stream_is_followed_once_on_a_connection(node: World, name: str) -> None:
    """So that there is never more to keep of a connection than there are streams."""
    peer = follower(node)
    assert followed(peer.ask(new(1, name))).state == "following"
    assert refused(peer.ask(new(2, name))) == ("usage", Op.FOLLOW, 2)
    assert peer.ask(m.Unsubscribe(1)) == [m.Ended(1, 0)]
    assert followed(peer.ask(new(3, name))).state == "following"
    assert followed(follower(node, C).ask(new(3, name))).state == "following"


def test_a_following_is_ended_as_a_subscription(node: World, name: str) -> None:
    node.fill(name, [b"a"])
    peer = follower(node)
    peer.ask(new(1, name))
    assert peer.ask(m.Unsubscribe(1)) == [m.Ended(1, 1)]
    assert followed(peer.ask(copy(node, 1, name, 1))).state == "following"


def test_a_circle_is_refused(node: World, name: str) -> None:
    here = node.directory.node_id
    peer = follower(node, here)
    (answer,) = peer.ask(new(1, name))
    assert isinstance(answer, m.Failed) and (answer.code, answer.op, answer.id) == ("cycle", Op.FOLLOW, 1)
    assert f"{here} -> {here}" in answer.text
    node.workers[-1].owner.context.path_above = lambda _name: (C, B)  # type: ignore[method-assign]
    (answer,) = follower(node).ask(new(1, name))
    assert isinstance(answer, m.Failed) and f"{B} -> {here} -> {C} -> {B}" in answer.text


def test_a_circle_that_comes_about_later_ends_the_following(node: World, name: str) -> None:
    peer = follower(node)
    peer.ask(new(1, name))
    owner = node.workers[-1].owner
    owner.context.path_above = lambda _name: (B,)  # type: ignore[method-assign]
    owner.events.on_path(name.encode())
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, m.Ended) and (answer.id, answer.next_seq, answer.code) == (1, 0, "cycle")
    assert not node.binary_client_of(peer.peer).cursors


def test_followers_hear_of_another_role_or_path(node: World, name: str) -> None:
    peers = [follower(node), follower(node, C)]
    for peer in peers:
        peer.ask(new(1, name))
    asker = node.connect()
    assert node.ask(asker, f"unmaster {name}")[0].startswith("ok unmaster")
    for peer in peers:
        assert (followed(peer.take()).state, peer.take()) == ("news", [])
    owner = node.workers[-1].owner
    owner.context.path_above = lambda _name: ("node-x",)  # type: ignore[method-assign]
    owner.events.on_path(name.encode())
    owner.events.on_path(name.encode())
    node.settle()
    for peer in peers:
        news = followed(peer.take())
        assert (news.id, news.state, news.role) == (1, "news", "disabled")
        assert news.path == (node.directory.node_id, "node-x")


def test_who_is_behind_hears_how_far(node: World, name: str) -> None:
    for _ in range(20):
        node.fill(name, [b"x" * 100_000])
    peer = BinaryPeer(node, node_id=B, small=True)
    peer.peer.deaf = True
    peer.say(new(1, name))
    node.settle()
    node.stop_timers()  # they send it as well
    followers = node.workers[0].followers
    followers.send_ends()
    followers.send_ends()
    peer.peer.deaf = False
    node.settle()
    answers = peer.take()
    news = [each for each in answers[1:] if isinstance(each, r.Followed)]
    assert [(each.id, each.state, each.next_seq) for each in news] == [(1, "news", 20)], "once, until it has read that"
    followers.send_ends()
    node.settle()
    assert peer.take() == [], "it is behind no more"


def test_a_master_gives_in_to_a_later_term(node: World, name: str) -> None:
    node.fill(name, [b"a"])
    peer = follower(node)
    answer = followed(peer.ask(r.Follow(1, name.encode(), 1, 5, C, last_of(node, name, 0))))
    assert answer.role != "master"
    assert node.ask(node.connect(), f"pub {name} |late")[0].startswith("err ")


def test_that_others_follow_is_written_down(node: World) -> None:
    assert not node.workers[0].owner.roles.was_followed
    follower(node)
    node.workers[0].owner.roles.read_rules()
    assert node.workers[0].owner.roles.was_followed


# --- messages held below ----------------------------------------------------------------------------------------------


def publisher(node: World, name: str, slot: int) -> BinaryPeer:
    peer = BinaryPeer(node, slot)
    peer.open(name)
    return peer


def publish_replicated(node: World, peer: BinaryPeer, replicas: int, *payloads: bytes) -> None:
    peer.publish(1, *(payloads or (b"x",)), ack=Ack.REPLICATED, replicas=replicas)
    node.settle()


@pytest.mark.parametrize("slot", [0, -1])
def test_a_publish_is_answered_when_so_many_nodes_hold_it(node: World, name: str, slot: int) -> None:
    peer, client = follower(node), publisher(node, name, slot % len(node.workers))
    peer.ask(new(1, name))
    publish_replicated(node, client, 2, b"a", b"b")
    assert client.take() == []
    news = followed(peer.take())
    assert len(peer.got[1]) == 2
    assert news.state == "news" and news.awaited, "its reports are waited for"
    peer.ask(r.Held(((1, B, 2, 0),)))
    assert client.take() == []
    peer.ask(r.Held(((1, C, 2, 2),)))
    assert client.take() == [m.Published(1, ((0, 2, 1),))]
    publish_replicated(node, client, 1)
    assert peer.ask(r.Held(((1, B, 3, 2),))) == []
    assert client.take() == [m.Published(2, ((2, 1, 1),))]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_follower_hears_that_no_publish_waits_any_more_if_its_stream_is_open(
    node: World, name: str, is_open: bool
) -> None:
    peer, client = follower(node), publisher(node, name, 0)
    peer.ask(new(1, name))
    publish_replicated(node, client, 1)
    peer.ask(r.Held(((1, B, 1, 0),)))
    owner = node.workers[node.owner_of(name)].owner
    if not is_open:
        owner.close_logs()
    owner.replicas._clock = lambda: float("inf")
    owner.replicas.expire()
    node.settle()
    news = peer.take()
    assert [each.awaited for each in news if isinstance(each, r.Followed)] == [False] * is_open
    assert (name.encode() in owner.catalog.open) is is_open and not owner.replicas.is_awaited(name.encode())


def test_levels_do_not_hold_each_other_back_and_keep_their_order(node: World, name: str) -> None:
    client = publisher(node, name, 0)
    for replicas, ack in ((0, Ack.APPENDED), (1, Ack.REPLICATED), (0, Ack.APPENDED), (2, Ack.REPLICATED)):
        client.publish(1, b"%d" % replicas, ack=ack, replicas=replicas)
    node.settle()
    assert client.take() == [m.Published(1, ((0, 1, 0),)), m.Published(3, ((2, 1, 0),))]
    peer = follower(node)
    peer.ask(new(1, name))
    peer.ask(r.Held(((1, B, 4, 4),)))
    assert client.take() == [m.Published(2, ((1, 1, 1),))]


def test_a_publish_that_is_not_held_in_time_is_told_so(node: World, name: str) -> None:
    client = publisher(node, name, 0)
    publish_replicated(node, client, 1)
    owner = node.workers[-1].owner
    owner.replicas._clock = lambda: float("inf")
    owner.replicas.expire()
    node.settle()
    (answer,) = client.take()
    assert isinstance(answer, m.Failed) and (answer.code, answer.id) == ("unreplicated", 1)
    assert "logged, but 0 of 1 nodes hold it" in answer.text
    assert answer.results is not None and answer.results[0][:3] == (0, 1, 0)
    assert owner.stream(name.encode()).log.next_seq == 1


def test_what_is_gone_counts_no_more(node: World, name: str) -> None:
    node.fill(name, [b"a"])
    nodes = node.workers[-1].owner.replicas.holders(name.encode()).nodes
    peer, other = follower(node), follower(node, C)
    for each, node_id in ((peer, B), (other, C)):
        each.ask(copy(node, 1, name, 1))
        each.ask(r.Held(((1, node_id, 1, 1), (1, f"below-{node_id}", 1, 0))))
    assert set(nodes) == {B, C, f"below-{B}", f"below-{C}"}
    peer.ask(r.Held((), ((1, f"below-{B}"), (1, "unknown"), (9, B))))
    assert set(nodes) == {B, C, f"below-{C}"}
    peer.ask(m.Unsubscribe(1))
    assert set(nodes) == {C, f"below-{C}"}
    peer.ask(r.Held(((1, B, 1, 1),)))
    assert set(nodes) == {C, f"below-{C}"}, "it was on its way when the following ended"
    other.peer.close()
    node.settle()
    assert not nodes


def test_what_is_held_is_heard_however_many_publishes_wait_for_that(tmp_path: Path) -> None:
    """A node forwards publishes that wait for its own reports, on one connection."""
    with world(tmp_path, workers=2) as node:
        name = node.name(0)
        peer = follower(node)
        peer.ask(new(1, name), m.Open(1, name.encode()))
        count = ANSWERS_PENDING_MAX + 10
        for number in range(count):
            peer.publish(1, b"x", ack=Ack.REPLICATED, replicas=1)
            if number % 200 == 0:
                node.settle()
        node.settle()
        client = node.binary_client_of(peer.peer)
        client.pause_for(node.workers[0].routes[1])
        assert client.awaited == count and not client.paused
        answers = peer.ask(r.Held(((1, B, count, 0),)))
        assert sum(isinstance(each, m.Published) for each in answers) == count


@pytest.mark.parametrize(
    "row", [(1, B, 3, 0), (1, B, 2, 3), (1, "own", 1, 0)], ids=["not sent", "synced before held", "this node"]
)
def test_a_row_that_cannot_be_true_ends_the_connection(node: World, name: str, row: tuple[int, str, int, int]) -> None:
    node.fill(name, [b"a", b"b"])
    peer = follower(node)
    peer.ask(new(1, name))
    said = (row[0], node.directory.node_id if row[1] == "own" else row[1], *row[2:])
    (answer,) = peer.ask(r.Held((said,)))
    assert isinstance(answer, m.Failed) and (answer.code, answer.fatal) == ("protocol", True)
    assert peer.peer.ended
    assert not node.workers[-1].owner.replicas.holders(name.encode()).nodes


# --- the connection ---------------------------------------------------------------------------------------------------


def test_a_node_stays_in_its_worker(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        peer = follower(node)
        peer.ask(new(1, node.name(1)))
        client = node.binary_client_of(peer.peer)
        node.workers[0].movers.consider(client, 1)
        node.settle()
        assert client in node.workers[0].services.clients.values()


# --- other messages of nodes ------------------------------------------------------------------------------------------


def test_a_claim_is_answered_and_obeyed(node: World, name: str) -> None:
    node.fill(name, [b"a"])
    here = node.directory.node_id
    peer = follower(node)
    history = (EpochStart(1, 0, here), EpochStart(2, 1, B))
    assert peer.ask(r.Claim(9, name.encode(), history)) == [r.Claimed(9, "slave", 2, B, True)]
    owner = node.workers[-1].owner
    assert str(owner.roles.meta(name.encode()).upstream) == "peer:5050", "where the peer is, and its own port"
    other = follower(node, C)
    earlier = (EpochStart(1, 0, C),)
    (answer,) = other.ask(r.Claim(3, name.encode(), earlier))
    assert isinstance(answer, r.Claimed) and (answer.id, answer.epoch, answer.accepted) == (3, 2, False)


def test_a_claim_that_cannot_be_obeyed_is_refused(node: World, name: str) -> None:
    peer = follower(node)
    client = node.binary_client_of(peer.peer)
    assert client.follower is not None
    client.follower.address = ""
    assert refused(peer.ask(r.Claim(1, name.encode(), (EpochStart(2, 0, B),)))) == ("usage", Op.CLAIM, 1)


def test_a_claim_may_be_passed_on_for_another(node: World, name: str) -> None:
    """The claimant follows the master of that term, and leads to it."""
    peer = follower(node)
    (answer,) = peer.ask(r.Claim(1, name.encode(), (EpochStart(2, 0, C),)))
    assert isinstance(answer, r.Claimed) and (answer.epoch, answer.master, answer.accepted) == (2, C, True)


def test_names_are_told_with_those_to_come(node: World) -> None:
    peer = follower(node)
    other = node.connect()
    node.ask(other, *(f"pub early-{number} |x" for number in range(5)), "pub else |x")
    peer.say(r.Watch(3, b"early"))
    assert sorted(told(node, peer)) == [(3, b"early-%d" % number) for number in range(5)]
    node.ask(other, "pub early-9 |x", "pub else-9 |x")
    assert told(node, peer) == [(3, b"early-9")]


def told(node: World, peer: BinaryPeer) -> list[tuple[int, bytes]]:
    """(id, name) of all the NAMES that come now; the timers have run."""
    found = []
    for _ in range(4):
        for worker in node.workers:
            worker.catalog.tick()
        node.settle()
        for answer in peer.take():
            assert isinstance(answer, r.Names), answer
            found += [(answer.id, each) for each in answer.names]
    return found


def test_watches_are_bounded(node: World) -> None:
    peer = follower(node)
    client = node.binary_client_of(peer.peer)
    assert client.follower is not None
    client.follower.watches = {b"%d" % number for number in range(WATCHES_MAX)}
    assert refused(peer.ask(r.Watch(7, b""))) == ("subscriptions", Op.WATCH, 7)
    assert peer.ask(r.Watch(8, b"5")) == [], "it is one of them"


def test_how_replication_stands_is_told(node: World, name: str) -> None:
    node.fill(name, [b"a", b"b", b"c"])
    peer = follower(node)
    peer.ask(new(1, name))
    peer.ask(r.Held(((1, B, 1, 0), (1, "below", 3, 3))))
    asker = BinaryPeer(node, node_id=C)
    for stream, masters, nodes in ((None, 1, {B, C}), (name.encode(), 1, {B}), (b"unknown", 0, set())):
        (answer,) = asker.ask(r.Ask(5, stream))
        assert isinstance(answer, r.Told) and (answer.id, answer.node) == (5, node.directory.node_id)
        assert answer.address.startswith(":") and (answer.masters, answer.slaves, answer.disabled) == (masters, 0, 0)
        links = {link.node: link for link in answer.links}
        assert B not in links or links[B][:7] == ("down", B, "peer:5050", "up", 1, 2, 2 * 33)
        assert set(links) in (nodes, nodes - {C}), "who follows nothing may be left out"


def test_a_worker_that_is_down_makes_no_answer_that_is_wrong(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        asker = follower(node)
        route = node.workers[0].routes[1]
        route.link = None
        asker.say(r.Ask(5))
        node.settle()
        assert asker.take() == []
        route.expire(float("inf"))
        node.settle()
        assert refused(asker.take()) == ("unavailable", Op.ASK, 5)


def test_answers_that_come_too_late_are_nobodys(node: World, name: str) -> None:
    peer = follower(node)
    peer.say(new(1, name), r.Ask(2), r.Claim(3, name.encode(), (EpochStart(2, 0, B),)))
    node.workers[0].turn()
    peer.peer.close()
    node.settle()
    assert not node.workers[0].services.clients


# --- calls ------------------------------------------------------------------------------------------------------------


class Asked:
    """An owner that answers nothing before the test does."""

    def __init__(self, node: World, name: str) -> None:
        self.calls: list[tuple[list[Any], Any]] = []
        self.worker = node.workers[node.owner_of(name)]
        self.worker.router.answered_later = dict.fromkeys(
            REQUEST_VERBS, lambda args, done: self.calls.append((args, done))
        )


def wanted(name: str, member: bytes = b"m") -> Get:
    return Get(0, name.encode(), b"n", member)


def get(number: int, name: str, member: bytes = b"m") -> r.Call:
    return r.Call(number, name.encode(), "get", pack_body(wanted(name, member)))


def test_calls_are_answered_by_the_streams_owner_in_any_order(node: World, name: str) -> None:
    asked = Asked(node, name)
    peer = follower(node)
    assert peer.ask(get(7, name), get(8, name, b"x")) == []
    assert [args for args, _done in asked.calls] == [[name.encode(), wanted(name)], [name.encode(), wanted(name, b"x")]]
    given = {"runs": [[1, 2, 3]], "stale": [], "trimmed": 0}
    asked.calls[1][1](given)
    asked.calls[0][1](Refused(Code.CONSUMER, "none of that name"))
    asked.worker.turn()
    node.settle()
    assert peer.take() == [r.Returned(8, msgpack.packb(given)), r.Returned(7, None, "consumer", "none of that name")]
    peer.say(get(7, name))
    node.settle()
    peer.peer.close()
    node.settle()
    asked.calls[2][1](given)
    node.settle()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (r.Call(1, b"s", "promote", b"\x90"), "unsupported"),
        (r.Call(1, b"s", "get", b"\x80"), "usage"),
        (r.Call(1, b"s", "get", b"\x90"), "usage"),
        (r.Call(1, b"s", "get", pack_body(wanted("another"))), "usage"),
        (r.Call(1, b"s", "consume", b"\x91\xc0"), "usage"),
    ],
)
def test_what_may_not_be_asked(node: World, call: r.Call, code: str) -> None:
    (answer,) = follower(node).ask(call)
    assert isinstance(answer, r.Returned) and (answer.id, answer.value, answer.code) == (1, None, code)


def test_only_nodes_call(node: World, name: str) -> None:
    peer = BinaryPeer(node, hello=False)
    peer.codec = ClientCodec(features=frozenset({r.FEATURE}))
    _welcome, answer = peer.ask(m.Hello(1, (r.FEATURE,), "test"), get(1, name))
    assert isinstance(answer, r.Returned) and answer.code == "usage" and "which node it is" in answer.text


def test_calls_without_an_answer_are_bounded(node: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(node, name)
    monkeypatch.setattr(follower_module, "CALLS_MAX", 2)
    peer = follower(node)
    answers = peer.ask(get(1, name), get(1, name), get(2, name), get(3, name))
    assert [(each.id, each.code) for each in answers if isinstance(each, r.Returned)] == [
        (1, "usage"),
        (3, "overloaded"),
    ]
    assert len(asked.calls) == 2


def test_an_answer_that_is_too_long_is_none(node: World, name: str) -> None:
    asked = Asked(node, name)
    peer = follower(node)
    peer.ask(r.Call(1, name.encode(), "consume", pack_body(Consume(0, "delete", name.encode(), b"n"))))
    asked.calls[0][1](b"x" * SHORT_BYTES_MAX)
    asked.worker.turn()
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, r.Returned) and answer.code == "size"


def test_what_is_refused_is_let_go_at_once(node: World, name: str, refusals_left: Callable[[], list[Refused]]) -> None:
    """However many are refused, nothing of them stays until the collector of cycles looks."""
    peer = follower(node)
    asked = [get(1, name), r.Call(2, name.encode(), "consume", b"\x91\xc0"), r.Call(3, name.encode(), "x", b"")]
    assert len(peer.ask(*asked, r.Follow(4, name.encode(), 0, (1 << 32) - 1, "~", None, FROM_START))) == len(asked) + 1
    assert refusals_left() == []


def test_who_leaves_lets_no_call_wait(node: World, name: str) -> None:
    """The others of the connection are not held up: a call may wait for a minute, and can be made again."""
    asked = Asked(node, name)
    peer = follower(node)
    peer.ask(get(1, name))
    client = node.binary_client_of(peer.peer)
    assert not client.awaited
    client.take_no_more()
    answers = peer.ask(get(2, name))
    assert [(each.id, each.code) for each in answers if isinstance(each, r.Returned)] == [
        (1, "unavailable"),
        (2, "unavailable"),
    ]
    asked.calls[0][1]({})
    node.settle()
    assert peer.take() == []
    peer = follower(node, C)
    peer.ask(get(3, name))
    answers = peer.ask(m.Close())
    assert [(each.id, each.code) for each in answers if isinstance(each, r.Returned)] == [(3, "unavailable")]
