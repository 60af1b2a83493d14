"""One upstream node: dialling, greeting, silence, and all that goes over the connection. With a scripted upstream."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.upstream.choice import DIAL_MAX_S, DIAL_S
from tailrace.broker.replication.upstream.connection import (
    PONGS_UNSENT_MAX_BYTES,
    STEADY_S,
    HostLookup,
    UpstreamPhase,
)
from tailrace.broker.replication.upstream.leadership_claims import CLAIM_RETRY_S
from tailrace.broker.replication.upstream.upstream_calls import PATIENCE_S
from tailrace.broker.streams import roles as roles_module
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.consuming import Consume, pack_body
from tailrace.protocol.errors import Code
from tailrace.protocol.features import FILTERS, SHARING
from tailrace.protocol.messages import Op, pack
from tailrace.shard.epochs import EpochStart
from tailrace.shard.frame import pack_frame
from tailrace.shard.meta import Role
from tests.broker.owning import make_owner
from tests.broker.replication.scripted import HISTORY, TIMEOUT_S, UP, Near, S, raw
from tests.protocol.plain_codec import PlainCodec


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Near]:
    near = Near(tmp_path / "data", token="secret", unavailable_timeout_s=5.0)
    yield near
    near.close()


# --- up ---------------------------------------------------------------------------------------------------------------


def test_a_node_says_who_it_is_and_is_up_when_it_is_welcome(near: Near) -> None:
    near.greet()
    assert near.at(UpstreamPhase.GREETING) and near.uplink.why == "not tried yet"
    (hello,) = _hellos(near.far.hello)
    assert (hello.features, hello.token, hello.address) == ((FILTERS, r.FEATURE, SHARING), "secret", ":6060")
    assert (hello.node, hello.worker) == (near.owner.catalog.directory.node_id, (1, 4))
    near.far.say(m.Welcome(1, (r.FEATURE,), "test", UP, 0, {}))
    near.until(lambda: near.at(UpstreamPhase.UP))
    assert (near.uplink.node, near.uplink.why, near.uplink.copies.up) == (UP, "", True)


def _hellos(data: bytes) -> list[m.Hello]:
    return [each for each in PlainCodec(1 << 20, 1 << 20).feed(data, len(data)) if isinstance(each, m.Hello)]


@pytest.mark.parametrize(
    ("node", "features", "why"),
    [
        (UP, (), "another version"),
        (UP, ("else",), "another version"),
        ("", (r.FEATURE,), "node"),
        ("x" * 33, (r.FEATURE,), "node"),
        ("own", (r.FEATURE,), "this very node"),
    ],
)
def test_who_cannot_be_an_upstream_is_left(near: Near, node: str, features: tuple[str, ...], why: str) -> None:
    near.up(near.owner.catalog.directory.node_id if node == "own" else node, features)
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert why in near.uplink.why and not near.uplink.copies.up


def test_the_first_attempt_waits_for_no_tick(near: Near) -> None:
    near.uplink.copies.remove(S)
    near.uplink.flush()
    assert near.at(UpstreamPhase.DOWN), "nobody needs it"
    near.uplink.copies.add(S)
    near.uplink.flush()
    assert near.at(UpstreamPhase.CONNECTING)
    near.uplink.fail("enough")
    near.uplink.flush()
    assert near.at(UpstreamPhase.DOWN), "from now on there is a pause first"


BEFORE_UP = [
    m.Chunk(1, memoryview(pack_frame(b"x"))),
    r.Followed(1, "following", 0, 0, 0, "master", HISTORY, (UP,)),
    m.Published(1, ((0, 1, 0),)),
    m.Ended(1, 0),
    m.Opened(1),
    r.Names(1, (S,)),
    r.Claimed(1, "slave", 1, UP, True),
]
NEVER = [m.Subscribed(1, 0, 0), r.Told(1, UP, "", (), 0, 0, 0)]


@pytest.mark.parametrize("message", [*BEFORE_UP, *NEVER], ids=lambda message: type(message).__name__)
def test_nothing_but_a_welcome_is_heard_first(near: Near, message: Any) -> None:
    near.greet()
    assert near.far.sock is not None
    near.far.sock.sendall(raw(message))
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert f"{type(message).__name__}, which nobody asked for" in near.uplink.why


@pytest.mark.parametrize("message", NEVER, ids=lambda message: type(message).__name__)
def test_what_is_never_asked_closes(near: Near, message: Any) -> None:
    near.up()
    assert "nobody asked for" in near.fails(message)


def test_a_second_welcome_closes(near: Near) -> None:
    near.up()
    assert "nobody asked for" in near.fails(m.Welcome(1, (r.FEATURE,), "test", UP, 0, {}))


@pytest.mark.parametrize("greeted", [False, True])
def test_a_fatal_error_closes_with_its_text(near: Near, greeted: bool) -> None:
    if greeted:
        near.up()
    else:
        near.greet()
    assert near.fails(m.Failed("denied", "no\ntoken", True)) == "it said denied: no\N{REPLACEMENT CHARACTER}token"


def test_bytes_that_no_broker_sends_close(near: Near) -> None:
    near.up()
    assert near.far.sock is not None
    near.far.sock.sendall(b"ok hello\r\n" * 3)
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert "no binary protocol" in near.uplink.why


# --- down -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("phase", [UpstreamPhase.GREETING, UpstreamPhase.UP])
def test_a_lost_connection_is_dialled_anew(near: Near, phase: UpstreamPhase, reset: bool) -> None:
    if phase is UpstreamPhase.UP:
        near.up()
    else:
        near.greet()
    near.far.hang_up(reset=reset)
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert near.uplink.why and not near.poller.handlers
    near.up()
    assert near.at(UpstreamPhase.UP)


def test_pauses_grow_and_are_short_again_after_a_steady_while(near: Near) -> None:
    near.far.stop_listening()
    pauses = []
    for _ in range(9):
        near.tick(DIAL_MAX_S)
        near.until(lambda: near.at(UpstreamPhase.DOWN))
        pauses.append(near.uplink.choice.dial_s - near.clock.now_s)
        near.tick(pauses[-1] - 0.01)
        assert near.at(UpstreamPhase.DOWN), "not yet"
    assert DIAL_S / 2 <= pauses[0] <= DIAL_S and DIAL_MAX_S / 2 <= pauses[-1] <= DIAL_MAX_S
    assert all(later > earlier / 2 for earlier, later in itertools.pairwise(pauses))


@pytest.mark.parametrize(("seconds", "most"), [(STEADY_S + 0.1, DIAL_S), (STEADY_S - 0.1, 4 * DIAL_S)])
def test_only_a_connection_that_lasted_makes_pauses_short_again(near: Near, seconds: float, most: float) -> None:
    near.uplink.choice.pauses = 2
    near.up()
    near.clock.now_s += seconds
    near.uplink.fail("lost")
    assert most / 2 <= near.uplink.choice.dial_s - near.clock.now_s <= most


def test_one_that_does_not_answer_is_given_up(near: Near) -> None:
    near.greet()
    near.tick(TIMEOUT_S)
    assert near.at(UpstreamPhase.GREETING)
    near.tick(0.1)
    assert near.at(UpstreamPhase.DOWN) and near.uplink.why == "it does not answer"


def test_one_that_is_silent_is_asked_and_then_given_up(near: Near) -> None:
    near.up()
    for _ in range(30):
        near.tick(TIMEOUT_S / 30)
    near.turn()
    near.turn()
    assert 2 <= near.far.take().count(m.Ping()) <= 4 and near.at(UpstreamPhase.UP)
    near.tick(TIMEOUT_S / 30)
    assert near.at(UpstreamPhase.DOWN) and near.uplink.why == f"it has said nothing for {TIMEOUT_S:g} s"


def test_any_word_is_a_sign_of_life(near: Near) -> None:
    near.up()
    for _ in range(60):
        near.far.say(m.Pong())
        near.until(lambda: near.uplink._heard_s == near.clock.now_s)
        near.tick(TIMEOUT_S / 30)
    assert near.at(UpstreamPhase.UP)


def test_a_worker_that_stood_still_does_not_hold_it_against_the_other_end(near: Near) -> None:
    near.up()
    near.tick(TIMEOUT_S * 10)
    assert near.at(UpstreamPhase.UP)
    for _ in range(31):
        near.tick(TIMEOUT_S / 30)
    assert near.at(UpstreamPhase.DOWN)


def test_its_pings_are_answered_while_it_reads(near: Near) -> None:
    near.up()
    near.settle()
    near.uplink.queue(b"\0" * PONGS_UNSENT_MAX_BYTES)
    assert near.uplink._wire is not None
    before = near.uplink._wire.queued_bytes
    near.uplink.on_ping(m.Ping(), near.clock.now_s)
    assert near.uplink._wire.queued_bytes == before, "or there would be ever more to read"


# --- hosts by name ----------------------------------------------------------------------------------------------------


@pytest.fixture
def named(tmp_path: Path) -> Iterator[Near]:
    near = Near(tmp_path / "data", host="broker-2.example")
    yield near
    near.close()


def test_a_name_is_looked_up_each_time(named: Near) -> None:
    named.tick()
    assert named.at(UpstreamPhase.RESOLVING)
    host, port, done = named.lookups.pop()
    assert (host, port) == ("broker-2.example", named.far.port)
    done(None, "no such host")
    assert named.at(UpstreamPhase.DOWN) and named.uplink.why == "its host is not known: no such host"
    named.tick(DIAL_MAX_S)
    named.lookups.pop()[2]((socket.AF_INET, ("127.0.0.1", named.far.port)), "")
    named.until(lambda: named.at(UpstreamPhase.GREETING))


def test_a_look_up_that_takes_long_is_asked_for_once(named: Near) -> None:
    named.tick()
    for _ in range(20):
        named.tick(TIMEOUT_S + 0.1)
    assert len(named.lookups) == 1
    while not named.at(UpstreamPhase.RESOLVING):
        named.tick(1.0)
    named.lookups.pop()[2]((socket.AF_INET, ("127.0.0.1", named.far.port)), "")
    named.until(lambda: named.at(UpstreamPhase.GREETING))


def test_a_look_up_that_comes_when_nobody_waits_is_passed_over(named: Near) -> None:
    named.tick()
    done = named.lookups.pop()[2]
    named.uplink.close("not needed")
    done((socket.AF_INET, ("127.0.0.1", named.far.port)), "")
    assert named.at(UpstreamPhase.DOWN) and not named.poller.handlers


def test_what_the_look_up_found() -> None:
    found, wrong = HostLookup("localhost", 5050), HostLookup("a..b", 5050)
    for lookup in (found, wrong):
        lookup.sync()
    assert found.address is not None and not found.wrong
    assert wrong.address is None and "no name of a host" in wrong.wrong


# --- copies -----------------------------------------------------------------------------------------------------------


def test_frames_come_down_and_what_is_held_goes_up(near: Near) -> None:
    near.up()
    near.follow()
    log = near.owner.stream(S).log
    other = make_owner(near.owner.catalog.directory.path.parent / "other")
    frames = bytearray(pack_frame(b"hello"))
    other.create(S)
    other.stream(S).log.append(frames, 1, 1_000, 1)
    assert near.far.sock is not None
    near.far.sock.sendall(raw(m.Chunk(1, memoryview(frames))))
    near.until(lambda: log.next_seq == 1)
    near.settle()
    assert near.far.take()[-1] == r.Held(((1, near.owner.catalog.directory.node_id, 1, log.synced_seq),))
    other.release()


def test_wrong_frames_close_and_are_asked_for_again(near: Near) -> None:
    near.up()
    near.follow()
    assert near.far.sock is not None
    near.far.sock.sendall(raw(m.Chunk(1, memoryview(pack_frame(b"never stamped")))))
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert "refuses these frames" in near.uplink.why and near.owner.stream(S).log.next_seq == 0
    near.until(lambda: near.far.ended)
    near.far.hang_up()
    near.up()
    assert [type(each) for each in near.far.take()] == [r.Follow]


def test_an_answer_lets_the_next_be_asked(near: Near, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.replication.upstream.fetchers.FOLLOWS_AT_ONCE", 1)
    for number in range(3):
        near.slave(b"s%d" % number)
    near.up()
    heard = near.far.take()
    for number in range(1, 4):
        assert [each.id for each in heard] == [number]
        near.far.say(r.Followed(number, "following", 0, 0, 0, "master", HISTORY, (UP,)))
        near.settle()
        heard = [each for each in near.far.take() if isinstance(each, r.Follow)]


@pytest.mark.parametrize(
    "said", [m.Ended(1, 0, "unavailable", "gone"), m.Failed("trimmed", "gone", False, Op.SUBSCRIBE, 1)]
)
def test_a_following_that_has_ended_waits(near: Near, said: Any) -> None:
    near.up()
    near.follow()
    near.far.say(said)
    near.settle()
    assert near.uplink.copies.by_name[S].state == "waiting" and "gone" in near.uplink.copies.by_name[S].why


# --- publishes --------------------------------------------------------------------------------------------------------


def test_publishes_wait_for_the_node_and_are_answered(near: Near) -> None:
    first = near.publish(b"a", b"b")
    assert near.needed() and near.uplink.route.bytes_held == 2 * 33
    near.up()
    second = near.publish(b"c")
    near.until(lambda: len(near.far.heard) >= 3)
    opened, *publishes = near.far.take()
    assert opened == m.Open(1, S)
    assert [(each.request, each.handles, each.count) for each in publishes] == [(1, (1,), 2), (2, (1,), 1)]
    assert near.far.sock is not None
    near.far.say(m.Opened(1))
    near.far.sock.sendall(m.pack_published(2, ((9, 1, 0),)) + m.pack_published(1, ((7, 2, 0),)))
    near.until(lambda: first.published_at and second.published_at)
    assert (first.published_at, second.published_at) == ({0: 7}, {0: 9})
    assert near.uplink.route.bytes_held == 0


def test_publishers_are_answered_before_messages_are_copied(near: Near) -> None:
    near.up()
    near.follow()
    log, ends = near.owner.stream(S).log, list[tuple[bool, int]]()
    publishing = near.publish(b"a")
    near.answered = lambda: ends.append((publishing.published_at == {0: 0}, log.next_seq))
    other = make_owner(near.owner.catalog.directory.path.parent / "other")
    frames = bytearray(pack_frame(b"a"))
    other.create(S)
    other.stream(S).log.append(frames, 1, 1_000, 1)
    assert near.far.sock is not None
    near.far.sock.sendall(m.pack_published(1, ((0, 1, 0),)) + raw(m.Chunk(1, memoryview(frames))))
    near.until(lambda: log.next_seq == 1)
    assert ends == [(True, 0)]
    other.release()


def test_a_stream_that_could_not_be_opened_is_opened_again(near: Near) -> None:
    near.up()
    near.publish(b"a")
    near.until(lambda: len(near.far.heard) >= 2)
    near.far.take()
    refused = (
        m.Failed("handles", "enough", False, Op.OPEN, 1),
        m.Failed("usage", "no such handle", False, Op.PUBLISH, 1),
    )
    near.far.say(*refused)
    near.settle()
    near.publish(b"b")
    near.until(lambda: len(near.far.heard) >= 2)
    opened, published = near.far.take()
    assert opened == m.Open(2, S) and published.handles == (2,)


def test_a_refusal_is_the_publishers(near: Near) -> None:
    near.up()
    sink = near.publish(b"a")
    near.far.say(m.Failed("full", "no space", False, Op.PUBLISH, 1), m.Failed("full", "twice", False, Op.PUBLISH, 1))
    near.until(lambda: sink.refusals)
    near.settle()
    assert sink.refusals == {0: (Code.FULL, "no space")}


def test_an_upstream_that_leaves_in_good_order_loses_no_publish(near: Near) -> None:
    """Publishes that it gives back, and those not answered when it sends `closing`, go to its successor, in order."""
    near.up()
    sinks = [near.publish(payload) for payload in (b"a", b"b", b"c", b"d")]
    near.until(lambda: len(near.far.heard) == 5)
    near.far.take()
    assert near.far.sock is not None
    near.far.sock.sendall(m.pack_published(1, ((0, 1, 0),)))
    near.far.say(m.Failed("closing", "it leaves", False, Op.PUBLISH, 3))
    near.settle()
    sinks.append(near.publish(b"e"))
    near.settle()
    assert near.far.take() == [], "it takes none after that one"
    assert near.fails(m.Failed("closing", "it leaves", True)).startswith("it said closing")
    near.far.hang_up()
    near.up()
    near.until(lambda: len(near.far.heard) == 5)
    opened, *publishes = near.far.take()
    assert opened == m.Open(1, S)
    payloads = [bytes(each.frames[-1:]) for each in publishes]
    assert ([each.request for each in publishes], payloads) == ([2, 3, 4, 5], [b"b", b"c", b"d", b"e"])
    near.far.sock.sendall(b"".join(m.pack_published(number, ((number, 1, 0),)) for number in (2, 3, 4, 5)))
    near.until(lambda: sinks[-1].published_at)
    assert [each.published_at for each in sinks] == [{0: 0}, {0: 2}, {0: 3}, {0: 4}, {0: 5}]
    assert not any(each.refusals for each in sinks) and near.uplink.route.bytes_held == 0


def test_an_answer_to_nothing_is_passed_over(near: Near) -> None:
    near.up()
    assert near.far.sock is not None
    near.far.sock.sendall(m.pack_published(77, ((9, 1, 0),)))
    near.settle()
    assert near.at(UpstreamPhase.UP)


def test_what_was_under_way_has_an_unknown_end_and_what_waits_waits_on(near: Near) -> None:
    near.up()
    under_way = near.publish(b"a")
    near.until(lambda: len(near.far.heard) == 2)
    near.far.take()
    near.far.hang_up()
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert under_way.refusals[0][0] is Code.UNAVAILABLE and "may or may not" in under_way.refusals[0][1]
    waiting = near.publish(b"b")
    near.up()
    near.until(lambda: len(near.far.heard) == 2)
    opened, publish = near.far.take()
    assert opened == m.Open(1, S), "handles are the connection's"
    assert near.far.sock is not None
    near.far.sock.sendall(m.pack_published(publish.request, ((1, 1, 0),)))
    near.until(lambda: waiting.published_at)


def test_nobody_waits_for_a_node_for_ever(near: Near) -> None:
    near.far.stop_listening()
    sink = near.publish(b"a")
    near.tick(4.9)
    assert not sink.refusals
    near.tick(0.2)
    assert sink.refusals[0][0] is Code.UNAVAILABLE and "nothing of this was logged" in sink.refusals[0][1]
    assert not near.needed()


@pytest.mark.parametrize("greeted", [False, True])
def test_whoever_waits_when_the_uplink_is_closed_is_told(near: Near, greeted: bool) -> None:
    if greeted:
        near.greet()
    sink = near.publish(b"a")
    near.uplink.close("its worker is being replaced")
    assert sink.refusals[0][0] is Code.UNAVAILABLE and not near.poller.handlers
    near.uplink.close("again")


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_are_asked_for_as_the_rules_have_them(near: Near) -> None:
    near.uplink.watch({b"b", b"a"})
    assert near.needed()
    near.up()
    assert near.far.take() == [r.Watch(1, b"a"), r.Watch(2, b"b")]
    near.uplink.watch({b"a", b"c"})
    near.settle()
    assert near.far.take() == [r.Watch(3, b"c")]
    near.far.say(r.Names(1, (b"a1", b"c1")), r.Names(3, (b"c2",)), r.Names(2, (b"b1", b"other")))
    near.settle()
    assert near.found == [b"a1", b"c1", b"c2"], "what no rule is for any more is not wanted"
    near.uplink.watch(set())
    assert not near.needed()
    near.far.say(r.Names(1, (b"a2",)))
    near.settle()
    assert near.found[3:] == []


def test_after_a_lost_connection_names_are_asked_for_again(near: Near) -> None:
    near.uplink.watch({b""})
    for _ in range(2):
        near.up()
        assert near.far.take() == [r.Watch(1, b"")]
        near.far.hang_up()
        near.until(lambda: near.at(UpstreamPhase.DOWN))


@pytest.mark.parametrize("number", [0, 2])
def test_names_that_nobody_asked_for_close(near: Near, number: int) -> None:
    near.uplink.watch({b"a"})
    near.up()
    assert "Names, which nobody asked for" in near.fails(r.Names(number, (b"a1",)))


# --- claims -----------------------------------------------------------------------------------------------------------


def promoted(near: Near, name: bytes = S) -> None:
    near.slave(name)
    near.uplink.copies.remove(name)
    stream_roles.promote(near.owner, [name])
    near.uplink.claims.add(name)


def claimed(number: int, *, accepted: bool = True, epoch: int = 2, master: str = "") -> r.Claimed:
    return r.Claimed(number, "slave", epoch, master, accepted)


def test_a_claim_is_made_and_settled(near: Near) -> None:
    promoted(near)
    assert near.needed()
    near.up()
    here = near.owner.catalog.directory.node_id
    assert near.far.take() == [r.Claim(1, S, (EpochStart(1, 0, UP), EpochStart(2, 0, here)))]
    near.tick(CLAIM_RETRY_S + 0.1)
    near.settle()
    assert [each for each in near.far.take() if isinstance(each, r.Claim)] == [], "one is under way"
    near.far.say(claimed(1, master=here), claimed(1, master=here), claimed(9))
    near.settle()
    assert not near.needed() and near.owner.roles.meta(S).upstream is None
    assert (near.owner.roles.role(S), near.owner.roles.epoch(S)) == (Role.MASTER, 2)


def test_a_claim_of_an_earlier_term_makes_a_slave(near: Near) -> None:
    promoted(near)
    near.up()
    near.far.say(claimed(1, accepted=False, epoch=3, master=UP))
    near.until(lambda: near.owner.roles.role(S) is Role.SLAVE)
    assert (near.owner.roles.epoch(S), near.owner.roles.meta(S).upstream) == (3, near.upstream._replace(kind="seq"))
    assert not near.uplink.claims


def test_a_claim_that_cannot_be_taken_now_is_made_again(near: Near) -> None:
    promoted(near)
    near.up()
    near.far.take()
    near.far.say(m.Failed("unavailable", "its end is being set aside", False, Op.CLAIM, 1))
    near.settle()
    near.tick(CLAIM_RETRY_S - 0.1)
    near.settle()
    assert near.far.take() == []
    near.tick(0.2)
    near.settle()
    assert [(type(each), each.id) for each in near.far.take()] == [(r.Claim, 2)]


@pytest.mark.parametrize("accepted", [True, False])
def test_an_answer_that_the_disk_does_not_take_is_asked_for_again(
    near: Near, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """A master of an earlier term that cannot write down that it is one no more must not forget that it is not."""
    promoted(near)
    near.up()
    near.far.take()

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(roles_module, "write_meta", full)
        near.far.say(claimed(1, accepted=accepted, epoch=3, master=UP))
        near.settle()
    near.tick(CLAIM_RETRY_S + 0.1)
    near.settle()
    assert [each.id for each in near.far.take()] == [2]
    near.far.say(claimed(2, accepted=accepted, epoch=3, master=UP))
    near.settle()
    assert near.owner.roles.role(S) is (Role.MASTER if accepted else Role.SLAVE) and not near.uplink.claims


def test_after_a_lost_connection_a_claim_is_made_again(near: Near) -> None:
    promoted(near)
    for _ in range(2):
        near.up()
        assert [each.id for each in near.far.take()] == [1]
        near.far.hang_up()
        near.until(lambda: near.at(UpstreamPhase.DOWN))


# --- a socket that is full --------------------------------------------------------------------------------------------


def test_what_the_socket_does_not_take_goes_out_when_it_does(near: Near) -> None:
    near.up()
    wire = near.uplink._wire
    assert wire is not None
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    parts = [pack(m.Open(number, b"x" * 150)) for number in range(6_000)]
    near.uplink.queue(*parts)
    near.uplink.flush()
    assert wire.queued_bytes and near.uplink._mask & select.EPOLLOUT
    near.until(lambda: len(near.far.heard) == len(parts))
    assert near.uplink._mask == select.EPOLLIN and not wire.queued_bytes


# --- calls ------------------------------------------------------------------------------------------------------------


DELETE = Consume(0, "delete", S, b"n")


def call(near: Near) -> list[Any]:
    """Ask for the end of a consumer; its outcome, when it has one."""
    outcomes: list[Any] = []
    near.uplink.calls.call("consume", DELETE, outcomes.append, near.clock.now_s)
    return outcomes


def test_a_call_goes_up_and_its_answer_comes_down(near: Near) -> None:
    (refused,) = call(near)
    assert refused.code is Code.UNAVAILABLE, "nobody is there"
    near.up()
    outcomes = call(near)
    near.until(lambda: near.far.heard)
    assert near.far.take() == [r.Call(1, S, "consume", pack_body(DELETE))]
    near.far.say(r.Returned(1, msgpack.packb({"existed": True})))
    near.settle()
    assert outcomes == [{"existed": True}]
    late = call(near)
    for _ in range(int(PATIENCE_S / TIMEOUT_S) + 1):
        near.tick(TIMEOUT_S / 4)
        near.settle()
        near.clock.now_s += TIMEOUT_S * 3 / 4
        near.uplink._ticked_s = near.clock.now_s
    near.tick()
    assert late[0].code is Code.UNAVAILABLE


@pytest.mark.parametrize("answer", [r.Returned(1, b"\x80"), r.Returned(2, b"\x80")])
def test_a_value_that_is_none_closes(near: Near, answer: r.Returned) -> None:
    near.up()
    outcomes = call(near)
    near.until(lambda: near.far.heard)
    assert near.fails(answer).startswith("it ")
    assert [(each.code, "ask again" in each.text) for each in outcomes] == [(Code.UNAVAILABLE, True)]


def test_an_upstream_that_does_not_know_calls(near: Near) -> None:
    near.up()
    outcomes = call(near)
    near.far.say(m.Failed("protocol", "opcode 30 is nothing that a client sends", False, 30))
    near.settle()
    assert [each.code for each in outcomes] == [Code.UNSUPPORTED] and near.at(UpstreamPhase.UP)


def test_who_has_called_when_the_uplink_is_closed_is_told(near: Near) -> None:
    near.up()
    outcomes = call(near)
    near.uplink.close("it is enough")
    assert [each.code for each in outcomes] == [Code.UNAVAILABLE]
