"""Frames over a connection: bounds on its memory, and hostile peers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tailrace.broker.connection.transport import send_file
from tailrace.broker.connection.websocket_transport import FRAME_BYTES, READ_MAX_BYTES, WebSocketTransport
from tests.broker.connection.websocket_peer import WebSocketPeer
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5
from tests.protocol.test_websocket import frame

pytestmark = pytest.mark.usefixtures("refusals_left")
PINGS = 3 * READ_MAX_BYTES // 6


def test_a_file_cannot_be_sent_over_it() -> None:
    transport = WebSocketTransport.__new__(WebSocketTransport)
    with pytest.raises(AttributeError, match="fileno"):
        send_file(transport, 0, 0, 1)  # type: ignore[arg-type]


def test_the_memory_of_a_batch_is_that_of_a_frame() -> None:
    transport = WebSocketTransport.__new__(WebSocketTransport)
    assert [len(transport.batch_room(due)) for due in (3, 1 << 30)] == [3, FRAME_BYTES]


def test_packets_and_frames_need_not_be_aligned(tmp_path: Path) -> None:
    """MQTT-6.0.0-2."""
    with world(tmp_path) as node:
        reader = MqttPeer(node, peer=WebSocketPeer.of(node))
        packets = b"".join(wire.publish(V5, "s", b"%d" % number, 1, number + 1) for number in range(20))
        for begin in range(0, len(packets), 7):
            reader.send(packets[begin : begin + 7])
        assert [answer.kind for answer in reader.take()] == [4] * 20


def test_pings_and_a_close(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = WebSocketPeer.of(node)
        reader = MqttPeer(node, peer=peer)
        for payload in (b"one", b""):
            peer.below.send_raw(frame(payload, 9))
            node.settle()
        peer.below.send_raw(frame(struct.pack(">H", 1001), 8) + frame(wire.PINGREQ))
        node.settle()
        assert peer.controls == [(10, b"one"), (10, b""), (8, b"\x03\xe9")] and reader.ended
        assert reader.answers[-1].kind == 2, "nothing behind a close counts"


def test_a_peer_that_ends_by_a_close_has_a_will(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        other = MqttPeer(node, client_id="other")
        other.subscribe(("w", 0))
        peer = WebSocketPeer.of(node)
        MqttPeer(node, peer=peer, will=("w", b"gone", 0))
        peer.below.send_raw(frame(b"", 8))
        assert other.payloads() == [b"gone"]


@pytest.mark.parametrize("sent, code", [(frame(b"x", 1), 1003), (b"\x82\x01x", 1002)], ids=["text", "not masked"])
def test_a_violation_ends_the_connection_with_its_code(tmp_path: Path, sent: bytes, code: int) -> None:
    """MQTT-6.0.0-1."""
    with world(tmp_path) as node:
        peer = WebSocketPeer.of(node)
        reader = MqttPeer(node, peer=peer)
        peer.below.send_raw(frame(wire.publish(V5, "s", b"before", 1, 1)) + sent)
        assert reader.take()[0].kind == 4, "what came before it counts"
        assert peer.controls == [(8, struct.pack(">H", code))] and reader.ended


def test_a_peer_that_does_not_read(tmp_path: Path) -> None:
    """The rest of a frame is held, and it goes on where it stopped."""
    with world(tmp_path) as node:
        peer = WebSocketPeer.of(node, peer=node.connect(small=True))
        reader = MqttPeer(node, peer=peer)
        reader.subscribe(("s", 0))
        writer, count = MqttPeer(node, client_id="w"), 40
        peer.deaf = True
        for number in range(count):
            writer.ask(wire.publish(V5, "s", bytes([number]) * 50_000, 1, number + 1))
        client = node.connection_of(peer)
        assert client.layer is not None and 0 < client.layer.unsent_bytes <= FRAME_BYTES + 14
        peer.below.send_raw(frame(b"while it is full", 9))
        node.settle()
        peer.deaf = False
        assert reader.payloads() == [bytes([number]) * 50_000 for number in range(count)]
        assert peer.controls == [(10, b"while it is full")] and client.layer.unsent_bytes == 0


def test_a_flood_of_pings_holds_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = WebSocketPeer.of(node, peer=node.connect(small=True))
        reader = MqttPeer(node, peer=peer)
        for begin in range(0, PINGS, 1_000):
            peer.below.send_raw(frame(b"", 9) * 1_000)
            node.settle()
            assert node.connection_of(peer).unsent_bytes < 200, begin
        assert reader.ask(wire.PINGREQ)[0].kind == 13
        assert {opcode for opcode, _ in peer.controls} == {10} and len(peer.controls) <= PINGS
