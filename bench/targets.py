"""What tailrace is held to, as ratios of one run; and whether the run met it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.contest import Cell, Results
from bench.rows.durability import FLUSHES_MS

COMPILED, INTERPRETED = "compiled", "interpreted"


@dataclass(frozen=True, slots=True)
class Target:
    """`figure` of `row`: ours divided by `against` (or alone, where that is "") must reach `bound`."""

    text: str
    row: str
    ours: str
    against: str
    bound: float
    at_least: bool
    figure: Callable[[Cell], float | None]
    builds: tuple[str, ...] = (COMPILED, INTERPRETED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`measured` is None where the run has not got both sides."""

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


def _extra(name: str) -> Callable[[Cell], float | None]:
    return lambda cell: cell.extra(name)


def _always_targets() -> list[Target]:
    """Many streams share the syncs of one, on the disk there is and on emulated ones."""
    rows = {"always, 200 streams: 3 times 1 stream": "always-200"}
    rows |= {f"the same, a flush takes {ms} ms (emulated)": f"always-200-flush-{ms}ms" for ms in FLUSHES_MS}
    figure = _extra("times_one_stream")
    return [Target(text, row, _OURS, "", 3.0, False, figure) for text, row in rows.items()]


def _ingest_targets() -> list[Target]:
    """Silent publishes and acknowledged ones, against peers that store and answer."""
    targets = []
    for ours, how in (("tailrace", "silent"), ("tailrace-acks", "acknowledged")):
        for against, title in (("jetstream", "JetStream with acknowledgements"), ("redis", "Redis Streams")):
            for bound, build in ((4.0, COMPILED), (1.0, INTERPRETED)):
                text = f"ingest, 1 connection, {how}: {bound:g} times {title}"
                targets.append(Target(text, "ingest-1", ours, against, bound, True, _value, (build,)))
    return targets


def _raised(cell: Cell) -> float | None:
    raised_us = cell.extra("p99_raised_us")
    return None if raised_us is None else raised_us / 1e3


def _binary_targets() -> list[Target]:
    """Batches over the binary protocol; frames by sendfile; very many quiet subscribers; a noisy neighbour."""
    acks, silent, crowd = "tailrace-binary-acks", "tailrace-binary", "connections-16000"
    bytes_each, idle = _extra("resident_bytes_per_connection"), _extra("idle_cpu_percent")
    rows: list[tuple[str, str, str, str, float, bool, Callable[[Cell], float | None]]] = [
        ("batches, acknowledged: 10 times JetStream", "ingest-1", acks, "jetstream", 10.0, True, _value),
        ("batches, acknowledged: NATS core", "ingest-1", acks, "nats", 1.0, True, _value),
        ("binary fan-out to 100: 12 times NATS core", "fanout-100", silent, "nats", 12.0, True, _value),
        ("binary replay to 1: 0.85 of bare sendfile", "replay-1", silent, "sendfile", 0.85, True, _value),
        ("16,000 subscribers have a message: NATS core", crowd, silent, "nats", 1.0, False, _value),
        ("16,000 subscribers: 6,000 resident bytes each", crowd, silent, "", 6_000.0, False, bytes_each),
        ("16,000 quiet subscribers: 1 % of a core", crowd, silent, "", 1.0, False, idle),
        ("1,000 streams in turn, lines: 3 times slower than 1", "streams-1000", _OURS, "", 3.0, False, _value),
        ("1,000 streams in turn, batches: 3 times slower than 1", "streams-1000", silent, "", 3.0, False, _value),
        ("one message a publish, numbered: 1.25 times slower", "idempotence-1", acks, "", 1.25, False, _value),
        ("100 messages a publish, numbered: 1.25 times slower", "idempotence-100", acks, "", 1.25, False, _value),
        ("a durable consumer: 5 times JetStream's pull consumer", "consume", acks, "jetstream", 5.0, True, _value),
        ("a durable consumer: 3 times Redis's XREADGROUP and XACK", "consume", acks, "redis", 3.0, True, _value),
        ("p99 raised by a noisy neighbour, binary: 5 ms", "neighbour", silent, "", 5.0, False, _raised),
        ("p99 raised by a noisy neighbour, lines: 5 ms", "neighbour", _OURS, "", 5.0, False, _raised),
    ]
    for flood in ("making", "subscribing", "claims", "follows"):
        rows.append((f"p99 beside a flood, {flood}: 10 ms", f"beside-{flood}", _OURS, "", 10_000.0, False, _value))
    return [Target(*row, _COMPILED_ONLY) for row in rows]


