from __future__ import annotations

import pytest

from bench.peers.mqtt import Mosquitto, NatsMqtt, Rumqttd


def test_mosquitto_packets() -> None:
    assert Mosquitto().publish("b.1", b"@hello") == b"\x30\x0b\x00\x03b.1@hello"
    assert Mosquitto(qos=1).publish("b.1", b"@hello", serial=4) == b"\x32\x0d\x00\x03b.1\x00\x05@hello"
    assert Mosquitto(qos=1).answers_bytes(["b.1"], 5) == 20
    assert Mosquitto().delivered_bytes("b.1", 3, 6) == 3 * 13
    assert Mosquitto().delivered_bytes("b.1", 1, 200) == 2 + 1 + 5 + 200


def test_a_delivery_with_quality_one_has_an_identifier_and_in_version_5_properties() -> None:
    assert Rumqttd(qos=1).delivered_bytes("b.1", 1, 6) == 13 + 2
    assert Mosquitto(qos=1).delivered_bytes("b.1", 1, 6) == 13 + 3


@pytest.mark.parametrize("size", [6, 200])
def test_each_delivery_is_acknowledged_with_its_identifier(size: int) -> None:
    peer = Rumqttd(qos=1)
    data = b"".join(peer.publish("b.1", bytes(size), serial) for serial in (0, 1, 0x1233))
    one_bytes = peer.delivered_bytes("b.1", 1, size)
    assert peer.receipts(data, one_bytes) == b"\x40\x02\x00\x01" + b"\x40\x02\x00\x02" + b"\x40\x02\x12\x34"


def test_subscribers_that_acknowledge_have_a_window_of_a_hundred() -> None:
    assert b"\x05\x02\xff\xff\x03\x21\x00\x64" in Mosquitto(qos=1).subscriber("b", 1)[0].send
    for peer in (Mosquitto(), Rumqttd(qos=1), NatsMqtt(qos=1)):  # the last two have it in their configuration
        assert b"MQTT\x04\x02\xff\xff\x00" in peer.subscriber("b", 1)[0].send


def test_mosquitto_packet_identifiers_are_never_zero() -> None:
    assert Mosquitto(qos=1).publish("b", b"", serial=0xFFFF)[-2:] == b"\x00\x01"
    assert Mosquitto(qos=1).publish("b", b"", serial=0xFFFE)[-2:] == b"\xff\xff"


def test_there_is_no_quality_two_here() -> None:
    with pytest.raises(ValueError, match="qos 2"):
        Mosquitto(qos=2)


def test_a_listener_asks_for_everything_at_once() -> None:
    (step,) = Mosquitto().listener("b.1", 7)
    connect, subscribe = Mosquitto().subscriber("b.1", 7)
    assert step.send == connect.send + subscribe.send
    assert step.until == subscribe.until
