"""Handles of the binary protocol that stand for topics: publishes to them, refusals, and a move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from tailrace.broker.connection.client import READ_BYTES_MIN
from tailrace.broker.connection.line import NAMES_A_READ
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.errors import Code
from tailrace.protocol.places import From
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import pack_frame
from tests.broker.connection.test_login import _move
from tests.broker.topics.test_stamping import pieces
from tests.broker.world import Peer, World, world

RULES = (TopicRule("spread/#", "spread-{hash:4}"), TopicRule("#", "{1}"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, topics=RULES) as made:
        yield made


class Talk:
    """A client of the binary protocol, message by message."""

    def __init__(self, node: World, features: tuple[str, ...] = (m.TOPICS_FEATURE,)) -> None:
        self.node = node
        self.peer: Peer = node.connect(0)
        self.codec = ClientCodec()
        self.subscriptions = 100
        self.ask(m.Hello(m.VERSION, features, "t"))

    def ask(self, *messages: m.Hello | m.Open | m.Subscribe | bytes) -> list[object]:
        self.peer.send_raw(b"".join(each if isinstance(each, bytes) else m.pack(each) for each in messages))
        self.node.settle()
        data, self.peer.received = bytes(self.peer.received), bytearray()
        return [
            m.Chunk(each.id, memoryview(bytes(each.frames))) if isinstance(each, m.Chunk) else each
            for each in self.codec.feed(data)
        ]

    def read(self, name: bytes) -> list[tuple[str, bytes]]:
        """Topic and payload of each message, from the first one on."""
        self.subscriptions += 1
        return topics_of(self.ask(m.Subscribe(self.subscriptions, name, From("time", 0))))


def publish(request: int, *handles: int, frames: bytes = b"") -> bytes:
    frames = frames or pack_frame(b"%d" % request)
    return m.pack_publish(request, m.Ack.APPENDED, handles, frames) + frames


def topics_of(answers: list[object]) -> list[tuple[str, bytes]]:
    found = []
    for chunk in answers:
        if isinstance(chunk, m.Chunk):
            for _flags, metadata, payload in pieces(bytes(chunk.frames)):
                found.append((msgpack.unpackb(metadata)["t"] if metadata else "", payload))
    return found


def refusals(answers: list[object]) -> list[str]:
    return [each.code for each in answers if isinstance(each, m.Failed)]


def test_a_name_is_resolved_where_it_is_opened(node: World) -> None:
    talk = Talk(node)
    talk.ask(m.Open(1, b"sensors/7"), m.Open(2, b"sensors/8"), m.Open(3, b"sensors"))
    run = talk.ask(*[publish(number, 1 + number % 3) for number in range(6)])  # of one read
    assert {each.request for each in run if isinstance(each, m.Published)} == set(range(6))
    talk.ask(publish(6, 1), publish(7, 1, frames=pack_frame(b"h", metadata=msgpack.packb({"h": {"a": "b"}}))))
    assert talk.read(b"sensors/7") == [("sensors/7", data) for data in (b"0", b"3", b"6", b"h")]
    assert sorted(talk.read(b"sensors")) == sorted(
        [("sensors/7", data) for data in (b"0", b"3", b"6", b"h")]
        + [("sensors/8", data) for data in (b"1", b"4")]
        + [("", data) for data in (b"2", b"5")]
    )


def test_a_publish_to_several_names(node: World) -> None:
    talk = Talk(node)
    talk.ask(m.Open(1, b"a/1"), m.Open(2, b"b/1"), m.Open(3, b"c"), m.Open(4, b"a/2"))
    assert refusals(talk.ask(publish(1, 3, 1, 2))) == []
    assert refusals(talk.ask(publish(2, 1, 4))) == [Code.USAGE], "both lie in one stream"
    assert [talk.read(name) for name in (b"a", b"b", b"c")] == [[("a/1", b"1")], [("b/1", b"1")], [("", b"1")]]


def test_a_name_that_is_refused_does_not_keep_the_others_from_a_publish(node: World) -> None:
    talk = Talk(node)
    talk.ask(m.Open(1, b"a/1"), m.Open(2, b"plain"))
    for request, handles, taken in ((1, (1, 9), 0), (2, (9, 2), 1), (3, (2, 8, 1), 0)):
        (answer,) = talk.ask(publish(request, *handles))
        assert isinstance(answer, m.Failed) and answer.results is not None
        assert [row[3] for row in answer.results] == ["usage" if handle > 2 else "" for handle in handles]
        assert answer.results[taken][1] == 1
    (none,) = talk.ask(publish(4, 8, 9))
    assert isinstance(none, m.Failed) and (none.code, none.results) == (Code.USAGE, None)
    assert talk.read(b"a") == [("a/1", b"1"), ("a/1", b"3")]
    assert talk.read(b"plain") == [("", b"2"), ("", b"3")]


def test_a_message_cannot_have_another_topic_than_its_handle(node: World) -> None:
    talk = Talk(node)
    talk.ask(m.Open(1, b"a/1"))
    forged = pack_frame(b"x", metadata=topic_metadata(b"a/2"))
    assert refusals(talk.ask(publish(1, 1, frames=forged))) == [Code.TOPIC]
    assert refusals(talk.ask(publish(2, 1, frames=forged), publish(3, 1, frames=forged))) == [Code.TOPIC] * 2
    assert refusals(talk.ask(publish(4, 1, frames=pack_frame(b"x", metadata=topic_metadata(b"a/1"))))) == []


def test_a_subscription_by_name_has_its_stream(node: World) -> None:
    talk = Talk(node)
    talk.ask(m.Open(1, b"a/1"), m.Open(2, b"a/2"), publish(1, 1), publish(2, 2))
    answers = talk.ask(m.Subscribe(1, b"a/+", From("time", 0)))
    assert answers[0] == m.Subscribed(1, 0, 0, None, "a") and len(topics_of(answers)) == 2
    assert refusals(talk.ask(m.Subscribe(2, b"+/1", From("time", 0)))) == [Code.UNSUPPORTED]
    old = Talk(node, features=())
    assert refusals(old.ask(m.Subscribe(1, b"a/1", From("time", 0)))) == [Code.UNSUPPORTED]


def test_a_filter_takes_no_filter_besides(node: World) -> None:
    expected = "'a/+' is a filter itself"
    (refused,) = Talk(node).ask(m.Subscribe(1, b"a/+", From("time", 0), topics=b"#"))
    assert isinstance(refused, m.Failed) and refused.code == Code.USAGE and refused.text.startswith(expected)
    (answer,) = node.ask(node.connect(0), "sub a/+ 0 topics #")
    assert answer.startswith("err usage ") and expected in answer


def test_a_name_of_a_topic_is_no_stream(node: World) -> None:
    """With a filter besides it means a stream: the error says which one to name."""
    text = "no such stream here; 'a/1' is a topic of the stream 'a': give that name"
    for request in (
        m.Subscribe(1, b"a/1", From("time", 0), topics=b"#"),
        m.Subscribe(2, b"a/1", From("new", 0), topics=b"#", wait=True),
    ):
        (refused,) = Talk(node).ask(request)
        assert isinstance(refused, m.Failed) and (refused.code, refused.text) == (Code.UNKNOWN, text)
    lines = node.connect(0)
    for line in (
        "sub a/1 0 topics #",
        "sub a/1 0 wait topics #",
        "sub a/1 new topics #",
        "consume a/1 c 0 topics #",
        "stat a/1",
    ):
        (answer,) = node.ask(lines, line)
        assert answer.startswith("err unknown ") and answer.endswith(text), line
    (answer,) = node.ask(node.connect(0), "sub b 0 topics #")
    assert answer == "err unknown no such stream here; the first publish makes it"


def test_handles_of_topics_move_with_their_connection(node: World) -> None:
    talk = Talk(node)
    talk.ask(m.Open(1, b"a/1"), m.Open(2, b"b"))
    _move(node, talk.peer)
    client = node.binary_client_of(talk.peer)
    assert (client.handles, client.placed[1].topic, client.account.handles) == ({2: b"b"}, b"a/1", 2)
    assert refusals(talk.ask(publish(1, 1))) == []
    assert talk.read(b"a/1") == [("a/1", b"1")]


def test_topics_of_one_stream_keep_the_order_of_their_messages(node: World) -> None:
    talk = Talk(node)
    talk.ask(m.Open(1, b"a/1"), m.Open(2, b"a/2"))
    forged = pack_frame(b"x", metadata=topic_metadata(b"a/3"))
    answers = talk.ask(*[publish(n, 1 + n % 2) for n in range(4)], publish(4, 1, frames=forged), publish(5, 2))
    assert refusals(answers) == [Code.TOPIC]
    expected = [("a/1" if number % 2 == 0 else "a/2", b"%d" % number) for number in range(4)] + [("a/2", b"5")]
    assert talk.read(b"a") == expected
    seqs = {each.request: each.results[0][0] for each in answers if isinstance(each, m.Published)}
    assert seqs == {0: 0, 1: 1, 2: 2, 3: 3, 5: 4}


def test_single_messages_to_topics_are_read_together(node: World) -> None:
    """In both protocols, and each with its topic."""
    talks = [Talk(node) for _ in range(2)]
    for number, talk in enumerate(talks):
        talk.ask(m.Open(1, b"a/%d" % number), publish(1, 1))
        talk.ask(publish(2, 1))
    speakers = [node.connect(0) for _ in range(2)]
    for number, peer in enumerate(speakers):
        node.ask(peer, "ack on")
        node.ask(peer, f"pub a/{number} |l")
        assert node.ask(peer, f"pub a/{number} |m")[0].startswith("ok pub a ")
    singles = node.workers[0].singles
    assert {node.binary_client_of(talk.peer) for talk in talks} <= set(singles._binary.values())
    assert {node.client_of(peer) for peer in speakers} <= set(singles._lines.values())
    for number in range(2):
        assert Talk(node).read(b"a/%d" % number) == [(f"a/{number}", data) for data in (b"1", b"2", b"l", b"m")]


def test_lines_are_placed_alike_with_a_table_and_without(tmp_path: Path) -> None:
    lines = "".join(f"pub a/{number % 3} |{number}\r\n" for number in range(9))
    found = []
    for number, rule in enumerate((TopicRule("#", "{1}"), TopicRule("a/#", "{1}{hash:1}"))):
        with world(tmp_path / str(number), topics=(rule,)) as node:
            peer = node.connect()
            node.ask(peer, "ping")
            assert node.client_of(peer).codec.in_order is bool(number)
            peer.send_raw(lines.encode())
            node.settle()
            found.append(Talk(node).read(b"a0" if number else b"a"))
    assert found[0] == found[1] == [(f"a/{number % 3}", b"%d" % number) for number in range(9)]


def test_a_read_of_many_names_by_lines_is_followed_by_a_short_one(tmp_path: Path) -> None:
    """If they have to be placed one by one."""
    for template, is_short in (("{1}", False), ("{1}-s", True)):
        with world(tmp_path / template, topics=(TopicRule("#", template),)) as node:
            peer = node.connect()
            node.ask(peer, "ping")
            client = node.client_of(peer)
            for round_ in range(12):
                peer.send_raw(b"pub sensors/%d |x\r\n" % round_ * (1 << 11))
                node.settle()
            assert client.read_bytes > 2 * READ_BYTES_MIN
            peer.send_raw(b"".join(b"pub sensors/%d |x\r\n" % number for number in range(2 * NAMES_A_READ)))
            node.settle()
            assert (client.read_bytes == READ_BYTES_MIN) is is_short
