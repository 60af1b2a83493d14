"""Nodes that share a stream in memory, with every delay, loss of a connection and death at random, from a seed.

The parts that decide are the real ones (`broker.sharing`: wants, sessions, peers' wants, publishing); workers, rings,
connections and subscribers are lists here. `python -m tests.broker.sharing.model --runs 10000 --first 1` runs as many
seeds as it is asked to.

A message must reach a subscriber if the node of the publisher had the subscriber's filter when it was published, unless
the connection between the two breaks, or one of both nodes or the subscriber is gone, before it is there. Nothing may
come twice. In the end, with all connections up, all nodes know all wants, and each message reaches all subscribers.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.sharing import wants as wants_module
from tailrace.broker.sharing.peer_wants import PeerFilters, PeerStream, PeerWants
from tailrace.broker.sharing.session import ShareSession, ShareSessions
from tailrace.broker.sharing.shared import SharedPublisher
from tailrace.broker.sharing.wants import NodeWants, WantTable, pieces
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.features import SHARING
from tailrace.protocol.opcodes import Op
from tailrace.protocol.requests import read_request
from tailrace.protocol.sharing import Interest
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import HEADER, HEADER_BYTES, SEQ_OFFSET, pack_frame
from tailrace.shard.topics import topic_in
from tests.broker.topics import naive

STREAM = b"udp"
TOPICS = (b"a", b"a/b", b"a/c", b"d/b", b"e")
FILTERS = (*TOPICS, b"+", b"#", b"a/+", b"+/b", b"a/#", b"")
WORKERS = 2
FEATURES = frozenset({SHARING})


class Subscriber:
    """At one worker; it reads the ring from its subscription on."""

    def __init__(self, node: Node, worker: int, topics: bytes) -> None:
        self.node, self.worker, self.topics = node, worker, topics
        self.next_seq = len(node.ring)
        self.got: list[bytes] = []
        self.known_at: set[Link] = set()

    def wants(self, topic: bytes) -> bool:
        return not self.topics or matches(self.topics, topic)

    def read(self) -> None:
        for frame in self.node.ring[self.next_seq :]:
            topic, body = taken_apart(frame)
            if self.wants(topic):
                self.got.append(body)
        self.next_seq = len(self.node.ring)


class Node:
    """A run of a node: one that is started again is another one."""

    def __init__(self, number: int, run: int, peers: list[int], filter_bytes: int) -> None:
        self.number, self.name = number, f"{number}.{run}"
        self.ring: list[bytes] = []
        self.tables = [WantTable() for _ in range(WORKERS)]
        self.new: list[list[Subscriber]] = [[] for _ in range(WORKERS)]
        self.rows: list[deque[Any]] = [deque() for _ in range(WORKERS)]  # on their way to the owner, and whose they are
        self.counted: list[Subscriber] = []  # by the owner
        self.generations = [0] * WORKERS
        self.wants = NodeWants()
        self.publisher = SharedPublisher(Mock(publish_frames=self._publish), WorkerMetrics(), 1 << 20)
        addresses = [("node", each) for each in peers]
        self.sessions = ShareSessions(self.wants, addresses, self.publisher.take)
        self.links: dict[int, Link] = {}  # that this node has made
        self.peers = peers
        self.filters = PeerFilters(filter_bytes, 1 << 16)

    def _publish(self, _client: object, publication: Any, _names: object, frames: bytearray, _sync: bool) -> None:
        place = 0
        while place < len(frames):
            length = int.from_bytes(frames[place : place + 4], "little")
            self.append(bytes(frames[place : place + length]))
            place += length
        publication.published(0, 0, 0)

    def send_rows(self, worker: int) -> None:
        """A worker sends its changes to the owner."""
        self.rows[worker] += ((row, []) for row in pieces(self.tables[worker].take_changes()))
        self.rows[worker].append((None, self.new[worker]))
        self.new[worker] = []

    def take_row(self, worker: int) -> None:
        row, subscribers = self.rows[worker].popleft()
        if row is not None:
            self.wants.take((worker, self.generations[worker]), [row])
        self.counted += subscribers

    def send_changes(self) -> None:
        """The owner sends them to the peers."""
        self.sessions.send_changes()
        for link in self.links.values():
            link.requests.append(list(self.counted))

    def append(self, frame: bytes) -> None:
        stamped = bytearray(frame)
        stamped[SEQ_OFFSET : SEQ_OFFSET + 8] = len(self.ring).to_bytes(8, "little")
        self.ring.append(bytes(stamped))


class Link:
    """A connection that `node` has made to `peer`, which sends its messages over it."""

    def __init__(self, node: Node, peer: Node) -> None:
        self.node, self.peer = node, peer
        self.requests: deque[Any] = deque()  # INTERESTs, and behind them the subscribers that they are for
        self.chunks: deque[tuple[int, bytes]] = deque()
        self.session: ShareSession = node.sessions.begin([("node", peer.number)], self.requests.append)
        self.wanted = PeerWants(peer.filters)
        self.places: dict[PeerStream, int | None] = {}  # seq of the next message; None: the end is being asked for
        self.session.went_up(peer.name)
        self.requests.append(list(node.counted))

    def take_request(self) -> None:
        request = self.requests.popleft()
        if isinstance(request, list):
            for subscriber in request:
                subscriber.known_at.add(self)
            return
        message = read_request(int(Op.INTEREST), memoryview(request)[HEAD_BYTES:], FEATURES)
        assert isinstance(message, Interest), message
        stream = self.wanted.find(message.id)
        if message.ends:
            if stream is not None:
                self.wanted.end(stream)
                del self.places[stream]
        elif stream is not None:
            stream.change(message)
        else:
            stream = self.wanted.begin(message)
            assert stream is not None
            stream.change(message)
            self.places[stream] = None

    def place(self) -> None:
        for stream, place in self.places.items():
            if place is None:
                self.places[stream] = len(self.peer.ring)

    def send(self, most: int) -> None:
        for stream, place in self.places.items():
            if place is not None and place < len(self.peer.ring):
                stop = min(place + most, len(self.peer.ring))
                frames = b"".join(self.peer.ring[place:stop])
                self.chunks += ((stream.number, bytes(each)) for each in stream.pick(frames, place, stop))
                self.places[stream] = stop

    def take_chunk(self) -> None:
        number, frames = self.chunks.popleft()
        assert self.session.is_expected(number)
        self.session.take(number, [frames])

    def covers(self, subscriber: Subscriber) -> bool:
        """Whether the peer knows the want of this subscriber, and reads the stream for it."""
        return self in subscriber.known_at and any(place is not None for place in self.places.values())

    def end(self) -> None:
        self.session.went_down()
        for stream in list(self.wanted.by_name.values()):
            self.wanted.end(stream)


def matches(topic_filter: bytes, topic: bytes) -> bool:
    return naive.matches(topic_filter.decode(), topic.decode())


def taken_apart(frame: bytes) -> tuple[bytes, bytes]:
    """Topic and body."""
    metadata_bytes = HEADER.unpack_from(frame)[6]
    metadata = frame[HEADER_BYTES : HEADER_BYTES + metadata_bytes]
    return topic_in(metadata) or STREAM, frame[HEADER_BYTES + metadata_bytes :]


class Play:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        count = chance.choice((2, 3, 3, 4))
        self.peers = {each: [other for other in range(count) if other != each] for each in range(count)}
        if chance.random() < 0.5:  # any tree or mesh: not all of them know each other
            self.peers = {each: [p for p in peers if chance.random() < 0.7] for each, peers in self.peers.items()}
        self.filter_bytes = chance.choice((1 << 20, 1 << 20, 900))
        self.at: dict[int, Node] = {}
        self.runs = self.published = 0
        self.subscribers: list[Subscriber] = []
        self.log: list[tuple[bytes, bytes, Node]] = []
        self.owed: dict[tuple[bytes, Subscriber], Link | None] = {}
        for each in range(count):
            self._start(each)

    def run(self, steps: int) -> None:
        acts: list[tuple[Callable[[], None], int]] = [
            (self.subscribe, 8),
            (self.unsubscribe, 5),
            (self.publish, 12),
            (self.move, 40),
            (self.break_link, 2),
            (self.dial, 6),
            (self.kill, 1),
            (self.join, 2),
            (self.kill_worker, 1),
        ]
        doing, weights = [act for act, _ in acts], [weight for _, weight in acts]
        for act in self.chance.choices(doing, weights, k=steps):
            act()
        self.settle()
        self._check_whole()
        for number in self.at:
            for topic in TOPICS:
                self.publish(self.at[number], topic)
        self.settle()
        for subscriber in self.subscribers:
            for (body, topic), node in self.last.items():
                near = node is subscriber.node or node.number in subscriber.node.peers
                assert (body in subscriber.got) == (near and subscriber.wants(topic)), (body, subscriber.topics)

    @property
    def last(self) -> dict[tuple[bytes, bytes], Node]:
        return {(body, topic): node for body, topic, node in self.log[-len(self.at) * len(TOPICS) :]}

    # --- what happens -----------------------------------------------------------------------------------------------

    def subscribe(self) -> None:
        node = self._any_node()
        if node is not None:
            found = Subscriber(node, self.chance.randrange(WORKERS), self.chance.choice(FILTERS))
            node.tables[found.worker].add(STREAM, found.topics)
            node.new[found.worker].append(found)
            self.subscribers.append(found)

    def unsubscribe(self) -> None:
        if self.subscribers:
            found = self.subscribers.pop(self.chance.randrange(len(self.subscribers)))
            found.node.tables[found.worker].remove(STREAM, found.topics)
            self._forgive(lambda subscriber, _link: subscriber is found)

    def publish(self, node: Node | None = None, topic: bytes = b"") -> None:
        node, topic = node or self._any_node(), topic or self.chance.choice(TOPICS)
        if node is None:
            return
        self.published += 1
        body = b"%d" % self.published
        self.log.append((body, topic, node))
        for subscriber in self.subscribers:
            link = subscriber.node.links.get(node.number)
            if subscriber.wants(topic) and (subscriber.node is node or (link is not None and link.covers(subscriber))):
                self.owed[body, subscriber] = None if subscriber.node is node else link
        node.append(pack_frame(body, metadata=topic_metadata(topic)))

    def move(self) -> None:
        """One thing somewhere goes on."""
        node = self._any_node()
        if node is None:
            return
        worker = self.chance.randrange(WORKERS)
        links = list(node.links.values())
        link = self.chance.choice(links) if links else None
        match self.chance.randrange(7):
            case 0:
                node.send_rows(worker)
            case 1 if node.rows[worker]:
                node.take_row(worker)
            case 2:
                node.send_changes()
            case 3 if link is not None and link.requests:
                link.take_request()
            case 4 if link is not None:
                link.place()
            case 5 if link is not None:
                link.send(self.chance.randrange(1, 4))
            case 6 if link is not None and link.chunks:
                link.take_chunk()
        for subscriber in self.subscribers:
            if self.chance.random() < 0.5:
                subscriber.read()

    def break_link(self) -> None:
        links = [link for node in self.at.values() for link in node.links.values()]
        if links:
            self._break(self.chance.choice(links))

    def dial(self) -> None:
        node = self._any_node()
        if node is not None and node.peers:
            self._dial(node, self.chance.choice(node.peers))

    def kill(self) -> None:
        node = self._any_node()
        if node is None:
            return
        del self.at[node.number]
        for link in [link for each in (*self.at.values(), node) for link in each.links.values()]:
            if node in (link.node, link.peer):
                self._break(link)
        self.subscribers = [each for each in self.subscribers if each.node is not node]
        self._forgive(lambda subscriber, _link: subscriber.node is node)

    def join(self) -> None:
        away = [number for number in self.peers if number not in self.at]
        if away:
            self._start(self.chance.choice(away))

    def kill_worker(self) -> None:
        """One that owns nothing: its subscribers are gone with it."""
        node = self._any_node()
        if node is None:
            return
        worker = self.chance.randrange(WORKERS)
        gone = [each for each in self.subscribers if each.node is node and each.worker == worker]
        self.subscribers = [each for each in self.subscribers if each not in gone]
        self._forgive(lambda subscriber, _link: subscriber in gone)
        node.wants.forget((worker, node.generations[worker]))
        node.generations[worker] += 1
        node.tables[worker] = WantTable()
        node.rows[worker].clear()
        node.new[worker] = []

    # --- its parts --------------------------------------------------------------------------------------------------

    def _any_node(self) -> Node | None:
        return self.chance.choice(list(self.at.values())) if self.at else None

    def _start(self, number: int) -> None:
        self.runs += 1
        self.at[number] = Node(number, self.runs, self.peers[number], self.filter_bytes)

    def _dial(self, node: Node, number: int) -> None:
        if number in self.at and number not in node.links:
            node.links[number] = Link(node, self.at[number])

    def _break(self, link: Link) -> None:
        link.end()
        link.node.links = {number: each for number, each in link.node.links.items() if each is not link}
        self._forgive(lambda _subscriber, its: its is link)

    def _forgive(self, applies: Callable[[Subscriber, Link | None], bool]) -> None:
        for key, link in list(self.owed.items()):
            if applies(key[1], link):
                key[1].read()
                del self.owed[key]

    def settle(self) -> None:
        """Everything gets there."""
        for number in self.peers:
            if number not in self.at:
                self._start(number)
        for node in self.at.values():
            for number in node.peers:
                self._dial(node, number)
            for worker in range(WORKERS):
                node.send_rows(worker)
                while node.rows[worker]:
                    node.take_row(worker)
            node.send_changes()
        for link in [link for node in self.at.values() for link in node.links.values()]:
            while link.requests:
                link.take_request()
            link.place()
            link.send(1 << 30)
            while link.chunks:
                link.take_chunk()
        for subscriber in self.subscribers:
            subscriber.read()
            assert len(set(subscriber.got)) == len(subscriber.got), "a message came twice"
        for body, subscriber in self.owed:
            assert body in subscriber.got, f"message {body!r} is lost to {subscriber.topics!r}"
        self.owed.clear()

    def _check_whole(self) -> None:
        for node in self.at.values():
            for link in node.links.values():
                has = {(stream.name, stream.everything) for stream in link.wanted.by_name.values()}
                assert has == {(name, wants.everything) for name, wants in node.wants.streams.items()}
                for stream in link.wanted.by_name.values():
                    filters = {link.peer.filters.trie[number] for number in stream.numbers}
                    wanted = set(node.wants.streams[stream.name].whole(stream.name)[2])
                    assert stream.overflowed or stream.everything or filters == wanted


def run(first: int, runs: int, steps: int = 150) -> int:
    """Returns how many messages were published."""
    published = 0
    before = wants_module.STREAM_FILTERS_MAX
    try:
        for seed in range(first, first + runs):
            wants_module.STREAM_FILTERS_MAX = 3 if seed % 4 == 0 else before  # type: ignore[misc]
            play = Play(seed)
            try:
                play.run(steps)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            published += play.published
    finally:
        wants_module.STREAM_FILTERS_MAX = before  # type: ignore[misc]
    return published


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    asked = parser.parse_args()
    print(f"{asked.runs} interleavings, {run(asked.first, asked.runs)} messages: none lost, none twice")
