"""The commands for durable consumers of a line connection: their answers, and the row that they are done in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.connection import handover
from tailrace.broker.connection.base import OUT_HIGH_BYTES, Pause
from tailrace.broker.consumers.edge.line import COLUMNS, COMMANDS, NUMBERS
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol import commands as lines
from tailrace.protocol import consuming as c
from tailrace.protocol.errors import Code
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.files import write_all
from tailrace.shard.stream_files import stream_paths
from tests.broker.consumers.owning import GIVEN_NOTHING, Owners, given
from tests.broker.world import Peer, World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def member_of(owners: Owners) -> bytes:
    wanted = owners.asked[0]
    assert isinstance(wanted, c.Get)
    return wanted.member


def said_of(owners: Owners) -> tuple[object, ...]:
    wanted = owners.asked[0]
    return wanted.finished, wanted.failed, wanted.max_messages


def msg(line: str) -> tuple[str, int, str]:
    """stream, seq and payload of a `msg` line."""
    head, _, payload = line.partition("|")
    word, stream, seq, _timestamp, length = head.split()
    assert (word, int(length)) == ("msg", len(payload))
    return stream, int(seq), payload


@pytest.mark.parametrize(
    ("line", "wanted", "value", "answer"),
    [
        ("consume s n #4", ("create", From("seq", 4)), {"next_seq": 4}, "ok consume s n 4"),
        ("reset s n new", ("reset", FROM_NEW), {"next_seq": 9}, "ok reset s n 9"),
        ("unconsume s n", ("delete", None), {"existed": False}, "ok unconsume s n"),
    ],
)
def test_what_is_done_to_consumers(
    node: World, line: str, wanted: tuple[c.Deed, From | None], value: dict[str, object], answer: str
) -> None:
    owners, peer = Owners(node), node.connect(1)
    assert node.ask(peer, line) == []
    do, start = wanted
    assert owners.asked == [c.Consume(0, do, b"s", b"n", start)]
    owners.answer(value)
    assert peer.take() == [answer]
    peer.send(line)
    node.settle()
    owners.answer(Refused(Code.CONSUMER, "no such consumer"))
    assert peer.take() == ["err consumer no such consumer"]


def test_the_list_has_a_row_for_each(node: World) -> None:
    owners, peer = Owners(node), node.connect()
    node.ask(peer, "consumers s")
    row = dict(zip(NUMBERS, (7, 3, 5, 2, 1, 0, 0, 4, 30.0, 5, 1.0, 60.0), strict=True))
    filtered = {"name": b"f", **row, "topics": b"a b/+", "lag_at_most": True}
    owners.answer({"consumers": [{"name": "é".encode(), **row}, {"name": b"n", **row, "lag_us": None}, filtered]})
    assert peer.take() == [
        "ok consumer next_seq lag_messages lag_us in_flight members redelivered dead idle_us ack_wait_s deliveries_max "
        "retry_s retry_max_s lag topics",
        "é 7 3 5 2 1 0 0 4 30.0 5 1.0 60.0 exact -",
        "n 7 3 - 2 1 0 0 4 30.0 5 1.0 60.0 exact -",
        "f 7 3 5 2 1 0 0 4 30.0 5 1.0 60.0 most a%20b/+",
        ".",
    ]


def test_a_consumer_may_have_a_filter(node: World) -> None:
    owners, peer = Owners(node), node.connect(1)
    assert node.ask(peer, "consume s n 0 TOPICS a%20b/+") == []
    assert owners.asked == [c.Consume(0, "create", b"s", b"n", From("time", 0), topics=b"a b/+")]
    owners.answer({"next_seq": 4})
    assert peer.take() == ["ok consume s n 4"]
    (usage,) = node.ask(peer, "consume s n 0 topics")
    assert usage.startswith("err usage ") and "consume STREAM NAME FROM [topics FILTER]" in usage
    (wrong,) = node.ask(peer, "consume s n 0 topics #/a")
    assert wrong.startswith("err topic ")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("consume t/+/a n 0", c.Consume(0, "create", b"t", b"n", From("time", 0), topics=b"t/+/a")),
        ("consume t/7 n 0", c.Consume(0, "create", b"t", b"n", From("time", 0), topics=b"t/7")),
        ("consume t n 0", c.Consume(0, "create", b"t", b"n", From("time", 0))),
        ("consume t n 0 topics t/7", c.Consume(0, "create", b"t", b"n", From("time", 0), topics=b"t/7")),
        ("reset t/# n 0", c.Consume(0, "reset", b"t", b"n", From("time", 0))),
        ("consumers t/7", c.Consume(0, "list", b"t")),
    ],
)
def test_a_name_may_be_a_topic_or_a_filter(tmp_path: Path, line: str, wanted: c.Consume) -> None:
    with world(tmp_path, workers=2, affinity=False, topics=(TopicRule("t/#", "t"),)) as node:
        owners, peer = Owners(node), node.connect(1)
        assert node.ask(peer, line) == []
        assert owners.asked == [wanted]
        node.ask(peer, "ping")


def test_a_name_for_several_streams_has_no_consumers(tmp_path: Path) -> None:
    with world(tmp_path, workers=1, topics=(TopicRule("t/#", "{1}"),)) as node:
        peer = node.connect()
        (several,) = node.ask(peer, "consume # n 0")
        assert several.startswith("err unsupported #: this filter may be for several streams")
        (both,) = node.ask(peer, "consume t/# n 0 topics t/7")
        assert both.startswith("err usage t/#: 't/#' is a filter itself")


def test_a_get_shows_its_messages_as_a_subscription_does(node: World) -> None:
    owners, peer, name = Owners(node), node.connect(1), node.name(0)
    node.fill(name, [b"a", b"", b"c|d"])
    node.ask(peer, f"get {name} n 500 7")
    member = member_of(owners)
    assert owners.asked == [c.Get(0, name.encode(), b"n", member, max_messages=7, wait_ms=500)]
    owners.answer(given([2, 1, 0], [0, 2, 1]))
    *messages, done = peer.take()
    assert [msg(line) for line in messages] == [(name, 2, "c|d"), (name, 0, "a"), (name, 1, "")]
    assert done == f"ok get {name} n 3"
    assert node.workers[1].metrics.line.messages_out == 3
    node.ask(peer, f"get {name} other")
    assert owners.asked == [c.Get(0, name.encode(), b"other", member, max_messages=1)], "one and the same member of all"
    owners.answer()
    assert peer.take() == [f"ok get {name} other 0"]


def test_two_connections_are_two_members(node: World) -> None:
    owners = Owners(node)
    members = []
    for _ in range(2):
        node.ask(node.connect(), "get s n")
        members.append(member_of(owners))
        owners.answer()
    assert members[0] != members[1]


def test_what_was_trimmed_is_told(node: World) -> None:
    owners, peer, name = Owners(node), node.connect(), node.name(0)
    node.fill(name, [b"a"])
    node.ask(peer, f"get {name} n")
    owners.answer(given([0, 1, 0], trimmed=4))
    told, message, done = peer.take()
    assert told == f"err trimmed {name}: 4 messages were trimmed before they were got"
    assert (msg(message), done) == ((name, 0, "a"), f"ok get {name} n 1")


def test_a_frame_that_is_wrong_is_never_shown(node: World) -> None:
    owners, peer, name = Owners(node), node.connect(), node.name(0)
    node.fill(name, [b"a", b"b"])
    reader = node.workers[0].readers.get(name.encode())
    path = Path(stream_paths(node.workers[0].owner.catalog.shard_path(name.encode()), name).content_file)
    with path.open("r+b") as file:
        write_all(file.fileno(), b"?", reader.offset_of(2) - 1)
    node.ask(peer, f"get {name} n")
    owners.answer(given([0, 2, 0]))
    (answer,) = peer.take()
    assert answer == f"err damaged {name}: the frame of seq 1 is wrong: crc"


def show(node: World, owners: Owners, peer: Peer, name: str, *runs: list[int]) -> None:
    """A get of the connection is given these."""
    node.ask(peer, f"get {name} n 0 9")
    owners.answer(given(*runs))
    assert peer.take()[-1] == f"ok get {name} n {sum(run[1] for run in runs)}"


@pytest.mark.parametrize(
    ("line", "finished", "failed", "answer"),
    [
        ("ack {} n 7", [(7, 7, 1)], [], "ok ack {} n 7"),
        ("ack {} n 7 9", [(7, 9, 1)], [], "ok ack {} n 7 9"),
        ("nack {} n 7", [], [(7, 1, "")], "ok nack {} n 7"),
        ("nack {} n 7 bad", [], [(7, 1, "bad")], "ok nack {} n 7"),
    ],
)
def test_what_is_finished_and_what_has_failed(
    node: World, line: str, finished: list[c.FinishedRow], failed: list[c.FailedRow], answer: str
) -> None:
    owners, peer, name = Owners(node), node.connect(), node.name(0)
    node.fill(name, [b"x"] * 10)
    show(node, owners, peer, name, [5, 3, 0], [8, 2, 1])
    line = line.format(name)
    node.ask(peer, line)
    wanted = c.Get(0, name.encode(), b"n", member_of(owners), finished=tuple(finished), failed=tuple(failed))
    assert owners.asked == [wanted]
    owners.answer()
    assert peer.take() == [answer.format(name)]
    for stale, text in (
        ([[7, 7]], "message 7 is not this connection's:"),
        ([[7, 8]], "messages 7 to 8 are not this connection's:"),
        ([[7, 7], [9, 9], [11, 12]], "message 7 is not this connection's, nor are 2 ranges more:"),
    ):
        node.ask(peer, line)
        owners.answer(given(stale=tuple(stale)))
        (answer_,) = peer.take()
        assert answer_.startswith(f"err stale {name}: {text} not given to it, another member's by now, or lost")
    node.ask(peer, line)
    owners.answer(Refused(Code.UNKNOWN, "no such stream"))
    assert peer.take() == ["err unknown no such stream"]
    assert node.workers[0].metrics.refused.counts == {"stale": 3, "unknown": 1}


def test_a_seq_means_the_message_that_was_shown(node: World) -> None:
    """Messages that were not shown are left out, and the answer names them; whether the consumer exists is the owner's
    answer.
    """
    owners, peer, name = Owners(node), node.connect(), node.name(0)
    node.fill(name, [b"x"] * 10)
    show(node, owners, peer, name, [2, 2, 0], [6, 1, 0])
    some, none = "messages 0 to 1 are not this connection's, nor are 2 ranges", "message 4 is not this connection's"
    for line, finished, text in (
        (f"ack {name} n 0 9", [(2, 3, 1), (6, 6, 1)], some),
        (f"ack {name} n 4", [], none),
        (f"ack {name} other 4", [], none),
        (f"nack {name} n 4", [], none),
    ):
        node.ask(peer, line)
        assert said_of(owners) == (tuple(finished), (), 0)
        owners.answer()
        (answer,) = peer.take()
        assert answer.startswith(f"err stale {name}: {text}"), answer
    node.ask(peer, f"ack {name} gone 4")
    owners.answer(Refused(Code.CONSUMER, "no such consumer"))
    assert peer.take() == ["err consumer no such consumer"]


def test_a_connection_that_moves_knows_what_it_was_shown(node: World) -> None:
    owners, peer, name = Owners(node), node.connect(), node.name(0)
    node.fill(name, [b"x"] * 10)
    show(node, owners, peer, name, [2, 2, 0])
    client = node.client_of(peer)
    node.workers[0].links.hand_over(node.workers[0].links.link_to(1), *handover.detach(client))  # type: ignore[arg-type]
    node.ask(peer, f"ack {name} n 2 3")
    assert node.worker_of(node.client_of(peer)) is node.workers[1] and owners.asked[0].finished == ((2, 3, 1),)


def test_who_leaves_is_no_member_any_more(node: World) -> None:
    owners, peer = Owners(node), node.connect()
    node.ask(peer, "get s n")
    member = member_of(owners)
    owners.answer()
    node.ask(peer, "leave s n")
    assert owners.asked == [c.Consume(0, "leave", b"s", b"n", member=member)]
    owners.answer({})
    assert peer.take()[-1] == "ok leave s n"
    node.client_of(peer).close("reset")
    assert owners.told == [], "nobody is away"


def test_commands_are_done_one_after_the_other(node: World) -> None:
    owners, peer = Owners(node), node.connect()
    node.ask(peer, "consume s n 0", "get s n 900", "ack s n 0", "leave s n", "ping", "consumers s")
    assert [each.do for each in owners.asked] == ["create"]
    owners.answer({"next_seq": 0, "created": True})
    assert [each.wait_ms for each in owners.asked] == [900]
    owners.answer()
    assert said_of(owners) == ((), (), 0)
    assert peer.take() == ["ok consume s n 0", "ok get s n 0"]
    owners.answer()
    assert [line.split(":")[0] for line in peer.take()] == ["err stale s"] and owners.asked[0].do == "leave"
    owners.answer({})
    assert peer.take() == ["ok leave s n", "ok pong"]
    owners.answer({"consumers": []})
    assert peer.take() == [f"ok {' '.join(COLUMNS)}", "."]


def test_a_row_of_many_that_are_answered_at_once(node: World) -> None:
    """As those of an owner in this very worker are."""
    peer = node.connect()

    def call(_name: bytes, verb: str, _args: list[object], done: object, _asker: object) -> None:
        assert verb == "get" and callable(done)
        done(GIVEN_NOTHING)

    count = 2_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.workers[0].router, "call", call)
        assert node.ask(peer, *["get s n"] * count) == ["ok get s n 0"] * count


def test_close_does_not_wait_for_messages(node: World) -> None:
    owners, peer = Owners(node), node.connect()
    node.ask(peer, "get s n 60000", "get s n 60000", "close")
    assert [each.do for each in owners.told] == ["wake"] and not peer.ended
    owners.answer()
    assert owners.asked[0].wait_ms == 0, "nor does the second"
    owners.answer()
    assert peer.lines == ["ok get s n 0", "ok get s n 0", "ok close"] and peer.ended


def test_the_end_of_the_input_does(node: World) -> None:
    owners, peer = Owners(node), node.connect()
    peer.send("get s n 60000")
    peer.sock.shutdown(1)
    node.settle()
    assert owners.told == [] and not peer.ended
    owners.answer()
    assert peer.lines == ["ok get s n 0"] and peer.ended


def test_a_connection_that_is_gone(node: World) -> None:
    owners, peer = Owners(node), node.connect()
    node.ask(peer, "get s n 900", "get s n 900")
    member = member_of(owners)
    node.client_of(peer).close("reset")
    assert [(each.do, each.member) for each in owners.told] == [("away", member)]
    owners.answer()
    assert owners.asked == []


def test_a_connection_that_moves_is_the_same_member(node: World) -> None:
    owners, peer = Owners(node), node.connect()
    node.ask(peer, "get s n 60000")
    member, client = member_of(owners), node.client_of(peer)
    client.pause(Pause.LEAVING)
    assert [each.do for each in owners.told] == ["wake"]
    owners.answer()
    assert peer.take() == ["ok get s n 0"]
    node.workers[0].links.hand_over(node.workers[0].links.link_to(1), *handover.detach(client))  # type: ignore[arg-type]
    assert node.ask(peer, "get s n") == []
    assert node.worker_of(node.client_of(peer)) is node.workers[1]
    assert member_of(owners) == member
    node.client_of(peer).close("reset")
    assert [each.do for each in owners.told] == ["wake", "away"]


def test_one_that_asked_for_nothing_moves_without(node: World) -> None:
    peer = node.connect()
    node.ask(peer, "ping")
    client = node.client_of(peer)
    fd, state = handover.detach(client)
    assert state["consumers"] is None
    node.workers[0].links.hand_over(node.workers[0].links.link_to(1), fd, state)  # type: ignore[arg-type]
    assert node.ask(peer, "ping") == ["ok pong"]


def test_who_does_not_read_is_not_given_more(node: World) -> None:
    owners, peer, name = Owners(node), node.connect(), node.name(0)
    for _ in range(15):
        node.fill(name, [b"x" * 100_000])
    peer.deaf = True
    node.ask(peer, *[f"get {name} n 0 15"] * 3)
    owners.answer(given([0, 15, 0]))
    assert len(node.client_of(peer).out) > OUT_HIGH_BYTES and owners.asked == []
    peer.deaf = False
    node.settle()
    assert len(owners.asked) == 1, "the next one follows"
    for _ in range(2):
        owners.answer()
    assert [line for line in peer.lines if line.startswith("ok")] == [
        f"ok get {name} n {count}" for count in (15, 0, 0)
    ]
    assert not node.workers[0].services.held_gets


def test_every_command_is_here() -> None:
    assert set(COMMANDS) == {
        lines.Consume, lines.Unconsume, lines.Leave, lines.Get, lines.Finish, lines.Nack, lines.Reset, lines.Consumers,
    }  # fmt: skip
