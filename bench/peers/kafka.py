"""Kafka: one node that is broker and controller (KRaft), or three; a topic with one partition for each stream.

Requests are in the oldest versions that Kafka 4 takes (KIP-896), because these have fixed lengths. The formats are
those of https://kafka.apache.org/protocol.html and, for record batches, https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import shlex
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c

from bench.peers.base import Contestant, Puller, RequestStep, Site, Unavailable
from bench.peers.programs import OWN_MODULES, find_program, run_together

JARS = Path(__file__).resolve().parents[2] / "build" / "kafka"
"""Where `make bench` puts Kafka, if there is Maven."""
BATCH_MAX = 1_000
_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _CREATE_TOPICS = (0, 3), (1, 4), (2, 1), (3, 1), (19, 2)
_FETCH_BYTES = 8 << 20
_FETCH_WAIT_MS = 500
_TIMEOUT_MS = 30_000
# A topic that the controller has created is known to the broker a moment later.
_ASKED = 50
_WARM_STEPS = 20
# The options of its own scripts for starting a server.
_JAVA_OPTIONS = (
    "-Xms1G -Xmx1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)
_CONFIGURATION = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{spare_port}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
num.partitions=1
offsets.topic.replication.factor=1
"""
_BATCH_HEAD = struct.Struct(">qiibI")
_BATCH_REST = struct.Struct(">hiqqqhii")
_CRC_FROM = _BATCH_HEAD.size
_NAME_AT = 26  # the topic's, in a request to publish
_RESPONSE = struct.Struct(">ii")
_ALIVE = struct.pack(">hii", -1, 1, 0)  # the end of an answer about no topics: the broker's rack, the controller
_LAST = 7  # the number of a request whose answer cannot be taken for another's


class Kafka(Contestant):
    name = "kafka"
    title = "Kafka, acks=1"
    acked = True
    kinds = frozenset({"ingest", "turns", "latency", "replay", "client-tasks"})
    batch_max = BATCH_MAX
    acks = 1  # the leader's
    replicas: tuple[int, ...] = (1,)  # of each topic, its leader first
    warm_requests, warm_batch = 2_000, 1  # in each of _WARM_STEPS

    def command(self, site: Site) -> list[str]:
        return _node_command(site, 1, f"1@127.0.0.1:{site.spare_port}")

    def version(self) -> str:
        find_program("java")
        jars = sorted(JARS.glob("kafka-server-[0-9]*.jar"))
        if not jars:
            raise Unavailable("Kafka is not installed (`make bench` installs it if mvn is there)")
        return f"Kafka {jars[-1].stem.removeprefix('kafka-server-')}, KRaft"

    def ready(self) -> list[RequestStep]:
        """The broker is in its own list once it may lead."""
        return [RequestStep(_request(_METADATA, _array()), _ALIVE)]

    def prepare(self) -> list[RequestStep]:
        """Its code is compiled while it runs: requests of little until that is done."""
        warm, each = "warm", self.warm_requests * self.warm_batch
        requests = self.publish_many(warm, b"@", self.warm_batch) * self.warm_requests
        ends = [self.stored(warm, each * number) for number in range(1, _WARM_STEPS + 1)]
        return [*self.subscriber(warm, 0), *(RequestStep(requests + end.send, end.until) for end in ends)]

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        return self._topics(names)

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        return self._topics([name])

    def _topics(self, names: Sequence[str]) -> list[RequestStep]:
        """Create those that are missing."""
        replicas = _array(*(struct.pack(">i", node) for node in self.replicas))
        places = struct.pack(">ih", -1, -1) + _array(struct.pack(">i", 0) + replicas) + _array()
        topics = _array(*(_string(name) + places for name in names))
        create = _request(_CREATE_TOPICS, topics + struct.pack(">ib", _TIMEOUT_MS, 0))
        last = _string(names[-1])
        leader = struct.pack(">hii", 0, 0, self.replicas[0]) + replicas * 2  # no error; they are all in sync
        led = struct.pack(">h", 0) + last + struct.pack(">bi", 0, 1) + leader
        asked = _request(_METADATA, _array(last)) * _ASKED
        return [RequestStep(create, last), RequestStep(asked, led), *self.ready()]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return self.publish_many(name, payload, 1)

    def publish_many(self, name: str, payload: bytes, count: int, serial: int = 0) -> bytes:
        batch = _batch(payload, count)
        body = struct.pack(">hhi", -1, self.acks, _TIMEOUT_MS) + _topic(name, struct.pack(">i", len(batch)) + batch)
        return _request(_PRODUCE, body)

    def sealed(self, request: bytes) -> bytes:
        (name_bytes,) = struct.unpack_from(">h", request, _NAME_AT)
        start = _NAME_AT + 2 + name_bytes + 3 * 4 + _CRC_FROM  # past partitions, partition and the batch's length
        return request[: start - 4] + struct.pack(">I", google_crc32c.value(request[start:])) + request[start:]

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        return requests * (_RESPONSE.size + len(_topic(names[0], bytes(18))) + 4)

    def stored(self, name: str, messages: int) -> RequestStep:
        asked = struct.pack(">i", -1) + _topic(name, struct.pack(">q", -1))
        return RequestStep(_request(_LIST_OFFSETS, asked), _topic(name, struct.pack(">hqq", 0, -1, messages)))

    def live_puller(self, name: str) -> Puller:
        return KafkaPuller(name)

    def replay_puller(self, name: str, client: int, messages: int) -> Puller:
        return KafkaPuller(name)


