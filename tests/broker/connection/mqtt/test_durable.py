"""Durable sessions in the workers of one process: what goes on in another connection of the same client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.connection.mqtt import subscribing
from tailrace.broker.connection.mqtt.window import leap_place
from tailrace.broker.process.timers import now_us
from tailrace.broker.sessions import store
from tailrace.protocol.errors import Code
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS
from tests.system.node import wait_for

both = pytest.mark.parametrize("version", VERSIONS)
LASTING = b"\x11\0\0\x0e\x10"  # Session Expiry Interval: an hour


def durable(node: World, version: int, slot: int = 0, *, clean: bool = False, client_id: str = "d") -> MqttPeer:
    """A client that has connected; `connack` has its flags in `body[0]`."""
    peer = MqttPeer(node, version, client_id, slot, opened=False)
    raw = LASTING if version == V5 else b""
    (peer.connack,) = peer.ask(wire.connect(version, client_id, clean=clean, raw=raw))[:1]
    return peer


def leave(peer: MqttPeer) -> None:
    peer.send(wire.DISCONNECT)
    assert peer.ended


@both
@pytest.mark.parametrize("slot", [0, 1])
def test_subscriptions_and_positions_go_on(tmp_path: Path, version: int, slot: int) -> None:
    """[MQTT-3.1.2-5], [MQTT-3.2.2-2], [MQTT-3.2.2-3]: at any worker, of streams of any worker."""
    with world(tmp_path, 2, affinity=False) as node:
        first = durable(node, version)
        assert first.connack.body[:2] == b"\0\0"
        names = node.name(0), node.name(1)
        assert first.subscribe((names[0], 1), (names[1], 2)) == [1, 2]
        leave(first)
        writer = MqttPeer(node, version, "writer")
        writer.ask(*(wire.publish(version, names[n % 2], b"%d" % n, 1, n + 1) for n in range(10)))
        second = durable(node, version, slot)
        assert second.connack.body[:2] == b"\1\0"
        second.take()
        assert sorted(each.payload for each in second.got) == [b"%d" % n for n in range(10)]
        assert not any(each.dup for each in second.got)


@both
@pytest.mark.parametrize("slot", [0, 1])
def test_messages_under_way_are_sent_again(tmp_path: Path, version: int, slot: int) -> None:
    """[MQTT-4.4.0-1], [MQTT-3.3.1-1], [MQTT-4.6.0-1]: with DUP and their identifiers, in their order, before others;
    for QoS 2 that the client has received PUBREL.
    """
    with world(tmp_path, 2, affinity=False) as node:
        name = node.name(0)
        first = durable(node, version)
        first.subscribe((name, 2))
        writer = MqttPeer(node, version, "writer")
        writer.ask(*(wire.publish(version, name, b"%d" % n, 1 + n % 2, n + 1) for n in range(8)))
        first.take()
        ids = [each.packet_id for each in first.got]
        assert ids == list(range(1, 9))
        first.ask(
            wire.ack(wire.PUBACK, 1), wire.ack(wire.PUBACK, 5), wire.ack(wire.PUBREC, 4), wire.ack(wire.PUBREC, 6)
        )
        first.peer.close()
        node.settle()
        writer.ask(wire.publish(version, name, b"8", 1, 9))
        second = durable(node, version, slot)
        second.take()
        assert [(each.payload, each.packet_id, each.dup) for each in second.got] == [
            *((b"%d" % (number - 1), number, True) for number in (2, 3, 7, 8)),
            (b"8", 9, False),
        ]
        released = [int.from_bytes(each.body[:2], "big") for each in second.answers if each.kind == 6]
        assert released == [4, 6]


@both
def test_a_clean_start_forgets(tmp_path: Path, version: int) -> None:
    """[MQTT-3.1.2-4], [MQTT-3.1.2-6], [MQTT-3.2.2-2]."""
    with world(tmp_path) as node:
        first = durable(node, version)
        first.subscribe(("s", 1))
        leave(first)
        second = durable(node, version, clean=True)
        assert second.connack.body[:2] == b"\0\0"
        MqttPeer(node, version, "writer").ask(wire.publish(version, "s", b"x", 1))
        assert second.payloads() == []
        leave(second)
        third = durable(node, version)
        assert third.connack.body[0] == int(version == V5), "a clean session of MQTT 3.1.1 ends with its connection"
        assert third.payloads() == []


@both
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("loses", [False, True])
def test_another_connection_takes_it_over(tmp_path: Path, version: int, slot: int, loses: bool) -> None:
    """[MQTT-3.1.4-3]: the older one gets 0x8E; one whose client has gone is in the same state."""
    with world(tmp_path, 2, affinity=False) as node:
        name = node.name(1)
        first = durable(node, version)
        first.subscribe((name, 1))
        writer = MqttPeer(node, version, "writer")
        writer.ask(*(wire.publish(version, name, b"%d" % n, 1, n + 1) for n in range(4)))
        first.take()
        first.ask(wire.ack(wire.PUBACK, 1), wire.ack(wire.PUBACK, 2))
        if loses:
            first.peer.close()  # which no worker has noticed
        second = durable(node, version, slot)
        assert second.connack.body[0] == 1
        if not loses:
            assert first.ended
            assert version == V4 or wire.reason(first.answers[-1]) == 0x8E
        writer.ask(wire.publish(version, name, b"4", 1, 9))
        second.take()
        assert [(each.payload, each.dup) for each in second.got] == [(b"2", True), (b"3", True), (b"4", False)]


def test_connections_take_it_over_one_after_the_other(tmp_path: Path) -> None:
    """Each of them has the identifier, whichever worker the one before it is at."""
    with world(tmp_path, 2, affinity=False) as node:
        peers = [durable(node, V5, slot) for slot in (0, 0, 1, 1, 0)]
        assert [peer.ended for peer in peers] == [True] * 4 + [False]


def test_the_session_expires(tmp_path: Path) -> None:
    """[MQTT-4.1.0-2]; DISCONNECT may give it another time, but not one to a session that has none."""
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        first.send(wire.packet(0xE0, b"\0\5\x11\0\0\0\0"))
        assert first.ended
        assert durable(node, V5).connack.body[0] == 0
        other = MqttPeer(node, V5, "other", opened=False)
        other.ask(wire.connect(V5, "other", raw=b"\x11\0\0\0\1"))
        other.send(wire.DISCONNECT)
        assert other.ended
        store = node.workers[0].sessions
        store._clock_us = lambda: 2_000_000 + now_us()
        assert durable(node, V5, client_id="other").connack.body[0] == 0


def test_connack_says_what_is_granted(tmp_path: Path) -> None:
    with world(tmp_path, max_session_expiry_s=60) as node:
        peer = MqttPeer(node, V5, "c", opened=False)
        (connack,) = peer.ask(wire.connect(V5, "c", raw=b"\x11\xff\xff\xff\xff"))
        assert b"\x11\0\0\0\x3c" in connack.body
        assert b"\x11" not in MqttPeer(node, V5, "e", raw=b"\x11\0\0\0\x3c").connack.body[3:4]


@both
def test_without_room_no_session_begins(tmp_path: Path, version: int) -> None:
    with world(tmp_path, max_sessions=2) as node:
        leave(durable(node, version, client_id="a"))
        leave(durable(node, version, client_id="b"))
        refused = durable(node, version, client_id="c")
        assert refused.connack.body[:2] == (b"\0\x97" if version == V5 else b"\0\3")
        assert durable(node, version, client_id="a").connack.body[0] == 1
        assert MqttPeer(node, version, "d").connack.body[:2] == b"\0\0", "a session without an expiry needs none"


@both
def test_sessions_can_be_turned_off(tmp_path: Path, version: int) -> None:
    with world(tmp_path, max_sessions=0) as node:
        first = durable(node, version)
        assert version == V4 or b"\x11\0\0\0\0" in first.connack.body
        first.subscribe(("s", 1))
        leave(first)
        assert durable(node, version).connack.body[0] == 0


def kill(peer: MqttPeer) -> None:
    """As if its worker were killed: unstored changes are lost."""
    peer.client.session = None
    peer.peer.close()
    peer.node.settle()


def store_now(peer: MqttPeer) -> None:
    client = peer.client
    client.mqtt.durable.save(client, lambda refused: None)
    peer.node.settle()


def test_after_a_kill_messages_come_twice_rather_than_never(tmp_path: Path) -> None:
    """Their identifiers are new ones: the client may have other messages with those that come next."""
    with world(tmp_path, 2, affinity=False) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        writer = MqttPeer(node, V5, "writer")
        writer.ask(wire.publish(V5, "s", b"0", 1, 1), wire.publish(V5, "s", b"1", 1, 2))
        first.ask(wire.ack(wire.PUBACK, 1))
        store_now(first)
        writer.ask(wire.publish(V5, "s", b"2", 1, 3))
        assert first.payloads() == [b"0", b"1", b"2"]
        kill(first)
        second = durable(node, V5, 1)
        second.take()
        assert [(each.payload, each.packet_id, each.dup) for each in second.got] == [(b"1", 2, True)]
        second.got.clear()
        second.ask(wire.ack(wire.PUBACK, 2))
        assert second.client.session is not None
        leapt = leap_place(second.client.session.turn)
        assert [(each.payload, each.packet_id, each.dup) for each in second.got] == [(b"2", leapt, False)]


def test_after_a_kill_no_message_is_taken_for_one_that_was_released(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.ask(wire.publish(V5, "s", b"0", 2, 5))
        store_now(first)
        first.ask(wire.ack(wire.PUBREL, 5))
        kill(first)
        second = durable(node, V5)
        second.ask(wire.publish(V5, "s", b"1", 2, 5), wire.ack(wire.PUBREL, 5))
        assert node.workers[0].owner.stream(b"s").log.next_seq == 2


@both
def test_a_repeated_qos_2_message_is_logged_once_over_connections(tmp_path: Path, version: int) -> None:
    """[MQTT-4.3.3-10], [MQTT-4.4.0-1]."""
    with world(tmp_path, 2, affinity=False) as node:
        name = node.name(0)
        first = durable(node, version)
        first.ask(wire.publish(version, name, b"once", 2, 5))
        first.peer.close()
        second = durable(node, version, 1)
        (received,) = second.ask(wire.publish(version, name, b"once", 2, 5, dup=True))
        assert received.body == b"\0\5"
        second.ask(wire.ack(wire.PUBREL, 5))
        assert node.workers[0].owner.stream(name.encode()).log.next_seq == 1


@pytest.mark.few(5)
@both
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_session_waits_for_the_outcome_of_a_qos_2_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, slot: int, is_cut: bool, is_refused: bool
) -> None:
    """A repeat of one whose stream's owner was killed before it had it is not acknowledged as one that is logged."""
    with world(tmp_path, 2, affinity=False) as node:
        router, name = node.workers[0].router, node.name(1)
        held: list[tuple[Any, ...]] = []
        first = durable(node, version)
        client = first.client
        with monkeypatch.context() as patched:
            patched.setattr(type(router), "publish_group", lambda _router, *group: held.append(group))
            assert first.ask(wire.publish(version, name, b"once", 2, 5)) == []
        if is_cut:
            first.peer.close()
            node.settle()
        second = MqttPeer(node, version, "d", slot, opened=False)
        raw = LASTING if version == V5 else b""
        assert second.ask(wire.connect(version, "d", clean=False, raw=raw)) == []
        ((_client, row, key, frames, *_rest),) = held
        if is_refused:
            client.group_refused(row, key, Code.UNAVAILABLE, "its owner is gone", None)
        else:
            router.publish_group(client, row, key, frames, False)
        wait_for(lambda: bool(second.take() or second.answers), "CONNACK")
        assert second.answers[0].body[0] == 1
        (received,) = second.ask(wire.publish(version, name, b"once", 2, 5, dup=True))
        assert (received.kind, received.body) == (5, b"\0\5")
        assert node.workers[1].owner.stream(name.encode()).log.next_seq == 1


