"""Spark follows a node that is published to: how long its batches take."""

from __future__ import annotations

import time
from typing import Final

import tailrace
from bench.load.limits import Deadline, LoadError
from bench.load.live import LiveQuery
from bench.load.meter import Meter
from bench.peers.base import Peer, make_payload, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import Measurement, Row, cpu_us
from bench.scale import Scale
from bench.server import Server
from bench.statistics import median

STREAMS: Final = 8
RATE: Final = 50_000
"""Messages a second."""
ROUND_MESSAGES: Final = 5_000
"""Of all streams together, a tenth of a second."""
WARM_BATCHES: Final = 5
"""Not counted: Java compiles what it runs."""
START_TIMEOUT_S: Final = 120.0
"""Of Java, and of the first batch."""


class LiveRow(Row):
    """`value` is the longest batch after the first ones."""

    name = "spark-live"
    title = f"Spark follows {RATE:,} msg/s in {STREAMS} streams, a batch a second: the longest batch"
    kind = "spark-live"
    unit = "s"
    lower_is_better = True

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        if not isinstance(peer, Tailrace):
            raise LoadError(f"{peer.name} has no files that Spark could read")
        names, payload = stream_names(STREAMS), make_payload(scale.payload_bytes)
        directory = server.site.directory
        deadline = Deadline(START_TIMEOUT_S + scale.live_seconds + scale.timeout_s)
        with tailrace.connect(f"127.0.0.1:{server.site.port}", idempotent=False) as client:
            published = publish(client, names, payload, 0.0)
            with LiveQuery(directory / "data", directory, deadline) as query:
                meter, begin = Meter(server.target.pid), time.monotonic()
                sent = publish(client, names, payload, scale.live_seconds)
                seconds, spent = time.monotonic() - begin, meter.stop()
                lived = query.finish()
        if lived.rows != published + sent:
            raise LoadError(f"the live query has read {lived.rows} messages of {published + sent}")
        counted = sorted(lived.batches[WARM_BATCHES:])
        if not counted:
            raise LoadError(f"there were only {len(lived.batches)} batches")
        extras = {"batch_median_s": median(counted), "batch_p95_s": counted[len(counted) * 95 // 100]}
        extras |= {"batches": float(len(counted)), "reached_per_s": sent / seconds}
        return Measurement(counted[-1], cpu_us(spent, sent), server.peak_rss_bytes(), extras)


def publish(client: tailrace.Client, names: list[str], payload: bytes, seconds: float) -> int:
    """At RATE for so long, at least once to each stream; gives how many messages it was."""
    payloads = [payload] * (ROUND_MESSAGES // len(names))
    begin, sent = time.monotonic(), 0
    while not sent or sent < seconds * RATE:
        for name in names:
            client.publish_many(name, payloads)
            sent += len(payloads)
        time.sleep(max(0.0, begin + min(sent / RATE, seconds) - time.monotonic()))
    return sent
