"""What durability costs with many streams: a group of them is to share what the disk takes for one."""

from __future__ import annotations

from statistics import median

from bench.load.durability import acknowledged, disk_sync_s, synced
from bench.load.limits import Deadline, LoadError
from bench.peers.base import Peer, make_payload, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import Measurement, Row, generate
from bench.scale import Scale
from bench.server import Server

ROUNDS = 20
SHARES = (1, 10, 200)
FLUSHES_MS = (4, 10)  # a fast disk of a data centre without protection against power loss, and a slow one
STREAMS = 400
INTERVAL_MS = 10


def _config(policy: str) -> str:
    return f'[[stream]]\npattern = "*"\n{policy}\n'


class AlwaysRow(Row):
    """With `flush_ms` on an emulated disk (`bench.slow_flush`), else on the one there is."""

    kind = "durability"
    unit = "ms"
    lower_is_better = True

    def __init__(self, flush_ms: int = 0) -> None:
        self.flush_ms = flush_ms
        self.name = f"always-{SHARES[-1]}" + (f"-flush-{flush_ms}ms" if flush_ms else "")
        disk = f", emulated disk with a flush of {flush_ms} ms" if flush_ms else ""
        what = f"one publish to each of {SHARES[-1]} streams until all are acknowledged"
        self.title = f"durability always{disk}: {what}"

    def suited(self, peer: Peer) -> Peer:
        if not isinstance(peer, Tailrace):
            return peer
        return peer.with_config(_config('durability = "always"')).with_flush(self.flush_ms)

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        payload, port, found = make_payload(scale.payload_bytes), server.target.port, {}
        for streams in SHARES:
            names = [f"{streams}.{name}" for name in stream_names(streams)]
            deadline = Deadline(scale.timeout_s)
            seconds = generate(scale, acknowledged, peer, port, names, payload, ROUNDS, deadline)
            if 1e3 * min(seconds) < self.flush_ms:
                raise LoadError(f"a round took {1e3 * min(seconds):.2f} ms, less than a flush of {self.flush_ms} ms")
            found[streams] = 1e3 * median(seconds)
        first, last = found[SHARES[0]], found[SHARES[-1]]
        return Measurement(
            value=last,
            cpu_us=0.0,
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                **{f"{streams}_streams_ms": found[streams] for streams in SHARES},
                "times_one_stream": last / first,
                "disk_sync_ms": self.flush_ms + 1e3 * disk_sync_s(server.site.directory, ROUNDS),
            },
        )


class IntervalRow(Row):
    name = "interval-400"
    title = f"durability interval, interval_ms = {INTERVAL_MS}: age of the oldest unsynced message of {STREAMS} streams"
    kind = "durability"
    unit = "ms"
    lower_is_better = True

    def suited(self, peer: Peer) -> Peer:
        policy = f'durability = "interval"\ninterval_ms = {INTERVAL_MS}'
        return peer.with_config(_config(policy)) if isinstance(peer, Tailrace) else peer

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        payload, names, deadline = make_payload(scale.payload_bytes), stream_names(STREAMS), Deadline(scale.timeout_s)
        data = server.site.directory / "data"
        seconds = generate(scale, synced, peer, server.target.port, data, names, payload, ROUNDS, deadline)
        return Measurement(
            value=1e3 * max(seconds),
            cpu_us=0.0,
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "median_ms": 1e3 * median(seconds),
                "disk_sync_ms": 1e3 * disk_sync_s(server.site.directory, ROUNDS),
            },
        )
