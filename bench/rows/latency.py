"""From `send` to `recv` at a steady rate, one publisher and one subscriber."""

from __future__ import annotations

from bench.load.latency import latency
from bench.load.limits import Deadline
from bench.load.meter import Spent
from bench.peers.base import Peer, make_payload, stream_names
from bench.rows.base import Measurement, Row, cpu_us, generate
from bench.scale import Scale
from bench.server import Server
from bench.statistics import quantile

WARM_MESSAGES = 50  # at the beginning of each pair, sent but not counted: the stream's making is not its latency


class LatencyRow(Row):
    kind = "latency"
    unit = "median µs"
    lower_is_better = True

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self.name = f"latency-{rate}"
        self.title = f"latency end to end, 1 to 1, {rate:,} msg/s"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        messages = WARM_MESSAGES + int(self._rate * scale.latency_seconds / scale.latency_pairs)
        payload, pairs, wall_s, cpu_s = make_payload(scale.payload_bytes), list[list[int]](), 0.0, 0.0
        for name in stream_names(scale.latency_pairs):
            deadline = Deadline(scale.timeout_s)
            timed = generate(scale, latency, peer, server.target, name, payload, self._rate, messages, deadline)
            pairs.append(timed.latencies_ns[WARM_MESSAGES:])
            wall_s, cpu_s = wall_s + timed.spent.wall_s, cpu_s + timed.spent.cpu_s
        count, samples = messages * scale.latency_pairs, [sample for pair in pairs for sample in pair]
        medians = [quantile(pair, 0.5) / 1e3 for pair in pairs]
        return Measurement(
            value=quantile(samples, 0.5) / 1e3,
            cpu_us=cpu_us(Spent(wall_s, cpu_s), count),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "p99_us": quantile(samples, 0.99) / 1e3,
                "p99_9_us": quantile(samples, 0.999) / 1e3,
                "best_pair_us": min(medians),
                "worst_pair_us": max(medians),
                "max_us": max(samples) / 1e3,
                "reached_per_s": count / wall_s,
            },
        )
