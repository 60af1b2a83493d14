"""Clients in other languages, and mosquitto's bridge, each at a fresh node.

`make build/mqtt-clients` builds the programs of the folder `mqtt_clients`; without it they are skipped. All have one
conversation: they subscribe to NAME/# with QoS 2, publish 20 numbers with each QoS, and print the messages.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.ports import free_port
from tests.protocol.mqtt.wire import V4, V5, VERSIONS
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import PATIENCE_S, running
from tests.tidy import tree

pytestmark = pytest.mark.system

BUILT = tree.ROOT / "build/mqtt-clients"
PROGRAMS = tree.ROOT / "tests/system/mqtt_clients"
JAVA = ["java", "-cp", str(BUILT / "java/*"), str(PROGRAMS / "java/Conversation.java")]
CLIENTS = {  # the file that must have been built, and the command
    "paho.golang": (BUILT / "paho-golang", [str(BUILT / "paho-golang")]),
    "rumqttc": (BUILT / "rust/release/rumqttc-client", [str(BUILT / "rust/release/rumqttc-client")]),
    "HiveMQ's client": (BUILT / "java", JAVA),
    "paho-c": (BUILT / "paho-c", [str(BUILT / "paho-c")]),
    "gmqtt": (BUILT / "gmqtt/bin/python", [str(BUILT / "gmqtt/bin/python"), str(PROGRAMS / "conversation_gmqtt.py")]),
}
CASES = [(name, version) for name in CLIENTS for version in VERSIONS if (name, version) != ("paho.golang", V4)]
EACH = 20
STARTS_S = 120
"""A Java program is compiled first."""
BRIDGE = """listener {port} 127.0.0.1
allow_anonymous true
connection tailrace
address 127.0.0.1:{broker}
bridge_protocol_version {protocol}
remote_clientid bridge
local_clientid local-bridge
restart_timeout 1
notifications false
topic up/# out 2
topic down/# in 2
topic # both 1 there/ here/
"""


@pytest.mark.parametrize(("name", "version"), CASES)
def test_a_conversation(tmp_path: Path, name: str, version: int) -> None:
    built, command = CLIENTS[name]
    if not built.exists():
        pytest.skip(f"{name} is not built (make build/mqtt-clients)")
    with running(tmp_path / "node") as node:
        arguments = [*command, str(node.port), str(version), "talk"]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=STARTS_S, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        lines = ended.stdout.splitlines()
        for qos in range(3):
            got = [line.split()[2] for line in lines if line.startswith(f"talk/{qos} {qos} ")]
            assert got == [str(number) for number in range(EACH)]
        assert len(lines) == 3 * EACH


@contextlib.contextmanager
def bridging(tmp_path: Path, broker: int, protocol: str) -> Iterator[int]:
    """A mosquitto with a bridge to this broker; its port."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        pytest.skip("there is no mosquitto (mosquitto)")
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(BRIDGE.format(port=port, broker=broker, protocol=protocol))
    with (
        (tmp_path / "mosquitto.log").open("w") as log,
        subprocess.Popen([program, "-c", config, "-v"], stderr=log) as it,
    ):
        try:
            yield port
        finally:
            it.terminate()
            it.wait(PATIENCE_S)


@pytest.mark.parametrize(("protocol", "version"), [("mqttv311", V4), ("mqttv50", V5)])
def test_the_bridge_of_mosquitto(tmp_path: Path, protocol: str, version: int) -> None:
    """As docs/mqtt.md has it. With MQTT 3.1.1 it tries a protocol level of its own first."""
    with (
        running(tmp_path / "node") as node,
        bridging(tmp_path, node.port, protocol) as port,
        MqttSocket(node.port, version) as here,
        _connected(port, version) as there,
    ):
        here.subscribe(("up/#", 2), ("here/#", 2))
        assert there.subscribe(("down/#", 2), ("there/#", 2)) == [2, 2]
        here.publish("here/ready", b"ready", 1, retain=True)
        there.until(b"ready")
        for qos in range(3):
            there.publish(f"up/{qos}", b"%d" % qos, qos)
            here.publish(f"down/{qos}", b"%d" % qos, qos)
        up = [each for each in here.messages(4) if each.topic.startswith("up/")]
        assert sorted((each.topic, each.payload, each.qos) for each in up) == [
            (f"up/{qos}", b"%d" % qos, qos) for qos in range(3)
        ]
        assert sorted((each.topic, each.payload, each.qos) for each in there.messages(3)) == [
            (f"down/{qos}", b"%d" % qos, qos) for qos in range(3)
        ]


def _connected(port: int, version: int) -> MqttSocket:
    """A client of a mosquitto that is starting."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return MqttSocket(port, version)
        except ConnectionError:
            assert time.monotonic() < end_s
            time.sleep(0.05)
