"""The last values of topics, through the workers of a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.settings import StreamPolicy
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol.errors import Code
from tests.broker.world import PATIENCE_S, Peer, World, world

KEEPING: dict[str, Any] = {
    "topics": (TopicRule("sensors/#", "sensors"), TopicRule("rooms/#", "rooms-{2}")),
    "streams": (StreamPolicy("sensors", last_values=True), StreamPolicy("rooms-*", last_values=True)),
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, 2, **KEEPING) as made:
        yield made


def last(node: World, peer: Peer, name: str) -> list[str]:
    """TOPIC=payload of each message, and the last line as it is."""
    lines, found = node.ask(peer, f"last {name}"), []
    for line in lines[:-1]:
        head, _, payload = line.partition("|")
        found.append(f"{([*head.split(), '-'])[5]}={payload}")
    return [*found, lines[-1]]


def test_the_last_message_of_each_topic_is_its_value(node: World) -> None:
    peer = node.connect(0)
    peer.send("pub sensors/7 |a", "pub sensors/8 |b", "pub sensors/7 |c", "pub sensors/9/x |d")
    assert last(node, peer, "sensors/+") == ["sensors/7=c", "sensors/8=b", "ok last sensors/+ 2"]
    assert last(node, peer, "sensors/9/x") == ["sensors/9/x=d", "ok last sensors/9/x 1"]
    assert last(node, peer, "sensors")[-1] == "ok last sensors 3"
    assert last(node, peer, "sensors/none") == ["ok last sensors/none 0"]
    assert last(node, peer, "elsewhere") == ["ok last elsewhere 0"]


def test_a_message_without_a_payload_deletes(node: World) -> None:
    peer = node.connect(0)
    peer.send("pub sensors/7 |a", "pub sensors/8 |b", "pub sensors/7 |")
    assert last(node, peer, "sensors/#") == ["sensors/8=b", "ok last sensors/# 1"]


def test_values_of_several_streams_come_in_order_and_in_pages(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.connection.commands.VALUES_MAX", 3)
    peer = node.connect(1)
    peer.send(*(f"pub rooms/{room}/{thing} |{room}{thing}" for room in "cab" for thing in "yx"))
    assert last(node, peer, "rooms/#") == [
        "rooms/a/x=ax",
        "rooms/a/y=ay",
        "rooms/b/x=bx",
        "ok last rooms/# 3 after rooms-b rooms/b/x",
    ]
    rest = last(node, peer, "rooms/# after rooms-b rooms/b/x")
    assert rest == ["rooms/b/y=by", "rooms/c/x=cx", "rooms/c/y=cy", "ok last rooms/# 3"]


def test_a_trim_keeps_last_values_and_a_deletion_takes_them(node: World) -> None:
    peer = node.connect(0)
    peer.send(*(f"pub sensors/{n % 3} |{n}" for n in range(9)))
    assert node.ask(peer, "trim sensors #9") == ["ok trim sensors 9 9"]
    assert last(node, peer, "sensors/#")[:-1] == ["sensors/0=6", "sensors/1=7", "sensors/2=8"]
    peer.send("delete sensors")
    until_s = time.monotonic() + PATIENCE_S
    while not peer.take() and time.monotonic() < until_s:  # a helper thread removes the files
        node.settle()
        time.sleep(0.001)
    assert last(node, peer, "sensors/#") == ["ok last sensors/# 0"]
    peer.send("pub sensors/1 |new")
    assert last(node, peer, "sensors/#") == ["sensors/1=new", "ok last sensors/# 1"]


def test_a_trim_does_not_overtake_them(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.last.last_values.TRIM_S", -1.0)
    peer = node.connect(0)
    refused, *_rest = node.ask(peer, *(f"pub sensors/{n} |{n}" for n in range(9)), "trim sensors #9")
    assert refused.startswith("err unavailable") and "last values" in refused
    assert node.ask(peer, "trim sensors #9") == ["ok trim sensors 9 9"]
    assert last(node, peer, "sensors/#")[-1] == "ok last sensors/# 9"


def test_after_a_start_one_topic_does_not_wait_until_all_are_in_order(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, topics = node.connect(0), 9
    peer.send(*(f"pub sensors/{n} |{n}" for n in range(topics)))
    node.settle()
    monkeypatch.setattr("tailrace.broker.last.index.ORDER_TOPICS", 1)
    monkeypatch.setattr("tailrace.broker.last.last_values.TURN_S", -1.0)
    keeper = next(worker.last_values for worker in node.workers if worker.last_values.tracked.get(b"sensors"))
    values, came = keeper.tracked[b"sensors"], list[bytes]()
    assert values is not None
    values.forget()

    def note(name: bytes, _page: object) -> None:
        came.append(name)

    for name in (b"sensors/#", b"sensors/7"):
        keeper.last([b"sensors", name, b"", False, 100, 1 << 20], partial(note, name))
    for _ in range(topics + 1):
        keeper.work()
        assert b"sensors/#" not in came or values.is_ordered
    assert came == [b"sensors/7", b"sensors/#"]


def test_a_stream_without_the_setting_has_none(node: World) -> None:
    peer = node.connect(0)
    peer.send("pub plain |a")
    assert last(node, peer, "plain") == ["ok last plain 0"]
    assert not any(b"$last/plain" in worker.owner.catalog.names for worker in node.workers)


def test_beyond_the_bound_new_topics_have_none(tmp_path: Path) -> None:
    with world(tmp_path, 1, max_last_values=2, **KEEPING) as node:
        peer = node.connect()
        peer.send("pub sensors/1 |a", "pub sensors/2 |b", "pub sensors/3 |c", "pub sensors/2 |d")
        assert last(node, peer, "sensors/#")[:-1] == ["sensors/1=a", "sensors/2=d"]
        peer.send("pub sensors/1 |")
        assert last(node, peer, "sensors/#")[:-1] == ["sensors/2=d"]
        peer.send("pub sensors/3 |e")
        assert last(node, peer, "sensors/#")[:-1] == ["sensors/2=d", "sensors/3=e"]
        node.workers[0].last_values.tick()
        metrics = node.workers[0].metrics
        assert (metrics.last_values, metrics.last_values_dropped) == (2, 1)


def test_while_the_bounds_are_far_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the last values of a stream are not up to date; near them an answer comes when they are."""
    with world(tmp_path, 1, **KEEPING) as node:
        values, answers = node.workers[0].last_values, list[object]()
        peer = node.connect()
        peer.send("pub sensors/1 |a")
        node.settle()
        monkeypatch.setattr(values, "due", {b"sensors": None})
        values.missed([b"sensors", [(b"sensors/1", 7)]], answers.append)
        values.missed([b"elsewhere", [(b"x", 0)]], answers.append)
        assert answers == [[], []]
        monkeypatch.setattr("tailrace.broker.last.last_values.FAR_TOPICS", node.workers[0].settings.max_last_values)
        values.missed([b"sensors", [(b"sensors/1", 0)]], answers.append)
        assert len(answers) == 2
        values.work()
        assert answers[2:] == [[]]
        monkeypatch.setattr("tailrace.broker.last.last_values.WAITERS_MAX", 0)
        values.missed([b"sensors", [(b"sensors/1", 0)]], answers.append)
        assert isinstance(answers[3], Refused) and answers[3].code is Code.OVERLOADED
