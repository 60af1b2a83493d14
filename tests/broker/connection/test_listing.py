"""LIST of a binary connection, which is gathered from all workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.connection import listing as connection_listing
from tailrace.broker.connection.base import Pause
from tailrace.protocol import listing
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.supervisor.user_file import hash_token
from tests.broker.binary import BinaryPeer
from tests.broker.world import World, world

WAIT_S = 1_000
"""Longer than a test takes on any machine: the time of the workers goes on meanwhile."""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(listing, "WAIT_MAX_MS", WAIT_S * 1_000)
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def peer_of(node: World, *, local: bool = True, user: str = "") -> BinaryPeer:
    """`user`: logs in with its name as the token."""
    peer = BinaryPeer(node, local=local, hello=False)
    peer.codec = ClientCodec(features=frozenset({listing.FEATURE}))
    login = {"mechanism": m.BEARER, "user": user, "login": user.encode()} if user else {}
    peer.ask(m.Hello(1, (listing.FEATURE,), "t", **login))  # type: ignore[arg-type]
    return peer


def ask(peer: BinaryPeer, *args: object) -> listing.Listed:
    answers = peer.ask(listing.List(7, *args))  # type: ignore[arg-type]
    for _ in range(20):  # several calls to the other worker, one after the other
        if not answers:
            peer.node.settle()
            answers = peer.take()
    [answer] = answers
    assert isinstance(answer, listing.Listed) and answer.id == 7, answer
    return answer


def test_streams_of_all_workers_in_the_order_of_their_names(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted({node.name(slot, f"s{number}.") for slot in (0, 1) for number in range(3)})
    node.ask(node.connect(), *(f"pub {name} |x" for name in names))
    node.settle()
    peer = peer_of(node)
    assert ask(peer, "names").names == tuple(names)
    found = ask(peer, "streams")
    assert [row.name for row in found.streams] == names and found.next == "" and found.total == len(names)
    monkeypatch.setattr(connection_listing, "STREAMS_MAX", 2)
    first = ask(peer, "streams")
    assert [row.name for row in first.streams] == names[:2] and first.next == names[1]
    second = ask(peer, "streams", b"", first.next.encode())
    assert [row.name for row in second.streams] == names[2:4]
    assert [row.name for row in ask(peer, "streams", names[-1].encode()).streams] == names[-1:]


def test_which_streams_have_grown_since_a_mark(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted({node.name(slot, f"s{number}.") for slot in (0, 1) for number in range(3)})
    node.ask(node.connect(), *(f"pub {name} |x" for name in names))
    node.settle()
    peer = peer_of(node)

    def grown(mark: str, after: str = "") -> listing.Listed:
        return ask(peer, "grown", b"", after.encode(), mark)

    first = grown("")
    assert not first.known and not first.names and first.mark and first.total == len(names)
    mark = grown(first.mark).mark
    assert (grown(mark).known, grown(mark).names) == (True, ())
    changed = [names[0], names[3], names[5]]
    node.ask(node.connect(), *(f"pub {name} |x" for name in changed))
    node.settle()
    node.workers[1].owner.growth_log.note([names[1].encode() + b"/$dead", b"$cursor/" + names[1].encode()])
    assert grown(mark).names == tuple(changed), "dead letters are listed with a prefix that has a $ only"
    assert ask(peer, "grown", names[3].encode(), b"", mark).names == (names[3],)
    monkeypatch.setattr(connection_listing, "NAMES_MAX", 2)
    page = grown(mark)
    assert (page.names, page.next) == (tuple(changed[:2]), changed[1])
    last = grown(mark, page.next)
    assert (last.names, last.next, last.known) == ((changed[2],), "", True)
    assert not grown(page.mark).names
    assert not grown("no mark").known


def test_a_list_of_what_has_grown_waits_for_growth(node: World) -> None:
    node.stop_timers()
    names = sorted({node.name(slot, f"s{number}.") for slot in (0, 1) for number in range(2)})
    writer, peer = node.connect(), peer_of(node)
    node.ask(writer, *(f"pub {name} |x" for name in (*names, "other")))
    mark = ask(peer, "grown", b"s", b"", ask(peer, "grown").mark).mark

    def wait(mark: str) -> None:
        node.settle()
        peer.say(listing.List(7, "grown", b"s", b"", mark, wait_ms=WAIT_S * 1_000))
        node.settle()
        assert peer.take() == []

    for name in names:
        wait(mark)
        node.ask(writer, "pub other |x")
        assert peer.take() == [], "the prefix is another one"
        node.ask(writer, f"pub {name} |x")
        [answer] = peer.take()
        assert isinstance(answer, listing.Listed) and (answer.names, answer.known) == ((name,), True)
        mark = answer.mark
    wait(mark)
    services = node.workers[0].services
    services.now_s += WAIT_S
    services.delays.tick(services.now_s)
    node.settle()
    [answer] = peer.take()
    assert isinstance(answer, listing.Listed) and (answer.names, answer.known) == ((), True)
    wait(answer.mark)
    client = node.binary_client_of(peer.peer)
    client.pause(Pause.MOVE)
    node.workers[0].services.delays.tick(float("inf"))
    node.settle()
    assert len(peer.take()) == 1, "a connection that is to move waits for nothing"
    client.resume(Pause.MOVE)
    wait(answer.mark)
    node.replace(1, 10)
    node.settle()
    [answer] = peer.take()
    assert isinstance(answer, listing.Listed) and not answer.known, "another owner does not know"
    assert not node.workers[0].patterns.wide.waiters


def test_a_list_that_waits_looks_now_and_then_if_what_grows_is_hidden(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.stop_timers()
    name, writer, peer = node.name(1, "s"), node.connect(), peer_of(node)
    node.ask(writer, f"pub {name} |x")
    client = node.binary_client_of(peer.peer)
    client.is_free = False
    for name in ("may", "may_all"):
        monkeypatch.setattr(type(client), name, lambda *_right: False)
    mark = ask(peer, "grown", b"s", b"", ask(peer, "grown").mark).mark
    node.settle()
    peer.say(listing.List(7, "grown", b"s", b"", mark, wait_ms=WAIT_S * 1_000))
    looks, gather = list[int](), connection_listing.Listings.gather

    def count(*args: Any) -> None:
        looks.append(1)
        gather(*args)

    monkeypatch.setattr(connection_listing.Listings, "gather", count)
    for _ in range(20):
        node.ask(writer, f"pub {name} |x")
        peer.take()
    assert len(looks) <= connection_listing.LOOKS_AT_ONCE
    services = node.workers[0].services
    services.delays.tick(services.now_s + connection_listing.AGAIN_S)
    node.settle()
    assert peer.take() == []
    services.now_s += WAIT_S
    services.delays.tick(services.now_s)
    node.settle()
    [answer] = peer.take()
    assert isinstance(answer, listing.Listed) and answer.known and not answer.names


def test_an_answer_has_nothing_of_streams_that_the_user_may_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither their names, as the place where to go on, nor their number; the pages are full all the same."""
    users = tuple(User(name, token_hashes=(hash_token(name),)) for name in ("ann", "root"))
    some = AccessRule(True, ("ann",), frozenset({Right.SUBSCRIBE}), ("a*", "z*"))
    every = AccessRule(True, ("root", "anonymous"), frozenset({Right.PUBLISH, Right.CREATE, Right.SUBSCRIBE}), ("*",))
    monkeypatch.setattr(connection_listing, "STREAMS_MAX", 2)
    monkeypatch.setattr(connection_listing, "NAMES_MAX", 3)
    settings = {"users": users, "rules": (some, every), "allow_anonymous": True, "affinity": False}
    with world(tmp_path, workers=2, **settings) as node:
        ann, root = (peer_of(node, user=name) for name in ("ann", "root"))
        names = ["a", *[f"hidden{number}" for number in range(10)], "z1", "z2", "z3"]
        for name in names:
            node.fill(name, [b"x"])
        node.settle()
        assert (ask(root, "names").next, ask(root, "total").total) == ("hidden1", len(names))
        for what, most in (("names", 3), ("streams", 2)):
            seen, after, has_more = list[str](), "", True
            while has_more:
                page = ask(ann, what, b"", after.encode())
                found = page.names or tuple(row.name for row in page.streams)
                assert (page.total, page.next in ("", found[-1])) == (0, True), page
                assert len(found) == most or not page.next, "no page is shorter on account of hidden names"
                seen += found
                after = page.next
                has_more = bool(after)
            assert seen == ["a", "z1", "z2", "z3"]
            page = ask(ann, what, b"hidden")
            assert (page.names, page.streams, page.next) == ((), (), "")
        mark = ask(ann, "grown", b"", b"", ask(ann, "grown").mark).mark
        for name in names:
            node.workers[node.owner_of(name)].owner.growth_log.note([name.encode()])
        page = ask(ann, "grown", b"", b"", mark)
        assert page.known and page.names[0] == "a" and page.next in ("", page.names[-1])
        version = ask(ann, "total").version
        assert ask(ann, "total").version == version != ask(root, "total").version, "nor how many are made"
        node.fill("hidden", [b"x"])
        node.settle()
        assert ask(ann, "total").version != version


