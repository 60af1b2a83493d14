from __future__ import annotations

from pathlib import Path

from bench.peers.base import Site
from bench.peers.mqtt import Mosquitto
from bench.peers.tailrace_mqtt import TailraceMqtt


def test_tailrace_is_measured_with_the_same_packets(tmp_path: Path) -> None:
    ours, theirs = TailraceMqtt(qos=1, workers=3), Mosquitto(qos=1)
    assert ours.publish("b", b"@", 7) == theirs.publish("b", b"@", 7) and ours.publisher(1) == theirs.publisher(1)
    assert ours.barrier("b.1").send == b"\x32\x07\x00\x03b.1\x00\x01", "a PINGREQ does not wait for the others"
    assert "3" in ours.command(Site(tmp_path, 1, 2))
    assert ours.subscriber("b", 1) == theirs.subscriber("b", 1) and ours.kinds == theirs.kinds
