"""Brokers over MQTT: mosquitto, rumqttd and NATS, and the part of it that tailrace's own shares.

Publishers speak MQTT 3.1.1. With QoS 1 the subscribers acknowledge, and at most WINDOW messages are under way to each;
to those who have that as an option of MQTT 5, they speak MQTT 5.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.base import Contestant, RequestStep, Site
from bench.peers.programs import find_program, program_version

WINDOW = 100
_LEVEL_3_1_1, _LEVEL_5 = 4, 5
_RECEIVE_MAXIMUM = b"\x03\x21" + WINDOW.to_bytes(2, "big")
"""The properties of a CONNECT that has it, with their length."""
_CLIENT_NAME = "bench-{client}-{kind}"
_PUBACK_BYTES = 4
_SILENT = frozenset({"ingest", "turns", "packets", "fanout", "latency"})
_ACKNOWLEDGED = frozenset({"ingest", "turns", "fanout-qos1"})


class MqttPeer(Contestant):
    """The packets and steps that are the same for all."""

    brand: str
    acknowledged_kinds = _ACKNOWLEDGED
    silent_kinds = _SILENT
    subscriber_level = _LEVEL_5
    """The version of a subscriber with QoS 1."""

    def __init__(self, *, qos: int = 0) -> None:
        if qos not in (0, 1):
            raise ValueError(f"qos {qos}: 0 or 1")
        self.qos = qos
        self.acked = self.acknowledges = qos == 1
        self.name = f"{self.brand}-qos1" if qos else self.brand
        self.title = f"{self.brand} QoS {qos}"
        self.kinds = self.acknowledged_kinds if qos else self.silent_kinds
        self._level = self.subscriber_level if qos else _LEVEL_3_1_1

    def ready(self) -> list[RequestStep]:
        return [_connect("probe")]

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        return [_connect(_CLIENT_NAME.format(client=client, kind="p"))]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        topic = make_string(name)
        identifier = (1 + serial % 0xFFFF).to_bytes(2, "big") if self.qos else b""
        return make_packet(0x30 | self.qos << 1, topic + identifier + payload)

    def barrier(self, name: str) -> RequestStep:
        return RequestStep(make_packet(0xC0, b""), b"\xd0\x00")

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        return requests * _PUBACK_BYTES

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        connect = _connect(_CLIENT_NAME.format(client=client, kind="s"), self._level)
        return [connect, _subscribe(name, self._level, self.qos)]

    def listener(self, name: str, client: int) -> list[RequestStep]:
        """SUBSCRIBE follows CONNECT at once, as the protocol allows."""
        connect, subscribe = self.subscriber(name, client)
        return [RequestStep(connect.send + subscribe.send, subscribe.until)]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        body = make_string(name) + bytes(2 if self.qos else 0) + self._properties + bytes(payload_bytes)
        return messages * len(make_packet(0x30, body))

    def receipts(self, deliveries: bytes, one_bytes: int) -> bytes:
        """A PUBACK for each PUBLISH."""
        place = _fixed_bytes(one_bytes)
        place += 2 + int.from_bytes(deliveries[place : place + 2], "big")
        high, low = deliveries[place::one_bytes], deliveries[place + 1 :: one_bytes]
        made = bytearray(b"\x40\x02\x00\x00") * len(high)
        made[2::4], made[3::4] = high, low
        return bytes(made)

    @property
    def _properties(self) -> bytes:
        return b"\x00" if self._level == _LEVEL_5 else b""


class Mosquitto(MqttPeer):
    """It keeps everything in memory. Nothing is dropped for a subscriber that is a little behind."""

    brand = "mosquitto"
    silent_kinds = _SILENT | {"connections", "topics", "topics-turns"}
    acknowledged_kinds = _ACKNOWLEDGED | {"connections-qos1"}

    def command(self, site: Site) -> list[str]:
        path = site.directory / "mosquitto.conf"
        path.write_text(_MOSQUITTO.format(port=site.port))
        return [find_program("mosquitto"), "-c", str(path)]

    def version(self) -> str:
        return program_version("mosquitto", "-h")


class Rumqttd(MqttPeer):
    """It keeps a log in memory."""

    brand = "rumqttd"
    subscriber_level = _LEVEL_3_1_1

    def command(self, site: Site) -> list[str]:
        path = site.directory / "rumqttd.toml"
        path.write_text(_RUMQTTD.format(port=site.port, window=WINDOW))
        return [find_program("rumqttd"), "-q", "-c", str(path)]

    def version(self) -> str:
        return program_version("rumqttd", "--version")


class NatsMqtt(MqttPeer):
    """NATS, whose messages with QoS 1 are stored by JetStream, in files."""

    brand = "nats-mqtt"
    subscriber_level = _LEVEL_3_1_1

    def command(self, site: Site) -> list[str]:
        path = site.directory / "nats.conf"
        path.write_text(_NATS.format(site=site, window=WINDOW))
        return [find_program("nats-server"), "-c", str(path)]

    def version(self) -> str:
        return program_version("nats-server", "--version")


_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
user root
persistence false
sys_interval 0
log_type error
connection_messages false
set_tcp_nodelay true
max_queued_messages 0
max_inflight_messages 0
"""
_RUMQTTD = """\
id = 0
[router]
id = 0
max_connections = 20000
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 1
[v4.1.connections]
connection_timeout_ms = 60000
max_payload_size = 20480
max_inflight_count = {window}
dynamic_filters = true
"""
_NATS = """\
server_name: bench
listen: "127.0.0.1:{site.spare_port}"
max_pending: 1GB
write_deadline: "60s"
jetstream {{
  store_dir: "{site.directory}/store"
  max_file_store: 100GB, max_memory_store: 1GB, max_buffered_msgs: 10000000, max_buffered_size: 2GB
}}
mqtt {{ listen: "127.0.0.1:{site.port}", max_ack_pending: {window} }}
"""


def _connect(client_name: str, level: int = _LEVEL_3_1_1) -> RequestStep:
    """Clean session; a keep alive that is longer than any run, since rumqttd refuses none."""
    is_5 = level == _LEVEL_5
    properties = _RECEIVE_MAXIMUM if is_5 else b""
    head = make_string("MQTT") + bytes((level, 2, 0xFF, 0xFF)) + properties
    # CONNACK of MQTT 5 has properties, but both end a session's beginning with these two zeros.
    return RequestStep(make_packet(0x10, head + make_string(client_name)), b"\x00\x00" if is_5 else b"\x20\x02\x00\x00")


def _subscribe(name: str, level: int, qos: int) -> RequestStep:
    properties = b"\x00" if level == _LEVEL_5 else b""
    granted = b"\x90" + bytes((3 + len(properties),)) + b"\x00\x01" + properties + bytes((qos,))
    return RequestStep(make_packet(0x82, b"\x00\x01" + properties + make_string(name) + bytes((qos,))), granted)


def make_string(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def make_packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _remaining_length(len(body)) + body


def _remaining_length(length: int) -> bytes:
    """MQTT's number of one to four bytes, seven bits each, the low ones first."""
    if not 0 <= length < 1 << 28:
        raise ValueError(f"a packet of {length} bytes: MQTT allows less than {1 << 28}")
    out = bytearray()
    while True:
        length, low = length >> 7, length & 0x7F
        out.append(low | (0x80 if length else 0))
        if not length:
            return bytes(out)


def _fixed_bytes(packet_bytes: int) -> int:
    """How long the fixed header of a packet is that has this length with it."""
    return next(size for size in range(2, 6) if len(_remaining_length(packet_bytes - size)) == size - 1)
