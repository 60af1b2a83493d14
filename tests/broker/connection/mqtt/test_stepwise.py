"""Durable sessions with messages of QoS 2, which are stored before their clients see a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import ANSWERS_PENDING_MAX
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tests.broker.connection.mqtt.test_durable import both, durable, kill
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5
from tests.system.node import wait_for


@both
@pytest.mark.parametrize("slot", [0, 1])
def test_after_a_kill_a_session_with_qos_2_is_as_its_client_knows_it(tmp_path: Path, version: int, slot: int) -> None:
    """No message comes twice, no identifier is used again, and no released one is repeated: nothing goes out
    before it is stored.
    """
    with world(tmp_path, 2, affinity=False) as node:
        first = durable(node, version)
        first.subscribe(("s", 2))
        writer = MqttPeer(node, version, "writer")
        writer.ask(*(wire.publish(version, "s", b"%d" % n, 2, n + 1) for n in range(4)))
        assert first.payloads() == [b"0", b"1", b"2", b"3"]
        released = first.ask(wire.ack(wire.PUBREC, 1), wire.ack(wire.PUBREC, 2))
        assert [each.kind for each in released] == [6, 6]
        first.ask(wire.ack(wire.PUBCOMP, 1))
        kill(first)
        writer.ask(wire.publish(version, "s", b"4", 2, 5))
        second = durable(node, version, slot)
        second.take()
        assert [(each.payload, each.packet_id, each.dup) for each in second.got] == [
            (b"2", 3, True),
            (b"3", 4, True),
            (b"4", 5, False),
        ]
        again = [int.from_bytes(each.body[:2], "big") for each in second.answers if each.kind == 6]
        assert again in ([1, 2], [2])


@both
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("is_logged", [False, True])
def test_after_a_kill_a_repeated_qos_2_message_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, slot: int, is_logged: bool
) -> None:
    """Whether the message was logged when the worker of its client was killed, or not, or is on its way still."""
    with world(tmp_path, 2, affinity=False) as node:
        router, name = node.workers[0].router, node.name(1)
        held: list[tuple[Any, ...]] = []
        first = durable(node, version)
        with monkeypatch.context() as patched:
            if not is_logged:
                patched.setattr(type(router), "publish_group", lambda _router, *group: held.append(group))
            answers = first.ask(*(wire.publish(version, name, b"%d" % n, 2, n + 5) for n in range(2)))
        assert len(answers) == (2 if is_logged else 0)
        client = first.client
        first.client.undecided = set()
        kill(first)
        second = durable(node, version, slot)
        for n in range(2):
            (received,) = second.ask(wire.publish(version, name, b"%d" % n, 2, n + 5, dup=True))
            assert received.body == bytes((0, n + 5))
        for _client, row, key, frames, *_rest in held:
            router.publish_group(client, row, key, frames, False)
            node.settle()
        stream_log = node.workers[1].owner.stream(name.encode()).log
        assert stream_log.next_seq == 2
        assert [each.kind for each in second.ask(wire.ack(wire.PUBREL, 5), wire.ack(wire.PUBREL, 6))] == [7, 7]
        kill(second)
        third = durable(node, version)
        third.ask(wire.publish(version, name, b"another", 2, 5))
        assert stream_log.next_seq == 3


def test_a_session_that_cannot_be_stored_publishes_nothing_with_qos_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, and once the session is stored all goes on."""
    with world(tmp_path, 2, affinity=False) as node:
        first = durable(node, V5)
        name, refused = node.name(1), Refused(Code.UNAVAILABLE, "gone")
        with monkeypatch.context() as patched:
            patched.setattr(type(first.client.mqtt.durable), "save", lambda _self, _client, done: done(refused))
            assert first.ask(wire.publish(V5, name, b"x", 2, 5), wire.packet(0xC0, b"")) == []
            assert name.encode() not in node.workers[1].owner.catalog.names
        got: list[int] = []

        def is_answered() -> bool:
            got.extend(each.kind for each in first.take())
            return len(got) == 2

        wait_for(is_answered, "PUBREC and PINGRESP")
        assert sorted(got) == [5, 13]


def test_a_message_with_qos_2_before_a_faulty_one_is_not_logged_before_its_number_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client sends it again, and it would be logged twice."""
    unknown_alias = b"\x23\x00\x05"
    with world(tmp_path) as node:
        first = durable(node, V5)
        monkeypatch.setattr(type(first.client.mqtt.durable), "save", lambda _self, _client, _done: None)
        first.ask(wire.publish(V5, "s", b"x", 2, 5) + wire.publish(V5, "", b"y", 1, 6, raw=unknown_alias))
        assert first.ended
        assert b"s" not in node.workers[0].owner.catalog.names


def test_steps_that_wait_for_a_session_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.subscribe(("s", 2))
        writer = MqttPeer(node, V5, "writer")
        writer.ask(wire.publish(V5, "s", b"x", 2, 1))
        first.take()
        (message,) = first.got
        monkeypatch.setattr(type(first.client.mqtt.durable), "save", lambda _self, _client, _done: None)
        for _ in range(3):
            first.ask(wire.ack(wire.PUBREC, message.packet_id) * ANSWERS_PENDING_MAX)
        assert first.client.paused & Pause.ANSWERS
        assert first.client.awaited < 3 * ANSWERS_PENDING_MAX
