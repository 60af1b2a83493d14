"""What tailrace must reach, as figures or ratios of one run, and whether the run met it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.contest import Cell, Results
from bench.rows.durability import FLUSHES_MS

COMPILED, INTERPRETED = "compiled", "interpreted"
_COMPILED, _BOTH = (COMPILED,), (COMPILED, INTERPRETED)
_LINES, _BINARY, _BINARY_ACKS, _SLAVES = "tailrace", "tailrace-binary", "tailrace-binary-acks", "tailrace-slaves"
_SINGLE_ACKS, _MQTT, _MQTT_QOS_1 = "tailrace-single-acks", "tailrace-mqtt", "tailrace-mqtt-qos1"
_CROWD, _RESIDENT = "connections-16000", "resident_bytes_per_connection"

Figure = Callable[[Cell], float | None]
Builds = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """`figure` of `row`, ours divided by that of `against` (alone if that is ""), must reach `bound`."""

    text: str
    row: str
    ours: str
    against: str
    bound: float
    at_least: bool
    figure: Figure
    builds: Builds


@dataclass(frozen=True, slots=True)
class TargetResult:
    """`measured` is None if the run does not have both sides."""

    target: Target
    measured: float | None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.target.bound if self.target.at_least else self.measured <= self.target.bound


def _value(cell: Cell) -> float | None:
    return cell.value


def _cpu(cell: Cell) -> float | None:
    return cell.cpu_us


def _extra(name: str) -> Figure:
    return lambda cell: cell.extra(name)


_TIMES: Figure = _extra("times_one_stream")


def _raised_ms(cell: Cell) -> float | None:
    raised_us = cell.extra("p99_raised_us")
    return None if raised_us is None else raised_us / 1e3


def _least(
    bound: float, row: str, ours: str, against: str, text: str, figure: Figure = _value, builds: Builds = _COMPILED
) -> Target:
    return Target(text, row, ours, against, bound, True, figure, builds)


def _most(
    bound: float, row: str, ours: str, against: str, text: str, figure: Figure = _value, builds: Builds = _COMPILED
) -> Target:
    return Target(text, row, ours, against, bound, False, figure, builds)


def _p99_times_alone(cell: Cell) -> float | None:
    alone_us = cell.extra("p99_alone_us")
    return None if not alone_us else cell.value / alone_us


TARGETS = (
    # Silent publishes and acknowledged ones, against peers that store and answer.
    *(
        _least(
            bound, "ingest-1", ours, against, f"ingest, 1 connection, {how}: {bound:g} times {title}", builds=(build,)
        )
        for ours, how in ((_LINES, "silent"), ("tailrace-acks", "acknowledged"))
        for against, title in (("jetstream", "JetStream with acknowledgements"), ("redis", "Redis Streams"))
        for bound, build in ((4.0, COMPILED), (1.0, INTERPRETED))
    ),
    _least(5.0, "fanout-100", _LINES, "nats", "fan-out to 100: 5 times NATS core"),
    _least(30.0, "fanout-100", _LINES, "mosquitto", "fan-out to 100: 30 times mosquitto"),
    _least(0.5, "replay-1", _LINES, "sendfile", "replay to 1: half of bare sendfile"),
    _least(0.5, "replay-10", _LINES, "sendfile", "replay to 10: half of bare sendfile"),
    # One message a request, one message a connection, one message a stream.
    *(
        _least(bound, "ingest-1", _SINGLE_ACKS, against, f"one message a request: {text}")
        for bound, against, text in ((1e6, "", "1 M/s"), (1.0, "redis", "Redis"), (1.0, "jetstream", "JetStream"))
    ),
    _most(1.0, "turns-1", _LINES, "nats", "CPU a message, connections in turn, 1 stream: NATS", _cpu),
    _most(1.0, "turns-1000", _LINES, "nats", "CPU a message, connections in turn, a stream each: NATS", _cpu),
    *(
        _most(bound, row, ours + answers, "", f"CPU a message, {ours}, in turn, {text}: {bound:g} us", _cpu)
        for row, answers, bound, text in (
            ("turns-1", "", 3.5, "one stream, silent"),
            ("turns-1000", "", 6.0, "a stream each, silent"),
            ("turns-1000", "-acks", 12.0, "a stream each, acknowledged"),
        )
        for ours in (_LINES, _BINARY)
    ),
    *(
        target
        for count in (10, 100)
        for ours in ("tailrace-acks", _BINARY_ACKS)
        for target in (
            _least(1.0, f"turns-of-{count}", ours, "mosquitto-qos1", f"{count} connections, {ours}: mosquitto"),
            _most(15.0, f"turns-of-{count}", ours, "", f"CPU a message, {count} connections, {ours}: 15 us", _cpu),
        )
    ),
    _least(100e3, "streams", _LINES, "", "100,000 streams in turn: 100 k/s"),
    Target("making streams: 20 k/s", "streams", _LINES, "", 20e3, True, _extra("created_per_s"), _COMPILED),
    *(
        _most(1.0, f"latency-{rate}", ours, against, f"latency at {rate:,} msg/s, {ours}, {quantile}: {text}", figure)
        for rate in (1_000, 10_000)
        for ours in (_LINES, _BINARY)
        for against, text in (("nats", "NATS"), ("mosquitto", "mosquitto"))
        for quantile, figure in (("median", _value), ("p99", _extra("p99_us")), ("p99.9", _extra("p99_9_us")))
    ),
    _most(120.0, "hop-1000", _SLAVES, "", "latency that a hop adds, median: 120 us"),
    # Topics of one stream.
    _least(1e6, "ingest-topics", "tailrace-single", "", "topics in turn by binary requests: 1 M/s"),
    _least(500e3, "ingest-topics", _LINES, "", "topics in turn by lines: 500 k/s"),
    *(
        _most(
            1.3, "topics-turns-1000", ours, "", f"connections with a topic each, {ours}: 1.3 times one stream", _TIMES
        )
        for ours in (_LINES, _BINARY)
    ),
    _most(2.0, "topics-10000", _LINES, "", "one of 10,000 subscribers wakes: twice one of 10", _extra("times_10")),
    # MQTT, by one connection and to 100 subscribers.
    _least(2e6, "ingest-1", _MQTT, "", "MQTT ingest, QoS 0: 2 M/s"),
    _least(500e3, "ingest-1", _MQTT_QOS_1, "", "MQTT ingest, QoS 1: 500 k/s"),
    _least(15e6, "fanout-100", _MQTT, "", "MQTT fan-out to 100, QoS 0: 15 M/s"),
    _least(50.0, "fanout-100", _MQTT, "mosquitto", "MQTT fan-out to 100, QoS 0: 50 times mosquitto"),
    *(
        _most(1.0, f"latency-{rate}", _MQTT, "mosquitto", f"MQTT latency at {rate:,} msg/s, {quantile}", figure)
        for rate in (1_000, 10_000)
        for quantile, figure in (("median", _value), ("p99", _extra("p99_us")))
    ),
    _least(1e6, "fanout-100-qos1", _MQTT_QOS_1, "", "MQTT fan-out to 100, QoS 1, windows of 100: 1 M/s"),
    _least(10.0, "fanout-100-qos1", _MQTT_QOS_1, "mosquitto-qos1", "MQTT fan-out to 100, QoS 1: 10 times mosquitto"),
    *(
        _most(1.0, row, _MQTT + qos, against + qos, f"CPU a message, MQTT{qos}, in turn, {text}: {against}", _cpu)
        for row, text in (("turns-1", "one stream"), ("turns-1000", "a stream each"))
        for qos in ("", "-qos1")
        for against in ("mosquitto", "nats-mqtt")
    ),
    *(
        _most(1.0, row, _MQTT, "nats", f"CPU a message, MQTT, in turn, {text}: NATS core", _cpu)
        for row, text in (("turns-1", "one stream"), ("turns-1000", "a stream each"))
    ),
    _most(300.0, "connections-16000-qos1", _MQTT_QOS_1, "", "MQTT, 16 k clients with QoS 1 get a message: 0.3 s"),
    _most(6e3, "connections-16000-qos1", _MQTT_QOS_1, "", "MQTT, 16 k with QoS 1: 6 KB each", _extra(_RESIDENT)),
    # One message a packet. The less of a figure and of 80 % of the bare loop is enough.
    _least(400e3, "packets-in", "tailrace-udp", "", "datagrams in: 400 k/s"),
    _least(600e3, "packets-out", "tailrace-udp", "", "datagrams out, to 10 subscribers: 600 k/s"),
    _least(0.8, "packets-in", "tailrace-udp", "plain-udp", "or 0.8 of bare recvmmsg in C"),
    _least(0.8, "packets-out", "tailrace-udp", "plain-udp", "or 0.8 of bare recvmmsg and sendmmsg in C"),
    # The brokers' own Python clients.
    _least(1.0, "client-wait", _BINARY_ACKS, "redis", "a Python client that waits: redis-py"),
    _least(1.0, "client-tasks", _BINARY_ACKS, "jetstream", "100 tasks of asyncio: nats-py with JetStream"),
    _least(1.0, "client-tasks", _BINARY_ACKS, "kafka", "100 tasks of asyncio: aiokafka"),
    _least(400e3, "client-silent", _BINARY, "", "a Python client that waits for nothing: 400 k/s"),
    # Kafka has batches, and its readers get stored bytes by sendfile.
    _least(1.0, "ingest-1", _BINARY_ACKS, "kafka", "batches, acknowledged: Kafka"),
    Target("replay of text to 1: Kafka", "replay-1", _LINES, "kafka", 1.0, True, _extra("messages_per_s"), _COMPILED),
    # Batches over the binary protocol; frames by sendfile; very many quiet subscribers; noisy neighbours.
    _least(10.0, "ingest-1", _BINARY_ACKS, "jetstream", "batches, acknowledged: 10 times JetStream"),
    _least(1.0, "ingest-1", _BINARY_ACKS, "nats", "batches, acknowledged: NATS core"),
    _least(12.0, "fanout-100", _BINARY, "nats", "binary fan-out to 100: 12 times NATS core"),
    _least(0.85, "replay-1", _BINARY, "sendfile", "binary replay to 1: 0.85 of bare sendfile"),
    # Users and rights; TLS, with one cipher for all.
    _least(0.97, "ingest-1", "tailrace-rights-acks", _BINARY_ACKS, "batches of a user with rights: 3 % slower"),
    _least(1.0, "ingest-1", "tailrace-tls-acks", "nats-tls", "ingest over TLS, acknowledged: NATS with TLS"),
    _least(1.0, "replay-1", "tailrace-tls", "jetstream-tls", "replay over TLS: JetStream with TLS"),
    *(
        _least(50.0, "replay-1", f"tailrace-tls{reader}", "", f"replay over TLS: {text}", _extra("cipher_rate_percent"))
        for reader, text in (
            ("", "50 % of the rate of the cipher alone"),
            ("-undecrypted", "50 % of the rate of the cipher alone, to a reader that does not decrypt"),
        )
    ),
    _most(1.0, _CROWD, _BINARY, "nats", "16,000 subscribers have a message: NATS core"),
    _most(6e3, _CROWD, _BINARY, "", "16,000 subscribers: 6,000 resident bytes each", _extra(_RESIDENT)),
    _most(2.0, "beside-connecting", _LINES, "", "connecting beside 1,000 connects/s: twice the p99", _p99_times_alone),
    _most(1.0, _CROWD, _BINARY, "", "16,000 quiet subscribers: 1 % of a core", _extra("idle_cpu_percent")),
    _most(3.0, "streams-1000", _LINES, "", "1,000 streams in turn, lines: 3 times slower than 1"),
    _most(3.0, "streams-1000", _BINARY, "", "1,000 streams in turn, batches: 3 times slower than 1"),
    _most(1.25, "idempotence-1", _BINARY_ACKS, "", "one message a publish, numbered: 1.25 times slower"),
    _most(1.25, "idempotence-100", _BINARY_ACKS, "", "100 messages a publish, numbered: 1.25 times slower"),
    _least(5.0, "consume", _BINARY_ACKS, "jetstream", "a durable consumer: 5 times JetStream's pull consumer"),
    _least(3.0, "consume", _BINARY_ACKS, "redis", "a durable consumer: 3 times Redis's XREADGROUP and XACK"),
    _most(5.0, "neighbour", _BINARY, "", "p99 raised by a noisy neighbour, binary: 5 ms", _raised_ms),
    _most(5.0, "neighbour", _LINES, "", "p99 raised by a noisy neighbour, lines: 5 ms", _raised_ms),
    *(
        _most(10_000.0, f"beside-{flood}", _LINES, "", f"p99 beside a flood, {flood}: 10 ms")
        for flood in ("making", "subscribing", "claims", "follows")
    ),
    # JetStream with three replicas acknowledges what two of them have; a file by bare sendfile.
    *(
        _least(4.0, row, ours, "jetstream-r3", f"ingest, {shape}, acknowledged when {ack}: 4 times JetStream R3")
        for row, shape in (("replicated-2", "1 slave"), ("replicated-3", "a chain of 2 slaves"))
        for ours, ack in ((_SLAVES, "appended"), ("tailrace-slaves-held", "replicated 1"))
    ),
    *(
        _least(times, "replicated-cluster", "tailrace-cluster", other, f"ingest, a cluster: {times:g} times {title}")
        for times, other, title in ((10.0, "jetstream-r3", "JetStream R3"), (2.0, "kafka-r3", "Kafka R3, acks=all"))
    ),
    *(
        _most(100.0, row, "tailrace-cluster", "", f"a publish by way of another node, {how}: 100 µs more")
        for row, how in (("forwarded", "appended"), ("forwarded-replicated", "replicated"))
    ),
    *(
        _most(1.0, f"lease-{name}", peer, "", f"processor time under a lease, {text}: 1 % more")
        for name, peer, text in (
            ("batches", _BINARY_ACKS, "batches"),
            ("singles", _BINARY_ACKS, "one message a request"),
            ("turns", _BINARY_ACKS, "one message a stream"),
            ("replicated", "tailrace-slaves-held", "held by a slave"),
        )
    ),
    *(
        _least(0.5, "catch-up", _SLAVES, bare, f"catch-up of an empty slave: half of bare sendfile to one who {reader}")
        for bare, reader in (("sendfile-read", "reads"), ("sendfile", "throws away"))
    ),
    # Spark over the log, with 40 million messages.
    _least(500.0, "spark-scan", "spark", "", "Spark reads a day with payloads: 500 MB/s", builds=_BOTH),
    _most(0.5, "spark-scan", "spark", "", "Spark counts an hour of a day: 0.5 s", _extra("hour_s"), _BOTH),
    _least(12e6, "rollup-8", "spark", "", "a day in 8 streams is rolled up at 12 M msg/s", builds=_BOTH),
    _most(1.0, "spark-live", _BINARY_ACKS, "", "Spark follows 50,000 msg/s: 1 s a batch", builds=_BOTH),
    _most(15.0, "beside-rollup", _BINARY_ACKS, "", "ingest beside a rollup: 15 % slower", builds=_BOTH),
    _least(4e6, "rollup-10000", "spark", "", "a day in 10,000 streams is rolled up at 4 M msg/s", builds=_BOTH),
    # Many streams share the syncs of one, on the real disk and on emulated ones.
    *(
        _most(3.0, row, _LINES, "", text, _extra("times_one_stream"), _BOTH)
        for row, text in (
            ("always-200", "always, 200 streams: 3 times 1 stream"),
            *((f"always-200-flush-{ms}ms", f"the same, a flush takes {ms} ms (emulated)") for ms in FLUSHES_MS),
        )
    ),
    _most(100.0, "interval-400", _LINES, "", "interval of 10 ms, 400 streams: 100 ms old at most", builds=_BOTH),
    *(
        _most(bound, "streams", _LINES, "", text, _extra(name), _BOTH)
        for bound, text, name in (
            (1000.0, "bytes an idle stream: under 1 KB", "private_bytes_per_stream"),
            (3.0, "ready after a clean stop: 3 s", "ready_clean_s"),
            (10.0, "ready after an unclean stop: 10 s", "ready_unclean_s"),
        )
    ),
)


def evaluate(results: Results, build: str) -> list[TargetResult]:
    """Return the outcome of each target of this build, in order."""
    return [TargetResult(target, _measured(results, target)) for target in TARGETS if build in target.builds]


def _measured(results: Results, target: Target) -> float | None:
    ours = _figure(results, target, target.ours)
    if not target.against:
        return ours
    theirs = _figure(results, target, target.against)
    return ours / theirs if ours is not None and theirs else None


def _figure(results: Results, target: Target, peer: str) -> float | None:
    cell = results.find(target.row, peer)
    return target.figure(cell) if cell is not None else None
