"""Very many connections that subscribe to one stream and hear next to nothing."""

from __future__ import annotations

from bench.load.crowd import gather, quiet_after_s, settled_share
from bench.load.limits import Deadline
from bench.peers.base import Peer, make_payload, stream_names
from bench.rows.base import Measurement, Row, cpu_us, generate
from bench.scale import Scale
from bench.server import Server
from bench.statistics import median


class ConnectionsRow(Row):
    kind = "connections"
    unit = "ms until all have one message"
    counted = "delivery"
    lower_is_better = True

    def __init__(self, connections: int, share: float = 1.0, *, long: bool = False) -> None:
        self._connections = max(20, round(connections * share))
        # Named for what it is in a full run, so that --rows takes the same names for a quick one.
        self.name = f"connections-{connections}"
        self.title = f"{self._connections:,} quiet subscribers"
        self._long = long

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        name, payload, deadline = stream_names(1)[0], make_payload(scale.payload_bytes), Deadline(scale.timeout_s)
        count, messages = self._connections, scale.crowd_messages
        idle_s = scale.long_idle_seconds if self._long else scale.idle_seconds
        done = generate(scale, gather, peer, server.target, name, payload, count, messages, idle_s, deadline)
        return Measurement(
            value=median(done.heard_s) * 1e3,
            cpu_us=cpu_us(done.spent, count * messages),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "slowest_ms": max(done.heard_s) * 1e3,
                "joined_per_s": done.joined_per_s,
                "resident_bytes_per_connection": done.resident_bytes,
                "idle_cpu_percent": 100 * settled_share(done.idle_shares),
                "quiet_after_s": quiet_after_s(done.idle_shares),
            },
        )
