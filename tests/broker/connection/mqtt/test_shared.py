"""Shared subscriptions: `$share/GROUP/FILTER`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tailrace.broker.connection.mqtt.shared import consumer_of
from tailrace.broker.topics.rules import TopicRule
from tests.broker.mqtt import MqttPeer
from tests.broker.world import PATIENCE_S, World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS, Delivered

both = pytest.mark.parametrize("version", VERSIONS)
FIRST_LEVEL = (TopicRule("#", "{1}"),)
LASTING = b"\x11\0\0\x0e\x10"  # Session Expiry Interval: an hour


def publish(node: World, topic: str, payloads: Sequence[bytes], qos: int = 1, version: int = V5) -> None:
    writer = MqttPeer(node, version, "the writer")
    for at in range(0, len(payloads), 50):
        packets = [wire.publish(version, topic, each, qos, n + 1) for n, each in enumerate(payloads[at : at + 50])]
        writer.ask(*packets)
    writer.ask(wire.DISCONNECT)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]


def until(node: World, peers: Sequence[MqttPeer], is_done: Callable[[], bool]) -> None:
    """Until the peers have what they should; messages go to their `got`."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_done():
        assert time.monotonic() < end_s, [len(each.got) for each in peers]
        for worker in node.workers:
            worker.mqtt.tick(worker.services.now_s)
            worker.members.tick()
        for peer in peers:
            peer.take()
        time.sleep(0.001)


def acknowledge(peer: MqttPeer, messages: Sequence[Delivered]) -> None:
    peer.ask(*(wire.ack(wire.PUBACK, each.packet_id) for each in messages if each.qos))


def payloads(peers: Sequence[MqttPeer]) -> list[bytes]:
    return sorted(each.payload for peer in peers for each in peer.got)


@pytest.mark.few(3)
@both
@pytest.mark.parametrize("rules", [(), FIRST_LEVEL], ids=["streams", "topics"])
@pytest.mark.parametrize("qos", [0, 1])
def test_each_message_comes_to_one_of_the_group(
    tmp_path: Path, version: int, qos: int, rules: tuple[TopicRule, ...]
) -> None:
    """[MQTT-4.8.2-1], [MQTT-4.8.2-2], [MQTT-4.8.2-3]: at any worker; two groups have them both."""
    with world(tmp_path, 2, affinity=False, topics=rules) as node:
        publish(node, "jobs/a", [b"before"])
        peers = [MqttPeer(node, version, f"c{n}", n % 2) for n in range(4)]
        for peer in peers:
            assert peer.subscribe(("$share/group/jobs/a", qos)) == [qos]
        other = MqttPeer(node, version, "other")
        assert other.subscribe(("$share/another/jobs/a", qos)) == [qos]
        sent = numbers(200)
        publish(node, "jobs/a", sent)
        everyone = [*peers, other]

        def all_there() -> bool:
            for peer in everyone:
                if version == V4:
                    assert all(each.topic == "jobs/a" for each in peer.got)
            return len(payloads(peers)) >= 200 and len(other.got) >= 200

        until(node, everyone, all_there)
        until(node, everyone, lambda: True)
        assert payloads(peers) == sent == payloads([other])
        assert {each.qos for peer in everyone for each in peer.got} == {qos}


