"""One subscriber is timed, alone and beside another that replays gigabytes, both on the only worker of a node."""

from __future__ import annotations

from collections.abc import Iterator

from bench.load.latency import Timed, latency
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.load.noise import Noise
from bench.peers.base import Peer, make_payload, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import Measurement, Row, cpu_us, generate
from bench.rows.latency import WARM_MESSAGES
from bench.rows.replay import fill, replay_messages
from bench.scale import Scale
from bench.server import Server
from bench.statistics import quantile

RATE = 1_000
SLICES = 6  # fresh pairs of connections one after the other: as many alone, and at least as many beside the noise
SLICES_MAX = 500


class NeighbourRow(Row):
    name = "neighbour"
    title = f"latency of a subscriber at {RATE:,} msg/s beside one that replays without end, 1 worker"
    kind = "neighbour"
    unit = "p99 µs"
    lower_is_better = True

    def suited(self, peer: Peer) -> Peer:
        return peer.with_workers(1) if isinstance(peer, Tailrace) else peer

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        noisy, *names = stream_names(1 + SLICES + SLICES_MAX)
        messages, size, deadline = replay_messages(scale), scale.payload_bytes, Deadline(scale.timeout_s)
        fill(peer, server, noisy, messages, scale)
        fresh = iter(names)
        alone = [_slice(peer, server, fresh, scale) for _ in range(SLICES)]
        beside: list[Timed] = []
        with Noise(peer, server.target.port, noisy, messages, size, deadline) as noise:
            while len(beside) < SLICES or noise.received_bytes < scale.noise_bytes:
                deadline.check(f"{noise.received_bytes} of {scale.noise_bytes} bytes of noise")
                beside.append(_slice(peer, server, fresh, scale))
            noise_bytes, noise_per_s = noise.received_bytes, noise.per_s()
        quiet_p99_us, noisy_p99_us = _quantile_us(alone, 0.99), _quantile_us(beside, 0.99)
        spent = Spent(sum(part.spent.wall_s for part in alone), sum(part.spent.cpu_s for part in alone))
        return Measurement(
            value=noisy_p99_us,
            cpu_us=cpu_us(spent, sum(len(part.latencies_ns) for part in alone)),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "p50_us": _quantile_us(beside, 0.5),
                "p50_alone_us": _quantile_us(alone, 0.5),
                "p99_alone_us": quiet_p99_us,
                "p99_raised_us": noisy_p99_us - quiet_p99_us,
                "noise_bytes": noise_bytes,
                "noise_bytes_per_s": noise_per_s,
            },
        )


def _slice(peer: Peer, server: Server, fresh: Iterator[str], scale: Scale) -> Timed:
    name = next(fresh, None)
    if name is None:
        raise LoadError(f"the noise was not over after {SLICES_MAX} slices")
    messages = WARM_MESSAGES + round(RATE * scale.latency_seconds / SLICES)
    payload, deadline = make_payload(scale.payload_bytes), Deadline(scale.timeout_s)
    timed = generate(scale, latency, peer, server.target, name, payload, RATE, messages, deadline)
    return Timed(timed.latencies_ns[WARM_MESSAGES:], timed.spent)


def _quantile_us(slices: list[Timed], share: float) -> float:
    return quantile([sample for part in slices for sample in part.latencies_ns], share) / 1e3
