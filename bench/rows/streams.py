"""Very many streams on one node: publishing over all of them, what an idle one costs, and starting again."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request

from bench.load.ingest import Stop
from bench.load.limits import Deadline
from bench.peers.base import Feed, Peer, make_feed, make_payload, stream_names
from bench.rows.base import Measurement, Row, check_stored, cpu_us, run_ingest
from bench.scale import Scale
from bench.server import START_TIMEOUT_S, Server

_PROBE_S = 0.02


class StreamsRow(Row):
    kind = "streams"
    unit = "msg/s"

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self.name = "streams"
        self.title = f"ingest, 1 connection, {streams:,} streams in turn"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        names = stream_names(self._streams)
        feed = make_feed(peer, names, make_payload(scale.payload_bytes), 0)
        before_bytes = server.private_bytes()
        created = run_ingest(peer, server, names, feed, Stop(messages=self._streams), scale)
        idle_bytes = server.private_bytes() - before_bytes
        pushed = run_ingest(peer, server, names, feed, Stop(seconds=scale.seconds), scale)
        check_stored(peer, server, names[-1], (created.messages + pushed.messages) // len(names))
        extras = {
            "created_per_s": created.messages / created.spent.wall_s,
            "private_bytes_per_stream": idle_bytes / len(names),
            "open_files_max": max(server.open_files()),
        }
        peak_rss_bytes = server.peak_rss_bytes()
        extras |= _again(peer, server, names, feed, scale)
        return Measurement(
            value=pushed.messages / pushed.spent.wall_s,
            cpu_us=cpu_us(pushed.spent, pushed.messages),
            peak_rss_bytes=peak_rss_bytes,
            extras=extras,
        )


def _again(peer: Peer, server: Server, names: list[str], feed: Feed, scale: Scale) -> dict[str, float]:
    """Seconds to serve again after a clean stop, and after the whole group was killed in the middle of its work."""
    stop_s = server.stop()
    ready_clean_s = _start(server)
    run_ingest(peer, server, names, feed, Stop(messages=len(names)), scale)
    server.stop(signal.SIGKILL)
    return {"stop_s": stop_s, "ready_clean_s": ready_clean_s, "ready_unclean_s": _start(server)}


def _start(server: Server) -> float:
    """Seconds from the start until connections are served and /readyz says so."""
    begin = time.monotonic()
    server.start()
    deadline = Deadline(START_TIMEOUT_S)
    while not _says_ready(f"http://127.0.0.1:{server.site.spare_port}/readyz"):
        deadline.check("waiting for /readyz")
        time.sleep(_PROBE_S)
    return time.monotonic() - begin


def _says_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
