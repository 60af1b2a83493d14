"""Live cursors with filters: a message wakes those whose filter matches, and each gets all that matches, once."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.delivery.cursor import Cursor, Park
from tailrace.broker.delivery.fanout import FanOut
from tailrace.broker.sharing.wants import LocalWants
from tailrace.broker.topics import walking
from tailrace.broker.topics.picking import SCAN_BYTES
from tailrace.broker.topics.trie import TooManyFilters
from tests.broker.delivery.test_fanout import PLENTY, FakeClient, give_back, trim
from tests.broker.topics import naive
from tests.broker.topics.agreement import random_filter, random_topic
from tests.broker.topics.test_picking import NAME, TopicWorld
from tests.thorough import examples

PATIENCE_S = 60.0
NO_WANTS = LocalWants(lambda _name: False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TopicWorld]:
    world = TopicWorld(tmp_path)
    yield world
    world.readers.close()
    for log in world.logs.values():
        log.close()


def seqs(client: FakeClient) -> list[int]:
    return client.seqs(NAME)


def test_a_message_wakes_one_of_many(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    clients = [world.client() for _ in range(1_000)]
    for number, client in enumerate(clients):
        world.filtered(client, b"t/%d" % number, 1)
    before = world.fanout.walks.woken
    world.publish(NAME, b"t/7!x", b"none!")
    world.run()
    assert world.fanout.walks.woken - before == 1
    assert [number for number, client in enumerate(clients) if seqs(client)] == [7]


def test_subscribers_of_one_filter_share_what_was_found(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append(NAME, b"first!")
    clients = [world.client() for _ in range(10)]
    for client in clients:
        world.filtered(client, b"t/+", 1)
    monkeypatch.setattr("tailrace.broker.topics.picking._pick", None)  # nobody scans by itself
    monkeypatch.setattr("tailrace.broker.topics.picking.read_piece", None)  # nor is anything read from the file
    world.publish(NAME, b"none!")
    world.run()
    world.publish(NAME, b"t/7!x", b"none!", b"t/8!y")
    world.run()
    assert all(seqs(client) == [2, 4] for client in clients)
    assert len(world.renderings.cache) == 1


def test_cursors_that_wait_cost_no_walk_without_growth_and_go_with_their_end(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    client = world.client()
    cursor = world.filtered(client, b"t/7", 1)
    assert cursor.park() is Park.CAUGHT_UP and not world.fanout.walks.due
    world.fanout.end(cursor)
    assert not world.fanout.walks.filters
    world.publish(NAME, b"t/7!x")
    assert not world.fanout.walks.due and not seqs(client)


def test_a_long_growth_is_walked_over_in_several_turns(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append(NAME, b"first!")
    client, late = world.client(), world.client()
    world.filtered(client, b"t/7", 1)
    payloads = [b"t/%d!" % (number % 9) + b"x" * 1_000 for number in range(2_000)]
    world.publish(NAME, *payloads)
    monkeypatch.setattr("tailrace.broker.topics.picking._pick", None)  # nobody scans by itself
    turns = 0
    while world.fanout.walks.due or world.fanout.runnable:
        world.run(SCAN_BYTES)
        turns += 1
        if turns == 3:
            world.filtered(late, b"t/8", 2_001)  # waits at the end, where the walk is not yet
    world.run()
    assert turns > 5 and not seqs(late)
    assert seqs(client) == [1 + number for number in range(2_000) if number % 9 == 7]
    world.publish(NAME, b"t/8!", b"t/7!")
    world.run()
    assert (seqs(late), seqs(client)[-1]) == ([2_001], 2_002)


def test_a_message_larger_than_a_piece(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    client = world.client()
    world.filtered(client, b"t/7", 1)
    world.publish(NAME, b"t/8!" + b"x" * (3 * SCAN_BYTES), b"t/7!" + b"x" * (2 * SCAN_BYTES), b"t/7!")
    while world.fanout.walks.due or world.fanout.runnable:
        world.run(SCAN_BYTES)
    assert seqs(client) == [2, 3]


def test_what_is_trimmed_before_it_was_walked_over_is_reported(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    client = world.client()
    world.filtered(client, b"t/7", 1)
    world.publish(NAME, b"none!")
    world.run()
    world.append(NAME, b"t/7!" + bytes(20_000), b"t/8!", b"t/7!")  # the first one has whole blocks of the file
    trim(world, NAME, 3)
    give_back(world, NAME)
    world.fanout.grew(NAME.encode(), 0, 0)
    world.run()
    assert client.answers() == [b"trimmed a 2 to 2"] and seqs(client) == [4]


def test_a_cut_behind_what_a_cursor_got_does_not_end_it(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    got, waits = world.client(), world.client()
    world.filtered(got, b"t/7", 1)
    cursor = world.filtered(waits, b"t/8", 1)
    world.publish(NAME, b"t/7!", b"none!", b"none!")
    world.run()
    assert cursor.settled_seq == 4 and cursor.seq == 1
    log = world.logs[NAME]
    log.set_aside(2)
    world.fanout.cut(NAME.encode(), 2)
    world.publish(NAME, b"t/8!", b"t/7!")
    world.run()
    assert seqs(waits) == [2] and not waits.ended
    assert got.ended, "it was sent up to 4"


def test_a_walk_past_many_filters_takes_few_frames_at_a_time(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "FILTER_FRAMES", 1)
    monkeypatch.setattr(walking, "WALK_S", 0.0)
    world.append(NAME, b"first!")
    client = world.client()
    world.filtered(client, b"t/7", 1)
    world.publish(NAME, *[b"t/7!"] * 50)
    world.run()
    assert seqs(client) == list(range(1, 1 + walking.FRAMES_LEAST))
    assert world.fanout.walks.due, "another turn has the time for the rest"
    monkeypatch.setattr(walking, "WALK_S", PATIENCE_S)
    while world.fanout.walks.due or world.fanout.runnable:
        world.run()
    assert seqs(client) == list(range(1, 51))


def test_the_only_cursor_of_a_filter_gets_what_was_found_and_nothing_is_kept(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(NAME, b"first!")
    client = world.client()
    world.filtered(client, b"t/+", 1)
    monkeypatch.setattr("tailrace.broker.topics.picking._pick", None)  # nobody scans by itself
    monkeypatch.setattr("tailrace.broker.topics.picking.read_piece", None)  # nor is anything read from the file
    world.publish(NAME, b"t/1!", b"none!", b"t/2!")
    world.run()
    found = world.fanout.walks.found
    assert (seqs(client), len(found), len(world.renderings.cache), found.lone) == ([1, 3], 0, 0, {})


def test_what_was_found_for_one_that_is_not_sent_it_in_this_turn_is_picked_again(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    client, full = world.client(), world.client()
    world.filtered(client, b"t/+", 1)
    world.filtered(full, b"+/1", 1)
    full.blocked = True
    world.publish(NAME, b"t/1!")
    world.run()
    assert not world.fanout.walks.found.lone, "nothing is held for a client that waits for its socket"
    world.publish(NAME, b"t/2!", b"t/1!")
    world.run()
    assert (seqs(client), seqs(full)) == ([1, 2, 3], [])
    world.drain(full, PLENTY)
    assert seqs(full) == [1, 3]


@pytest.mark.parametrize("room", [0, 1, 30])
def test_a_socket_may_take_a_part_of_what_was_found_for_one(world: TopicWorld, room: int) -> None:
    world.append(NAME, b"first!")
    client = world.client(room=room)
    world.filtered(client, b"t/+", 1)
    world.publish(NAME, b"t/1!" + bytes(100), b"none!", b"t/2!")
    world.run()
    assert client.blocked and len(client.got) == room
    world.publish(NAME, b"t/3!")
    world.drain(client, 7)
    world.run()
    world.drain(client, PLENTY)
    assert seqs(client) == [1, 3, 4]


def test_more_cursors_than_are_handed_what_was_found_get_it_from_the_cache(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "LONE_MOST", 3)
    world.append(NAME, b"first!")
    clients = [world.client() for _ in range(10)]
    for number, client in enumerate(clients):
        world.filtered(client, b"t/+" + b"/#" * (number > 0) if number < 2 else b"+/%d/#" % number, 1)
    world.publish(NAME, *[b"t/%d!" % number for number in range(2, 10)])
    world.run()
    assert [len(seqs(client)) for client in clients] == [8, 8, *[1] * 8]
    assert len(world.fanout.walks.found) == 7


def test_too_many_filters_are_refused_and_leave_nothing(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    world.fanout = FanOut(
        world.readers, NO_WANTS, on_count=lambda _feed: None, on_cut=lambda _name, _seq: None, filter_bytes=1_000
    )
    world.filtered(world.client(), b"t/7")
    with pytest.raises(TooManyFilters):
        world.filtered(world.client(), b"t/8")
    assert world.feed(NAME).cursors == 1


@pytest.mark.parametrize(("remote", "bytes_most"), [(False, 360), (True, 490)])
def test_a_subscription_of_a_topic_of_its_own_takes_few_bytes(world: TopicWorld, remote: bool, bytes_most: int) -> None:
    world.append(NAME, b"first!")
    client = world.client()
    fanout = FanOut(world.readers, NO_WANTS, on_count=lambda _feed: None, on_cut=lambda _name, _seq: None)
    tracemalloc.start()
    try:
        for number in range(5_400):
            topic = b"t/%03d/%02d" % (number // 100, number % 100)
            fanout.start(fanout.subscribe(client, NAME.encode(), 1, remote=remote, key=topic, topics=topic))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert fanout.feeds[NAME.encode()].filtered.count == 5_400
    assert taken / 5_400 < bytes_most


def test_cursors_of_one_filter_come_and_go(world: TopicWorld) -> None:
    world.append(NAME, b"first!")
    clients = [world.client() for _ in range(3)]
    cursors = [world.filtered(client, b"t/7", 1) for client in clients]
    for place, cursor in enumerate(cursors):
        assert [each.park() for each in cursors[place:]] == [Park.CAUGHT_UP] * (3 - place)
        world.publish(NAME, b"t/7!")
        world.run()
        world.fanout.end(cursor)
    assert [seqs(client) for client in clients] == [[1], [1, 2], [1, 2, 3]]
    assert not world.fanout.walks.filters


class Model:
    """One stream, subscribers that come and go, whose sockets take some bytes at a time, and what each must get."""

    def __init__(self, world: TopicWorld, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.topics: list[str] = []
        self.readers: list[tuple[FakeClient, Cursor, str, int]] = []
        self.pool = [random_topic(self.chance) for _ in range(5)]

    def publish(self) -> None:
        count = self.chance.choice((1, 2, 30))
        topics = [self.chance.choice(self.pool) for _ in range(count)]
        nbytes = self.chance.choice((1, 100, 5_000))
        payloads = [topic.encode() + b"!" + b"x" * nbytes for topic in topics]
        if "\n" in "".join(topics):
            return
        self.topics += topics
        if self.chance.random() < 0.5:
            self.world.publish(NAME, *payloads)
        else:  # by another worker, and the note of it is lost
            self.world.append(NAME, *payloads)
            self.world.fanout.grew(NAME.encode(), 0, 0)

    def subscribe(self) -> None:
        topic_filter = self.chance.choice((random_filter(self.chance), self.chance.choice(self.pool), "#"))
        seq = self.chance.choice((0, len(self.topics), self.chance.randint(0, len(self.topics))))
        client = self.world.client(self.chance.choice((PLENTY, 300)))
        self.readers.append((client, self.world.filtered(client, topic_filter.encode(), seq), topic_filter, seq))

    def unsubscribe(self) -> None:
        if self.readers:
            _client, cursor, _filter, _seq = self.readers.pop(self.chance.randrange(len(self.readers)))
            self.world.fanout.end(cursor)

    def turn(self) -> None:
        self.world.run(self.chance.choice((1, SCAN_BYTES, PLENTY)))
        for client, *_rest in self.readers:
            if client.blocked and self.chance.random() < 0.5:
                client.room, client.blocked = 10_000, False
                self.world.fanout.make_runnable(client)

    def finish(self) -> None:
        for client, *_rest in self.readers:
            client.room, client.blocked = PLENTY, False
            self.world.fanout.make_runnable(client)
        while self.world.fanout.walks.due or self.world.fanout.runnable:
            self.world.run()
        for client, cursor, topic_filter, seq in self.readers:
            expected = [at for at in range(seq, len(self.topics)) if naive.matches(topic_filter, self.topics[at])]
            assert message_seqs(client) == expected, (topic_filter, seq)
            assert cursor.park() is Park.CAUGHT_UP


def message_seqs(client: FakeClient) -> list[int]:
    return [int(line.split()[2]) for line in client.got.split(b"\r\n") if line.startswith(b"msg a ")]


@pytest.mark.parametrize("seed", range(examples(120)))
def test_random_interleavings(tmp_path: Path, seed: int) -> None:
    world = TopicWorld(tmp_path)
    world.append(NAME, b"begin!")
    model = Model(world, seed)
    model.topics.append("begin")
    steps = (model.publish, model.publish, model.subscribe, model.turn, model.turn, model.unsubscribe)
    for _ in range(100):
        model.chance.choice(steps)()
    model.finish()
    world.readers.close()
    world.logs[NAME].close()
