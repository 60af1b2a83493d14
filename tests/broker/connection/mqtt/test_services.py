"""The collaborators of MQTT connections as a worker has them."""

from __future__ import annotations

from pathlib import Path

from tailrace.broker.topics.rules import TopicRule
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world


def test_the_rules_of_the_configuration_hold(tmp_path: Path) -> None:
    with world(tmp_path, topics=(TopicRule("#", "{1}"),)) as node:
        assert node.workers[0].mqtt.destination_of(b"sensors/7").placed.stream == b"sensors"


def test_a_tick_sees_to_keep_alives_and_wildcards(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        worker = node.workers[0]
        silent, wild = MqttPeer(node, client_id="silent", keep_alive_s=1), MqttPeer(node, client_id="wild")
        wild.subscribe(("#", 0))
        node.fill("made-later", [b"x"])
        worker.mqtt.tick(worker.services.now_s + 60)
        assert silent.ended and wild.payloads() == [b"x"]
