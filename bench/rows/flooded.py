"""One subscriber is timed beside a client that makes the broker do expensive things without end."""

from __future__ import annotations

from bench.load.dial import dialled
from bench.load.flood import Flood, Script, claim, come_and_go, fill_streams, follow, make_streams
from bench.load.latency import Timed, latency
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.peers.base import Peer, Step, make_payload, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import Measurement, Row, cpu_us, generate
from bench.rows.latency import WARM_MESSAGES
from bench.scale import Scale
from bench.server import Server
from bench.statistics import quantile

RATE = 500
STREAMS_PART = 10  # of the row of very many streams: these are closed and opened again and again
SLICES = 3  # fresh pairs of connections one after the other, alone and beside the flood
FLOODS: dict[str, tuple[str, Script]] = {
    "making": ("makes streams as fast as it can", make_streams),
    "subscribing": ("subscribes and unsubscribes over 10,000 closed streams", come_and_go),
    "claims": ("sends CLAIM as fast as it can", claim),
    "follows": ("sends FOLLOW over 10,000 streams as fast as it can", follow),
}


class FloodedRow(Row):
    """Each pair of connections has a fresh stream; what it is sent first is not counted."""

    kind = "flooded"
    unit = "p99 µs"
    lower_is_better = True

    def __init__(self, flood: str) -> None:
        what, self._script = FLOODS[flood]
        self._filled = flood != "making"
        self.name = f"beside-{flood}"
        self.title = f"latency of a subscriber at {RATE:,} msg/s beside a client that {what}"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        if not isinstance(peer, Tailrace):
            raise LoadError(f"{peer.name} is not asked for this")
        port, deadline = server.target.port, Deadline(scale.timeout_s)
        names, streams = stream_names(2 * SLICES), scale.many_streams // STREAMS_PART
        if self._filled:
            steps = [Step(fill_streams(streams) + b"ping\r\n", b"ok pong\r\n")]
            with dialled(port, [steps], deadline):
                pass
        alone = [self._slice(peer, server, name, scale) for name in names[:SLICES]]
        with Flood(port, self._script, streams, deadline) as flood:
            beside = [self._slice(peer, server, name, scale) for name in names[SLICES:]]
            sent_bytes = flood.sent_bytes
        spent = Spent(sum(part.spent.wall_s for part in beside), sum(part.spent.cpu_s for part in beside))
        return Measurement(
            value=_quantile_us(beside, 0.99),
            cpu_us=cpu_us(spent, sum(len(part.latencies_ns) for part in beside)),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "p50_us": _quantile_us(beside, 0.5),
                "p50_alone_us": _quantile_us(alone, 0.5),
                "p99_alone_us": _quantile_us(alone, 0.99),
                "noise_bytes_per_s": sent_bytes / spent.wall_s,
            },
        )

    def _slice(self, peer: Peer, server: Server, name: str, scale: Scale) -> Timed:
        messages = WARM_MESSAGES + round(RATE * scale.latency_seconds / SLICES)
        payload, deadline = make_payload(scale.payload_bytes), Deadline(scale.timeout_s)
        timed = generate(scale, latency, peer, server.target, name, payload, RATE, messages, deadline)
        return Timed(timed.latencies_ns[WARM_MESSAGES:], timed.spent)


def _quantile_us(slices: list[Timed], share: float) -> float:
    return quantile([sample for part in slices for sample in part.latencies_ns], share) / 1e3
