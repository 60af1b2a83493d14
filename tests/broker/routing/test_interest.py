"""Which workers are notified of growth: those with a matching filter, and nobody misses a message."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgpack
import pytest

from tailrace.broker.routing import interest as module
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.routing.interest import Interests
from tailrace.broker.streams.open_stream import Growth
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol import messages as m
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tests.broker.binary import BinaryPeer
from tests.broker.topics import naive
from tests.broker.world import Peer, World, world
from tests.thorough import examples

NAME = b"s"
FIRST_LEVEL = (TopicRule("#", "{1}"),)
INTERLEAVINGS = 10
"""In one node, one after the other."""


frame = load("tailrace.shard.frame_cy")


def topic_metadata(topic: bytes) -> bytes:
    packed: bytes = msgpack.packb({"t": topic.decode()})
    return packed


class Stream:
    """Growths of one stream, as an owner reports them."""

    def __init__(self) -> None:
        self.seq, self.offset = 0, 4_096

    def grow(self, *topics: bytes, padding: int = 0) -> Growth:
        frames = bytearray(b"".join(pack_frame(b"x" * padding, metadata=topic_metadata(topic)) for topic in topics))
        frame.stamp(frames, self.seq, 1_000, 1, 0)
        first_seq, self.seq = self.seq, self.seq + len(topics)
        self.offset += len(frames)
        return Growth(first_seq, self.seq, self.offset, frames)


@pytest.fixture
def links() -> list[Any]:
    return [Mock(name=f"link {number}") for number in range(3)]


@pytest.fixture
def interests() -> Interests:
    return Interests(1 << 20, 1 << 16)


def row(subscribers: int, *added: bytes, everything: bool = False, removed: tuple[bytes, ...] = ()) -> Any:
    return NAME, subscribers, everything, list(added), list(removed)


def test_a_link_is_notified_of_what_one_of_its_filters_matches(interests: Interests, links: list[Any]) -> None:
    one, other, whole = links
    assert interests.take(one, row(2, b"t/1", b"t/+/x"))
    assert interests.take(other, row(1, b"t/2"))
    assert interests.take(whole, row(1, everything=True))
    assert interests.streams[NAME].subscribers == 4
    stream = Stream()
    assert set(interests.to_notify(NAME, stream.grow(b"t/9"))) == set(links), "nothing is known of the messages before"
    assert set(interests.to_notify(NAME, stream.grow(b"t/9"))) == {whole}
    assert set(interests.to_notify(NAME, stream.grow(b"t/9", b"t/1"))) == {one, whole}
    assert set(interests.to_notify(NAME, stream.grow(b"t/2", b"t/7/x"))) == set(links)
    assert not interests.take(one, row(1, removed=(b"t/1",)))
    assert set(interests.to_notify(NAME, stream.grow(b"t/1"))) == {whole}
    assert interests.take(one, row(2, b"t/1"))
    assert set(interests.to_notify(NAME, stream.grow(b"t/1"))) == {one, whole}
    assert interests.filtered_links(NAME) == [one, other]
    assert list(interests.to_notify(b"another", stream.grow(b"t/1"))) == []


def test_nothing_is_left_of_links_that_are_gone(interests: Interests, links: list[Any]) -> None:
    for link in links:
        interests.take(link, row(2, b"t/1", b"t/2"))
        interests.take(link, row(2, b"t/2"))  # it knew that
    assert len(interests.filters) == 2 and interests.streams[NAME].subscribers == 6
    interests.forget_link(links[0])
    interests.forget_link(links[0])
    interests.take(links[1], row(0))
    interests.take(links[1], row(0))
    assert len(interests.filters) == 2 and interests.streams
    interests.forget(NAME, links[2])
    assert not interests.filters and not interests.streams and NAME not in interests.streams


def test_a_link_that_wants_everything_for_a_while_keeps_its_filters(interests: Interests, links: list[Any]) -> None:
    stream, link = Stream(), links[0]
    interests.take(link, row(1, b"t/1"))
    interests.to_notify(NAME, stream.grow(b"t/9"))
    assert interests.take(link, row(2, everything=True))
    assert not interests.take(link, row(3, everything=True)), "it gets all already"
    assert list(interests.to_notify(NAME, stream.grow(b"t/9"))) == [link]
    assert not interests.take(link, row(1))
    assert list(interests.to_notify(NAME, stream.grow(b"t/9"))) == [link], "the walk had stopped"
    assert list(interests.to_notify(NAME, stream.grow(b"t/9"))) == []
    assert list(interests.to_notify(NAME, stream.grow(b"t/1"))) == [link]


def test_without_room_for_its_filters_a_link_is_notified_of_everything(links: list[Any]) -> None:
    interests, stream = Interests(2_000, 1 << 16), Stream()
    assert interests.take(links[0], row(9, *(b"t/%d" % number for number in range(9))))
    for _ in range(3):
        assert list(interests.to_notify(NAME, stream.grow(b"other"))) == [links[0]]
    interests.take(links[0], row(0))
    assert not interests.filters


def test_growth_that_is_not_looked_into_is_announced(interests: Interests, links: list[Any]) -> None:
    stream, link = Stream(), links[0]
    interests.take(link, row(1, b"t/1"))
    interests.to_notify(NAME, stream.grow(b"a"))
    assert list(interests.to_notify(NAME, stream.grow(*[b"a"] * module.WALKED_MESSAGES_MAX))) == []
    assert list(interests.to_notify(NAME, stream.grow(*[b"a"] * (module.WALKED_MESSAGES_MAX + 1)))) == [link]
    stream.grow(b"t/1")  # the first of two growths in one turn, of which only the second is at hand
    assert list(interests.to_notify(NAME, stream.grow(b"a"))) == [link]
    assert list(interests.to_notify(NAME, stream.grow(b"a"))) == []
    without_frames = stream.grow(b"a")._replace(frames=bytearray())
    assert list(interests.to_notify(NAME, without_frames)) == [link]
    assert list(interests.to_notify(NAME, stream.grow(b"a"))) == []
    interests.cut(NAME)
    assert list(interests.to_notify(NAME, stream.grow(b"a"))) == [link]


def test_a_link_is_never_far_behind(interests: Interests, links: list[Any]) -> None:
    stream, link = Stream(), links[0]
    interests.take(link, row(1, b"t/1"))
    interests.to_notify(NAME, stream.grow(b"a"))
    begin = stream.offset
    notified = [link for _ in range(100) for link in interests.to_notify(NAME, stream.grow(b"a", padding=10_000))]
    assert 2 <= len(notified) <= (stream.offset - begin) // module.UNANNOUNCED_BYTES_MAX


# --- between workers --------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, topics=FIRST_LEVEL) as node:
        node.stop_timers()
        yield node


def reader_payloads(reader: Peer) -> list[str]:
    return [line.split("|", 1)[1] for line in reader.lines if line.startswith("msg ")]


def test_a_worker_is_not_notified_of_what_nobody_there_wants(node: World) -> None:
    name = node.name(1)
    node.fill(name, [b"0"])
    reader = node.connect(0)
    node.ask(reader, f"sub {name}/mine new")
    node.fill(name, [b"1"])  # the owner has looked into nothing before
    feed = node.workers[0].fanout.feeds[name.encode()]
    assert feed.end_seq == 2
    publisher = node.connect(1)
    node.ask(publisher, f"pub {name}/other |x", f"pub {name} |y")
    assert feed.end_seq == 2 and not reader_payloads(reader)
    node.ask(publisher, f"pub {name}/mine |z")
    assert feed.end_seq == 5 and reader_payloads(reader) == ["z"]


def test_what_grew_while_a_filter_was_on_its_way_is_not_missed(node: World) -> None:
    name = node.name(1)
    node.fill(name, [b"0"])
    reader, publisher = node.connect(0), node.connect(1)
    node.ask(reader, f"sub {name}/a new")
    node.ask(publisher, f"pub {name}/b |x")
    reader.send(f"sub {name}/b 0")
    node.settle(0)
    assert sorted(reader_payloads(reader)) == ["x"]
    batch = StreamBatch(name.encode(), 1)
    batch.add_quiet(
        node.client_of(reader), 1, bytearray(pack_frame(b"late", metadata=topic_metadata(b"%s/b" % name.encode())))
    )
    owner = node.workers[1]
    owner.owner.append(batch, owner.services.now_s)
    owner.announce()  # it does not know of the filter yet
    node.settle()
    assert sorted(reader_payloads(reader)) == ["late", "x"]


def test_messages_that_nobody_there_wants_are_trimmed_without_a_notice(node: World) -> None:
    name = node.name(1)
    node.fill(name, [b"0", b"1"])
    reader, publisher = node.connect(0), node.connect(1)
    node.ask(reader, f"sub {name}/mine new")
    node.ask(publisher, *(f"pub {name}/other |{number}" for number in range(20)))
    assert node.ask(publisher, f"trim {name} #21")[0].startswith("ok trim")
    assert node.workers[0].fanout.feeds[name.encode()].end_seq == 22, "it has walked over them while they were there"
    node.ask(publisher, f"pub {name}/mine |here")
    assert [line.split()[0] for line in reader.lines] == ["msg"] and reader.lines[0].endswith("|here")


def test_a_subscription_that_ends_somewhere_ends_without_a_match(node: World) -> None:
    name = node.name(1)
    node.fill(name, [b"0"])
    reader = BinaryPeer(node, 0, hello=False)
    reader.ask(m.Hello(1, (m.TOPICS_FEATURE,), "test"))
    begun = m.Subscribed(1, 1, 0, 3, name)
    assert reader.subscribe(1, name, From("new", 0), end=("seq", 3), topics=b"mine") == [begun]
    node.fill(name, [b"1"])
    assert reader.take() == []
    node.fill(name, [b"2"])
    assert reader.take() == [m.Ended(1, 3)]


class Interleaving:
    """Publishers and subscribers of one stream in random order, while its owner is lost or replaced."""

    def __init__(self, node: World, chance: random.Random, number: int, generations: Iterator[int]) -> None:
        self.node = node
        self.chance = chance
        self.generations = generations
        self.slots = len(node.workers)
        self.name = node.name(chance.randrange(self.slots), f"n{number}-")
        self.publishers = [node.connect(slot) for slot in range(self.slots)]
        self.sent: list[tuple[str, str]] = []
        self.readers: list[tuple[Peer, str, int]] = []

    def publish(self) -> None:
        peer = self.chance.choice(self.publishers)
        for _ in range(self.chance.choice((1, 1, 1, 4))):
            topic = f"{self.name}/{self.chance.choice('abcd')}/{self.chance.choice('xy')}"
            payload = str(len(self.sent))
            peer.send(f"pub {topic} |{payload}")
            self.sent.append((topic, payload))
        if self.chance.random() < 0.7:
            self.node.settle()

    def subscribe(self) -> None:
        """From the beginning at any moment; to new messages when all that was sent before is logged."""
        wanted = self.chance.choice(("{}/a/x", "{}/b/y", "{}/c/+", "{}/+/y", "{}/#"))
        start = self.chance.choice(("0", "new"))
        if start == "new":
            self.node.settle()
        peer = self.node.connect(self.chance.randrange(self.slots))
        peer.send(f"sub {wanted.format(self.name)} {start} wait")
        self.readers.append((peer, wanted.format(self.name), len(self.sent) if start == "new" else 0))
        if start == "new":
            self.node.settle()

    def leave(self) -> None:
        if self.readers:
            peer, *_rest = self.readers.pop(self.chance.randrange(len(self.readers)))
            peer.close()

    def turn(self) -> None:
        self.node.workers[self.chance.randrange(self.slots)].turn()

    def lose(self) -> None:
        """Publishes under way would have an unknown outcome."""
        self.settle_publishers()
        left, right = self.chance.sample(range(self.slots), 2)
        self.node.relink(left, right, next(self.generations))

    def replace(self) -> None:
        self.settle_publishers()
        self.node.replace(self.chance.randrange(self.slots), next(self.generations))
        self.node.stop_timers()

    def settle_publishers(self) -> None:
        self.node.settle()
        if self.chance.random() < 0.5:
            self.subscribe_quietly()

    def subscribe_quietly(self) -> None:
        """Its worker's notice is on its way."""
        slot = self.chance.randrange(self.slots)
        peer = self.node.connect(slot)
        peer.send(f"sub {self.name}/d/x 0 wait")
        self.readers.append((peer, f"{self.name}/d/x", 0))
        for _ in range(self.chance.randint(1, 3)):
            self.node.workers[slot].turn()

    def run(self) -> None:
        steps = (*[self.publish] * 4, self.subscribe, self.subscribe, self.leave, self.turn, self.lose, self.replace)
        for _ in range(self.chance.randint(4, 16)):
            self.chance.choice(steps)()
        self.node.settle()
        for peer, wanted, first in self.readers:
            if peer.lines[0].startswith("err unavailable"):  # the owner was lost before it had answered
                continue
            payloads = [payload for topic, payload in self.sent[first:] if naive.matches(wanted, topic)]
            assert sorted(reader_payloads(peer), key=int) == payloads, (wanted, first)
        for peer in (*self.publishers, *(peer for peer, *_rest in self.readers)):
            peer.close()
        self.node.settle()
        assert not any(worker.siblings.interest.streams for worker in self.node.workers)
        assert not any(worker.siblings.interest.filters for worker in self.node.workers)


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(examples(100)))
def test_random_interleavings(tmp_path: Path, seed: int) -> None:
    """Nobody looks at a stream because time has passed: each message is announced to those who wait for it."""
    chance, generations = random.Random(seed), itertools.count(10)
    print(f"seed {seed}")
    with world(tmp_path, workers=3, affinity=False, topics=FIRST_LEVEL) as node:
        node.stop_timers()
        for number in range(INTERLEAVINGS):
            Interleaving(node, chance, number, generations).run()
