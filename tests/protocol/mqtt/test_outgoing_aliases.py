"""PUBLISH packets with the broker's aliases, read by a client that keeps a table of them."""

from __future__ import annotations

import random

import pytest

from tailrace.protocol.mqtt.outgoing_aliases import ALIASES_MAX, OutgoingAliases
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5

NO_LIMIT = 1 << 28


def resolved(packets: bytes, table: dict[int, bytes], allowed: int) -> list[bytes]:
    """The packets as they were without aliases, as a client knows them."""
    found = []
    for answer in wire.split(packets):
        size = int.from_bytes(answer.body[:2], "big")
        topic, at = answer.body[2 : 2 + size], 2 + size + (2 if answer.flags & 6 else 0)
        packet_id, start = answer.body[2 + size : at], at
        length = place = 0
        while True:
            byte = answer.body[at]
            length |= (byte & 0x7F) << place
            at, place = at + 1, place + 7
            if byte < 0x80:
                break
        if answer.body[at : at + 1] == b"\x23":
            alias = int.from_bytes(answer.body[at + 1 : at + 3], "big")
            assert 1 <= alias <= allowed
            topic = topic or table[alias]
            table[alias] = topic
            body = wire.text(topic) + packet_id + wire.varint(length - 3) + answer.body[at + 3 :]
        else:
            body = wire.text(topic) + packet_id + answer.body[start:]
        assert topic
        found.append(wire.packet(0x30 | answer.flags, body))
    return found


def some_packets(rng: random.Random) -> list[bytes]:
    made = []
    for _ in range(rng.randrange(1, 12)):
        topic = "t" * rng.choice((1, 3, 4, 120)) + str(rng.randrange(9))
        raw = b"\x26" + wire.text("k") + wire.text("v" * rng.choice((0, 120, 125, 300)))
        payload = b"p" * rng.choice((0, 1, 100, 127, 16_300))
        qos = rng.randrange(3)
        made.append(wire.publish(V5, topic, payload, qos, 7, raw=rng.choice((b"", raw))))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_client_gets_the_same_messages(seed: int) -> None:
    rng = random.Random(seed)
    allowed = rng.choice((1, 3, 65_535))
    aliases, table = OutgoingAliases(allowed), dict[int, bytes]()
    for _ in range(30):
        packets = some_packets(rng)
        sent = aliases.rewrite(b"".join(packets), NO_LIMIT)
        assert resolved(sent, table, min(allowed, ALIASES_MAX)) == packets


def test_a_topic_is_sent_once() -> None:
    aliases = OutgoingAliases(2)
    first = aliases.rewrite(wire.publish(V5, "sensors/7", b"x"), NO_LIMIT)
    assert b"sensors/7" in first and b"\x23\0\1" in first
    again = aliases.rewrite(wire.publish(V5, "sensors/7", b"y"), NO_LIMIT)
    assert again == wire.packet(0x30, b"\0\0\3\x23\0\1y")
    assert aliases.rewrite(wire.publish(V5, "abc", b"y"), NO_LIMIT) == wire.publish(V5, "abc", b"y")


def test_no_packet_grows_beyond_what_the_client_takes() -> None:
    packet = wire.publish(V5, "sensors/7", b"x")
    aliases = OutgoingAliases(2)
    assert aliases.rewrite(packet, len(packet)) == packet
    assert len(aliases.rewrite(packet, len(packet) + 9)) <= len(packet) + 9
