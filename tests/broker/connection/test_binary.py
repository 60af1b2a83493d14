"""A binary connection: its beginning, publishes and their answers, subscriptions, errors, its end."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.broker.connection import login
from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import ANSWERS_PENDING_MAX
from tailrace.broker.connection.heartbeat import PONG_PAUSE_S, PONG_PAUSES_MAX
from tailrace.broker.process.version import program_version
from tailrace.broker.streams.refused import Refused
from tailrace.broker.worker import Worker
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack, Op
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.world import World, world

mark_run = load("tailrace.shard.run_cy").mark_run

PATIENCE_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def failed(answers: list[m.Response]) -> list[tuple[str, int, int, bool]]:
    """(code, op, id, fatal) of each; there is nothing else."""
    assert all(isinstance(each, m.Failed) for each in answers), answers
    return [(each.code, each.op, each.id, each.fatal) for each in answers if isinstance(each, m.Failed)]


# --- the beginning ----------------------------------------------------------------------------------------------------


def test_the_welcome_says_who_and_what_the_limits_are(node: World) -> None:
    welcome = BinaryPeer(node, 1).welcome
    assert (welcome.version, welcome.features, welcome.worker) == (1, (), 1)
    assert (welcome.software, welcome.node) == (f"tailrace/{program_version()}", node.directory.node_id)
    settings = node.settings
    assert welcome.limits == {
        "max_message_bytes": settings.max_message_bytes,
        "max_envelope_bytes": settings.max_envelope_bytes,
        "max_handles": settings.max_handles,
        "max_subscriptions": settings.max_subscriptions,
    }


@pytest.mark.parametrize("shown", [None, "", "wrong", "sécret"])
def test_a_token_is_wanted_of_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None
) -> None:
    monkeypatch.setattr(login, "FAILED_S", 0.0)
    with world(tmp_path, token="secret") as node:
        peer = BinaryPeer(node, local=False, hello=False)
        assert failed(peer.ask(m.Hello(1, (), "t", shown))) == [("denied", 0, 0, True)]
        assert peer.peer.ended
        right = BinaryPeer(node, local=False, hello=False)
        assert isinstance(right.ask(m.Hello(1, (), "t", "secret"))[0], m.Welcome)
        assert isinstance(BinaryPeer(node, local=True).welcome, m.Welcome), "this machine needs none"


def test_another_version_is_told_and_ended(node: World) -> None:
    peer = BinaryPeer(node, hello=False)
    assert failed(peer.ask(m.Hello(2, (), "t"))) == [("unsupported", Op.HELLO, 0, True)]
    assert peer.peer.ended


def test_what_is_no_message_is_told_and_the_connection_lives(node: World) -> None:
    peer = BinaryPeer(node)
    peer.peer.send_raw(b"\x63\x00\x00\x00\x00" + b"\x07\x01\x00\x00\x00\xc1")
    node.settle()
    assert failed(peer.take()) == [("protocol", 0x63, 0, False), ("usage", Op.SUBSCRIBE, 0, False)]
    assert peer.ask(m.Ping()) == [m.Pong()]
    assert peer.ask(m.Pong()) == []
    counts = node.workers[0].metrics.refused.counts
    assert (counts["protocol"], counts["usage"]) == (1, 1)


def test_lost_framing_is_told_and_ends_the_connection(node: World) -> None:
    peer = BinaryPeer(node)
    peer.peer.send_raw(b"\x05\xff\xff\xff\xff")
    node.settle()
    assert failed(peer.take()) == [("size", Op.PUBLISH, 0, True)]
    assert peer.peer.ended


def test_an_input_that_ends_within_an_envelope(node: World) -> None:
    peer = BinaryPeer(node)
    peer.peer.send_raw(m.pack(m.Ping()) + b"\x05\x10")
    node.settle()
    peer.peer.sock.shutdown(1)
    node.settle()
    answers = peer.take()
    assert answers[0] == m.Pong() and failed(answers[1:]) == [("incomplete", 0, 0, False)]
    assert peer.peer.ended


def test_close_comes_after_every_answer(node: World) -> None:
    peer = BinaryPeer(node)
    there = node.name(1)
    peer.open(there)
    peer.publish(1, b"x")
    answers = peer.ask(m.Close())
    assert answers == [m.Published(1, ((0, 1, 0),))] and peer.peer.ended


# --- publishing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [0, 1])
def test_a_batch_is_answered_with_its_first_seq(node: World, slot: int) -> None:
    peer = BinaryPeer(node)
    peer.open(node.name(slot))
    assert peer.publish(1, b"a", b"b") == 1
    peer.publish(1, b"c")
    node.settle()
    assert peer.take() == [m.Published(1, ((0, 2, 0),)), m.Published(2, ((2, 1, 0),))]
    peer.publish(1, b"d", ack=Ack.NONE)
    assert peer.ask(m.Ping()) == [m.Pong()], "nothing is said of it"
    assert peer.subscribe(9, node.name(slot)) == [m.Subscribed(9, 0, 0)]
    assert peer.got[9] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert node.workers[0].metrics.binary.messages_in == 4


def test_the_subscribers_of_the_whole_node_are_told(node: World) -> None:
    name = node.name(0)
    peers = [BinaryPeer(node, slot) for slot in (0, 1, 1)]
    for peer in peers:
        peer.subscribe(1, name)
    line = node.connect(1)
    node.ask(line, f"sub {name} 0 wait")
    for slot in (0, 1):
        peer = BinaryPeer(node, slot)
        peer.open(name)
        peer.publish(1, b"x")
        node.settle()
        (answer,) = peer.take()
        assert isinstance(answer, m.Published) and answer.results[0][2] == 4
    peers[1].ask(m.Unsubscribe(1))
    line.close()
    node.settle()
    peer.publish(1, b"y")
    node.settle()
    assert peer.take() == [m.Published(2, ((2, 1, 2),))]


def test_one_message_to_several_streams(node: World) -> None:
    names = [node.name(0), node.name(1), node.name(0, "other")]
    node.fill(names[2], [b"before"])
    peer = BinaryPeer(node)
    peer.open(*names)
    peer.publish([3, 1, 2], b"x", b"y")
    node.settle()
    assert peer.take() == [m.Published(1, ((1, 2, 0), (0, 2, 0), (0, 2, 0)))]
    for number, name in enumerate(names):
        peer.subscribe(number, name)
        assert [payload for _seq, payload in peer.got[number]][-2:] == [b"x", b"y"]


def test_several_streams_of_which_one_refuses(node: World) -> None:
    names = [node.name(0), node.name(1)]
    node.fill(names[1], [b"x"])
    node.ask(node.connect(0), f"unmaster {names[1]}")
    peer = BinaryPeer(node)
    peer.open(*names)
    peer.publish([1, 2], b"x", b"y")
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, m.Failed) and answer.results is not None
    assert (answer.code, answer.op, answer.id, answer.fatal) == ("disabled", Op.PUBLISH, 1, False)
    assert [each[:4] for each in answer.results] == [(0, 2, 0, ""), (0, 0, 0, "disabled")]
    peer.publish(2, b"x", ack=Ack.NONE)
    node.settle()
    assert failed(peer.take()) == [("disabled", Op.PUBLISH, 2, False)], "errors are told without any acknowledgement"


def test_a_publish_that_cannot_be_taken_is_refused_whole(node: World) -> None:
    peer = BinaryPeer(node)
    name = node.name(0)
    peer.open(name)
    peer.publish(7, b"x")
    peer.publish([7, 8], b"x")
    peer.peer.send_raw(m.pack_publish(4, 1, [1], b"x" * 40) + b"x" * 40)
    node.settle()
    assert failed(peer.take()) == [
        ("usage", Op.PUBLISH, 1, False),
        ("usage", Op.PUBLISH, 2, False),
        ("usage", Op.PUBLISH, 4, False),
    ]
    assert peer.subscribe(1, name) == [m.Subscribed(1, 0, 0)] and peer.got == {}


def test_handles_are_bounded_and_used_once(tmp_path: Path) -> None:
    with world(tmp_path, max_handles=2) as node:
        peer = BinaryPeer(node)
        answers = peer.ask(m.Open(5, b"a"), m.Open(5, b"b"), m.Open(6, b"a"), m.Open(7, b"a"))
        assert answers[0] == m.Opened(5) and answers[2] == m.Opened(6)
        assert failed([answers[1], answers[3]]) == [("usage", Op.OPEN, 5, False), ("handles", Op.OPEN, 7, False)]


def test_an_acknowledgement_of_the_disk_waits_for_it(node: World) -> None:
    name = node.name(0)
    peer = BinaryPeer(node)
    peer.open(name)
    peer.publish(1, b"x", ack=Ack.SYNCED)
    deadline_s = time.monotonic() + 10
    while not (answers := peer.take()):
        node.settle()
        assert time.monotonic() < deadline_s
    assert answers == [m.Published(1, ((0, 1, 0),))]
    assert node.workers[0].owner.stream(name.encode()).log.synced_seq == 1


def test_the_disk_of_a_sibling(node: World) -> None:
    name = node.name(1)
    peer = BinaryPeer(node)
    peer.open(name)
    peer.publish(1, b"x", ack=Ack.SYNCED)
    deadline_s = time.monotonic() + 10
    while not peer.take():
        node.settle()
        assert time.monotonic() < deadline_s
    assert node.workers[1].owner.stream(name.encode()).log.synced_seq == 1


def test_too_many_publishes_under_way_stop_the_reading(node: World) -> None:
    peer = BinaryPeer(node)
    peer.open(node.name(1))
    client = node.binary_client_of(peer.peer)
    for number in range(ANSWERS_PENDING_MAX + 2):
        peer.publish(1, b"x")
        if not number % 100:
            node.workers[0].turn()
    for _ in range(10):
        node.workers[0].turn()
    assert client.paused & Pause.ANSWERS and client.under_way > ANSWERS_PENDING_MAX
    node.settle()
    assert not client.paused and len(peer.take()) == ANSWERS_PENDING_MAX + 2


# --- subscribing ------------------------------------------------------------------------------------------------------


def test_from_an_end_to_an_end(node: World) -> None:
    name = node.name(1)
    node.fill(name, [b"%d" % number for number in range(10)])
    peer = BinaryPeer(node)
    assert peer.subscribe(1, name, end=("seq", 3)) == [m.Subscribed(1, 0, 0, 3), m.Ended(1, 3)]
    assert peer.subscribe(1, name, From("seq", 7), end=("now", 0)) == [m.Subscribed(1, 7, 0, 10), m.Ended(1, 10)]
    assert peer.got[1] == [(seq, b"%d" % seq) for seq in (0, 1, 2, 7, 8, 9)]
    assert peer.subscribe(2, name, From("new", 0), end=("now", 0)) == [m.Subscribed(2, 10, 0, 10), m.Ended(2, 10)]
    assert peer.subscribe(2, name, From("seq", 5), end=("seq", 2)) == [m.Subscribed(2, 5, 0, 5), m.Ended(2, 5)]
    assert peer.subscribe(2, name, end=("time", 1)) == [m.Subscribed(2, 0, 0, 0), m.Ended(2, 0)]
    assert failed(peer.subscribe(2, name, end=("time", 1 << 60))) == [("from", Op.SUBSCRIBE, 2, False)]
    assert 2 not in peer.got and not node.workers[0].fanout.feeds


def test_an_end_that_has_not_come_yet(node: World) -> None:
    name = node.name(0)
    peer = BinaryPeer(node)
    assert peer.subscribe(1, name, end=("seq", 2)) == [m.Subscribed(1, 0, 0, 2)]
    peer.open(name)
    peer.publish(1, b"a", b"b", b"c", ack=Ack.NONE)
    node.settle()
    assert peer.take() == [m.Ended(1, 2)] and peer.got[1] == [(0, b"a"), (1, b"b")]


def test_several_subscriptions_of_one_stream_and_their_ids(node: World) -> None:
    name = node.name(0)
    node.fill(name, [b"a", b"b"])
    peer = BinaryPeer(node)
    peer.subscribe(1, name)
    peer.subscribe(2, name, From("seq", 1))
    assert failed(peer.subscribe(1, name)) == [("usage", Op.SUBSCRIBE, 1, False)]
    assert peer.got == {1: [(0, b"a"), (1, b"b")], 2: [(1, b"b")]}
    assert peer.ask(m.Unsubscribe(1)) == [m.Ended(1, 2)]
    assert failed(peer.ask(m.Unsubscribe(1))) == [("unsubscribed", Op.UNSUBSCRIBE, 1, False)]
    assert peer.ask(m.Credit(1, 5)) == [], "credit that crossed with the end"
    node.fill(name, [b"c"])
    assert peer.take() == [] and peer.got == {1: [(0, b"a"), (1, b"b")], 2: [(1, b"b"), (2, b"c")]}


@pytest.mark.parametrize("turn_work_s", [0.0, float("inf")])
@pytest.mark.parametrize("where", [0, 1])
def test_a_subscription_to_what_is_new_begins_between_two_publishes(
    node: World, where: int, turn_work_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if this turn has no time left for opening streams, and the owner is another worker."""
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", turn_work_s)
    peer = BinaryPeer(node, 0)
    name = node.name(where)
    peer.open(name)
    peer.publish(1, b"1", b"2")
    peer.say(m.Subscribe(1, name.encode(), From("new", 0), wait=True))
    peer.publish(1, b"3")
    node.settle()
    peer.take()
    assert peer.got == {1: [(2, b"3")]}