@both
def test_what_a_member_has_not_acknowledged_goes_to_another_one(tmp_path: Path, version: int) -> None:
    with world(tmp_path, 2, affinity=False) as node:
        publish(node, "jobs", [b"before"])
        first, second = MqttPeer(node, version, "one", 0), MqttPeer(node, version, "two", 1)
        first.subscribe(("$share/g/jobs", 1))
        second.subscribe(("$share/g/jobs", 1))
        publish(node, "jobs", numbers(40))
        until(node, [first, second], lambda: len(payloads([first, second])) == 40)
        assert first.got
        acknowledge(second, second.got)
        kept = first.got[: len(first.got) // 2]
        acknowledge(first, kept)
        first.peer.close()
        lost = {each.payload for each in first.got} - {each.payload for each in kept}
        had = len(second.got)
        until(node, [second], lambda: len(second.got) >= had + len(lost))
        assert {each.payload for each in second.got[had:]} == lost
        assert not any(each.dup for each in second.got)


def test_a_message_that_is_refused_goes_to_nobody_else(tmp_path: Path) -> None:
    """[MQTT-4.8.2-6]."""
    with world(tmp_path) as node:
        publish(node, "jobs", [b"before"])
        first, second = MqttPeer(node, V5, "one"), MqttPeer(node, V5, "two")
        first.subscribe(("$share/g/jobs", 1))
        publish(node, "jobs", [b"x"])
        until(node, [first], lambda: len(first.got) == 1)
        second.subscribe(("$share/g/jobs", 1))
        first.ask(wire.ack(wire.PUBACK, first.got[0].packet_id, b"\x80\0"))
        first.ask(wire.DISCONNECT)
        publish(node, "jobs", [b"y"])
        until(node, [second], lambda: bool(second.got))
        assert payloads([second]) == [b"y"]


@both
def test_qos_2_is_granted_as_1(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        publish(node, "jobs", [b"before"])
        peer = MqttPeer(node, version)
        assert peer.subscribe(("$share/g/jobs", 2)) == [1]
        publish(node, "jobs", [b"x"], 2)
        until(node, [peer], lambda: len(peer.got) == 1)
        assert peer.got[0].qos == 1


def test_no_retained_message_is_sent(tmp_path: Path) -> None:
    """Retain Handling does not count."""
    with world(tmp_path) as node:
        writer = MqttPeer(node, V5, "writer")
        writer.ask(wire.publish(V5, "jobs", b"kept", 1, 1, retain=True))
        peer = MqttPeer(node)
        for _ in range(2):
            assert peer.subscribe(("$share/g/jobs", 1)) == [1]
        publish(node, "jobs", [b"new"])
        until(node, [peer], lambda: bool(peer.got))
        assert payloads([peer]) == [b"new"]


@both
@pytest.mark.parametrize("rules", [(), FIRST_LEVEL], ids=["streams", "topics"])
def test_wildcards_and_streams_made_later(tmp_path: Path, version: int, rules: tuple[TopicRule, ...]) -> None:
    with world(tmp_path, 2, affinity=False, topics=rules) as node:
        publish(node, "jobs/a", [b"before"])
        peers = [MqttPeer(node, version, f"c{n}", n % 2) for n in range(2)]
        for peer in peers:
            granted = peer.subscribe(("$share/g/jobs/+", 1), ("$share/g/+/made/later", 1), ("$share/g/new/x", 1))
            assert granted == [1, 1, 1]
        for topic in ("jobs/a", "jobs/b", "it/made/later", "new/x"):
            publish(node, topic, [topic.encode()] * 3)
        until(node, peers, lambda: len(payloads(peers)) >= 12)
        assert payloads(peers) == [b"it/made/later"] * 3 + [b"jobs/a"] * 3 + [b"jobs/b"] * 3 + [b"new/x"] * 3


@both
def test_a_group_ends_with_its_last_session(tmp_path: Path, version: int) -> None:
    """A later subscription begins with new messages."""
    with world(tmp_path, 2, affinity=False) as node:
        publish(node, "jobs", [b"before"])
        first, second = MqttPeer(node, version, "one", 0), MqttPeer(node, version, "two", 1)
        first.subscribe(("$share/g/jobs", 1))
        second.subscribe(("$share/g/jobs", 1))
        first.ask(wire.DISCONNECT)
        publish(node, "jobs", [b"to the second"])
        until(node, [second], lambda: bool(second.got))
        (answer,) = second.ask(wire.unsubscribe(version, 9, "$share/g/jobs"))
        assert answer.kind == 11
        assert version == V4 or answer.body[-1] == 0
        publish(node, "jobs", [b"to nobody"])
        assert second.subscribe(("$share/g/jobs", 1)) == [1]
        publish(node, "jobs", [b"to it again"])
        until(node, [second], lambda: len(second.got) > 1)
        assert [each.payload for each in second.got] == [b"to the second", b"to it again"]
        second.ask(wire.DISCONNECT)
        peer = node.connect(0)
        assert node.ask(peer, "consumers jobs")[1:] == ["."]


@both
@pytest.mark.parametrize("slot", [0, 1])
def test_a_durable_session_is_in_its_group_while_it_is_away(tmp_path: Path, version: int, slot: int) -> None:
    raw = LASTING if version == V5 else b""
    with world(tmp_path, 2, affinity=False) as node:
        publish(node, "jobs", [b"before"])

        def connect(slot: int) -> MqttPeer:
            peer = MqttPeer(node, version, "d", slot, opened=False)
            peer.ask(wire.connect(version, "d", clean=False, raw=raw))
            return peer

        first = connect(0)
        first.subscribe(("$share/g/jobs", 1))
        publish(node, "jobs", [b"1", b"2"])
        until(node, [first], lambda: len(first.got) == 2)
        acknowledge(first, first.got[:1])
        first.ask(wire.DISCONNECT)
        publish(node, "jobs", [b"3"])
        other = MqttPeer(node, version, "other")
        other.subscribe(("$share/g/jobs", 1))
        until(node, [other], lambda: len(other.got) == 2)
        acknowledge(other, other.got)
        other.ask(wire.DISCONNECT)
        publish(node, "jobs", [b"4"])
        second = connect(slot)
        until(node, [second], lambda: len(second.got) == 1)
        assert [payloads([each]) for each in (other, second)] == [[b"2", b"3"], [b"4"]]
        acknowledge(second, second.got)
        assert second.client.window.room == 1_000
        second.ask(wire.DISCONNECT)
        clean = MqttPeer(node, version, "d", opened=False)  # ends the session, and with it the group
        clean.ask(wire.connect(version, "d", clean=True))
        assert node.ask(node.connect(0), "consumers jobs")[1:] == ["."]


def test_a_member_whose_worker_is_gone_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as node:
        publish(node, "jobs", [b"before"])
        worker = node.workers[0]
        first, second = MqttPeer(node, V5, "one"), MqttPeer(node, V5, "two")
        first.subscribe(("$share/g/jobs", 1))
        publish(node, "jobs", [b"x"])
        until(node, [first], lambda: bool(first.got))
        (consumer,) = worker.desk.books[b"jobs"].consumers.by_name.values()
        (member,) = consumer.members
        monkeypatch.setattr(worker.members, "_is_gone", lambda each: each == member)
        second.subscribe(("$share/g/jobs", 1))
        until(node, [second], lambda: bool(second.got))
        assert payloads([second]) == [b"x"]


def test_a_slow_member_gets_no_more_than_its_receive_maximum(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        publish(node, "jobs", [b"before"])
        peer = MqttPeer(node, V5, "one", raw=b"\x21\0\x05")
        peer.subscribe(("$share/g/jobs", 1), ("other", 1))
        publish(node, "jobs", numbers(30))
        publish(node, "other", numbers(1, 30))
        until(node, [peer], lambda: len(peer.got) >= 5)
        assert len(peer.got) == 5
        done = 0
        while done < 31:
            some = peer.got[done : done + 5]
            done += len(some)
            acknowledge(peer, some)
            until(node, [peer], lambda: len(peer.got) >= min(done + 5, 31))  # noqa: B023
            assert len(peer.got) <= done + 5
        assert payloads([peer]) == numbers(31)


def test_a_filter_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    with world(tmp_path, max_subscriptions=2) as node:
        peer = MqttPeer(node)
        assert peer.subscribe(("$share/g/a", 1), ("b", 0), ("$share/g/c", 0)) == [1, 0, 0x97]


def test_names_of_consumers_are_apart_and_valid() -> None:
    names = {
        consumer_of(each)
        for each in (b"$share/g/a", b"$share/g/b", b"$share/h/a", b"$share/g h/a", b"$share/" + b"g" * 500 + b"/a")
    }
    assert len(names) == 5
    assert all(len(name) <= 100 and b" " not in name for name in names)
