"""One connection publishes as fast as it can, to one stream or round-robin over many."""

from __future__ import annotations

from bench.load.ingest import Stop
from bench.peers.base import Peer, make_feed, make_payload, stream_names
from bench.rows.base import Measurement, Row, check_stored, cpu_us, run_ingest
from bench.scale import Scale
from bench.server import Server

WINDOW_FEEDS = 4  # a feed is this part of the window, where there is one, so that the window stays full


class IngestRow(Row):
    kind = "ingest"
    unit = "msg/s"

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self.name = f"ingest-{streams}"
        self.title = "ingest, 1 connection, " + ("1 stream" if streams == 1 else f"{streams:,} streams in turn")

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        names = stream_names(self._streams)
        payload = make_payload(scale.payload_bytes)
        feed = make_feed(peer, names, payload, scale.feed_bytes)
        if peer.window_requests:
            feed = make_feed(peer, names, payload, 0, peer.window_requests // WINDOW_FEEDS)
        warm = make_feed(peer, names, payload, 0)
        pushed = run_ingest(peer, server, names, feed, Stop(seconds=scale.seconds), scale, warm)
        check_stored(peer, server, names[-1], pushed.stored // len(names))
        return Measurement(
            value=pushed.messages / pushed.spent.wall_s,
            cpu_us=cpu_us(pushed.spent, pushed.messages),
            peak_rss_bytes=server.peak_rss_bytes(),
        )
