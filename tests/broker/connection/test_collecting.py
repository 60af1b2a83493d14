"""COLLECT: subscriptions to all streams of a pattern by the binary protocol, on two workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.connection import collecting, handover
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol import collecting as g
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Op
from tailrace.protocol.places import FROM_NEW, From
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.connection.test_patterns import names_of, seconds_later
from tests.broker.world import World, world

FEATURES = (g.FEATURE, m.TOPICS_FEATURE)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, max_subscriptions=6) as node:
        node.stop_timers()
        yield node


class Reader:
    """A connection with the feature, which remembers the stream of each subscription that it was given."""

    def __init__(self, node: World, features: tuple[str, ...] = FEATURES, slot: int = 0) -> None:
        self.node = node
        self.peer = BinaryPeer(node, slot, hello=False)
        self.peer.codec = ClientCodec(features=frozenset(features))
        self.peer.ask(m.Hello(1, features, "test"))
        self.streams: dict[int, str] = {}
        self.answers: list[m.Response] = []

    def ask(self, *messages: m.AnyMessage) -> list[m.Response]:
        """All answers but ADDED."""
        self.peer.say(*messages)
        return self.came()

    def came(self) -> list[m.Response]:
        self.node.settle()
        answers = self.peer.take()
        joined = [each for each in answers if isinstance(each, g.Added)]
        self.streams |= {each.subscription: each.stream for each in joined}
        return [each for each in answers if not isinstance(each, g.Added)]

    def messages(self) -> list[tuple[str, int, bytes]]:
        """Those that have come since the last time, with their streams."""
        found = sorted((self.streams[number], *each) for number, got in self.peer.got.items() for each in got)
        self.peer.got.clear()
        return found

    def number(self, stream: str) -> int:
        """The id of the last subscription of a stream."""
        return max(number for number, name in self.streams.items() if name == stream)


def firsts(names: list[str]) -> list[tuple[str, int, bytes]]:
    return sorted((name, 0, b"first") for name in names)


def failures(answers: list[m.Response]) -> list[tuple[str, int, int]]:
    assert all(isinstance(each, m.Failed) for each in answers), answers
    return [(each.code, each.op, each.id) for each in answers if isinstance(each, m.Failed)]


def test_it_reads_what_is_there_and_what_is_made_later(node: World) -> None:
    names, reader = names_of(node, "a"), Reader(node)
    assert reader.ask(g.Collect(7, b"a.*", FROM_START)) == [g.Collected(7, 4)]
    assert (sorted(reader.streams.values()), reader.messages()) == (sorted(names), firsts(names))
    assert min(reader.streams) == g.ADDED_FROM
    later = names_of(node, "a.later", 2)
    names_of(node, "other", 2)
    seconds_later(node)
    assert (reader.came(), reader.messages()) == ([], firsts(later))


@pytest.mark.parametrize("start", [FROM_NEW, From("seq", 1), From("time", 1 << 60)])
def test_it_waits_for_a_first_stream(node: World, start: From) -> None:
    """One that is made later is read from its beginning, also if the others are not."""
    reader = Reader(node)
    assert reader.ask(g.Collect(1, b"a.*", start)) == [g.Collected(1, 0)]
    names = names_of(node, "a", 2)
    seconds_later(node)
    assert (reader.came(), reader.messages()) == ([], firsts(names))


@pytest.mark.parametrize("start", [FROM_NEW, From("last", 0)])
def test_new_begins_behind_what_the_connection_has_published(node: World, start: From) -> None:
    """Requests behind the COLLECT in the same bytes wait for its place."""
    names, reader = names_of(node, "a"), Reader(node)
    reader.peer.open(*names)
    reader.peer.publish([1, 2], b"before")
    reader.peer.say(g.Collect(1, b"a.*", start))
    reader.peer.publish([1, 2], b"after")
    answers = reader.ask(m.Ping())
    assert sorted(type(each).__name__ for each in answers) == ["Collected", "Pong", "Published", "Published"]
    assert reader.messages() == sorted((name, 2, b"after") for name in names[:2])


def test_positions_go_on_where_a_reader_was(node: World) -> None:
    names, reader = names_of(node, "a"), Reader(node)
    node.ask(node.connect(), *(f"pub {name} |second" for name in names))
    positions = {names[0].encode(): 1, names[1].encode(): 2, b"a.gone": 5}
    reader.ask(g.Collect(1, b"a.*", FROM_START, positions=positions))
    both = [(name, seq, payload) for name in names[2:] for seq, payload in enumerate((b"first", b"second"))]
    assert reader.messages() == sorted([(names[0], 1, b"second"), *both])
    node.ask(node.connect(), "pub a.gone |first")
    seconds_later(node)
    assert (reader.came(), reader.messages()) == ([], firsts(["a.gone"])), "made later: read from its beginning"


@pytest.mark.parametrize("end", [("now", 0), ("time", 1)])
def test_with_an_end_each_stream_ends_and_then_all_does(node: World, end: m.WirePlace) -> None:
    names, reader = names_of(node, "a"), Reader(node)
    answers = reader.ask(g.Collect(1, b"a.*", FROM_START, end=end))
    read = 1 if end[0] == "now" else 0
    assert answers[0] == g.Collected(1, 4)
    assert sorted(answers[1:-1], key=str) == [m.Ended(number, read) for number in sorted(reader.streams)]
    assert answers[-1] == m.Ended(1, 0)
    assert reader.messages() == (firsts(names) if read else [])
    assert reader.ask(g.Collect(1, b"b.*", FROM_START, end=end)) == [g.Collected(1, 0), m.Ended(1, 0)]
    later = names_of(node, "b", 1)
    seconds_later(node)
    assert later and (reader.came(), reader.messages()) == ([], [])


def test_only_topics_that_match(node: World) -> None:
    names, reader = names_of(node, "a", 2), Reader(node)
    node.ask(node.connect(), *(f"pub {name} topic t/{number} |topic" for name in names for number in range(2)))
    reader.ask(g.Collect(1, b"a.*", FROM_START, topics=b"t/1"))
    assert reader.messages() == sorted((name, 2, b"topic") for name in names)
    node.ask(node.connect(), "pub a.later |no topic", "pub a.later topic t/1 |topic")
    seconds_later(node)
    assert (reader.came(), reader.messages()) == ([], [("a.later", 1, b"topic")])


def test_credit_is_each_streams_own(node: World) -> None:
    names, reader = names_of(node, "a"), Reader(node)
    node.ask(node.connect(), *(f"pub {name} |second" for name in names))
    reader.ask(g.Collect(1, b"a.*", FROM_START, credit=1))
    assert reader.messages() == firsts(names), "one message each"
    reader.ask(m.Credit(reader.number(names[2]), 1_000))
    assert reader.messages() == [(names[2], 1, b"second")]


def test_one_stream_can_be_given_up_and_all_of_them(node: World) -> None:
    names, reader = names_of(node, "a"), Reader(node)
    reader.ask(g.Collect(1, b"a.*", FROM_NEW))
    given_up = reader.number(names[0])
    assert reader.ask(m.Unsubscribe(given_up)) == [m.Ended(given_up, 1)]
    later = names_of(node, "a.later", 1)
    seconds_later(node)
    reader.came()
    assert (len(reader.streams), reader.messages()) == (5, firsts(later)), "what was given up stays so"
    rest = sorted(number for number in reader.streams if number != given_up)
    answers = reader.ask(m.Unsubscribe(1))
    assert sorted(each.id for each in answers if isinstance(each, m.Ended)) == [1, *rest]
    assert answers[-1] == m.Ended(1, 0)
    names_of(node, "a.last", 1)
    seconds_later(node)
    reader.messages()
    assert (reader.came(), reader.messages()) == ([], [])
    assert failures(reader.ask(m.Unsubscribe(1))) == [("unsubscribed", Op.UNSUBSCRIBE, 1)]


def test_only_what_the_connection_may_read(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names, reader = names_of(node, "a"), Reader(node)
    client = node.binary_client_of(reader.peer.peer)
    client.is_free = False
    monkeypatch.setattr(type(client), "may", lambda _self, _right, name=b"": name != names[1].encode())
    assert reader.ask(g.Collect(1, b"a.*", FROM_START)) == [g.Collected(1, 3)]
    assert names[1] not in reader.streams.values()


def test_a_filter_is_for_the_names_of_streams_where_nothing_is_configured(node: World) -> None:
    reader = Reader(node)
    node.ask(node.connect(), "pub s/1 |one", "pub s/2 |two", "pub s/1/x |deep")
    assert reader.ask(g.Collect(1, b"s/+", FROM_START)) == [g.Collected(1, 2)]
    assert reader.messages() == [("s/1", 0, b"one"), ("s/2", 0, b"two")]


def test_what_is_refused(node: World) -> None:
    names, reader = names_of(node, "a", 2), Reader(node)
    refusals: list[tuple[g.Collect, str]] = [
        (g.Collect(1, names[0].encode(), FROM_START), "usage"),
        (g.Collect(1, b"a/+", FROM_START, topics=b"x/#"), "usage"),
        (g.Collect(1, b"a.*", FROM_START, end=("time", 1 << 60)), "from"),
    ]
    for request, code in refusals:
        assert failures(reader.ask(request)) == [(code, Op.COLLECT, 1)]
    assert reader.ask(g.Collect(1, b"a.*", FROM_START)) == [g.Collected(1, 2)]
    assert failures(reader.ask(g.Collect(1, b"b.*", FROM_START))) == [("usage", Op.COLLECT, 1)]
    assert failures(reader.ask(m.Subscribe(1, names[0].encode(), FROM_START))) == [("usage", Op.SUBSCRIBE, 1)]
    plain = Reader(node, (g.FEATURE,))
    assert failures(plain.ask(g.Collect(1, b"a/+", FROM_START))) == [("unsupported", Op.COLLECT, 1)]
    old = Reader(node, ())
    assert failures(old.ask(g.Collect(1, b"a.*", FROM_START))) == [("protocol", Op.COLLECT, 0)]


def test_the_bounds(node: World) -> None:
    names_of(node, "a", 4)
    reader = Reader(node)
    for number in range(collecting.COLLECTS_MAX):
        assert reader.ask(g.Collect(number, b"n%d.*" % number, FROM_START)) == [g.Collected(number, 0)]
    assert failures(reader.ask(g.Collect(99, b"a.*", FROM_START))) == [("subscriptions", Op.COLLECT, 99)]
    reader.peer.peer.close()
    reader = Reader(node)
    names_of(node, "b", 4)
    assert failures(reader.ask(g.Collect(1, b"*", From("last", 1)))) == [("subscriptions", Op.COLLECT, 1)]
    assert reader.ask(g.Collect(1, b"*", FROM_START))[0] == g.Collected(1, 0)


def test_streams_that_become_more_than_it_may_have_subscriptions(node: World) -> None:
    names, reader = names_of(node, "a", 4), Reader(node)
    assert reader.ask(g.Collect(1, b"a.*", FROM_START)) == [g.Collected(1, 4)]
    later = names_of(node, "a.later", 9)
    for _ in range(6):
        seconds_later(node)
        assert not failures([each for each in reader.came() if not isinstance(each, m.Ended)])
    assert reader.messages() == firsts(names + later)
    last = names_of(node, "a.last", 3)
    node.ask(node.connect(), *(f"pub {name} |second" for name in names + later))
    for _ in range(6):
        seconds_later(node)
        reader.came()
    assert reader.messages() == sorted(firsts(last) + [(name, 1, b"second") for name in names + later])


def test_a_list_that_fails_is_told(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_slot: int, _verb: str, _args: list[Any], done: OnResult, *_more: object) -> None:
        done(Refused(Code.UNAVAILABLE, "a worker is away"))

    reader = Reader(node)
    for worker in node.workers:
        monkeypatch.setattr(worker.calls, "call_slot", refuse)
    assert failures(reader.ask(g.Collect(1, b"a.*", FROM_START), m.Ping())[:1]) == [("unavailable", Op.COLLECT, 1)]
    assert reader.ask(m.Ping()) == [m.Pong()]


def move(node: World, reader: Reader) -> None:
    """To the other worker, by the link between them, as value and descriptor."""
    client = node.binary_client_of(reader.peer.peer)
    source = node.worker_of(client)
    link = source.links.link_to(1 - source.slot)
    assert link is not None and handover.possible(client)
    source.links.hand_over(link, *handover.detach(client))
    source.siblings.flush()
    node.settle()
    assert node.worker_of(node.binary_client_of(reader.peer.peer)) is node.workers[1 - source.slot]


def test_it_moves_to_another_worker(node: World) -> None:
    names, reader = names_of(node, "a", 3), Reader(node)
    reader.ask(g.Collect(1, b"a.*", FROM_START, credit=1))
    given_up = reader.number(names[0])
    reader.ask(m.Unsubscribe(given_up))
    reader.messages()
    for _ in range(2):
        move(node, reader)
    node.ask(node.connect(), *(f"pub {name} |second" for name in names))
    seconds_later(node)
    assert (reader.came(), reader.messages()) == ([], []), "the credit is used up"
    reader.ask(*(m.Credit(number, 1_000) for number in reader.streams))
    assert reader.messages() == sorted((name, 1, b"second") for name in names[1:])
    later = names_of(node, "a.later", 1)
    seconds_later(node)
    assert (reader.came(), reader.messages()) == ([], firsts(later))
    assert len(reader.streams) == 4, "each subscription has an id of its own"
    answers = reader.ask(m.Unsubscribe(1))
    assert sorted(each.id for each in answers if isinstance(each, m.Ended)) == sorted({1, *reader.streams} - {given_up})


@pytest.mark.parametrize("leaves", [False, True])
def test_the_connection_ends_behind_it(node: World, leaves: bool) -> None:
    """By CLOSE, which waits for the answer, or by leaving while the names are searched."""
    names, reader = names_of(node, "a"), Reader(node)
    if leaves:
        reader.peer.say(g.Collect(1, b"a.*", FROM_START))
        reader.peer.peer.close()
        node.settle()
    else:
        answers = reader.ask(g.Collect(1, b"a.*", FROM_NEW), m.Close())
        assert answers[0] == g.Collected(1, len(names)) and reader.peer.peer.ended
    seconds_later(node)
    assert not any(worker.collecting._clients or worker.fanout.feeds for worker in node.workers)
