"""Framing: whole, byte by byte, too large, after a fault."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.mqtt.codec import CONNECT_BYTES_MAX, AnyPacket, MqttCodec
from tailrace.protocol.mqtt.packets import ConnectPacket, PingPacket, PublishPacket
from tailrace.protocol.mqtt.reasons import PacketError, Reason
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS


def conversation(version: int) -> bytes:
    return (
        wire.connect(version, "me", will=("w", b"x", 1))
        + b"".join(wire.publish(version, "a/b", bytes(n), n % 3, n + 1) for n in range(200))
        + wire.subscribe(version, 1, ("a/#", 1))
        + wire.ack(wire.PUBACK, 7)
        + wire.PINGREQ
        + wire.unsubscribe(version, 2, "a/#")
        + wire.DISCONNECT
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_packets_are_the_same_in_any_pieces(version: int) -> None:
    data = conversation(version)
    whole = list(MqttCodec(1 << 20).feed(data))
    assert len(whole) == 206 and not any(isinstance(each, PacketError) for each in whole)
    for seed in range(4):
        rng, codec, at = random.Random(seed), MqttCodec(1 << 20), 0
        found: list[AnyPacket] = []
        while at < len(data):
            size = 1 if not seed else rng.randrange(1, 700)
            found += codec.feed(data[at : at + size])
            at += size
        assert found == whole and codec.pending_bytes == 0


def test_its_version_is_that_of_connect() -> None:
    codec = MqttCodec(1 << 20)
    assert codec.version == 0
    (found,) = codec.feed(memoryview(wire.connect(V4)))
    assert isinstance(found, ConnectPacket) and codec.version == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_a_packet_that_is_too_large_is_refused_by_its_head(version: int) -> None:
    codec = MqttCodec(1_000)
    codec.version = version
    assert [type(each) for each in codec.feed(wire.publish(version, "a", bytes(980)))] == [PublishPacket]
    (error,) = codec.feed(wire.publish(version, "a", bytes(1_200))[:3])
    assert isinstance(error, PacketError) and error.reason is Reason.PACKET_TOO_LARGE
    assert codec.pending_bytes == 0 and list(codec.feed(wire.PINGREQ)) == []


def test_a_connect_has_a_bound_of_its_own() -> None:
    codec = MqttCodec(1 << 30)
    (error,) = codec.feed(b"\x10" + wire.varint(CONNECT_BYTES_MAX))
    assert isinstance(error, PacketError) and error.reason is Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x01", b"\x80\x00", b"\x82\x80\x00"])
def test_lengths_that_are_none(length: bytes) -> None:
    codec = MqttCodec(1 << 20)
    codec.version = V5
    (error,) = codec.feed(b"\xc0" + length)
    assert isinstance(error, PacketError) and error.reason is Reason.MALFORMED_PACKET


def test_packets_before_a_fault_count() -> None:
    codec = MqttCodec(1 << 20)
    first, ping, error = codec.feed(wire.connect(V5) + wire.PINGREQ + wire.packet(0xC1) + wire.PINGREQ)
    assert isinstance(first, ConnectPacket) and ping == PingPacket() and isinstance(error, PacketError)
    assert codec.ended and list(codec.feed(wire.PINGREQ)) == []


@given(st.binary(max_size=200), st.integers(0, 40))
def test_any_bytes_end_in_packets_or_one_error(data: bytes, cut: int) -> None:
    codec = MqttCodec(1 << 20)
    found = [*codec.feed(wire.connect(V5) + data[:cut]), *codec.feed(data[cut:])]
    assert not any(isinstance(each, PacketError) for each in found[:-1])
    assert codec.ended == isinstance(found[-1], PacketError)


def test_a_half_packet_moves_to_another_worker() -> None:
    data = conversation(V5)
    codec, other = MqttCodec(1 << 20), MqttCodec(1 << 20)
    found = list(codec.feed(data[:1_000]))
    other.restore_state(codec.export_state())
    assert other.pending_bytes == codec.pending_bytes > 0
    assert [*found, *other.feed(data[1_000:])] == list(MqttCodec(1 << 20).feed(data))
