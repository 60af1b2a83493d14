"""Subscriptions of more streams than a connection may have cursors in, at each door, on two workers."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.broker.connection import collecting
from tailrace.broker.delivery import wide, wide_history
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import collecting as g
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.places import FROM_NEW, From
from tests.broker.connection.test_collecting import Reader
from tests.broker.connection.test_patterns import ask, came, names_of, seconds_later
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt.wire import V5
from tests.thorough import THOROUGH

CURSORS_MAX = 3
ROUNDS_MAX = 100
INTERLEAVINGS = 10
"""In one node, one after the other."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, max_subscriptions=CURSORS_MAX) as node:
        node.stop_timers()
        yield node


def test_lines_read_all_streams_that_grow_and_those_made_later(node: World) -> None:
    names, peer, other = names_of(node, "a", 8), node.connect(), node.connect()
    lines = f"pub {names[0]} |before", "sub a.* new", f"pub {names[0]} |mine"
    assert ask(node, peer, *lines) == (["ok sub a.* many"], [(names[0], 2, "mine")])
    later = [node.name(number % 2, f"a.later.{number}.") for number in range(4)]
    for times in range(3):
        node.ask(other, *(f"pub {name} |{times}" for name in (*names, *later)))
        seconds_later(node)
        answers, found = came(node, peer)
        assert answers == []
        assert found == sorted(
            [(name, times + 1 + 2 * (name == names[0]), f"{times}") for name in names]
            + [(name, times, f"{times}") for name in later]
        )
        assert len(node.client_of(peer).cursors) <= CURSORS_MAX
    seconds_later(node)
    seconds_later(node)
    assert not node.client_of(peer).cursors
    assert ask(node, peer, "unsub a.*")[0] == ["ok unsub a.*"]
    node.ask(other, *(f"pub {name} |late" for name in names))
    seconds_later(node)
    seconds_later(node)
    assert came(node, peer) == ([], [])
    assert not any(worker.siblings.watch.watchers for worker in node.workers)


def test_another_owner_says_what_has_grown_since_it_began(node: World) -> None:
    names, peer, other = names_of(node, "a", 8), node.connect(), node.connect()
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]
    for times in range(4):
        other.send(*(f"pub {name} |{times}" for name in names))
        node.replace(1, 10 + times)
        node.stop_timers()
        other.send(*(f"pub {name} |{times} again" for name in names))
        seconds_later(node)
        seconds_later(node)
        expected = [
            (name, 1 + 2 * times + n, f"{times}{again}") for n, again in enumerate(("", " again")) for name in names
        ]
        assert came(node, peer) == ([], sorted(expected))


def test_a_reader_ends_when_it_cannot_know_what_has_grown(node: World) -> None:
    names_of(node, "a", 8)
    peer, reader, mqtt = node.connect(), Reader(node), MqttPeer(node)
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]
    assert reader.ask(g.Collect(1, b"a.*", FROM_NEW)) == [g.Collected(1, 0)]
    assert mqtt.subscribe(("#", 0)) == [0]
    node.workers[1].siblings.watch.tick(float("inf"))
    node.workers[0].patterns.wide.owner_is(1)
    text = "a worker was replaced, and its last messages may be missing; subscribe again"
    assert came(node, peer) == ([f"err unavailable a.*: {text}; the subscription has ended"], [])
    assert reader.came() == [m.Ended(1, 0, "unavailable", text)]
    assert mqtt.ended
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]


def test_an_owner_that_answers_after_the_last_subscription_has_ended_is_asked_for_no_more() -> None:
    asked: list[tuple[bool, Callable[[Any], None]]] = []
    reading = wide.WideReading(lambda _slot, _verb, args, done: asked.append((args[-1], done)), 1, 0, 0, CURSORS_MAX)
    gone: Any = SimpleNamespace(is_gone=True, at_once=0)
    reading.begin(gone, lambda _value: None)
    reading.tick()
    (_, begun), (_, ended) = asked
    ended(None)
    begun([])
    reading.tick()
    assert [is_wanted for is_wanted, _ in asked] == [True, False, False]
    asked[-1][1](None)
    reading.tick()
    assert len(asked) == 3


