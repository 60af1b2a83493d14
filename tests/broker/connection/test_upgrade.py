"""From an HTTP request to MQTT over WebSocket, or to a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.users import User
from tailrace.broker.connection.mqtt.client import MqttClient
from tailrace.broker.connection.upgrade import UpgradingConnection
from tailrace.protocol.errors import Code
from tests.broker.connection.test_admission import dial, later
from tests.broker.connection.tls_peer import TLSPeer
from tests.broker.connection.websocket_peer import WebSocketPeer
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world
from tests.certificates import Authority
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5
from tests.protocol.test_websocket import frame
from tests.protocol.test_websocket_upgrade import REQUEST

pytestmark = pytest.mark.usefixtures("refusals_left")


@pytest.mark.parametrize("version", [V4, V5])
def test_messages_both_ways(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        plain, other = MqttPeer(node, version, "plain"), MqttPeer(node, version, "o", peer=WebSocketPeer.of(node))
        assert plain.subscribe(("s", 1)) == other.subscribe(("s", 1)) == [1]
        assert other.ask(wire.publish(version, "s", b"a", 1, 5))[0].kind == 4
        assert plain.ask(wire.publish(version, "s", b"b", 1, 6))[0].kind == 4
        assert plain.payloads() == other.payloads() == [b"a", b"b"]


def test_a_request_and_its_first_packets_byte_by_byte(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = WebSocketPeer.of(node, REQUEST[:1])
        for byte in REQUEST[1:] + frame(wire.connect(V5, "c")):
            peer.below.send_raw(bytes([byte]))
            node.settle()
        (answer,) = wire.split(bytes(peer.received))
        assert answer.kind == 2 and isinstance(node.connection_of(peer), MqttClient)
        assert node.workers[0].services.partial_bytes == 0


def test_packets_that_come_with_the_request(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = WebSocketPeer.of(node, REQUEST + frame(wire.connect(V5, "c")) + frame(wire.PINGREQ))
        assert [answer.kind for answer in wire.split(bytes(peer.received))] == [2, 13]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def secured(authority: Authority) -> dict[str, Any]:
    pair = authority.issue("server")
    return {"tls_certificate": str(pair.certificate), "tls_key": str(pair.key)}


def test_under_tls(tmp_path: Path, authority: Authority) -> None:
    with world(tmp_path, tls_required=True, **secured(authority)) as node:
        peer = WebSocketPeer.of(node, peer=TLSPeer.of(node, authority.client_context()))
        reader = MqttPeer(node, peer=peer)
        assert reader.subscribe(("s", 1)) == [1]
        reader.send(wire.publish(V5, "s", bytes(100_000), 1, 5))
        for _ in range(100):  # half a record moves nothing, and `settle` ends
            if reader.take():
                break
        assert reader.payloads() == [bytes(100_000)]
        client = node.connection_of(peer)
        assert client.encrypted and not hasattr(client.sock, "fileno")


def test_where_tls_is_required(tmp_path: Path, authority: Authority) -> None:
    with world(tmp_path, tls_required=True, **secured(authority)) as node:
        far, near = (WebSocketPeer.of(node, peer=node.connect(local=local)) for local in (False, True))
        assert far.answer.startswith(b"HTTP/1.1 403 ") and far.ended and near.answer.startswith(b"HTTP/1.1 101 ")


def test_users_log_in(tmp_path: Path) -> None:
    users = (User("ann", certificates=("CN=ann",)),)
    with world(tmp_path, users=users) as node:
        peer = WebSocketPeer.of(node)
        (answer,) = MqttPeer(node, peer=peer, opened=False).ask(wire.connect(V5, "c"))
        assert answer.kind == 2 and answer.body[1] in (0x86, 0x87)


def test_a_line_that_begins_like_a_request(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        for pieces in ((b"G", b"ET s g\r\n"), (b"GET ", b"s g\r\nping\r\n"), (b"get s g\r\n",)):
            peer = node.connect()
            for piece in pieces:
                peer.send_raw(piece)
                node.settle()
            assert peer.lines[0].startswith("err unknown ") and not peer.ended
        assert node.workers[0].services.partial_bytes == 0


OTHERS = {
    "a page": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 400 ", b"/metrics is on port"),
    "half a request, known by its first line": (b"GET /x\r\n", b"HTTP/1.1 400 ", b"/metrics is on port"),
    "a foreign page": (REQUEST.replace(b"Upgrade: ", b"Origin: http://a\r\nUpgrade: "), b"HTTP/1.1 403 ", b"origins"),
    "too long": (b"GET /" + bytes(9_000), b"HTTP/1.1 400 ", b"/metrics is on port"),
}


@pytest.mark.parametrize("request_bytes, status, text", OTHERS.values(), ids=OTHERS)
def test_what_is_refused_is_answered_and_closed(
    tmp_path: Path, request_bytes: bytes, status: bytes, text: bytes
) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        peer.send_raw(request_bytes)
        node.settle()
        assert peer.received.startswith(status) and text in peer.received and peer.ended
        assert node.workers[0].metrics.refused.counts == {Code.PROTOCOL: 1}
        assert node.workers[0].services.partial_bytes == 0


def test_a_request_that_does_not_end_in_time(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = dial(node)
        peer.send_raw(REQUEST[:-2])
        node.settle()
        assert node.workers[0].services.partial_bytes == len(REQUEST) - 2
        (newcomer,) = node.workers[0].services.clients.values()
        assert isinstance(newcomer, UpgradingConnection)
        later(node, 31.0)
        assert peer.ended and peer.lines[-1].startswith("err timeout ")
        assert node.workers[0].services.partial_bytes == 0


def test_a_client_that_sends_no_connect_in_time(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = WebSocketPeer.of(node)
        later(node, 31.0)
        assert peer.ended


@pytest.mark.parametrize("setting", ["websocket", "mqtt"])
def test_where_it_is_turned_off(tmp_path: Path, setting: str) -> None:
    with world(tmp_path, **{setting: False}) as node:
        assert WebSocketPeer.of(node).answer.startswith(b"HTTP/1.1 400 ")


def test_a_worker_that_is_replaced_ends_the_connection_in_order(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        reader = MqttPeer(node, peer=WebSocketPeer.of(node))
        node.connection_of(reader.peer).end_with(Code.CLOSING, "replaced")
        (answer,) = reader.take()
        assert answer.kind == 14 and answer.body[0] == 0x8B and reader.ended
        assert isinstance(reader.peer, WebSocketPeer) and reader.peer.controls == [(8, b"\x03\xe8")]


@pytest.mark.parametrize("opcode", [9, 10], ids=["pings", "pongs"])
def test_control_frames_count_for_the_rate(tmp_path: Path, opcode: int) -> None:
    """Nothing of them comes to the client of MQTT, and they cost the worker as much as packets do."""
    with world(tmp_path, max_address_rate_bytes=4_096) as node:
        peer = MqttPeer(node, peer=WebSocketPeer.of(node, peer=dial(node)))
        assert isinstance(peer.peer, WebSocketPeer)
        peer.peer.below.send_raw(frame(b"", opcode) * 2_000)
        worker = node.workers[0]
        for _ in range(20):  # a pong moves nothing, and `settle` ends
            worker.turn()
        assert worker.metrics.throttled
        assert peer.ask(wire.PINGREQ) == [], "it is not read"
        for _ in range(10):
            later(node, 30.0)
        assert [answer.kind for answer in peer.take()] == [13]


def test_what_tls_adds_counts_for_the_rate(tmp_path: Path, authority: Authority) -> None:
    with world(tmp_path, max_address_rate_bytes=4_096, **secured(authority)) as node:
        peer = TLSPeer.of(node, authority.client_context())
        for sent, byte in enumerate(b"ack on\r\n" * 100):  # 800 bytes, in records of 23 bytes at least
            peer.send_raw(bytes([byte]))
            if sent % 64 == 63:
                node.settle()
            if node.workers[0].metrics.throttled:
                break
        assert node.workers[0].metrics.throttled
        before = len(peer.lines)
        peer.send("ping")
        node.settle()
        assert len(peer.lines) == before, "it is not read"
