"""Connections that send one message, or acknowledgements, at a time are read and answered together: the same as each by
itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.connection.test_singles import payloads
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import PUBACK, V4, V5, VERSIONS

both = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def single(node: World, peer: MqttPeer) -> bool:
    """Whether its next packet is to be read with those of others."""
    return peer.client in node.workers[0].singles._packets.values()


def publishers(node: World, version: int, count: int, name: str) -> list[MqttPeer]:
    peers = [MqttPeer(node, version, f"c{number}") for number in range(count)]
    for peer in peers:
        peer.ask(wire.publish(version, name, b"first", 1, 9))
        assert single(node, peer)
    return peers


def acks(peer: MqttPeer) -> list[int]:
    return [int.from_bytes(each.body[:2], "big") for each in peer.take() if each.kind == 4]


@both
def test_each_is_acknowledged_with_its_identifier(node: World, version: int) -> None:
    here, away = node.name(0), node.name(1)
    peers, metrics = publishers(node, version, 4, here), node.workers[0].metrics.mqtt
    before = metrics.bytes_in, metrics.bytes_out, metrics.messages_in
    packets = [wire.publish(version, here, b"%d" % n, n > 0, 10 + n) for n in range(3)]
    packets.append(wire.publish(version, away, b"3", 1, 13))
    for peer, packet in zip(peers, packets, strict=True):
        peer.send(packet)
    node.settle()
    assert [acks(peer) for peer in peers] == [[], [11], [12], [13]] and all(single(node, peer) for peer in peers)
    after = metrics.bytes_in, metrics.bytes_out, metrics.messages_in
    wanted = (sum(map(len, packets)), 3 * 4, 4)
    assert tuple(now - then for now, then in zip(after, before, strict=True)) == wanted
    assert payloads(node, here)[4:] == [b"0", b"1", b"2"] and payloads(node, away) == [b"3"]
    clients = [peer.client for peer in peers]
    assert not any(client.awaited or client.unacknowledged for client in clients)


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_each_is_told_of_a_refusal(tmp_path: Path, version: int, qos: int) -> None:
    """With QoS 1: a reason in MQTT 5, the end in MQTT 3.1.1."""
    with world(tmp_path, auto_master=False) as node:
        peers = [MqttPeer(node, version, f"c{number}") for number in range(2)]
        for peer in peers:
            peer.ask(wire.publish(version, "none", b"x"))
            assert single(node, peer)
            peer.send(wire.publish(version, "none", b"x", qos, 7))
        node.settle()
        for peer in peers:
            answers = peer.take()
            assert [(each.kind, wire.reason(each)) for each in answers] == [(4, 0x83)] * (qos and version == V5)
            assert peer.ended == (qos == 1 and version == V4)
            assert peer.ended or not peer.client.awaited
        ends = 2 * (qos == 1 and version == V4)
        assert node.workers[0].metrics.refused.counts["disabled"] == 4 + ends


@both
def test_what_comes_behind_it_is_acknowledged_behind_it(node: World, version: int) -> None:
    here, away = node.name(0), node.name(1)
    (peer,) = publishers(node, version, 1, away)
    peer.send(wire.publish(version, away, b"second", 1, 2))
    node.workers[0].turn()
    client = peer.client
    assert client.awaited == 1 and client.unacknowledged == 1
    peer.send(wire.publish(version, here, b"third", 1, 3))
    node.workers[0].turn()
    assert acks_so_far(peer) == [], "the other worker has not answered yet"
    peer.send(wire.publish(version, away, b"fourth", 2, 4))
    node.settle()
    assert [each.body[:2] for each in peer.collect()] == [b"\0\2", b"\0\3", b"\0\4"]
    assert not client.awaited and not client.in_row and not client.unacknowledged
    assert payloads(node, away) == [b"first", b"second", b"fourth"]


@both
def test_messages_with_qos_0_wait_for_no_outcome(node: World, version: int) -> None:
    """The other worker has not answered the first ones when the next come; what comes behind them waits for all."""
    here, away = node.name(0), node.name(1)
    (peer,) = publishers(node, version, 1, away)
    for number in range(3):
        peer.send(wire.publish(version, away, b"%d" % number))
        node.workers[0].turn()
    assert single(node, peer) and peer.client.awaited == 3
    peer.send(wire.publish(version, away, b"3", 1, 2))
    node.workers[0].turn()
    assert single(node, peer) and peer.client.awaited == 4 and peer.client.unacknowledged == 1
    peer.send(wire.publish(version, here, b"behind", 1, 3))
    node.workers[0].turn()
    assert [peer.client.in_row, acks_so_far(peer)] == [True, []]
    node.settle()
    assert [each.body[:2] for each in peer.collect()] == [b"\0\2", b"\0\3"]
    assert not peer.client.awaited and not peer.client.in_row and not peer.client.unacknowledged
    assert payloads(node, away) == [b"first", b"0", b"1", b"2", b"3"]


def acks_so_far(peer: MqttPeer) -> list[wire.Answer]:
    peer.peer.read()
    return peer.collect()


@both
def test_a_refusal_from_another_worker_keeps_its_place(tmp_path: Path, version: int) -> None:
    with world(tmp_path, workers=2, affinity=False, auto_master=False) as node:
        peer = MqttPeer(node, version)
        away = node.name(1)
        peer.ask(wire.publish(version, away, b"x"))
        assert single(node, peer)
        peer.send(wire.publish(version, away, b"x", 1, 2))
        node.workers[0].turn()
        peer.send(wire.publish(version, away, b"x", 1, 3))
        node.workers[0].turn()
        node.settle()
        assert [wire.reason(each) for each in peer.collect()] == [0x83, 0x83] * (version == V5)
        assert peer.ended == (version == V4)


@both
def test_acknowledgements_make_room(node: World, version: int) -> None:
    readers = [MqttPeer(node, version, f"r{n}", raw=b"\x21\0\1" if version == V5 else b"") for n in range(3)]
    name = node.name(0)
    for reader in readers:
        reader.subscribe((name, 1))
    (writer,) = publishers(node, version, 1, name)
    for number in range(3):
        writer.ask(wire.publish(version, name, b"%d" % number, 1, 1))
        for reader in readers:
            reader.take()
            reader.send(wire.ack(PUBACK, number + 1))
    node.settle()
    for reader in readers:
        reader.take()
        assert single(node, reader) and [each.payload for each in reader.got] == [b"first", b"0", b"1", b"2"]
        assert reader.client.window.first_id == 4


@both
def test_others_are_read_by_themselves(node: World, version: int) -> None:
    """Parts of packets, several messages, a property, and a client that has not released its QoS 2 messages."""
    name = node.name(0)
    (peer,) = publishers(node, version, 1, name)
    packet = wire.publish(version, name, b"x", 1, 2)
    peer.send(packet[:5])
    node.settle()
    assert not single(node, peer)
    peer.send(packet[5:])
    node.settle()
    assert acks(peer) == [2] and single(node, peer)
    peer.send(packet, packet)
    node.settle()
    assert acks(peer) == [2, 2] and not single(node, peer)
    peer.ask(*(wire.publish(version, name, b"x", 2, number) for number in range(10, 110)))
    if version == V5:
        peer.send(packet)
        assert [wire.reason(each) for each in peer.take()] == [0x93] and peer.ended


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_random_life(tmp_path: Path, workers: int, seed: int) -> None:
    """Every connection gets its acknowledgements in the order of its messages, and each message is logged once, those
    of a connection in their order.
    """
    chance = random.Random(seed)
    with world(tmp_path, workers=workers, affinity=bool(seed % 2)) as node:
        names = [node.name(slot, prefix) for slot in range(workers) for prefix in "ab"]
        peers = [MqttPeer(node, chance.choice(VERSIONS), f"c{n}", chance.randrange(workers)) for n in range(6)]
        wanted: list[list[int]] = [[] for _ in peers]
        sent: dict[tuple[int, str], list[bytes]] = {}
        for step in range(300):
            place = chance.randrange(len(peers))
            data = b""
            for part in range(chance.choice([1, 1, 1, 1, 2, 3])):
                name, payload, qos = chance.choice(names), b"%d %d %d" % (place, step, part), chance.randrange(2)
                packet_id = len(wanted[place]) + 1
                data += wire.publish(peers[place].version, name, payload, qos, packet_id)
                wanted[place] += [packet_id] * qos
                sent.setdefault((place, name), []).append(payload)
            cut = chance.randrange(len(data)) if chance.random() < 0.1 else 0
            peers[place].send(*filter(None, (data[:cut], data[cut:])))
            if chance.random() < 0.3:
                for worker in node.workers:
                    worker.turn()
            if chance.random() < 0.05:
                node.settle()
        node.settle()
        assert [acks(peer) for peer in peers] == wanted
        for name in names:
            logged = payloads(node, name)
            assert len(logged) == sum(len(those) for (_place, each), those in sent.items() if each == name)
            for place in range(len(peers)):
                of_peer = [each for each in logged if each.startswith(b"%d " % place)]
                assert of_peer == sent.get((place, name), [])