def test_a_session_that_leaves_before_it_has_gone_on_after_a_kill_is_not_exact(tmp_path: Path) -> None:
    """Else identifiers are given out again with which the client keeps other messages."""
    with world(tmp_path, 2, affinity=False) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        store_now(first)
        assert first.client.session is not None
        stored = first.client.session.stored
        kill(first)
        second = durable(node, V5)
        session = second.client.session
        assert session is not None
        session.is_resuming, session.stored = True, stored
        second.peer.close()
        node.settle()
        third = durable(node, V5)
        MqttPeer(node, V5, "writer").ask(wire.publish(V5, "s", b"0", 2, 1))
        third.take()
        assert third.client.session is not None
        assert [each.packet_id for each in third.got] == [leap_place(third.client.session.turn)]


def test_wildcards_find_what_was_made_meanwhile(tmp_path: Path) -> None:
    with world(tmp_path, 2, affinity=False) as node:
        writer = MqttPeer(node, V5, "writer")
        writer.ask(wire.publish(V5, "w/a", b"before", 1, 1))
        first = durable(node, V5)
        first.subscribe(("w/#", 1), ("zero/#", 0))
        leave(first)
        writer.ask(*(wire.publish(V5, f"w/{n}", b"%d" % n, 1, n + 1) for n in range(5)))
        writer.ask(wire.publish(V5, "w/a", b"after", 1, 1))
        second = durable(node, V5, 1)
        for worker in node.workers:
            worker.mqtt.wildcards.tick()
        second.take()
        assert sorted(each.payload for each in second.got) == [*(b"%d" % n for n in range(5)), b"after"]


