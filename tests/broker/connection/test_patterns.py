"""Subscriptions to all streams of a pattern, by the line protocol, on two workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.connection import patterns
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.errors import Code
from tests.broker.connection.doors import ANN, TOKEN
from tests.broker.world import Peer, World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, max_subscriptions=6) as node:
        node.stop_timers()
        yield node


def names_of(node: World, prefix: str, count: int = 4) -> list[str]:
    """Streams of both workers, with a message each."""
    names = [node.name(number % 2, f"{prefix}.{number}.") for number in range(count)]
    node.ask(node.connect(), *(f"pub {name} |first" for name in names))
    node.settle()
    return names


def seconds_later(node: World) -> None:
    """The boards are written, and then looked at."""
    for _ in range(2):
        for worker in node.workers:
            worker._seldom()
    node.settle()


def ask(node: World, peer: Peer, *lines: str) -> tuple[list[str], list[tuple[str, int, str]]]:
    """The answers to these lines, and the messages that have come."""
    peer.take()
    peer.send(*lines)
    return came(node, peer)


def came(node: World, peer: Peer) -> tuple[list[str], list[tuple[str, int, str]]]:
    node.settle()
    messages = sorted(peer.messages())
    return [line for line in peer.take() if not line.startswith("msg ")], messages


def test_it_reads_what_is_there_and_what_is_made_later(node: World) -> None:
    names, peer = names_of(node, "a"), node.connect()
    answers, messages = ask(node, peer, f"sub {names[0]} new", "sub a.* 0", "ping")
    assert answers == [f"ok sub {names[0]} 1", "ok sub a.* 3", "ok pong"]
    assert messages == sorted((name, 0, "first") for name in names[1:])
    later = names_of(node, "a.later", 2)
    names_of(node, "other", 2)
    seconds_later(node)
    assert came(node, peer) == ([], sorted((name, 0, "first") for name in later))


def test_new_begins_behind_what_the_connection_has_published(node: World) -> None:
    names, peer = names_of(node, "a"), node.connect()
    lines = f"pub {names[0]} |before", "sub a.* new", f"pub {names[0]} |after", f"pub {names[1]} |after"
    assert ask(node, peer, *lines) == (["ok sub a.* 4"], sorted([(names[0], 2, "after"), (names[1], 1, "after")]))


def test_one_stream_can_be_given_up_and_all_of_them(node: World) -> None:
    names, peer = names_of(node, "a"), node.connect()
    assert ask(node, peer, "sub a.* new", f"unsub {names[0]}")[0] == ["ok sub a.* 4", f"ok unsub {names[0]}"]
    seconds_later(node)
    node.ask(node.connect(), *(f"pub {name} |second" for name in names))
    assert came(node, peer) == ([], sorted((name, 1, "second") for name in names[1:]))
    assert ask(node, peer, "unsub a.*")[0] == ["ok unsub a.*"]
    assert ask(node, peer, f"unsub {names[1]}")[0][0].startswith("err unsubscribed")
    names_of(node, "a.later", 2)
    seconds_later(node)
    assert came(node, peer) == ([], [])


def test_only_what_the_connection_may_read(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names, peer = names_of(node, "a"), node.connect()
    client = node.client_of(peer)
    client.is_free = False
    monkeypatch.setattr(type(client), "may", lambda _self, _right, name=b"": name != names[1].encode())
    answers, messages = ask(node, peer, "sub a.* 0")
    assert (answers, len(messages)) == (["ok sub a.* 3"], 3)
    assert names[1] not in {stream for stream, _seq, _payload in messages}


def test_more_streams_than_subscriptions(node: World) -> None:
    names_of(node, "a")
    peer, other = node.connect(), node.connect()
    assert ask(node, peer, "sub a.* new")[0] == ["ok sub a.* 4"]
    later = names_of(node, "a.later", 3)
    seconds_later(node)
    seconds_later(node)
    answers, messages = came(node, peer)
    assert (answers, sorted(message[0] for message in messages)) == ([], sorted(later))
    refused = "err subscriptions a.* has too many streams: this connection may have 6 subscriptions"
    assert ask(node, other, "sub a.* -1") == ([refused], [])
    assert not node.client_of(other).cursors


def test_a_pattern_that_shares_streams_ends_without_them(node: World) -> None:
    names, peer = names_of(node, "a"), node.connect()
    assert ask(node, peer, "sub a.* new", "sub a* new", "unsub a*")[0] == ["ok sub a.* 4", "ok sub a* 0", "ok unsub a*"]
    seconds_later(node)
    later = names_of(node, "a.later", 1)
    seconds_later(node)
    node.ask(node.connect(), *(f"pub {name} |second" for name in names))
    expected = sorted([*((name, 1, "second") for name in names), (later[0], 0, "first")])
    assert came(node, peer) == ([], expected)
    assert ask(node, peer, "unsub a.*")[0] == ["ok unsub a.*"] and not node.client_of(peer).cursors


def test_patterns_that_share_streams_cannot_become_wide(node: World) -> None:
    names_of(node, "a")
    peer = node.connect()
    assert ask(node, peer, "sub a.* new", "sub a* new", "sub b* new")[0] == [
        "ok sub a.* 4",
        "ok sub a* 0",
        "ok sub b* 0",
    ]
    later = names_of(node, "a.later", 3)
    seconds_later(node)
    seconds_later(node)
    answers, messages = came(node, peer)
    text = "may have streams in common, and more of them than this connection may have subscriptions: use a connection"
    both = ("a.*", "a*"), ("a*", "a.*")
    expected = [
        f"err subscriptions {one}: {one} and {other} {text} for each; the subscription has ended" for one, other in both
    ]
    assert len(answers) == 1 and answers[0] in expected
    assert sorted(message[0] for message in messages) == sorted(later)


def test_bounds(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, count = node.connect(), patterns.PATTERNS_MAX
    assert ask(node, peer, *(f"sub {n}.* new" for n in range(count)))[0][-1] == f"ok sub {count - 1}.* 0"
    assert ask(node, peer, "sub 0.* new")[0] == ["err subscribed this connection is subscribed to 0.* already"]
    refused = f"err subscriptions this connection has subscriptions of {count} patterns, which is its limit"
    assert ask(node, peer, "sub more.* new")[0] == [refused]
    names_of(node, "many")
    monkeypatch.setattr(patterns, "NAMES_MAX", 2)
    assert ask(node, node.connect(), "sub many.* new")[0] == ["ok sub many.* 4"], "page after page"


def test_the_number_of_hidden_streams_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user sees the streams that it has a right to, however many pages of others are looked at."""
    monkeypatch.setattr(patterns, "NAMES_MAX", 2)
    monkeypatch.setattr(patterns, "PAGES_AT_ONCE", 2)
    monkeypatch.setattr(patterns, "PAUSE_S", 1e9)
    rule = AccessRule(True, ("ann",), frozenset(Right), ("*.own",))
    with world(tmp_path, users=(ANN,), rules=(rule,)) as node:
        for n in range(40):
            node.workers[0].owner.create(b"s.%d" % n)
        peer = node.connect()
        answers = ask(node, peer, f"auth ann {TOKEN}", "sub s.* 0", "pub s.99.own |a")[0]
        assert answers == ["ok auth ann", "ok sub s.* 0"]
        seconds_later(node)
        delays = node.workers[0].services.delays
        assert delays, "nobody waits for this search: it goes on after a pause"
        while delays:
            delays.tick(float("inf"))
            node.settle()
        assert came(node, peer) == ([], [("s.99.own", 0, "a")])


