"""Spark follows a node that is published to: how long its batches take."""

from __future__ import annotations

import time
from typing import Final

from bench.load.ingest import ingest_once
from bench.load.limits import Deadline, LoadError
from bench.load.live import LiveQuery
from bench.load.meter import Meter
from bench.peers.base import Feed, Peer, make_feed, make_payload, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import Measurement, Row, cpu_us
from bench.scale import Scale
from bench.server import Server
from bench.statistics import median

STREAMS: Final = 8
RATE: Final = 50_000
"""Messages a second."""
ROUND_MESSAGES: Final = 5_000
"""Of all streams together, sent at one go ten times a second."""
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
        names = stream_names(STREAMS)
        feed = make_feed(peer, names, make_payload(scale.payload_bytes), 0, ROUND_MESSAGES)
        directory = server.site.directory
        deadline = Deadline(START_TIMEOUT_S + scale.live_seconds + scale.timeout_s)
        published = publish(peer, server, names, feed, 0.0, deadline)
        with LiveQuery(directory / "data", directory, deadline) as query:
            meter = Meter(server.target.pid)
            sent = publish(peer, server, names, feed, scale.live_seconds, deadline)
            spent = meter.stop()
            lived = query.finish()
        if lived.rows != published + sent:
            raise LoadError(f"the live query has read {lived.rows} messages of {published + sent}")
        counted = sorted(lived.batches[WARM_BATCHES:])
        if not counted:
            raise LoadError(f"there were only {len(lived.batches)} batches")
        extras = {"batch_median_s": median(counted), "batch_p95_s": counted[len(counted) * 95 // 100]}
        extras |= {"batches": float(len(counted)), "reached_per_s": sent / spent.wall_s}
        return Measurement(counted[-1], cpu_us(spent, sent), server.peak_rss_bytes(), extras)


def publish(peer: Peer, server: Server, names: list[str], feed: Feed, seconds: float, deadline: Deadline) -> int:
    """At RATE for so long, the feed at least once, and all of it acknowledged; gives how many messages it was."""
    begin, sent = time.monotonic(), 0
    while not sent or sent < seconds * RATE:
        sent += ingest_once(peer, server.target, names, [feed], deadline).messages
        time.sleep(max(0.0, begin + min(sent / RATE, seconds) - time.monotonic()))
    return sent
