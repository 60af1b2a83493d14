"""Many connections publish one message each in turn, all to one stream or each to its own."""

from __future__ import annotations

from bench.load.ingest import Stop
from bench.load.limits import Deadline
from bench.load.turns import turns
from bench.peers.base import Peer, make_payload, stream_names
from bench.rows.base import Measurement, Row, check_stored, cpu_us, generate
from bench.scale import Scale
from bench.server import Server


class TurnsRow(Row):
    kind = "turns"
    unit = "msg/s"

    def __init__(self, connections: int, streams: int) -> None:
        self._connections = connections
        self._streams = streams
        # Named for what it is in a full run, so that --rows takes the same names for a quick one.
        self.name = "turns-1" if streams == 1 else "turns-1000"
        where = "1 stream" if streams == 1 else "a stream each"
        self.title = f"ingest, {connections:,} connections, one message each in turn, {where}"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        names, payload = stream_names(self._streams), make_payload(scale.payload_bytes)
        stop, deadline = Stop(seconds=scale.seconds), Deadline(scale.timeout_s)
        pushed = generate(scale, turns, peer, server.target, names, payload, self._connections, stop, deadline)
        check_stored(peer, server, names[-1], pushed.stored // len(names))
        return Measurement(
            value=pushed.messages / pushed.spent.wall_s,
            cpu_us=cpu_us(pushed.spent, pushed.messages),
            peak_rss_bytes=server.peak_rss_bytes(),
        )