def test_ends_of_streams_by_their_names(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_listing, "ENDS_A_STEP", 2)
    names = sorted({node.name(slot, f"s{number}.") for slot in (0, 1) for number in range(3)})
    for count, name in enumerate(names, 1):
        node.ask(node.connect(), *[f"pub {name} |x"] * count)
    node.settle()
    for worker in node.workers:
        worker.owner.close_logs()
    peer = peer_of(node)
    asked = tuple(name.encode() for name in [*reversed(names), "unknown"])
    found = ask(peer, "ends", b"", b"", "", asked)
    assert found.names == tuple(names)
    assert [row[:2] for row in found.ends] == [(0, count) for count in range(1, len(names) + 1)]
    assert all(row.timestamp_us > 0 and row.epoch == 1 for row in found.ends)
    assert len({row.stream_id for row in found.files}) == 6
    assert all(len(row.stream_id) == 16 and int(row.stream_id, 16) and row.cuts == 0 for row in found.files)
    assert not any(worker.owner.catalog.open for worker in node.workers), "nothing is opened for it"
    assert ask(peer, "ends") == ask(peer, "ends", b"", b"", "", (b"unknown",))


def test_workers_are_shown_to_administrators(node: World) -> None:
    rows = ask(peer_of(node), "workers").workers
    assert [(row.worker, row.state) for row in rows] == [(0, "ready"), (1, "ready")]
    [refused] = peer_of(node, local=False).ask(listing.List(1, "workers"))
    assert isinstance(refused, m.Failed) and (refused.code, refused.id) == ("denied", 1)


