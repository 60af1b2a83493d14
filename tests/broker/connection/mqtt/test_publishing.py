"""Where messages lie, and the acknowledgements of a run."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.broker.connection.mqtt.publishing import PublishGroups, PublishRow, destination_of
from tailrace.broker.connection.mqtt.session_state import Numbering
from tailrace.broker.routing.batch import Pending
from tailrace.broker.topics.rules import TopicRule, TopicRules
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.reasons import Reason
from tailrace.protocol.topics import LEVELS_MAX, TOPIC_BYTES_MAX, topic_metadata
from tailrace.shard.frame import FLAG_CONTINUES, FLAG_PRODUCER, HEADER_BYTES, pack_frame, unpack_header
from tailrace.shard.numbering import read_numbering
from tailrace.shard.topics import topic_in
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

FIRST_LEVEL = TopicRules([TopicRule("#", "{1}")])


@pytest.mark.parametrize(
    ("rules", "topic", "stream", "kept"),
    [
        (TopicRules(), b"a", b"a", b""),
        (TopicRules(), b"a/b", b"a/b", b""),
        (TopicRules(), b"a b", b"topics", b"a b"),
        (FIRST_LEVEL, b"a/b", b"a", b"a/b"),
        (FIRST_LEVEL, b"a", b"a", b""),
        (FIRST_LEVEL, b"/b", b"topics", b"/b"),
    ],
)
def test_places(rules: TopicRules, topic: bytes, stream: bytes, kept: bytes) -> None:
    found = destination_of(rules, topic)
    assert (found.placed, found.refusal) == ((stream, kept), None)
    assert found.metadata == (topic_metadata(kept) if kept else b"")


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (b"$SYS/a", Code.RESERVED),
        (b"$cursor/a", Code.RESERVED),
        (b"a/$dead", Code.RESERVED),
        (b"x" * (TOPIC_BYTES_MAX + 1), Code.TOPIC),
        (b"/" * LEVELS_MAX, Code.TOPIC),
    ],
)
def test_topics_that_take_no_message(topic: bytes, code: Code) -> None:
    refusal = destination_of(FIRST_LEVEL, topic).refusal
    assert refusal is not None and refusal[0] is code


class Publisher:
    def __init__(self, version: int) -> None:
        self.version = version
        self.unreleased = {1, 2, 3}
        self.undecided = {1, 2}
        self.numbers: dict[int, Numbering] = {}
        self.unacknowledged = 0
        self.decided = 0
        self.ended: list[Code] = []
        self.ready = 0

    def answers_ready(self) -> None:
        self.ready += 1

    def all_decided(self) -> None:
        self.decided += 1

    def settle_stored(self, pending: Pending, text: bytes) -> None:
        pending.settle(text)

    def end_with(self, code: Code, text: str, *, is_logged: bool = False) -> None:
        self.ended.append(code)


def row_of(publisher: Publisher, *groups: bytes) -> PublishRow:
    made: Any = publisher
    row = PublishRow(made)
    for name in groups:
        row.add(name, 1, b"")
    return row


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_is_known_when_all_its_streams_are(version: int) -> None:
    publisher = Publisher(version)
    row = row_of(publisher, b"a", b"b")
    row.add_answer(1, 5, 1)
    row.add_answer(2, 1, 0)
    assert publisher.unacknowledged == 1
    row.begin(2)
    row.settle_group(1, None)
    assert (row.pending.text, publisher.unacknowledged) == (None, 1)
    row.settle_group(0, None)
    assert row.pending.text == wire.ack(wire.PUBACK, 5) + wire.ack(wire.PUBREC, 1)
    assert (publisher.unacknowledged, publisher.ready, publisher.unreleased) == (0, 1, {1, 2, 3})


def test_a_row_without_a_message_is_known_at_once() -> None:
    row = row_of(Publisher(V5))
    row.begin(0)
    assert row.pending.text == b""


def test_refusals_of_version_5() -> None:
    publisher = Publisher(V5)
    row = row_of(publisher, b"a", b"b")
    for qos, packet_id, group in ((1, 5, 0), (2, 1, 0), (2, 2, 1)):
        row.add_answer(qos, packet_id, group)
    row.add_answer(2, 3, -1, Reason.NOT_AUTHORIZED)
    row.begin(2)
    row.settle_group(0, (Code.FULL, "no room"))
    row.settle_group(1, None)
    reasons = [(each.kind, wire.reason(each)) for each in wire.split(row.pending.text or b"")]
    assert reasons == [(4, 0x97), (5, 0x97), (5, 0), (5, 0x87)]
    assert publisher.unreleased == {2} and not publisher.ended
    assert not publisher.undecided and publisher.decided == 1


def test_version_3_1_1_closes_behind_what_is_logged() -> None:
    publisher = Publisher(V4)
    row = row_of(publisher, b"a", b"b")
    for packet_id, group in ((5, 0), (6, 1), (7, 0)):
        row.add_answer(1, packet_id, group)
    row.begin(2)
    row.settle_group(1, (Code.FULL, "no room"))
    row.settle_group(0, None)
    assert row.pending.text == wire.ack(wire.PUBACK, 5) and row.pending.after is not None
    row.pending.after()
    assert publisher.ended == [Code.FULL]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("code", "unreleased", "numbered"),
    [(Code.UNAVAILABLE, {1, 2, 3}, {1}), (Code.GAP, {2, 3}, set()), (Code.PRODUCER, {2, 3}, set())],
)
def test_a_numbered_message_that_may_be_logged_is_not_answered(
    version: int, code: Code, unreleased: set[int], numbered: set[int]
) -> None:
    """The connection ends, so that the client sends it again: under its number, or, after a gap, another one."""
    publisher = Publisher(version)
    publisher.numbers = {1: Numbering(b"a", b"p", 4), 2: Numbering(b"b", b"p", 0)}
    row = row_of(publisher, b"a", b"b")
    row.add_answer(2, 2, 1)
    row.add_answer(2, 1, 0)
    row.begin(2)
    row.settle_group(0, (code, "gone"))
    row.settle_group(1, None)
    assert row.pending.text == wire.ack(wire.PUBREC, 2) and row.pending.after is not None
    row.pending.after()
    assert publisher.ended == [code] and not publisher.undecided
    assert (publisher.unreleased, set(publisher.numbers)) == (unreleased, numbered)


def test_a_row_that_is_given_up_leaves_its_messages_to_the_next_connection() -> None:
    publisher = Publisher(V5)
    publisher.numbers = {1: Numbering(b"a", b"p", 4)}
    row = row_of(publisher)
    row.add_answer(1, 5, 0)
    row.add_answer(2, 1, 0)
    row.add_answer(2, 2, 0)
    row.abandon()
    assert row.pending.text == b"" and publisher.decided == 1
    assert (publisher.unacknowledged, publisher.unreleased, set(publisher.numbers)) == (0, {1, 2, 3}, {1})


def test_groups_are_runs_of_a_stream_with_numbers_or_without() -> None:
    groups = PublishGroups()
    numbers = [Numbering(b"s", b"p", number) for number in range(3)]
    frame = pack_frame(b"x", metadata=topic_metadata(b"s/t"))
    keys = [
        groups.add(b"s", frame, numbering)
        for numbering in (None, None, numbers[0], numbers[1], None, numbers[0], numbers[2], Numbering(b"s", b"q", 3))
    ]
    assert keys == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (4, 0), (5, 0)]
    assert groups.add(b"other", frame, None) == (6, 0) and groups.are_numbered
    assert groups.groups[0].joined() == frame + frame
    marked = groups.groups[1].joined()
    first = unpack_header(marked)
    metadata = bytes(marked[HEADER_BYTES : HEADER_BYTES + first.metadata_bytes])
    assert (read_numbering(metadata), topic_in(metadata)) == ((b"p", 0), b"s/t")
    assert (first.flags, unpack_header(marked, first.length).flags) == (FLAG_PRODUCER, FLAG_CONTINUES)