def come_to_rest(node: World) -> None:
    """Until no subscription waits: a worker may take more turns for that than `settle` gives it."""
    for times in range(ROUNDS_MAX):
        for worker in node.workers:
            worker.mqtt.wildcards.tick()
        seconds_later(node)
        if times < 2:
            continue  # streams that were made later are looked for first
        subscriptions = [each for worker in node.workers for each in worker.patterns.wide.subscriptions]
        if not any(each.pending or each.joining or each.history for each in subscriptions):
            break
    node.settle()


class Door:
    """A reader of all streams of one node, from now on or `from_past`: its messages, as (stream, payload), in the order
    in which it came."""

    def __init__(self, node: World, slot: int, from_past: bool = False) -> None:
        self.node = node
        self.from_past = from_past
        self.open(slot)

    def open(self, slot: int) -> None:
        raise NotImplementedError

    def got(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Lines(Door):
    def open(self, slot: int) -> None:
        self.peer = self.node.connect(slot)
        self.peer.send("sub s* 0" if self.from_past else "sub s* new")

    def got(self) -> list[tuple[str, str]]:
        assert all(line.startswith(("msg ", "ok sub ")) for line in self.peer.lines)
        return [(stream, payload) for stream, _seq, payload in self.peer.messages()]

    def close(self) -> None:
        self.peer.close()


class Collects(Door):
    def open(self, slot: int) -> None:
        self.reader = Reader(self.node, slot=slot)
        self.reader.peer.say(g.Collect(1, b"s*", From("time", 0) if self.from_past else FROM_NEW))
        self.found: list[tuple[str, str]] = []

    def got(self) -> list[tuple[str, str]]:
        answers = self.reader.came()
        assert all(isinstance(each, g.Collected | m.Ended) for each in answers), answers
        self.found += [(stream, payload.decode()) for stream, _seq, payload in self.reader.messages()]
        return self.found

    def close(self) -> None:
        self.reader.peer.peer.close()


class Mqtt(Door):
    def open(self, slot: int) -> None:
        self.peer = MqttPeer(self.node, V5, "", slot)
        assert self.peer.subscribe(("$replay/0/#" if self.from_past else "#", 1)) == [1]

    def got(self) -> list[tuple[str, str]]:
        self.peer.collect()
        return [(each.topic, each.payload.decode()) for each in self.peer.got]

    def close(self) -> None:
        self.peer.peer.close()


class Interleaving:
    """Publishers that also make streams, and readers of all of them by each door, in random order on two workers."""

    def __init__(self, node: World, chance: random.Random, sent: dict[str, list[str]]) -> None:
        self.node, self.chance, self.sent = node, chance, sent
        self.publishers = [node.connect(slot) for slot in (0, 1)]
        self.doors: list[tuple[Door, dict[str, int], dict[str, int]]] = []

    def publish(self) -> None:
        for _ in range(self.chance.choice((1, 1, 6, 20))):
            stream = f"s{self.chance.randrange(len(self.sent) + 1)}"
            payload = str(len(self.sent[stream]))
            self.publishers[len(stream) % 2].send(f"pub {stream} |{payload}")
            self.sent[stream].append(payload)

    def subscribe(self) -> None:
        """All that was sent before is logged; messages that are sent before the answer may come or not."""
        self.node.settle()
        door, from_past = self.chance.choice((Lines, Collects, Mqtt)), self.chance.random() < 0.5
        before = {} if from_past else {stream: len(payloads) for stream, payloads in self.sent.items()}
        opened = door(self.node, self.chance.randrange(2), from_past)
        if from_past:
            self.doors.append((opened, before, {}))
            return
        if door is not Mqtt and self.chance.random() < 0.5:
            self.publish()
            self.turn()
        self.node.settle()
        self.doors.append((opened, before, {stream: len(payloads) for stream, payloads in self.sent.items()}))

    def turn(self) -> None:
        self.node.workers[self.chance.randrange(2)].turn()

    def look(self) -> None:
        for worker in self.node.workers:
            worker._seldom()

    def run(self) -> None:
        steps = (self.publish, self.publish, self.subscribe, self.turn, self.look)
        for _ in range(self.chance.randint(6, 16)):
            self.chance.choice(steps)()
        come_to_rest(self.node)
        for door, before, after in self.doors:
            found = defaultdict[str, list[str]](list)
            for stream, payload in door.got():
                found[stream].append(payload)
            for stream, payloads in self.sent.items():
                first = len(payloads) - len(found[stream])
                assert found[stream] == payloads[first:], (type(door), stream)
                assert before.get(stream, 0) <= first <= after.get(stream, 0), (type(door), stream)
            door.close()
        for peer in self.publishers:
            peer.close()
        self.node.settle()


@pytest.mark.parametrize("seed", range(100 if THOROUGH else 2))
def test_random_interleavings(node: World, seed: int) -> None:
    chance = random.Random(seed)
    sent = defaultdict[str, list[str]](list)
    for number in range(CURSORS_MAX + 3 if seed % 2 else 1):  # else they become more than fit while they are read
        sent[f"s{number}"].append("0")
    node.ask(node.connect(), *(f"pub {name} |0" for name in sent))
    for _ in range(INTERLEAVINGS):
        Interleaving(node, chance, sent).run()


def test_history_is_read_some_streams_at_a_time(node: World) -> None:
    names, peer, reader, mqtt = names_of(node, "a", 20), node.connect(), Reader(node), MqttPeer(node)
    expected = sorted((name, "first") for name in names)
    peer.send("sub a.* 0")
    reader.peer.say(g.Collect(1, b"a.*", From("time", 0)))
    assert mqtt.subscribe(("$replay/0/#", 0)) == [0]
    clients = [node.client_of(peer), node.binary_client_of(reader.peer.peer), mqtt.client]
    for _ in range(200):
        for worker in node.workers:
            worker.turn()
            assert all(len(each.cursors) + each.joining <= CURSORS_MAX for each in clients)
    come_to_rest(node)
    mqtt.collect()
    assert {type(each) for each in reader.came()} == {g.Collected, m.Ended}
    assert sorted((name, payload) for name, _seq, payload in peer.messages()) == expected
    assert sorted((name, payload.decode()) for name, _seq, payload in reader.messages()) == expected
    assert sorted((each.topic, each.payload.decode()) for each in mqtt.got) == expected


def test_new_messages_do_not_wait_for_a_long_history(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the cursors are for streams that grow, and they take turns with those of the past."""
    names_of(node, "a", 8)
    peer, writer = node.connect(), node.connect()
    monkeypatch.setattr(wide, "_is_idle", lambda _cursor: False)
    assert ask(node, peer, "sub a.* 0")[0] == ["ok sub a.* many"]
    history = len(node.client_of(peer).cursors)
    assert history == max(1, CURSORS_MAX // 2)
    node.ask(writer, "pub a.new |x")
    assert ("a.new", 0, "x") in came(node, peer)[1]


def test_a_collect_with_an_end_reads_all_streams_up_to_it(node: World) -> None:
    names, reader = names_of(node, "a", 8), Reader(node)
    answers = reader.ask(g.Collect(1, b"a.*", From("time", 0), end=("now", 0)))
    come_to_rest(node)
    answers += reader.came()
    assert answers[0] == g.Collected(1, 0)
    assert answers[-1] == m.Ended(1, 0)
    assert sorted((name, payload) for name, _seq, payload in reader.messages()) == sorted(
        (name, b"first") for name in names
    )
    node.ask(node.connect(), *(f"pub {name} |later" for name in names))
    come_to_rest(node)
    assert not reader.came()
    assert not node.workers[0].patterns.wide.subscriptions


@pytest.mark.parametrize("streams", [2, 8])
def test_a_collect_with_a_bound_of_its_own_has_cursors_only_in_streams_that_grow(
    node: World, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams made later come at once, and the other subscriptions of the connection keep their room."""
    names, reader, writer = names_of(node, "a", streams), Reader(node), node.connect()
    monkeypatch.setattr(collecting, "now_us", lambda: 77)
    assert reader.ask(g.Collect(1, b"a.*", FROM_NEW, at_once=2)) == [g.Collected(1, 0, 77)]
    assert not node.binary_client_of(reader.peer.peer).cursors
    (own,) = reader.ask(m.Subscribe(5, names[0].encode(), FROM_NEW))
    assert isinstance(own, m.Subscribed)
    later = [node.name(number % 2, f"a.later.{number}.") for number in range(4)]
    node.ask(writer, *(f"pub {name} |{times}" for times in range(2) for name in (*names, *later)))
    assert len(node.binary_client_of(reader.peer.peer).cursors) <= 3
    come_to_rest(node)
    reader.came()
    reader.streams[5] = "own"
    found = [(name, payload) for name, _seq, payload in reader.messages()]
    assert sorted(found) == sorted((name, b"%d" % times) for times in range(2) for name in (*names, *later, "own"))


def test_a_collect_with_a_bound_of_its_own_has_no_last_messages(node: World) -> None:
    (refused,) = Reader(node).ask(g.Collect(1, b"a.*", From("last", 1), at_once=2))
    assert isinstance(refused, m.Failed) and refused.code == Code.FROM


def test_a_collect_goes_on_at_its_positions(node: World) -> None:
    names, writer = names_of(node, "a", 8), node.connect()
    node.ask(writer, *(f"pub {name} |second" for name in names))
    positions = {name.encode(): 1 for name in names[:4]}
    for start, others in ((From("time", 0), ["first", "second"]), (FROM_NEW, [])):
        reader = Reader(node)
        assert reader.ask(g.Collect(1, b"a.*", start, positions=positions))[0] == g.Collected(1, 0)
        come_to_rest(node)
        reader.came()
        found = sorted((name, payload.decode()) for name, _seq, payload in reader.messages())
        expected = [(name, "second") for name in names[:4]] + [(name, each) for name in names[4:] for each in others]
        assert found == sorted(expected)


def test_streams_that_grow_and_come_while_a_page_of_names_is_under_way(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, peer, writer = names_of(node, "a", 8), node.connect(), node.connect()
    for module in (wide, wide_history):
        monkeypatch.setattr(module, "NAMES_MAX", 4)
    asked: list[Callable[[], None]] = []
    reading = node.workers[0].patterns.wide
    call_slot = reading._call_slot

    def hold(slot: int, verb: str, args: list[Any], done: Callable[[Any], None]) -> None:
        if verb != "list_names":
            call_slot(slot, verb, args, done)
            return
        call_slot(slot, verb, args, lambda value: asked.append(lambda: done(value)))

    monkeypatch.setattr(reading, "_call_slot", hold)
    assert ask(node, peer, "sub a.* 0")[0] == ["ok sub a.* many"]
    made = [node.name(number % 2, f"a.{place}.later.") for number, place in enumerate((0, 3, 7, 9))]
    for times in range(20):
        node.settle()
        node.ask(writer, *(f"pub {name} |{times}" for name in (*names, *made)))
        for answer in asked[: 1 + times % 2]:
            asked.remove(answer)
            answer()
    come_to_rest(node)
    found = sorted((name, seq) for name, seq, _payload in peer.messages())
    lengths = dict.fromkeys(names, 21) | dict.fromkeys(made, 20)
    assert found == sorted((name, seq) for name, length in lengths.items() for seq in range(length))


def test_a_list_of_names_that_an_owner_could_not_give_is_asked_for_again(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, peer = names_of(node, "a", 8), node.connect()
    reading = node.workers[0].patterns.wide
    call_slot, refused = reading._call_slot, [1, 1, 0, 1, 0]

    def refuse(slot: int, verb: str, args: list[Any], done: Callable[[Any], None]) -> None:
        if verb == "list_names" and refused and refused.pop():
            done(Refused(Code.UNAVAILABLE, "not now"))
        else:
            call_slot(slot, verb, args, done)

    monkeypatch.setattr(reading, "_call_slot", refuse)
    answers, found = ask(node, peer, "sub a.* 0")
    come_to_rest(node)
    found += peer.messages()
    assert answers == ["ok sub a.* many"]
    assert sorted(name for name, _seq, _payload in found) == sorted(names)
    assert not refused


def test_too_many_streams_that_wait(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names, peer = names_of(node, "a", 8), node.connect()
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]
    monkeypatch.setattr(wide, "PENDING_MAX", 2)
    monkeypatch.setattr(wide.WideReading, "mark", lambda _self, _subscriptions: None)
    node.ask(node.connect(), *(f"pub {name} |x" for name in names))
    text = "more than 2 streams have messages that wait; subscribe again, and read faster or fewer streams"
    assert came(node, peer)[0] == [f"err overloaded a.*: {text}; the subscription has ended"]


def test_two_subscriptions_of_one_connection_share_its_room(node: World) -> None:
    """None of their streams is passed over, and there are never more cursors than it may have."""
    names = names_of(node, "a", 8) + names_of(node, "b", 8)
    peer, reader, mqtt = node.connect(), Reader(node), MqttPeer(node)
    assert ask(node, peer, "sub a.* new", "sub b.* new")[0] == ["ok sub a.* many", "ok sub b.* many"]
    assert reader.ask(g.Collect(1, b"a.*", FROM_NEW), g.Collect(2, b"b.*", FROM_NEW)) == [
        g.Collected(1, 0),
        g.Collected(2, 0),
    ]
    assert mqtt.subscribe(("+", 0), ("#", 0)) == [0, 0]
    clients = [node.client_of(peer), node.binary_client_of(reader.peer.peer), mqtt.client]
    for times in range(1, 4):
        node.connect().send(*(f"pub {name} |{times}" for name in names[::times]))
        for _ in range(10):
            for worker in node.workers:
                worker.turn()
                assert all(len(each.cursors) + each.joining <= CURSORS_MAX for each in clients)
        node.settle()
    answers, found = came(node, peer)
    expected = sorted((name, f"{times}") for times in range(1, 4) for name in names[::times])
    assert answers == []
    assert sorted((name, payload) for name, _seq, payload in found) == expected
    assert {type(each) for each in reader.came()} == {m.Ended}
    assert sorted((name, payload.decode()) for name, _seq, payload in reader.messages()) == expected
    mqtt.collect()
    assert sorted((each.topic, each.payload.decode()) for each in mqtt.got) == sorted(expected * 2)


def test_a_line_subscription_of_streams_that_a_wide_one_reads_is_refused(node: World) -> None:
    """They would have one cursor, and messages would come twice or not at all."""
    names, peer, other = names_of(node, "a", 8), node.connect(), node.connect()
    text = "may have streams in common, and more of them than this connection may have subscriptions"
    assert ask(node, peer, "sub a.* new", "sub a* 0", "sub *b new", "sub b* new", "sub + new", f"sub {names[0]} 0")[
        0
    ] == [
        "ok sub a.* many",
        f"err subscribed a* and a.* {text}: use a connection for each",
        f"err subscribed *b and a.* {text}: use a connection for each",
        "ok sub b* 0",
        "ok sub + many",
        f"err subscribed this connection is subscribed to {names[0]} already",
    ]
    assert ask(node, other, f"sub {names[0]} new", "sub a.nothing* new", "sub a.* 0")[0] == [
        f"ok sub {names[0]} 1",
        "ok sub a.nothing* 0",
        f"err subscribed a.* and a.nothing* {text}: use a connection for each",
    ]


@pytest.mark.parametrize("waits", [False, True])
def test_one_stream_of_a_wide_line_subscription_can_be_given_up(node: World, waits: bool) -> None:
    """Though it has no cursor; also while it waits for one."""
    names, peer, writer = names_of(node, "a", 8), node.connect(), node.connect()
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]
    (subscription,) = node.worker_of(node.client_of(peer)).patterns.wide.subscriptions
    if waits:
        subscription.pending[names[0].encode()] = 0
    assert ask(node, peer, f"unsub {names[0]}", f"unsub {names[0]}", "unsub b")[0] == [
        f"ok unsub {names[0]}",
        f"err unsubscribed this connection is not subscribed to {names[0]}",
        "err unsubscribed this connection is not subscribed to b",
    ]
    node.ask(writer, *(f"pub {name} |x" for name in names))
    seconds_later(node)
    assert came(node, peer) == ([], sorted((name, 1, "x") for name in names[1:]))
    assert ask(node, peer, f"sub {names[0]} 0") == (
        [f"ok sub {names[0]} 0"],
        [(names[0], 0, "first"), (names[0], 1, "x")],
    )


def test_a_subscription_gets_the_room_that_another_one_needs_no_more(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, others, peer, writer = names_of(node, "a", 8), names_of(node, "b", 8), node.connect(), node.connect()
    assert ask(node, peer, "sub a.* new", "sub b.* new")[0] == ["ok sub a.* many", "ok sub b.* many"]
    node.ask(writer, *(f"pub {name} |x" for name in names[:CURSORS_MAX]))
    assert len(node.client_of(peer).cursors) == CURSORS_MAX
    node.ask(writer, f"pub {others[0]} |x")
    assert (others[0], 1, "x") in came(node, peer)[1]
    metrics = node.workers[0].services.metrics
    node.workers[0].patterns.tick()
    assert (metrics.wide_subscriptions, metrics.wide_waiting) == (2, 0)
    monkeypatch.setattr(wide.WideReading, "mark", lambda _self, _subscriptions: None)
    node.ask(writer, *(f"pub {name} |x" for name in names))
    node.workers[0].patterns.tick()
    assert (metrics.wide_subscriptions, metrics.wide_waiting > 0) == (2, True)


def test_a_request_for_cursors_goes_out_in_its_turn(node: World) -> None:
    """Nothing else may wake the worker for a while."""
    names, peer, writer = names_of(node, "a", 8), node.connect(), node.connect()
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]
    writer.send(*(f"pub {name} |x" for name in names))
    for _ in range(100):
        node.workers[0].turn()
        assert not node.workers[0].siblings.links.touched
        node.workers[1].turn()
    assert len(came(node, peer)[1]) == len(names)


def test_one_that_is_given_up_while_a_cursor_is_placed_gets_none(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names, peer, wide_reading = names_of(node, "a", 8), node.connect(), node.workers[0].patterns.wide
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]
    client = node.client_of(peer)
    placing: list[Callable[[], None]] = []
    subscribing = node.workers[0].patterns._subscribing
    monkeypatch.setattr(subscribing, "after_opening", lambda _client, _name, step: placing.append(step))
    wide_reading.grew(0, [(names[0].encode(), 1)])
    assert (len(placing), client.joining) == (1, 1)
    assert ask(node, peer, "unsub a.*")[0] == ["ok unsub a.*"]
    placing[0]()
    assert (client.cursors, client.joining) == ({}, 0)


def test_a_stream_that_is_deleted_and_made_again_is_read_from_its_beginning(node: World) -> None:
    names, peer, other = names_of(node, "a", 8), node.connect(), node.connect()
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* many"]
    node.ask(other, *(f"pub {name} |x" for name in names[:2]))
    assert came(node, peer)[1] == sorted((name, 1, "x") for name in names[:2])
    seconds_later(node)
    other.send(*(f"delete {name}" for name in names[:4]))
    for _ in range(8):
        node.wait_synced()
        for worker in node.workers:
            worker._often()
        node.settle()
    assert sum(line.startswith("ok delete") for line in other.lines) == 4
    node.ask(other, *(f"pub {name} |again" for name in names[:4]))
    seconds_later(node)
    assert came(node, peer)[1] == sorted((name, 0, "again") for name in names[:4])


@pytest.mark.parametrize("pattern", ["a.* new", "{name} 0"], ids=["wide", "of one stream"])
def test_a_stream_that_is_made_again_before_its_deletion_is_noticed_is_another_one(node: World, pattern: str) -> None:
    """The worker of the subscriber comes to both at once."""
    names, peer, writer = names_of(node, "a", 8), node.connect(0), node.connect(1)
    name = next(each for each in names if node.owner_of(each) == 1)
    ask(node, peer, "sub " + pattern.format(name=name))
    writer.send(*(f"pub {name} |{times}" for times in range(7)))
    node.settle()
    assert len(peer.messages()) >= 7
    writer.send(f"delete {name}")
    node.settle(1)
    while not any(line.startswith("ok delete") for line in writer.lines):
        node.workers[1]._often()
        node.settle(1)
        writer.read()
    writer.send(f"pub {name} |again")
    node.settle(1)
    peer.take()
    node.workers[0]._seldom()
    node.settle()
    seconds_later(node)
    answers, found = came(node, peer)
    assert [each.split()[:3] for each in answers] == [["err", "deleted", f"{name}:"]]
    assert found == ([(name, 0, "again")] if pattern.startswith("a.") else [])
