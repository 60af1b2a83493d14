"""The limits on topics and filters, with their codes at each door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.places import From
from tailrace.protocol.topics import LEVELS_MAX, TOPIC_BYTES_MAX
from tests.broker.connection.test_handles import Talk, refusals
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5

FILTERS_BYTES = 64 << 10
FILTERS_MOST = 400
"""More than fit in that."""
TOO_DEEP = "/" * LEVELS_MAX
TOO_LONG = "x" * (TOPIC_BYTES_MAX + 1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    limits = {"max_filter_bytes": FILTERS_BYTES, "max_handles": 3, "max_subscriptions": FILTERS_MOST + 1}
    with world(tmp_path, workers=1, topics=(TopicRule("t/#", "t"),), **limits) as made:
        yield made


def fill(node: World) -> str:
    """Subscribes to topics until there is no room for more filters; the first that is refused."""
    peer = node.connect()
    node.ask(peer, "pub t/0 |x")
    for number in range(FILTERS_MOST):
        (answer,) = node.ask(peer, f"sub t/{number} new")
        if not answer.startswith("ok "):
            assert answer.startswith("err overloaded ") and f"all of the {FILTERS_BYTES} bytes" in answer
            return f"t/{number}"
    raise AssertionError("all filters fit")


def test_filters_of_a_worker_by_each_door(node: World) -> None:
    refused = fill(node)
    lines = node.connect()
    assert node.ask(lines, "sub t/1 new")[0].startswith("ok "), "another one of a filter that is there takes no room"
    assert node.ask(lines, f"sub {refused} new")[0].startswith("err overloaded ")
    talk = Talk(node)
    wanted = [m.Subscribe(number, name.encode(), From("new", 0)) for number, name in ((1, "t/1"), (2, refused))]
    answers = talk.ask(*wanted)
    assert refusals(answers) == [Code.OVERLOADED] and any(isinstance(each, m.Subscribed) for each in answers)
    for version, full in ((V5, 0x97), (V4, 0x80)):
        mqtt = MqttPeer(node, version, client_id=f"v{version}")
        assert mqtt.subscribe(("t/1", 0), (refused, 0)) == [0, full]


def test_room_for_filters_is_given_back(node: World) -> None:
    refused = fill(node)
    fanout = node.workers[0].fanout
    for cursor in fanout.feeds[b"t"].filtered.take_all()[:4]:
        fanout.end(cursor)
    assert node.ask(node.connect(), f"sub {refused} new")[0].startswith("ok ")


@pytest.mark.parametrize("topic", [TOO_DEEP, TOO_LONG], ids=["levels", "bytes"])
def test_levels_and_length_by_each_door(node: World, topic: str) -> None:
    lines = node.connect()
    for line in (f"pub t topic {topic} |x", f"sub t 0 topics {topic}", f"consume t c 0 topics {topic}"):
        (answer,) = node.ask(lines, line)
        assert answer.startswith("err topic "), answer
    (failed,) = Talk(node).ask(m.Subscribe(1, b"t", From("new", 0), topics=topic.encode()))
    assert isinstance(failed, m.Failed) and failed.code == Code.TOPIC


@pytest.mark.parametrize("wrong", ["t/#/x", "t/a+/x", "t/x#", "a+b", "#/a"])
@pytest.mark.parametrize("line", ["sub {} 0", "sub {} 0 wait", "consume {} c 0", "get {} c"])
def test_a_wrong_filter_is_named(node: World, line: str, wrong: str) -> None:
    """Nor is it waited for: no publish makes a stream of such a name."""
    (answer,) = node.ask(node.connect(), line.format(wrong))
    assert answer.startswith("err unknown ") and "of a topic filter" in answer


def test_levels_in_mqtt(node: World) -> None:
    mqtt = MqttPeer(node)
    assert mqtt.subscribe((TOO_DEEP, 0)) == [0x8F]
    (puback,) = mqtt.ask(wire.publish(V5, TOO_DEEP, b"x", 1, 7))
    assert puback.kind == 4 and puback.body[2] == 0x90


def test_topics_of_a_connection(node: World) -> None:
    talk = Talk(node)
    opens = [m.Open(number, b"t/%d" % number) for number in range(4)]
    assert refusals(talk.ask(*opens)) == [Code.HANDLES]


def test_subscriptions_of_a_connection(tmp_path: Path) -> None:
    with world(tmp_path, workers=1, topics=(TopicRule("t/#", "t"),), max_subscriptions=1) as node:
        lines, talk, mqtt = node.connect(), Talk(node), MqttPeer(node)
        node.ask(lines, "pub t/0 |x")
        assert [answer.split()[:2] for answer in node.ask(lines, "sub t/1 new", "sub t/2 new")] == [
            ["ok", "sub"], ["err", "subscriptions"],
        ]  # fmt: skip
        wanted = [m.Subscribe(number, b"t/%d" % number, From("new", 0)) for number in (1, 2)]
        assert refusals(talk.ask(*wanted)) == [Code.SUBSCRIPTIONS]
        assert mqtt.subscribe(("t/1", 0), ("t/2", 0)) == [0, 0x97]