def test_one_that_is_given_up_before_its_owner_has_answered(node: World) -> None:
    peer = BinaryPeer(node)
    peer.say(m.Subscribe(1, node.name(1).encode(), FROM_START, wait=True), m.Unsubscribe(1))
    node.settle()
    assert peer.take() == [m.Ended(1, 0)]
    assert not node.workers[0].fanout.feeds and not node.binary_client_of(peer.peer).awaited


def test_an_id_that_is_used_again_before_the_first_answer_is_the_second_subscription(node: World) -> None:
    names = [node.name(1), node.name(1, "other")]
    for name in names:
        node.fill(name, [name.encode()])
    peer = BinaryPeer(node)
    new = From("new", 0)  # the owner is asked, on another worker
    peer.say(
        m.Subscribe(1, names[0].encode(), new, wait=True),
        m.Unsubscribe(1),
        m.Subscribe(1, names[1].encode(), new, end=("seq", 2), wait=True),
    )
    node.settle()
    assert peer.take() == [m.Ended(1, 0), m.Subscribed(1, 1, 0, 2)]
    node.fill(names[0], [b"not this"])
    node.fill(names[1], [b"this"])
    assert peer.take() == [m.Ended(1, 2)] and peer.got[1] == [(1, b"this")]


def test_subscriptions_are_bounded(tmp_path: Path) -> None:
    with world(tmp_path, max_subscriptions=1) as node:
        peer = BinaryPeer(node)
        assert peer.subscribe(1, "a") == [m.Subscribed(1, 0, 0)]
        assert failed(peer.subscribe(2, "a")) == [("subscriptions", Op.SUBSCRIBE, 2, False)]


