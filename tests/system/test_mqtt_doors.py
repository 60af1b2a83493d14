"""MQTT beside the other doors, and what a node has to stand: the same message, many retained ones, a small client."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

import tailrace
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import PUBACK, V5, VERSIONS
from tests.system.mqtt_fuzz import UPGRADE, websocket_frame
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import PATIENCE_S, Node, running

pytestmark = pytest.mark.system

CONFIG = '[[topics]]\nfilter = "+/#"\nstream = "{1}"\n'
RETAINED = 5_000
WINDOW_BYTES = 64 << 10
MESSAGES = 4_000
PAYLOAD_BYTES = 1_000
LIVE_EVERY = 20


def publish_by_websocket(node: Node, topic: str, payload: bytes) -> None:
    """With QoS 1, until it is acknowledged."""
    with socket.create_connection(("127.0.0.1", node.port), PATIENCE_S) as sock:
        sock.sendall(UPGRADE)
        got = b""
        for request, answer in (
            (b"", b"\r\n\r\n"),
            (wire.connect(V5), b"\x20"),
            (wire.publish(V5, topic, payload, 1, 0x1234), b"\x40\x02\x12\x34"),
        ):
            if request:
                sock.sendall(websocket_frame(request))
            while answer not in got:
                data = sock.recv(4_096)
                assert data, got
                got += data
            got = b""


@pytest.mark.parametrize("topic", ["plain", "doors/7/temp"])
def test_the_same_message_by_every_door(tmp_path: Path, topic: str) -> None:
    """Telnet, the binary protocol, Python, MQTT 3.1.1, 5 and WebSocket: same stream, next seq, same bytes."""
    stream, payload = topic.partition("/")[0], "x\u00e9 y".encode()
    with running(tmp_path / "data") as node, MqttSocket(node.port, V5) as reader:
        reader.subscribe((topic, 1))
        with node.client() as lines:
            assert lines.ask("ack on") == "ok ack on"
            assert lines.ask(b"pub " + topic.encode() + b" |" + payload) == f"ok pub {stream} 0"
        with tailrace.connect(f"127.0.0.1:{node.port}") as python:
            assert python.publish(topic, payload).seq == 1
        for version in VERSIONS:
            with MqttSocket(node.port, version) as writer:
                assert writer.publish(topic, payload) == 0
        publish_by_websocket(node, topic, payload)
        assert [each.payload for each in reader.messages(5)] == [payload] * 5
        with node.client() as lines:
            lines.send(f"sub {stream} 0")
            found = lines.read_messages(5)
        wanted = [(stream, seq, payload, "" if topic == stream else topic) for seq in range(5)]
        assert [(each.stream, each.seq, each.payload, each.topic) for each in found] == wanted


@pytest.mark.few(1)
@pytest.mark.parametrize("version", VERSIONS)
def test_thousands_of_retained_messages_come_to_a_new_subscription(tmp_path: Path, version: int) -> None:
    with running(tmp_path / "data", config=CONFIG) as node:
        with MqttSocket(node.port, version) as writer:
            for start in range(0, RETAINED, 50):
                topics = (f"r{number % 5}/{number}" for number in range(start, start + 50))
                packets = (wire.publish(version, each, b"x", 1, n + 1, retain=True) for n, each in enumerate(topics))
                writer.send(*packets)
                assert all(writer.answer() for _ in range(50))
        with MqttSocket(node.port, version) as reader:
            began_s = time.monotonic()
            reader.subscribe(("#", 0))
            found = reader.messages(RETAINED)
            print(f"{time.monotonic() - began_s:.2f} s")  # below 1 s on a machine that does nothing else
        assert {each.topic for each in found} == {f"r{number % 5}/{number}" for number in range(RETAINED)}
        assert all(each.retain for each in found)


@pytest.mark.few(1)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_small_client_reads_a_backlog_while_live_messages_go_on(tmp_path: Path, version: int) -> None:
    """It takes 64 KiB at a time; a neighbour that reads live messages does not wait for it."""
    raw = b"\x11\0\0\x0e\x10\x21\0\x14" if version == V5 else b""
    with running(tmp_path / "data", config=CONFIG) as node:
        with MqttSocket(node.port, version, "small", clean=False, raw=raw) as small:
            small.subscribe(("log/#", 1))
        with tailrace.connect(f"127.0.0.1:{node.port}") as python:
            payloads = [b"%d " % number + bytes(PAYLOAD_BYTES) for number in range(MESSAGES)]
            python.publish_many("log", payloads, topic="log/x")
        with MqttSocket(node.port, version, "small", opened=False) as small:
            small.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
            assert small.ask(wire.connect(version, "small", clean=False, raw=raw)).body[:2] == b"\1\0"
            with MqttSocket(node.port, version) as neighbour:
                neighbour.subscribe(("live/#", 1))
                for number in range(MESSAGES):
                    message = small.message()
                    assert int(message.payload.split()[0]) == number and not message.dup
                    small.send(wire.ack(PUBACK, message.packet_id))
                    if number % LIVE_EVERY == 0:
                        neighbour.publish(f"live/{number}", b"now", 0)
                        assert neighbour.message().topic == f"live/{number}"
                small.publish("log/x", b"%d last" % MESSAGES)
                assert small.message().payload == b"%d last" % MESSAGES, "and goes on with new messages"
