"""tailrace over MQTT, as the other brokers are measured."""

from __future__ import annotations

from collections.abc import Mapping

from bench.peers.base import RequestStep, Site
from bench.peers.mqtt import MqttPeer, make_packet, make_string
from bench.peers.tailrace import Tailrace


class TailraceMqtt(MqttPeer):
    brand = "tailrace-mqtt"
    silent_kinds = MqttPeer.silent_kinds | {"connections"}
    acknowledged_kinds = MqttPeer.acknowledged_kinds | {"connections-qos1"}

    def __init__(self, *, qos: int = 0, interpreted: bool = False, workers: int = 2) -> None:
        super().__init__(qos=qos)
        self.title = f"tailrace MQTT, QoS {qos}"
        self._node = Tailrace(interpreted=interpreted, workers=workers)

    def command(self, site: Site) -> list[str]:
        return self._node.command(site)

    def environment(self) -> Mapping[str, str]:
        return self._node.environment()

    def version(self) -> str:
        return self._node.version()

    def barrier(self, name: str) -> RequestStep:
        """A message with QoS 1: it is logged behind the others, and answered then. A PINGREQ is answered at once."""
        return RequestStep(make_packet(0x32, make_string(name) + b"\0\1"), b"\x40\2\0\1")