def test_a_stream_that_does_not_exist_is_refused_and_not_made(node: World) -> None:
    for slot in (0, 1):
        assert failed(BinaryPeer(node).subscribe(1, node.name(slot), wait=False)) == [
            ("unknown", Op.SUBSCRIBE, 1, False)
        ]
        assert not node.workers[slot].owner.catalog.names


def test_a_refusal_is_let_go_at_once(tmp_path: Path, refusals_left: Callable[[], list[Refused]]) -> None:
    """However many are refused, nothing of them stays until the collector of cycles looks."""
    with world(tmp_path, auto_master=False) as node:
        assert failed(BinaryPeer(node).subscribe(1, "a", wait=False)) == [("unknown", Op.SUBSCRIBE, 1, False)]
        assert refusals_left() == []


def test_credit_is_kept_to_and_a_message_at_least(node: World) -> None:
    name = node.name(0)
    node.fill(name, [b"x" * 68] * 10)  # frames of 100 bytes
    peer = BinaryPeer(node)
    peer.subscribe(1, name, credit=0)
    assert peer.got == {} and node.workers[0].fanout.starved
    peer.ask(m.Credit(1, 250))
    assert peer.sizes == [200, 100], "the last message of a credit may pass it"
    peer.ask(m.Credit(1, 49))
    assert sum(peer.sizes) == 300
    peer.ask(m.Credit(1, 2))
    assert sum(peer.sizes) == 400
    assert peer.ask(m.Credit(1, (1 << 63) - 1)) == []
    assert sum(peer.sizes) == 1_000
    node.fill(name, [b"x" * 68])
    peer.take()
    assert sum(peer.sizes) == 1_100 and not node.workers[0].fanout.starved


