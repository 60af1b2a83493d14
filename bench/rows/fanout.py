"""One publisher, many subscribers of its stream, everything delivered to each."""

from __future__ import annotations

from bench.load.fanout import fan_out
from bench.load.ingest import Stop
from bench.load.limits import Deadline
from bench.peers.base import Peer, make_payload, stream_names
from bench.rows.base import Measurement, Row, cpu_us, generate
from bench.scale import Scale
from bench.server import Server


class FanOutRow(Row):
    kind = "fanout"
    unit = "deliveries/s"
    counted = "delivery"

    def __init__(self, subscribers: int) -> None:
        self._subscribers = subscribers
        self.name = f"fanout-{subscribers}"
        self.title = f"fan-out, 1 to {subscribers:,}"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        payload, stop, deadline = (
            make_payload(scale.payload_bytes),
            Stop(seconds=scale.seconds),
            Deadline(scale.timeout_s),
        )
        name = stream_names(1)[0]
        done = generate(scale, fan_out, peer, server.target, name, payload, self._subscribers, stop, deadline)
        return Measurement(
            value=done.deliveries / done.spent.wall_s,
            cpu_us=cpu_us(done.spent, done.deliveries),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={"published_per_s": done.messages / done.spent.wall_s},
        )
