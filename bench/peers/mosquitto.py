"""mosquitto over MQTT 3.1.1: publishes with QoS 0 or 1; deliveries with QoS 0. It keeps everything in memory."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.base import Contestant, RequestStep, Site
from bench.peers.programs import find_program, program_version

_CONFIGURATION = """\
listener {port} 127.0.0.1
allow_anonymous true
user root
persistence false
sys_interval 0
log_type error
connection_messages false
set_tcp_nodelay true
# Nothing is dropped for a subscriber that is a little behind.
max_queued_messages 0
max_inflight_messages 0
"""
_CLIENT_NAME = "bench-{client}-{kind}"
_PUBACK_BYTES = 4
_SILENT = {"ingest", "turns", "packets", "fanout", "latency", "connections", "topics", "topics-turns"}


class Mosquitto(Contestant):
    def __init__(self, *, qos: int = 0) -> None:
        if qos not in (0, 1):
            raise ValueError(f"qos {qos}: 0 or 1")
        self.qos = qos
        self.acked = qos == 1
        self.name = "mosquitto-qos1" if qos else "mosquitto"
        self.title = f"mosquitto QoS {qos}"
        self.kinds = frozenset({"ingest", "turns"} if qos else _SILENT)

    def command(self, site: Site) -> list[str]:
        path = site.directory / "mosquitto.conf"
        path.write_text(_CONFIGURATION.format(port=site.port))
        return [find_program("mosquitto"), "-c", str(path)]

    def version(self) -> str:
        return program_version("mosquitto", "-h")

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
        return [_connect(_CLIENT_NAME.format(client=client, kind="s")), _subscribe(name)]

    def listener(self, name: str, client: int) -> list[RequestStep]:
        """SUBSCRIBE follows CONNECT at once, as the protocol allows."""
        connect, subscribe = self.subscriber(name, client)
        return [RequestStep(connect.send + subscribe.send, subscribe.until)]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return messages * len(make_packet(0x30, make_string(name) + bytes(payload_bytes)))


def _connect(client_name: str) -> RequestStep:
    """Clean session, no keep-alive."""
    return RequestStep(
        make_packet(0x10, make_string("MQTT") + b"\x04\x02\x00\x00" + make_string(client_name)), b"\x20\x02\x00\x00"
    )


def _subscribe(name: str) -> RequestStep:
    return RequestStep(make_packet(0x82, b"\x00\x01" + make_string(name) + b"\x00"), b"\x90\x03\x00\x01\x00")


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