def test_what_was_trimmed_meanwhile_is_missing_and_counted(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        leave(first)
        MqttPeer(node, V5, "writer").ask(*(wire.publish(V5, "s", b"%d" % n, 1, n + 1) for n in range(9)))
        owner = node.workers[0].owner
        owner.trim(owner.stream(b"s"), 6)
        assert durable(node, V5).payloads() == [b"6", b"7", b"8"]
        assert node.workers[0].metrics.refused.counts["trimmed"] == 1


def test_a_session_that_was_removed_ends_its_connection(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        first = durable(node, V5)
        first.subscribe(("s", 1))
        assert node.workers[0].sessions.drop([b"d"])
        store_now(first)
        assert first.ended and wire.reason(first.answers[-1]) == 0x98
        assert durable(node, V5).connack.body[0] == 0


@pytest.mark.parametrize("takes_over", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("delay_s", [0, 9])
def test_the_will_of_a_session_that_lasts(tmp_path: Path, takes_over: bool, clean: bool, delay_s: int) -> None:
    """[MQTT-3.1.2-8], [MQTT-3.1.3-9]: with a delay it comes only if the session ends before its client is back."""
    with world(tmp_path, 2, affinity=False) as node:
        reader = MqttPeer(node, V5, "reader")
        reader.subscribe(("wills", 1))
        first = MqttPeer(node, V5, "d", opened=False)
        will_raw = b"\x18" + delay_s.to_bytes(4, "big")
        first.ask(wire.connect(V5, "d", clean=False, raw=LASTING, will=("wills", b"gone", 1), will_raw=will_raw))
        if not takes_over:
            first.peer.close()
            node.settle()
            assert reader.payloads() == ([] if delay_s else [b"gone"])
        durable(node, V5, 1, clean=clean)
        wanted = [b"gone"] if (clean if delay_s else takes_over) else []
        assert reader.payloads() == wanted


@both
def test_a_session_at_its_bound_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """A SUBSCRIBE for which it has no room is refused and changes nothing: there is room for messages under way, and
    for UNSUBSCRIBE.
    """
    filters = [f"s/{n:03}/".ljust(1_000, "x") for n in range(50)]
    monkeypatch.setattr(subscribing, "SUBSCRIBED_BYTES_MAX", 32 << 10)
    monkeypatch.setattr(store, "RECORD_BYTES_MAX", 128 << 10)
    with world(tmp_path) as node:
        first, reasons = durable(node, version), list[int]()
        for place in range(0, len(filters), 10):
            reasons += first.subscribe(*((each, 1) for each in filters[place : place + 10]))
        granted = reasons.count(1)
        assert 20 < granted < len(filters) and set(reasons[granted:]) == {0x97 if version == V5 else 0x80}
        writer = MqttPeer(node, version, "writer")
        topics = filters[0:granted:2]
        writer.ask(*(wire.publish(version, each, b"x", 1, n + 1) for n, each in enumerate(topics)))
        assert len(first.payloads()) == len(topics)
        store_now(first)
        assert not first.ended
        kill(first)
        second = durable(node, version)
        assert second.connack.body[0] == 1 and len(second.payloads()) == len(topics)
        last = [(each, 1) for each in filters[-10:]]
        assert second.subscribe(*last) == [0x97 if version == V5 else 0x80] * 10
        for place in (0, 10):
            (answer,) = second.ask(wire.unsubscribe(version, 2, *filters[place : place + 10]))
            assert answer.kind == 11
        assert second.subscribe(*last) == [1] * 10