class KafkaCluster(Kafka):
    """Three nodes, each a broker and a controller; a publish is answered once all that are in sync have it."""

    name = "kafka-r3"
    title = "Kafka R3, acks=all"
    kinds = frozenset({"cluster"})
    acks = -1
    replicas = (1, 2, 3)
    warm_requests, warm_batch = 20, BATCH_MAX  # each waits for the two others

    def command(self, site: Site) -> list[str]:
        ports = (site.port, site.spare_port, *site.further)
        sites = [
            Site(site.directory / f"n{node}", port, spare_port)
            for node, port, spare_port in zip(self.replicas, ports[::2], ports[1::2], strict=False)
        ]
        voters = ",".join(f"{node}@127.0.0.1:{each.spare_port}" for node, each in enumerate(sites, 1))
        for each in sites:
            each.directory.mkdir(exist_ok=True)
        return run_together(site, [_node_command(each, node, voters) for node, each in enumerate(sites, 1)])

    def environment(self) -> Mapping[str, str]:
        return OWN_MODULES

    def ready(self) -> list[RequestStep]:
        """The first node lists all of them. Its answer begins with the request's number and their count."""
        return [RequestStep(_request(_METADATA, _array(), _LAST), struct.pack(">ii", _LAST, len(self.replicas)))]


class KafkaPuller(Puller):
    """Fetch again and again, each from the end of the answer before it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._records_at = _RESPONSE.size + 4 + len(_topic(name, bytes(2 + 8 + 8 + 4 + 4)))
        self._response = bytearray()

    def open(self) -> bytes:
        """From `messages` on. One request takes up to 8 MiB; it waits for the first message."""
        asked = _topic(self._name, struct.pack(">qi", self.messages, _FETCH_BYTES))
        return _request(_FETCH, struct.pack(">iiiib", -1, _FETCH_WAIT_MS, 1, _FETCH_BYTES, 0) + asked)

    def feed(self, data: bytes) -> bytes:
        self._response += data
        if len(self._response) < 4 or len(self._response) < 4 + int.from_bytes(self._response[:4], "big"):
            return b""
        self._count()
        self._response.clear()
        return self.open()

    def _count(self) -> None:
        """Add the messages of the whole batches; the last one may be cut."""
        position = self._records_at
        while position + _BATCH_HEAD.size + _BATCH_REST.size <= len(self._response):
            offset, length, *_ = _BATCH_HEAD.unpack_from(self._response, position)
            if position + 12 + length > len(self._response):
                break
            count = _BATCH_REST.unpack_from(self._response, position + _CRC_FROM)[-1]
            self.messages = offset + count
            position += 12 + length


def _node_command(site: Site, node: int, voters: str) -> list[str]:
    """How to start a new node; writes its configuration."""
    configuration = site.directory / "server.properties"
    configuration.write_text(
        _CONFIGURATION.format(
            node=node, voters=voters, port=site.port, spare_port=site.spare_port, directory=site.directory
        )
    )
    java = f"{find_program('java')} {_JAVA_OPTIONS} -cp {shlex.quote(f'{JARS}/*')}"
    file, cluster = shlex.quote(str(configuration)), "AAAAAAAAAAAAAAAAAAAAAQ"
    formatted = f"{java} kafka.tools.StorageTool format -t {cluster} -c {file}"
    return ["sh", "-c", f"{formatted} && exec {java} kafka.Kafka {file}"]


def _request(kind: tuple[int, int], body: bytes, number: int = 0) -> bytes:
    """A request of a client without a name."""
    head = struct.pack(">hhih", *kind, number, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(*elements: bytes) -> bytes:
    return struct.pack(">i", len(elements)) + b"".join(elements)


def _topic(name: str, of_partition: bytes) -> bytes:
    """Partition 0 of one topic."""
    return _array(_string(name) + _array(struct.pack(">i", 0) + of_partition))


def _batch(payload: bytes, count: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    records = b"".join(_record(payload, number) for number in range(count))
    rest = _BATCH_REST.pack(0, count - 1, now_ms, now_ms, -1, -1, -1, count) + records
    return _BATCH_HEAD.pack(0, len(rest) + _BATCH_HEAD.size - 12, -1, 2, google_crc32c.value(rest)) + rest


def _record(payload: bytes, number: int) -> bytes:
    """No key, no headers, the time of its batch."""
    record = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(payload)) + payload + _varint(0)
    return _varint(len(record)) + record


def _varint(value: int) -> bytes:
    """Zigzag, as in protocol buffers."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