def test_credit_that_ran_out_at_the_end_of_the_stream(node: World) -> None:
    name = node.name(0)
    peer = BinaryPeer(node)
    node.fill(name, [b"x" * 68])
    peer.subscribe(1, name, credit=100)
    assert peer.sizes == [100]
    node.fill(name, [b"x" * 68])
    peer.take()
    assert peer.sizes == [100], "there is none left for what came later"
    peer.ask(m.Credit(1, 1))
    assert peer.sizes == [100, 100]


def test_trimmed_messages_are_told_and_the_rest_follows(node: World) -> None:
    name = node.name(0)
    node.fill(name, [b"x" * 68] * 10)
    peer = BinaryPeer(node)
    peer.subscribe(1, name, credit=0)
    node.ask(node.connect(0), f"trim {name} #8")
    assert failed(peer.ask(m.Credit(1, 1_000))) == [("trimmed", Op.SUBSCRIBE, 1, False)]
    assert [seq for seq, _payload in peer.got[1]] == [8, 9]
    assert peer.subscribe(2, name) == [m.Subscribed(2, 8, 8)]


# --- chunks that do not fit into a socket -----------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [0, 1])
def test_a_small_socket_gets_everything_once(tmp_path: Path, slot: int) -> None:
    with world(tmp_path, workers=2, affinity=False) as node:
        name = node.name(slot)
        payloads = [b"%d " % number + b"x" * (number % 3_000) for number in range(400)]
        node.fill(name, payloads)
        peer = BinaryPeer(node, small=True)
        peer.subscribe(1, name)
        assert peer.got[1] == list(enumerate(payloads))
        traffic = node.workers[0].metrics.binary
        assert traffic.messages_out == 400 and traffic.bytes_out > sum(map(len, payloads))


