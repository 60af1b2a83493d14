"""A user loses a right, or is removed, while its durable session lasts: the session gives it nothing more."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.topics.rules import TopicRule
from tailrace.supervisor.user_file import hash_token
from tests.broker.connection.doors import ANN, TOKEN
from tests.broker.connection.mqtt.test_durable import LASTING, leave
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5

BOB = User("bob", token_hashes=(hash_token(TOKEN),))
BOBS = AccessRule(True, ("bob",), frozenset(Right), ("*",))
ALL = AccessRule(True, ("*",), frozenset(Right), ("*",))
DELAYED = b"\x18\0\0\0\1"
"""Will Delay Interval: a second."""

_generations = count(10)


def denying(right: Right, *streams: str) -> tuple[AccessRule, ...]:
    return AccessRule(False, ("ann",), frozenset({right}), streams), ALL


def reload(node: World, **changes: Any) -> None:
    """The workers are replaced by ones with other settings."""
    node.settings = replace(node.settings, **changes)
    for slot in range(len(node.workers)):
        node.replace(slot, next(_generations))


def as_user(node: World, name: str, client_id: str = "d", *, clean: bool = False, **more: Any) -> MqttPeer:
    peer = MqttPeer(node, V5, client_id, opened=False)
    raw = b"" if clean else LASTING
    connect = wire.connect(V5, client_id, clean=clean, raw=raw, user=name, password=TOKEN.encode(), **more)
    peer.connack = peer.ask(connect)[0]
    assert peer.connack.kind == 2 and peer.connack.body[1] == 0, peer.connack
    return peer


@pytest.mark.parametrize("resumes", [True, False])
def test_figures_of_the_node(tmp_path: Path, resumes: bool) -> None:
    """They end with the right `admin`, in a session that goes on and in a connection that stays."""
    with world(tmp_path, users=(ANN, BOB), rules=(ALL,)) as node:
        peer = as_user(node, "ann")
        assert peer.subscribe(("$SYS/#", 0), ("s", 1)) == [0, 1]
        if resumes:
            leave(peer)
            peer.peer.close()
        reload(node, rules=denying(Right.ADMIN, "*"))
        if resumes:
            peer = as_user(node, "ann")
        peer.take()
        peer.got.clear()
        node.workers[0].mqtt.system.tick(1e9)
        peer.take()
        assert peer.got == []
        if resumes:
            as_user(node, "bob", "b", clean=True).ask(wire.publish(V5, "s", b"x", 1, 1))
            assert peer.payloads() == [b"x"], "the rest of the session goes on"


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_under_way(tmp_path: Path, qos: int) -> None:
    """Those that it may not read any more are not sent again."""
    rules = (AccessRule(False, ("ann",), frozenset({Right.SUBSCRIBE}), ("s", "t/secret")), ALL)
    with world(tmp_path, users=(ANN, BOB), rules=(ALL,), topics=(TopicRule("#", "{1}"),)) as node:
        first = as_user(node, "ann")
        assert first.subscribe(("s", qos), ("t/#", qos), ("u", qos)) == [qos] * 3
        writer = as_user(node, "bob", "b", clean=True)
        topics = ("s", "t/secret", "t/open", "u")
        writer.ask(*(wire.publish(V5, topic, topic.encode(), 1, n + 1) for n, topic in enumerate(topics)))
        assert sorted(first.payloads()) == sorted(topic.encode() for topic in topics)
        first.peer.close()
        node.settle()
        reload(node, rules=rules)
        second = as_user(node, "ann")
        second.take()
        assert [(each.payload, each.dup) for each in second.got] == [(b"t/open", True), (b"u", True)]
        for each in second.got:
            second.ask(wire.ack(wire.PUBACK if qos == 1 else wire.PUBREC, each.packet_id))
        as_user(node, "bob", "b", clean=True).ask(*(wire.publish(V5, topic, b"new", 1, 1) for topic in topics))
        second.got.clear()
        assert second.payloads() == [b"new"]


def test_a_shared_subscription(tmp_path: Path) -> None:
    with world(tmp_path, users=(ANN, BOB), rules=(ALL,)) as node:
        first = as_user(node, "ann")
        assert first.subscribe(("$share/g/s", 1), ("$share/g/t", 1)) == [1, 1]
        leave(first)
        first.peer.close()
        reload(node, rules=denying(Right.SUBSCRIBE, "s"))
        second = as_user(node, "ann")
        as_user(node, "bob", "b", clean=True).ask(*(wire.publish(V5, name, name.encode(), 1, 1) for name in "st"))
        node.workers[0].mqtt.tick(node.workers[0].services.now_s)  # which finds the streams
        assert second.payloads() == [b"t"]


def test_another_user_gets_nothing_of_a_session(tmp_path: Path) -> None:
    """Neither its messages nor its identifier; nor does it with the will of its own."""
    with world(tmp_path, users=(ANN, BOB), rules=(ALL,)) as node:
        first = as_user(node, "ann", will=("wills", b"of ann", 1), will_raw=DELAYED)
        assert first.subscribe(("s", 1)) == [1]
        first.peer.close()
        node.settle()
        for clean in (False, True):
            other = MqttPeer(node, V5, "d", opened=False)
            raw = b"" if clean else LASTING
            answer = other.ask(wire.connect(V5, "d", clean=clean, raw=raw, user="bob", password=TOKEN.encode()))[0]
            assert (answer.kind, answer.body[1]) == (2, 0x85)
        as_user(node, "bob", "b", clean=True).ask(wire.publish(V5, "s", b"x", 1, 1))
        assert as_user(node, "ann").payloads() == [b"x"]
        assert b"wills" not in node.workers[0].owner.catalog.names
