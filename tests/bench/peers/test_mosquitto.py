from __future__ import annotations

import pytest

from bench.peers.mosquitto import Mosquitto


def test_mosquitto_packets() -> None:
    assert Mosquitto().publish("b.1", b"@hello") == b"\x30\x0b\x00\x03b.1@hello"
    assert Mosquitto(qos=1).publish("b.1", b"@hello", serial=4) == b"\x32\x0d\x00\x03b.1\x00\x05@hello"
    assert Mosquitto(qos=1).answers_bytes(["b.1"], 5) == 20
    assert Mosquitto().delivered_bytes("b.1", 3, 6) == 3 * 13
    assert Mosquitto().delivered_bytes("b.1", 1, 200) == 2 + 1 + 5 + 200


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