def test_unsubscribed_in_the_middle_of_a_chunk(node: World) -> None:
    name = node.name(0)
    node.fill(name, [b"x" * 1_000] * 600)
    peer = BinaryPeer(node, small=True)
    peer.peer.deaf = True
    peer.subscribe(1, name)
    client = node.binary_client_of(peer.peer)
    assert client.blocked and client.current is not None and client in node.workers[0].fanout.blocked
    peer.say(m.Unsubscribe(1))
    node.settle()
    peer.peer.deaf = False
    node.settle()
    answers = peer.take()
    assert answers[0] == m.Subscribed(1, 0, 0)
    assert answers[1] == m.Ended(1, len(peer.got[1])), "behind the chunk that was half out"
    assert not node.workers[0].fanout.blocked


def test_a_chunk_that_is_trimmed_while_it_is_half_out_is_finished(tmp_path: Path) -> None:
    with world(tmp_path, trim_grace_s=0.1, chunk_bytes=64 << 10) as node:
        node.fill("a", [b"x" * 1_000] * 600)
        peer = BinaryPeer(node, small=True)
        peer.peer.deaf = True
        peer.subscribe(1, "a")
        worker = node.workers[0]
        node.ask(node.connect(), "trim a #590")
        worker.fanout.keep_cut_messages()
        client = node.binary_client_of(peer.peer)
        assert client.current is None and client.out
        worker.owner.stream(b"a").log.punch(590)
        peer.peer.deaf = False
        node.settle()
        assert failed(peer.take()[1:]) == [("trimmed", Op.SUBSCRIBE, 1, False)]
        seqs = [seq for seq, _payload in peer.got[1]]
        cut = seqs.index(590)
        assert seqs == [*range(cut), *range(590, 600)] and cut > 100
        assert all(payload == b"x" * 1_000 for _seq, payload in peer.got[1])


# --- the heartbeat ----------------------------------------------------------------------------------------------------


PONGS = 10


def silent_for(node: World, seconds: float) -> None:
    """Let the loop see that so much time has passed."""
    for worker in node.workers:
        worker.heartbeats.tick(worker.services.now_s + seconds)


def test_a_silent_peer_is_pinged_at_once_and_dropped_in_the_end(node: World) -> None:
    peer = BinaryPeer(node)
    peer.subscribe(1, "a")
    client = node.binary_client_of(peer.peer)
    heard: list[m.Response] = []
    for number in range(3):
        silent_for(node, 32 * (number + 1))
        assert not client.out, "nothing was half out, so it is sent"
        peer.peer.read()
        heard += peer.take()
    assert heard == [m.Ping()] * 3
    silent_for(node, 32 * 4)
    assert client.closed and not node.workers[0].services.clients and not node.workers[0].fanout.feeds
    assert node.workers[0].metrics.dropped.counts == {"silent": 1}