def test_a_long_search_holds_up_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other patterns go on while it pauses, also of streams that are made meanwhile."""
    monkeypatch.setattr(patterns, "NAMES_MAX", 2)
    monkeypatch.setattr(patterns, "PAGES_AT_ONCE", 2)
    monkeypatch.setattr(patterns, "PAUSE_S", 1e9)
    rule = AccessRule(True, ("ann",), frozenset(Right), ("*.own",))
    with world(tmp_path, users=(ANN,), rules=(rule,)) as node:
        for n in range(40):
            node.workers[0].owner.create(b"s.%d" % n)
        peer = node.connect()
        ask(node, peer, f"auth ann {TOKEN}", "sub s.* 0", "sub s.*.own 0", "sub t.* 0", "pub t.1.own |a")
        seconds_later(node)
        assert came(node, peer) == ([], [("t.1.own", 0, "a")])
        ask(node, peer, "pub t.2.own |b", "pub s.99.own |c")
        seconds_later(node)
        assert came(node, peer) == ([], [("t.2.own", 0, "b")])
        delays = node.workers[0].services.delays
        for _ in range(200):
            delays.tick(float("inf"))
            seconds_later(node)
        assert came(node, peer) == ([], [("s.99.own", 0, "c")])


def test_a_search_ends_with_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "NAMES_MAX", 2)
    with world(tmp_path) as node:
        for n in range(100):
            node.workers[0].owner.create(b"s.%d" % n)
        calls, peer = node.workers[0].calls, node.connect()
        call_slot, asked = calls.call_slot, list[str]()

        def call(slot: int, verb: str, args: list[Any], done: OnResult) -> None:
            asked.append(verb)
            if len(asked) == 3:
                node.connection_of(peer).close("gone")
            call_slot(slot, verb, args, done)

        monkeypatch.setattr(calls, "call_slot", call)
        peer.send("sub s.*x 0")
        node.settle()
        assert asked == ["list_names"] * 3


def test_a_worker_that_is_down_makes_no_shorter_list(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names, calls, peer = names_of(node, "a"), node.workers[0].calls, node.connect()
    call_slot = calls.call_slot

    def call(slot: int, verb: str, args: list[Any], done: OnResult) -> None:
        if slot:
            done(Refused(Code.UNAVAILABLE, "worker 1 is down"))
        else:
            call_slot(slot, verb, args, done)

    monkeypatch.setattr(calls, "call_slot", call)
    assert ask(node, peer, "sub a.* 0", "ping") == (["err unavailable worker 1 is down", "ok pong"], [])
    monkeypatch.undo()
    assert len(ask(node, peer, "sub a.* 0")[1]) == len(names)


def test_a_stream_that_cannot_be_read_does_not_hold_up_the_others(node: World) -> None:
    names, peer = names_of(node, "a"), node.connect()
    for worker in node.workers:
        worker.readers.forget(names[0].encode())
    content = node.workers[0].readers.path(names[0].encode()) / f"{names[0]}.content"
    content.write_bytes(b"\0" * 100)
    answers, messages = ask(node, peer, "sub a.* 0")
    assert answers[0] == "ok sub a.* 3" and len(messages) == 3
    assert answers[1].startswith(f"err damaged {names[0]}: ") and answers[1].endswith("; it is not subscribed")
    seconds_later(node)
    assert came(node, peer) == ([], [])


def test_very_many_patterns_are_searched_for_by_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls to itself are answered before they return, page by page and pattern by pattern."""
    with world(tmp_path, workers=1) as node:
        node.stop_timers()
        peers, writer = [node.connect() for _ in range(8)], node.connect()
        for number, peer in enumerate(peers):
            ask(node, peer, *(f"sub p{number}.{place}.* new" for place in range(patterns.PATTERNS_MAX)))
        node.ask(writer, *(f"pub p{number}.{number}.made.later |x" for number in range(8)))
        seconds_later(node)
        assert [came(node, peer)[1] for peer in peers] == [
            [(f"p{number}.{number}.made.later", 0, "x")] for number in range(8)
        ]
        node.ask(writer, *(f"pub many{number:03} |x" for number in range(190)))
        monkeypatch.setattr(patterns, "NAMES_MAX", 2)
        assert ask(node, writer, "sub many*8 0", "ping")[0] == ["ok sub many*8 19", "ok pong"]