def _replication_targets() -> list[Target]:
    """As JetStream with three replicas, of which two have a message that is acknowledged; a file by bare sendfile."""
    targets = []
    for row, shape in (("replicated-2", "1 slave"), ("replicated-3", "a chain of 2 slaves")):
        for ours, ack in (("tailrace-slaves", "appended"), ("tailrace-slaves-held", "replicated 1")):
            text = f"ingest, {shape}, acknowledged when {ack}: 4 times JetStream R3"
            targets.append(Target(text, row, ours, "jetstream-r3", 4.0, True, _value, _COMPILED_ONLY))
    for bare, whom in (("sendfile-read", "reads"), ("sendfile", "throws away")):
        text = f"catch-up of an empty slave: half of bare sendfile to one who {whom}"
        targets.append(Target(text, "catch-up", "tailrace-slaves", bare, 0.5, True, _value, _COMPILED_ONLY))
    return targets


def _spark_targets() -> list[Target]:
    """Spark over the log, with 40 million messages."""
    return [
        Target("Spark reads a day with payloads: 500 MB/s", "spark-scan", "spark", "", 500.0, True, _value),
        Target("Spark counts an hour of a day: 0.5 s", "spark-scan", "spark", "", 0.5, False, _extra("hour_s")),
        Target("a day in 8 streams is rolled up at 12 M msg/s", "rollup-8", "spark", "", 12e6, True, _value),
        Target("Spark follows 50,000 msg/s: 1 s a batch", "spark-live", "tailrace-binary-acks", "", 1.0, False, _value),
        Target("ingest beside a rollup: 15 % slower", "beside-rollup", "tailrace-binary-acks", "", 15.0, False, _value),
        Target("a day in 10,000 streams is rolled up at 4 M msg/s", "rollup-10000", "spark", "", 4e6, True, _value),
    ]


_COMPILED_ONLY = (COMPILED,)
_OURS = "tailrace"

TARGETS = (
    *_ingest_targets(),
    Target("fan-out to 100: 5 times NATS core", "fanout-100", _OURS, "nats", 5.0, True, _value, _COMPILED_ONLY),
    Target("fan-out to 100: 30 times mosquitto", "fanout-100", _OURS, "mosquitto", 30.0, True, _value, _COMPILED_ONLY),
    Target("replay to 1: half of bare sendfile", "replay-1", _OURS, "sendfile", 0.5, True, _value, _COMPILED_ONLY),
    Target("replay to 10: half of bare sendfile", "replay-10", _OURS, "sendfile", 0.5, True, _value, _COMPILED_ONLY),
    Target(
        "CPU a message, connections in turn, 1 stream: NATS", "turns-1", _OURS, "nats", 1.0, False, _cpu, _COMPILED_ONLY
    ),
    Target(
        "CPU a message, connections in turn, a stream each: NATS",
        "turns-1000",
        _OURS,
        "nats",
        1.0,
        False,
        _cpu,
        _COMPILED_ONLY,
    ),
    Target("median latency at 1,000 msg/s: NATS", "latency-1000", _OURS, "nats", 1.0, False, _value, _COMPILED_ONLY),
    *_binary_targets(),
    *_replication_targets(),
    *_spark_targets(),
    *_always_targets(),
    Target("interval of 10 ms, 400 streams: 100 ms old at most", "interval-400", _OURS, "", 100.0, False, _value),
    Target("bytes an idle stream: under 1 KB", "streams", _OURS, "", 1000.0, False, _extra("private_bytes_per_stream")),
    Target("ready after a clean stop: 3 s", "streams", _OURS, "", 3.0, False, _extra("ready_clean_s")),
    Target("ready after an unclean stop: 10 s", "streams", _OURS, "", 10.0, False, _extra("ready_unclean_s")),
)


def evaluate(results: Results, build: str) -> list[Outcome]:
    """Each target of this build, in order."""
    return [Outcome(target, _measured(results, target)) for target in TARGETS if build in target.builds]


def _measured(results: Results, target: Target) -> float | None:
    ours = _figure(results, target, target.ours)
    if not target.against:
        return ours
    theirs = _figure(results, target, target.against)
    return ours / theirs if ours is not None and theirs else None


def _figure(results: Results, target: Target, peer: str) -> float | None:
    cell = results.find(target.row, peer)
    return target.figure(cell) if cell is not None else None