def watched(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The descriptors that its loop has events for from now on; also such as come by the clock, from its siblings."""
    seen: set[int] = set()
    handle = worker._handle

    def see(events: list[tuple[int, int]]) -> None:
        seen.update(fd for fd, _mask in events)
        handle(events)

    monkeypatch.setattr(worker, "_handle", see)
    return seen


def test_a_pong_is_life_and_no_work(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = BinaryPeer(node)
    silent_for(node, 32)
    client = node.binary_client_of(peer.peer)
    seen = watched(node.workers[0], monkeypatch)
    for _ in range(PONGS):
        seen.clear()
        client.life_s = node.workers[0].stirred_s = 0.0
        peer.say(m.Pong())
        node.settle()
        assert client.life_s > 0.0
        if seen == {client.fd}:
            break
    else:
        pytest.fail("something else came with each of them")
    assert node.workers[0].stirred_s == 0.0, "a worker rests on"
    assert peer.take() == [m.Ping()]
    peer.say(m.Ping())
    node.settle()
    assert node.workers[0].stirred_s > 0.0


def test_a_ping_waits_for_the_chunk_that_is_half_out(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.fill("a", [b"x" * 1_000] * 200)
        peer = BinaryPeer(node, small=True)
        peer.peer.deaf = True
        peer.say(m.Subscribe(1, b"a", FROM_START, wait=True))
        node.settle()
        client = node.binary_client_of(peer.peer)
        assert client.current is not None
        client.send_ping()
        peer.peer.deaf = False
        node.settle()
        answers = peer.take()
        assert [type(each) for each in answers] == [m.Subscribed, m.Ping] and len(peer.got[1]) == 200


def test_bytes_that_look_like_a_pong_are_one_only_between_requests(node: World) -> None:
    """Within a payload they are part of it, also when they come alone."""
    peer = BinaryPeer(node)
    peer.open("a")
    pong = m.pack(m.Pong())
    frame = pack_frame(b"12345" + pong + b"67890")
    whole = m.pack_publish(1, Ack.APPENDED, [1], frame) + frame
    start = whole.index(pong)
    for piece in (whole[:start], pong, whole[start + len(pong) :]):
        peer.peer.send_raw(piece)
        node.settle()
    assert peer.take() == [m.Published(1, ((0, 1, 0),))]
    peer.subscribe(1, "a")
    assert peer.got[1] == [(0, b"12345" + pong + b"67890")]


def test_answers_to_pings_are_gathered_until_anything_else_comes(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn for each would cost more than they do. One turn takes a bounded number of them, and nothing waits long."""
    peers = [BinaryPeer(node) for _ in range(2)]
    pauses: list[float] = []

    others = {5: m.Ping()}  # by the number of pauses before them

    def say(peer: BinaryPeer, message: m.AnyMessage) -> None:
        """It is there when this returns: on a busy machine it may take a moment."""
        peer.say(message)
        assert select.select([node.workers[0].poller._epoll], [], [], PATIENCE_S)[0]

    def follow(pause_s: float) -> None:
        pauses.append(pause_s)
        say(peers[0], others.pop(len(pauses), m.Pong()))

    for most in (5, PONG_PAUSES_MAX):
        node.settle()
        node.stop_timers()  # one may ask the thread for the disk for something, whose outcome would be an event, too
        node.wait_synced()
        pauses.clear()
        monkeypatch.setattr("tailrace.broker.connection.heartbeat.time.sleep", follow)
        say(peers[1], m.Pong())
        node.workers[0].turn()
        monkeypatch.undo()
        assert pauses == [PONG_PAUSE_S] * most
    node.settle()
    assert peers[0].take() == [m.Pong()]


def test_a_chunk_that_is_gone_before_anybody_looked_ends_the_connection(tmp_path: Path) -> None:
    """The owner has given the space back while a worker stood still: no byte that is not the message's may go out."""
    with world(tmp_path, chunk_bytes=64 << 10) as node:
        node.fill("a", [b"x" * 1_000] * 600)
        peer = BinaryPeer(node, small=True)
        peer.peer.deaf = True
        peer.subscribe(1, "a")
        worker = node.workers[0]
        node.stop_timers()  # a running worker keeps cut data for readers in the middle of it
        node.ask(node.connect(), "trim a #590")
        worker.owner.stream(b"a").log.punch(590)
        peer.peer.deaf = False
        node.settle()
        peer.take()  # whose check of every CRC would fail
        assert peer.peer.ended and all(payload == b"x" * 1_000 for _seq, payload in peer.got.get(1, []))


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_fatal_error_comes_after_every_answer(node: World) -> None:
    peer = BinaryPeer(node)
    peer.open(node.name(1))
    peer.publish(1, b"x")
    peer.peer.send_raw(b"\x05\xff\xff\xff\xff")
    node.settle()
    answers = peer.take()
    assert answers[0] == m.Published(1, ((0, 1, 0),)) and failed(answers[1:]) == [("size", Op.PUBLISH, 0, True)]
    assert peer.peer.ended


def test_the_end_of_input_is_the_end(node: World) -> None:
    name = node.name(1)
    peer = BinaryPeer(node)
    peer.open(name)
    peer.subscribe(1, node.name(0))
    peer.publish(1, b"x")
    peer.say(m.Subscribe(2, name.encode(), FROM_START, wait=True))
    peer.peer.sock.shutdown(1)
    node.settle()
    answers = peer.take()
    assert answers == [m.Published(1, ((0, 1, 0),)), m.Subscribed(2, 0, 0)] and peer.peer.ended
    assert not node.workers[0].fanout.feeds and node.workers[0].siblings.subscribers(node.name(0).encode()) == 0


# --- numbered publishes ---------------------------------------------------------------------------------------------


def numbered(client: BinaryPeer, handles: list[int], number: int, *payloads: bytes) -> None:
    client.requests += 1
    frames = mark_run(b"".join(map(pack_frame, payloads)), write_numbering(b"", b"me", number))
    client.peer.send_raw(m.pack_publish(client.requests, m.Ack.APPENDED, handles, frames) + frames)


def test_the_feature_is_granted(node: World) -> None:
    client = BinaryPeer(node, hello=False)
    (welcome,) = client.ask(m.Hello(1, ("producers", "other"), "test"))
    assert isinstance(welcome, m.Welcome) and welcome.features == ("producers",)


@pytest.mark.parametrize("slot", [0, 1])
def test_numbered_publishes_here_and_at_a_sibling(node: World, slot: int) -> None:
    """Among others of the same turn, which they keep their place between; and once more."""
    name = node.name(slot)
    client = BinaryPeer(node)
    client.open(name)
    client.publish(1, b"before")
    numbered(client, [1], 0, b"a", b"b")
    client.publish(1, b"between")
    numbered(client, [1], 2, b"c")
    numbered(client, [1], 0, b"a", b"b")
    client.publish(1, b"after")
    node.settle()
    answers = client.take()
    assert [each.results[0][:2] for each in answers if isinstance(each, m.Published)] == [
        (0, 1),
        (1, 2),
        (3, 1),
        (4, 1),
        (1, 2),
        (5, 1),
    ]
    numbered(client, [1], 4, b"e")
    node.settle()
    (refused,) = client.take()
    assert isinstance(refused, m.Failed) and (refused.code, refused.id) == ("gap", 7)
    client.subscribe(1, name)
    client.take()
    payloads = [b"before", b"a", b"b", b"between", b"c", b"after"]
    assert client.got[1] == list(enumerate(payloads))


def test_a_numbered_publish_to_several_streams(node: World) -> None:
    """If one of them has the message already, the other one still gets it."""
    names = [node.name(0), node.name(1)]
    client = BinaryPeer(node)
    client.open(*names)
    numbered(client, [2], 0, b"a")
    numbered(client, [1, 2], 0, b"a")
    numbered(client, [1, 2], 0, b"a")
    node.settle()
    assert [each.results for each in client.take() if isinstance(each, m.Published)] == [
        ((0, 1, 0),),
        ((0, 1, 0), (0, 1, 0)),
        ((0, 1, 0), (0, 1, 0)),
    ]
    assert [node.workers[slot].owner.catalog.open[name.encode()].log.next_seq for slot, name in enumerate(names)] == [
        1,
        1,
    ]
