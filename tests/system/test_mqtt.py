"""MQTT at a real node, by clients that others have written: paho-mqtt, aiomqtt, mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import tailrace
from tailrace.protocol.mqtt.codec import CONNECT_BYTES_MAX
from tests.certificates import Authority
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.streams import lives
from tests.system.test_rolling import replace_all
from tests.thorough import THOROUGH, only_thorough

pytestmark = pytest.mark.system

WORKERS = 2
CONFIG = '[[topics]]\nfilter = "+/+/#"\nstream = "{1}"\n[node]\naffinity = false\n'
LEVELS = {V4: MQTTProtocolVersion.MQTTv311, V5: MQTTProtocolVersion.MQTTv5}
FUZZED = 1_200  # tests/system/test_mqtt_fuzz.py has more, by every transport
COUNT = 2_000 if THOROUGH else 600
both = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("mqtt") / "data", workers=WORKERS, config=CONFIG) as node:
        yield node
        assert lives(node)[1] == ["0"] * WORKERS, "a worker has ended by itself"


class PahoClient:
    """A client of paho-mqtt in its own thread. `got`: messages; `subscribed`: reasons; `ended`: why it ended.

    `present`: it has a session from before.
    """

    def __init__(self, port: int, version: int, client_id: str = "", **more: Any) -> None:
        self.got: queue.Queue[Any] = queue.Queue()
        self.subscribed: queue.Queue[list[int]] = queue.Queue()
        self.connected: queue.Queue[Any] = queue.Queue()
        self.ended: queue.Queue[str] = queue.Queue()
        transport = more.pop("transport", "tcp")
        made = {key: more.pop(key) for key in ("clean_session", "reconnect_on_failure") if key in more}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=LEVELS[version], transport=transport, **made
        )
        self.present = False
        self.client.on_connect = lambda _c, _u, flags, reason, props: self._connected(flags, str(reason), props)
        self.client.on_subscribe = lambda _c, _u, _m, reasons, _p: self.subscribed.put([each.value for each in reasons])
        self.client.on_message = lambda _c, _u, message: self.got.put(message)
        self.client.on_disconnect = lambda _c, _u, _f, reason, _p: self.ended.put(str(reason))
        if "will" in more:
            self.client.will_set(*more.pop("will"))
        if "tls" in more:
            self.client.tls_set_context(more.pop("tls"))
        self.client.connect("localhost" if self.client._ssl else "127.0.0.1", port, **more)
        self.client.loop_start()
        self.reason, self.properties = self.connected.get(timeout=PATIENCE_S)

    def _connected(self, flags: paho.ConnectFlags, reason: str, properties: Properties | None) -> None:
        self.present = flags.session_present
        self.connected.put((reason, properties))

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        self.client.subscribe(list(filters))
        return self.subscribed.get(timeout=PATIENCE_S)

    def publish(self, topic: str, payload: bytes, qos: int = 1, properties: Properties | None = None) -> None:
        """Until it is acknowledged."""
        info = self.client.publish(topic, payload, qos, properties=properties)
        info.wait_for_publish(PATIENCE_S)
        assert info.is_published()

    def messages(self, count: int) -> list[Any]:
        return [self.got.get(timeout=PATIENCE_S) for _ in range(count)]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def __enter__(self) -> PahoClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


# --- clients ----------------------------------------------------------------------------------------------------------


@both
def test_paho_publishes_and_subscribes(node: Node, version: int) -> None:
    base = f"paho{version}"
    with PahoClient(node.port, version) as reader, PahoClient(node.port, version) as writer:
        assert reader.subscribe((f"{base}/+/temp", 2), (f"{base}/exact/x", 0), (f"{base}", 1)) == [2, 0, 1]
        for qos in range(3):
            writer.publish(f"{base}/{qos}/temp", b"%d" % qos, qos)
        writer.publish(f"{base}/exact/x", b"x", 2)
        writer.publish(f"{base}/other/y", b"y", 2)
        writer.publish(base, b"stream", 1)
        found = sorted((each.topic, each.payload, each.qos) for each in reader.messages(5))
        assert found == sorted(
            [
                *((f"{base}/{qos}/temp", b"%d" % qos, qos) for qos in range(3)),
                (f"{base}/exact/x", b"x", 0),
                (base, b"stream", 1),
            ]
        )


@pytest.mark.parametrize("version", [*only_thorough(V4), V5])
def test_very_many_messages_with_each_qos(node: Node, version: int) -> None:
    with PahoClient(node.port, version) as reader, PahoClient(node.port, version) as writer:
        for qos in range(3):
            topic = f"load{version}/{qos}/x"
            assert reader.subscribe((topic, qos)) == [qos]
            infos = [writer.client.publish(topic, b"%d" % n, qos) for n in range(COUNT)]
            infos[-1].wait_for_publish(PATIENCE_S)
            assert [int(each.payload) for each in reader.messages(COUNT)] == list(range(COUNT))


def test_properties_by_paho(node: Node) -> None:
    with PahoClient(node.port, V5) as reader, PahoClient(node.port, V5) as writer:
        assert reader.properties.SharedSubscriptionAvailable == 1
        assert reader.properties.AssignedClientIdentifier
        reader.subscribe(("props/a/b", 1))
        sent: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        sent.ContentType, sent.ResponseTopic, sent.CorrelationData = "text/plain", "re/ply", b"\0\1"
        sent.MessageExpiryInterval, sent.UserProperty = 60, [("b", "1"), ("a", "2"), ("b", "1")]
        writer.publish("props/a/b", b"x", 1, sent)
        (found,) = reader.messages(1)
        given = found.properties
        assert (given.ContentType, given.ResponseTopic, given.CorrelationData) == ("text/plain", "re/ply", b"\0\1")
        assert given.UserProperty == sent.UserProperty and 50 <= given.MessageExpiryInterval <= 60


@both
def test_a_will_by_paho(node: Node, version: int) -> None:
    with PahoClient(node.port, version) as reader:
        reader.subscribe((f"wills/{version}/x", 1))
        mortal = PahoClient(node.port, version, will=(f"wills/{version}/x", b"gone", 1))
        mortal.client._sock_close()
        assert [each.payload for each in reader.messages(1)] == [b"gone"]
        mortal.client.loop_stop()


def test_wills_beyond_the_memory_of_a_worker_by_paho(tmp_path: Path) -> None:
    """An address has no more than is left for all others. Those that are left are published, and make room."""
    limits = '[limits]\nmax_will_bytes = "512 KiB"\n'
    will_bytes = 50_000
    with running(tmp_path / "data", workers=1, config=limits) as one:
        reader = PahoClient(one.port, V5)
        reader.subscribe(("wills", 1))
        socks, refused = [], []
        for number in range(16):
            version, source = VERSIONS[number % 2], (f"127.0.0.{1 + number // 8}", 0)
            sock = socket.create_connection(("127.0.0.1", one.port), PATIENCE_S, source_address=source)
            sock.sendall(wire.connect(version, f"client-{number}", will=("wills", bytes(will_bytes), 1)))
            connack = sock.recv(64)
            if connack[3]:
                refused.append((version, connack[3]))
                sock.close()
            else:
                socks.append(sock)
        sources = Counter(sock.getsockname()[0] for sock in socks)
        assert sources == {"127.0.0.1": 5, "127.0.0.2": 2} and set(refused) == {(V4, 3), (V5, 0x97)}
        wait_for(lambda: one.metric("tailrace_mqtt_will_bytes") > 7 * will_bytes, "the gauge")
        for sock in socks:
            sock.close()
        assert [len(each.payload) for each in reader.messages(7)] == [will_bytes] * 7
        wait_for(lambda: one.metric("tailrace_mqtt_will_bytes") == 0, "no wills are left")
        with PahoClient(one.port, V4, will=("wills", bytes(will_bytes), 1)):
            pass
        reader.client.disconnect()
        reader.client.loop_stop()


def test_an_identifier_is_taken_over_by_paho(node: Node) -> None:
    old = PahoClient(node.port, V5, "taken")
    old.client.reconnect_delay_set(60, 60)
    with PahoClient(node.port, V5, "taken"):
        assert old.ended.get(timeout=PATIENCE_S) == "Session taken over"
    old.client.loop_stop()


@both
def test_aiomqtt(node: Node, version: int) -> None:
    async def converse() -> list[tuple[str, object]]:
        async with aiomqtt.Client("127.0.0.1", node.port, protocol=aiomqtt.ProtocolVersion(version)) as client:
            await client.subscribe(f"aio{version}/#", qos=2)
            for qos in range(3):
                await client.publish(f"aio{version}/{qos}/x", b"%d" % qos, qos=qos)
            found: list[tuple[str, object]] = []
            async for message in client.messages:
                found.append((str(message.topic), message.payload))
                if len(found) == 3:
                    break
        return found

    found = asyncio.run(asyncio.wait_for(converse(), PATIENCE_S))
    assert sorted(found, key=str) == [(f"aio{version}/{qos}/x", b"%d" % qos) for qos in range(3)]


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="there is no mosquitto_sub (mosquitto-clients)")
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_clients(node: Node, version: str, qos: str) -> None:
    where = ["-h", "127.0.0.1", "-p", str(node.port), "-V", version, "-q", qos, "-t", f"mosquitto{version}/{qos}/x"]
    lines = "".join(f"line {n}\n" for n in range(200))
    command = ["stdbuf", "-oL", "mosquitto_sub", *where, "-C", "200", "-W", "20", "-d"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        for line in reader.stdout:
            if line.startswith("Subscribed"):
                break
        subprocess.run(["mosquitto_pub", *where, "-l"], input=lines, text=True, check=True, timeout=PATIENCE_S)
        found = [line for line in reader.stdout if line.startswith("line ")]
        assert reader.wait(PATIENCE_S) == 0
    assert "".join(found) == lines


def test_a_version_that_is_not_served(node: Node) -> None:
    if shutil.which("mosquitto_pub") is None:
        pytest.skip("there is no mosquitto_pub (mosquitto-clients)")
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(node.port), "-V", "mqttv31", "-t", "a", "-m", "x"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode and "protocol version" in ended.stderr


# --- beside the other protocols ---------------------------------------------------------------------------------------


def test_every_door_leads_to_the_same_stream(node: Node) -> None:
    topic = "doors/7/temp"
    with PahoClient(node.port, V5) as reader, tailrace.connect(f"127.0.0.1:{node.port}") as python:
        reader.subscribe((topic, 1))
        for version in VERSIONS:
            with PahoClient(node.port, version) as writer:
                writer.publish(topic, b"%d" % version)
        with node.client() as lines:
            assert lines.ask("ack on") == "ok ack on"
            assert lines.ask(f"pub doors topic {topic} |line").startswith("ok pub doors")
        python.publish("doors", b"python", topic=topic)
        assert [each.payload for each in reader.messages(4)] == [b"4", b"5", b"line", b"python"]
        with python.subscribe("doors", tailrace.Seq(0)) as subscription:
            found = [next(subscription) for _ in range(4)]
        assert [(each.seq, each.payload, each.topic) for each in found] == [
            (seq, payload, topic) for seq, payload in enumerate([b"4", b"5", b"line", b"python"])
        ]


@both
def test_tls(tmp_path: Path, version: int) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.issue("server", "DNS:localhost")
    with running(tmp_path / "node", config=server.toml()) as node:
        context = ssl.create_default_context(cafile=authority.certificate)
        with PahoClient(node.port, version, tls=context) as client:
            client.subscribe(("s", 2))
            client.publish("s", bytes(300_000), 2)
            assert [len(each.payload) for each in client.messages(1)] == [300_000]


@pytest.mark.few(1)
@both
def test_nobody_notices_that_the_workers_are_replaced(node: Node, version: int) -> None:
    with PahoClient(node.port, version, keepalive=5) as reader, PahoClient(node.port, version) as writer:
        assert reader.subscribe((f"rolling{version}/#", 1)) == [1]
        for number in range(300):
            writer.publish(f"rolling{version}/a/b", b"%d" % number, 1 + number % 2)
            if number == 100:
                replace_all(node)
        assert [int(each.payload) for each in reader.messages(300)] == list(range(300))
        assert reader.ended.empty() and writer.ended.empty()


# --- bad peers --------------------------------------------------------------------------------------------------------


def conversation(version: int) -> bytes:
    return (
        wire.connect(version, "fuzz", keep_alive_s=5, will=("will/x", b"gone", 1), user="u", password=b"p")
        + wire.subscribe(version, 1, ("fuzz/#", 2), ("+/x", 1), ("a", 0))
        + wire.publish(version, "fuzz/a", b"hello", 0)
        + wire.publish(version, "fuzz/a", b"hello", 1, 2)
        + wire.publish(version, "fuzz/a", b"hello", 2, 3, raw=b"\x03\0\1t\x26\0\1a\0\1b\x23\0\1")
        + wire.ack(wire.PUBREL, 3)
        + wire.ack(wire.PUBACK, 1)
        + wire.ack(wire.PUBREC, 2)
        + wire.PINGREQ
        + wire.unsubscribe(version, 4, "fuzz/#")
        + wire.DISCONNECT
    )


def mutated(rng: random.Random, data: bytes, begin: int) -> bytes:
    """Some bytes from `begin` on changed, left out, or put in."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(begin, len(made))
        kind = rng.randrange(4)
        if kind == 0:
            made[place] = rng.randrange(256)
        elif kind == 1:
            made[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del made[place : place + rng.randint(1, 5)]
        else:
            made[place:place] = rng.randbytes(rng.randint(1, 5))
        if len(made) <= begin:
            return bytes(made)
    return bytes(made)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("version", "behind_connect"), [(V5, False), (V4, True), *only_thorough((V4, False), (V5, True))]
)
def test_mutated_packets_end_no_worker(node: Node, version: int, behind_connect: bool) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, data, before = random.Random(seed), conversation(version), lives(node)
    begin = len(wire.connect(version, "fuzz", will=("will/x", b"gone", 1), user="u", password=b"p"))
    for _ in range(FUZZED // 4):
        with socket.create_connection(("127.0.0.1", node.port)) as sock, contextlib.suppress(ConnectionError):
            sock.settimeout(PATIENCE_S)
            sock.sendall(mutated(rng, data, begin if behind_connect else 1))
            if rng.random() < 0.1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                continue
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
    assert lives(node) == before
    with PahoClient(node.port, version) as client:
        client.subscribe(("after/x", 1))
        client.publish("after/x", b"x")
        assert client.messages(1)


def test_a_client_that_sends_half_a_packet_is_not_waited_for(tmp_path: Path) -> None:
    config = "[timing]\nrequest_timeout_s = 1\nlogin_timeout_s = 1\n"
    with running(tmp_path / "data", config=config) as node:
        before = lives(node)
        heads = (b"\x10" + wire.varint(CONNECT_BYTES_MAX - 9), wire.connect(V5) + b"\x30" + wire.varint(8_000_000))
        for head in heads:
            with socket.create_connection(("127.0.0.1", node.port)) as sock:
                sock.settimeout(PATIENCE_S)
                with contextlib.suppress(ConnectionError):
                    sock.sendall(head + bytes(200_000))
                    began_s = time.monotonic()
                    while sock.recv(1 << 16):
                        pass
                    assert time.monotonic() - began_s < PATIENCE_S
        assert lives(node) == before
