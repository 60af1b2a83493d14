"""A denied request is a line of the log of events, with the peer and the user, and is counted once, at each door."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.protocol import consuming as c
from tailrace.protocol import listing
from tailrace.protocol import messages as m
from tailrace.protocol import recalling as r
from tailrace.protocol import replication as nodes
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tests.broker.connection.doors import TOKEN
from tests.broker.connection.mqtt.test_lost_rights import BOB
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5

FEATURES = (c.FEATURE, listing.FEATURE, r.FEATURE, nodes.FEATURE)
LINES = ("pub x |y", "pub fresh |y", "sub x 0", "last x", "consume x c 0", "get x c", "trim x 0")
START = From("seq", 0)
MESSAGES: tuple[m.AnyMessage, ...] = (
    m.Open(1, b"x"),
    m.Subscribe(1, b"x", START),
    r.Recall(2, b"x"),
    c.Consume(3, "create", b"x", b"c", START),
    c.Get(4, b"x", b"c", b"m", max_messages=1),
    c.Consume(5, "drop", b"x"),
    listing.List(6, what="workers"),
    nodes.Follow(7, b"x", 0, 0, start=START),
    nodes.Watch(8, b""),
    nodes.Fence(9, b"x", 1),
    nodes.Ask(10),
)
PACKETS = {
    "a filter": wire.subscribe(V5, 1, ("x", 1)),
    "a group": wire.subscribe(V5, 1, ("$share/g/x", 1)),
    "the figures": wire.subscribe(V5, 1, ("$SYS/#", 0)),
    "a new stream": wire.publish(V5, "fresh", b"x", 1, 3),
    "QoS 0": wire.publish(V5, "x", b"x", 0),
    "QoS 1": wire.publish(V5, "x", b"x", 1, 1),
    "QoS 2": wire.publish(V5, "x", b"x", 2, 2),
}


class Log:
    def __init__(self, node: World, caplog: pytest.LogCaptureFixture) -> None:
        self.node = node
        self.caplog = caplog
        self.counted = node.workers[0].metrics.refused.counts

    def holds_one(self, what: object) -> None:
        self.node.settle()
        lines = [line for line in self.caplog.messages if line.startswith("event=refused")]
        assert len(lines) == 1, what
        assert " user=bob " in lines[0] and " code=denied " in lines[0], what
        assert self.counted.pop("denied") == 1, what
        self.caplog.clear()


def test_each_denial_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrace.broker.process.event_log")
    rules = (
        AccessRule(True, ("bob",), frozenset(Right), ("own*",)),
        AccessRule(True, ("bob",), frozenset({Right.PUBLISH}), ("fresh",)),
    )
    with world(tmp_path, users=(BOB,), rules=rules) as node:
        log = Log(node, caplog)
        lines = node.connect()
        node.ask(lines, f"auth bob {TOKEN}", "ack on")
        for line in LINES:
            assert node.ask(lines, line)[0].startswith("err denied")
            log.holds_one(line)
        binary = node.connect()
        hello = m.Hello(1, FEATURES, "test", mechanism=m.BEARER, user="bob", login=TOKEN.encode())
        binary.send_raw(m.pack(hello))
        node.settle()
        for message in MESSAGES:
            binary.send_raw(m.pack(message))
            log.holds_one(message)
        binary.send_raw(m.pack(m.Open(2, b"fresh")))
        binary.send_raw(m.pack_publish(1, m.Ack.APPENDED, [2], frame := pack_frame(b"x")) + frame)
        log.holds_one("a new stream")
        assert node.ask(lines, "ack off", "pub fresh |y")[1].startswith("err denied")
        log.holds_one("a silent publish")
        mqtt = MqttPeer(node, V5, user="bob", password=TOKEN.encode())
        for what, packet in PACKETS.items():
            mqtt.ask(packet)
            log.holds_one(what)
        third = MqttPeer(node, V4, user="bob", password=TOKEN.encode())
        third.ask(wire.publish(V4, "x", b"x", 1, 1))
        assert third.ended
        node.workers[0].metrics.refused.counts["denied"] -= 1  # the end of the connection counts, too
        log.holds_one("MQTT 3.1.1")