def test_too_many_at_once(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_listing, "LISTS_MAX", 0)
    [refused] = peer_of(node).ask(listing.List(1, "names"))
    assert isinstance(refused, m.Failed) and refused.code == "overloaded"


@pytest.mark.parametrize("what", ["names", "streams"])
def test_lists_are_made_a_little_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with world(tmp_path, workers=1) as node:
        for number in range(20):
            node.fill(f"s{number:02}", [b"x"])
        node.workers[0].owner.close_logs()
        peer, neighbour = peer_of(node), node.connect()
        monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 0.0)  # each turn does one step
        for number in range(connection_listing.LISTS_MAX):
            peer.say(listing.List(number, what))  # type: ignore[arg-type]
        for number in range(3):
            neighbour.send("ping")
            node.workers[0].turn()
            neighbour.read()
            assert neighbour.take() == ["ok pong"]
            assert len(node.workers[0].owner.catalog.open) <= number + 2
            assert len(node.workers[0].work) > 0
        node.settle()
        answers = [each for each in peer.take() if isinstance(each, listing.Listed)]
        assert sorted(each.id for each in answers) == [*range(connection_listing.LISTS_MAX)]
        assert all(len(each.names or each.streams) == 20 for each in answers)
        assert not node.binary_client_of(peer.peer).paused
