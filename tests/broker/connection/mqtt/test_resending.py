"""Messages that are sent again: as the client takes them, and without those that are gone."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

import pytest

from tailrace.broker.connection.mqtt import resending
from tailrace.broker.topics.rules import TopicRule
from tests.broker.connection.mqtt.test_durable import LASTING, durable, leave
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5

COUNT = 200


def test_no_more_than_the_new_receive_maximum_at_a_time(tmp_path: Path) -> None:
    """[MQTT-3.3.4-9] counts for them too."""
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        writer = MqttPeer(node, V5, "writer")
        writer.ask(*(wire.publish(V5, "s", b"%d" % n, 1, n % 90 + 1) for n in range(90)))
        first.take()
        assert len(first.got) == 90
        leave(first)
        second = MqttPeer(node, V5, "d", opened=False)
        second.ask(wire.connect(V5, "d", clean=False, raw=LASTING + b"\x21\0\7"))
        got = 0
        while got < 90:
            assert len(second.got) <= 7, "more are under way than it takes"
            number = second.got.pop(0).packet_id
            got += 1
            assert number == got
            second.ask(wire.ack(wire.PUBACK, number))
        writer.ask(wire.publish(V5, "s", b"new", 1, 1))
        assert second.payloads() == [b"new"]


@pytest.mark.parametrize("size", [10, 30_000])
def test_many_and_large_ones(tmp_path: Path, size: int) -> None:
    with world(tmp_path, 2, affinity=False, topics=(TopicRule("#", "{1}"),)) as node:
        first = durable(node, V5)
        first.subscribe(("m/+/x", 1))
        writer = MqttPeer(node, V5, "writer")
        for n in range(COUNT):  # with others between them
            topic = f"m/{n % 3}/x" if n % 5 else "m/0/y"
            writer.ask(wire.publish(V5, topic, b"%d" % n + bytes(size), 1, 1))
        first.take()
        wanted = [(each.topic, each.payload, each.packet_id) for each in first.got]
        assert len(wanted) == COUNT - COUNT // 5
        first.peer.close()
        second = durable(node, V5, 1)
        second.take()
        assert [(each.topic, each.payload, each.packet_id) for each in second.got] == wanted
        assert all(each.dup for each in second.got)


def test_what_is_not_kept_any_more_is_left_out(tmp_path: Path) -> None:
    """It is trimmed, or has expired; its identifier is free."""
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        writer = MqttPeer(node, V5, "writer")
        writer.ask(*(wire.publish(V5, "s", b"%d" % n, 1, n + 1) for n in range(10)))
        first.take()
        leave(first)
        owner = node.workers[0].owner
        owner.trim(owner.stream(b"s"), 6)
        second = durable(node, V5)
        second.take()
        assert [each.payload for each in second.got] == [b"6", b"7", b"8", b"9"]
        assert second.client.window.first_id == 7


def test_what_cannot_be_read_for_now_is_sent_by_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        writer = MqttPeer(node, V5, "writer")
        writer.ask(*(wire.publish(V5, "s", b"%d" % n, 1, n + 1) for n in range(3)))
        first.take()
        leave(first)

        def fail(*_args: object) -> NoReturn:
            raise OSError(errno.EMFILE, "too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(resending, "read_piece", fail)
            second = durable(node, V5)
            assert second.ended and not second.got
        third = durable(node, V5)
        third.take()
        assert [(each.payload, each.packet_id, each.dup) for each in third.got] == [
            (b"0", 1, True),
            (b"1", 2, True),
            (b"2", 3, True),
        ]


def test_retained_messages_too(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        MqttPeer(node, V5, "writer").ask(wire.publish(V5, "s", b"kept", 1, retain=True))
        first = durable(node, V5)
        first.subscribe(("s", 1))
        first.take()
        assert [each.retain for each in first.got] == [True]
        leave(first)
        second = durable(node, V5)
        second.take()
        assert [(each.payload, each.retain, each.dup) for each in second.got] == [(b"kept", True, True)]
        second.ask(wire.ack(wire.PUBACK, second.got[0].packet_id))
        leave(second)
        assert durable(node, V5).payloads() == []
