"""The table of subscriptions, compared with dictionaries, compiled and interpreted."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import pytest

from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import HEADER
from tailrace.shard.leaves import load, load_source

MODULE = "tailrace.broker.udp.table_cy"
MOST = 64
NOW_S = 1_000


@pytest.fixture(params=["loaded", "interpreted"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    return load(MODULE) if request.param == "loaded" else load_source(MODULE)


def name_of(number: int) -> bytes:
    return struct.pack("=H2s4s20x", 2, number.to_bytes(2, "big"), bytes([10, 0, 0, 1]))


def frame_of(topic: bytes, body: bytes) -> bytes:
    metadata = topic_metadata(topic) if topic else b""
    return HEADER.pack(32 + len(metadata) + len(body), 0, 0, 0, 0, 0, len(metadata)) + metadata + body


class Table:
    """A table, and its expected content."""

    def __init__(self, leaf: ModuleType, most: int = MOST) -> None:
        self.leaf = leaf
        self.most = most
        self.buffer = bytearray(leaf.table_bytes(most))
        leaf.make_table(self.buffer, most, 0x0123_4567_89AB_CDEF)
        self.counts = leaf.PEER_COUNT, leaf.TOPIC_COUNT, leaf.SUB_COUNT
        self.wanted: dict[tuple[bytes, bytes], None] = {}
        self.seen_s: dict[bytes, int] = {}

    def add(self, name: bytes, topic: bytes, now_s: int = NOW_S) -> int:
        is_filter = b"+" in topic
        outcome, _record, is_new = self.leaf.subscribe(self.buffer, name, topic, is_filter, len(topic), now_s)
        had = (name, topic) in self.wanted
        topics = {each for _name, each in self.wanted}
        if outcome != self.leaf.FULL:
            assert outcome == (self.leaf.RENEWED if had else self.leaf.ADDED)
            assert is_new == (topic not in topics)
            self.wanted[name, topic] = None
        if outcome != self.leaf.FULL or name in self.seen_s:
            self.seen_s[name] = max(now_s, self.seen_s.get(name, 0))
        return int(outcome)

    def remove(self, name: bytes, topic: bytes) -> None:
        found, _record, number = self.leaf.unsubscribe(self.buffer, name, topic)
        assert found == ((name, topic) in self.wanted)
        self.wanted.pop((name, topic), None)
        still = any(each == topic for _name, each in self.wanted)
        assert number == (len(topic) if found and not still else -1)
        self._forget_names()

    def expire(self, before_s: int, most: int) -> None:
        place, ended = 0, 0
        gone: list[tuple[int, bytes]] = []
        while True:
            place, more, topics = self.leaf.expire(self.buffer, before_s, place, 5, most)
            ended, gone = ended + more, gone + topics
            if not place:
                break
        before = {topic for _name, topic in self.wanted}
        over = {name for name, seen_s in self.seen_s.items() if seen_s < before_s}
        assert ended == len(over)
        self.wanted = {(name, topic): None for name, topic in self.wanted if name not in over}
        left = before - {topic for _name, topic in self.wanted}
        assert sorted(gone) == sorted((len(topic), topic) for topic in left)
        self._forget_names()

    def _forget_names(self) -> None:
        names = {name for name, _topic in self.wanted}
        self.seen_s = {name: seen_s for name, seen_s in self.seen_s.items() if name in names}

    def check(self) -> None:
        counts = [self.leaf.count_of(self.buffer, place) for place in self.counts]
        names, topics = {name for name, _topic in self.wanted}, {topic for _name, topic in self.wanted}
        assert counts == [len(names), len(topics), len(self.wanted)]
        for name in names:
            assert self.leaf.is_known(self.buffer, name)
        assert sorted(self.shown(7)) == sorted((topic, name, self.seen_s[name]) for name, topic in self.wanted)

    def shown(self, count: int) -> list[tuple[bytes, bytes, int]]:
        """All subscriptions, in parts."""
        found: list[tuple[bytes, bytes, int]] = []
        start, more = 0, True
        while more:
            more, rows = self.leaf.show(self.buffer, start, count)
            start, found = start + count, found + rows
        return found

    def collect(self, frames: bytes, room: int = MOST, before_s: int = 0) -> list[tuple[bytes, bytes]]:
        """What goes where for these frames, in pieces of `room`."""
        entries, work, texts = bytearray(room * 40), bytearray(room * 16), bytearray(70_000)
        found: list[tuple[bytes, bytes]] = []
        position = 0
        while position < len(frames):
            position, _messages, count, _unsendable = self.leaf.collect(
                self.buffer, frames, position, b"udp", None, lambda topic: (), before_s, entries, work, texts
            )
            for at in range(0, count * 40, 40):
                place, length = struct.unpack_from("<II", entries, at + 32)
                found.append((bytes(entries[at : at + 28]), bytes(texts[place : place + length])))
        return found


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(6))
def test_any_changes_leave_what_they_ought_to(leaf: ModuleType, seed: int) -> None:
    chance, table = random.Random(seed), Table(leaf)
    topics = [b"t%d" % number for number in range(20)] + [b"long/" + b"x" * 40, b"a/+"]
    for step in range(600):
        name, topic = name_of(chance.randrange(25)), chance.choice(topics)
        match chance.randrange(8):
            case 0 | 1 | 2 | 3:
                outcome = table.add(name, topic, NOW_S + step)
                assert outcome != leaf.FULL or len(table.wanted) == MOST
            case 4 | 5:
                table.remove(name, topic)
            case 6 if chance.random() < 0.2:
                table.expire(NOW_S + step - 50, chance.choice((1, 3, 1_000)))
            case _:
                expected = sorted((each, b"MSG %s\nbody" % topic) for each, of in table.wanted if of == topic)
                if b"+" not in topic:
                    assert sorted(table.collect(frame_of(topic, b"body"), chance.choice((1, 2, 64)))) == expected
        table.check()


def test_a_full_table_takes_no_more_and_can_be_used_again(leaf: ModuleType) -> None:
    table = Table(leaf, 16)
    for number in range(16):
        assert table.add(name_of(number), b"topic-%d" % number) == leaf.ADDED
    assert table.add(name_of(99), b"another") == leaf.FULL
    assert table.add(name_of(1), b"another") == leaf.FULL
    assert not leaf.is_known(table.buffer, name_of(99))
    table.check()
    table.remove(name_of(3), b"topic-3")
    assert table.add(name_of(99), b"another") == leaf.ADDED
    table.check()


def test_long_names_are_bounded_by_their_cells(leaf: ModuleType) -> None:
    table = Table(leaf, 16)
    assert table.add(name_of(1), b"x" * 700) == leaf.ADDED
    assert table.add(name_of(2), b"y" * 700) == leaf.FULL
    table.remove(name_of(1), b"x" * 700)
    assert table.add(name_of(2), b"y" * 700) == leaf.ADDED


def test_each_address_gets_its_messages_in_order(leaf: ModuleType) -> None:
    table = Table(leaf)
    for number in (2, 1):
        for topic in (b"a", b"b"):
            table.add(name_of(number), topic)
    found = table.collect(b"".join(frame_of(topic, b"%d" % at) for at, topic in enumerate((b"a", b"b", b"none", b"a"))))
    assert [text for name, text in found if name == name_of(1)] == [b"MSG a\n0", b"MSG b\n1", b"MSG a\n3"]
    assert len(found) == 6 and [name for name, _text in found] in (
        [name_of(2)] * 3 + [name_of(1)] * 3,
        [name_of(1)] * 3 + [name_of(2)] * 3,
    )


def test_a_message_without_a_topic_has_that_of_its_stream(leaf: ModuleType) -> None:
    table = Table(leaf)
    table.add(name_of(1), b"udp")
    assert table.collect(frame_of(b"", b"x")) == [(name_of(1), b"MSG udp\nx")]


def test_addresses_whose_lease_is_over_get_nothing(leaf: ModuleType) -> None:
    table = Table(leaf)
    table.add(name_of(1), b"a", 10)
    table.add(name_of(2), b"a", 20)
    assert table.collect(frame_of(b"a", b"x"), before_s=15) == [(name_of(2), b"MSG a\nx")]
    names = bytearray(name_of(1) + name_of(7))
    assert leaf.renew(table.buffer, names, 2, 30) == 1
    assert len(table.collect(frame_of(b"a", b"x"), before_s=15)) == 2


def test_filters_come_from_the_caller(leaf: ModuleType) -> None:
    table = Table(leaf)
    _outcome, record, _new = leaf.subscribe(table.buffer, name_of(1), b"a/+", True, 0, NOW_S)
    leaf.subscribe(table.buffer, name_of(2), b"a/b", False, 0, NOW_S)
    buffers = bytearray(400), bytearray(160), bytearray(1_000)
    asked: list[bytes] = []

    def find(topic: bytes) -> tuple[int, ...]:
        asked.append(topic)
        return (record,) if topic.startswith(b"a/") else ()

    frames = frame_of(b"a/b", b"1") + frame_of(b"a/c", b"2") + frame_of(b"a/+", b"3")
    position, messages, count, _ = leaf.collect(table.buffer, frames, 0, b"udp", {b"a/c": (record,)}, find, 0, *buffers)
    assert (position, messages, count) == (len(frames), 3, 4)
    assert asked == [b"a/b", b"a/+"]


def test_what_cannot_be_sent_is_counted(leaf: ModuleType) -> None:
    table = Table(leaf)
    for number in (1, 2):
        table.add(name_of(number), b"a b")
        table.add(name_of(number), b"a")
    buffers = bytearray(400), bytearray(160), bytearray(70_000)
    frames = frame_of(b"a b", b"") + frame_of(b"a", bytes(65_507 - 6)) + frame_of(b"a", bytes(65_507 - 5))
    _position, messages, count, unsendable = leaf.collect(
        table.buffer, frames, 0, b"udp", None, lambda topic: (), 0, *buffers
    )
    assert (messages, count, unsendable) == (3, 2, 4)


def test_a_topic_that_ends_in_the_middle_of_a_message_takes_no_other_along(leaf: ModuleType) -> None:
    table = Table(leaf)
    for name, topic in ((9, b"b"), (1, b"a"), (2, b"a"), (3, b"a")):
        table.add(name_of(name), topic)
    buffers = bytearray(2 * 40), bytearray(2 * 16), bytearray(1_000)
    frames = frame_of(b"a", b"x") + frame_of(b"b", b"y")
    rest = b"udp", None, lambda topic: (), 0, *buffers
    assert leaf.collect(table.buffer, frames, 0, *rest)[:3] == (0, 0, 2)
    for name in (1, 2, 3):
        table.remove(name_of(name), b"a")
    assert leaf.collect(table.buffer, frames, 0, *rest)[:3] == (len(frames), 2, 1)


def test_a_subscription_that_ends_in_the_middle_of_a_message_is_passed_over(leaf: ModuleType) -> None:
    table = Table(leaf)
    for number in range(6):
        table.add(name_of(number), b"a")
    buffers = bytearray(2 * 40), bytearray(2 * 16), bytearray(1_000)

    def collect() -> tuple[int, list[bytes]]:
        position, _messages, count, _ = leaf.collect(
            table.buffer, frame_of(b"a", b"x"), 0, b"udp", None, lambda topic: (), 0, *buffers
        )
        return position, [bytes(buffers[0][at : at + 28]) for at in range(0, count * 40, 40)]

    position, first = collect()
    assert position == 0 and len(first) == 2
    left = [name_of(number) for number in range(6) if name_of(number) not in first]
    table.remove(left[-1], b"a")  # the newest of those left, which is next
    position, second = collect()
    assert left[-1] not in second and not set(first) & set(second)
    rest: list[bytes] = []
    while not position:
        position, more = collect()
        rest += more
    assert sorted(first + second + rest) == sorted(
        name_of(number) for number in range(6) if name_of(number) != left[-1]
    )
