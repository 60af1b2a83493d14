"""What it costs that messages go to many streams in turn instead of to one.

Peers that take one message at a time get one message a stream in turn; those that take batches get one batch a stream
in turn, of the same size as the one stream does.
"""

from __future__ import annotations

from bench.load.ingest import Pushed, Stop
from bench.load.meter import Spent
from bench.peers.base import Peer, make_feed, make_payload, stream_names
from bench.rows.base import Measurement, Row, check_stored, cpu_us, run_ingest
from bench.scale import Scale
from bench.server import Server

_BATCH_MESSAGES = 100
_TURNS = 2  # one stream, many streams, one stream, many streams: what the machine does meanwhile falls on both


class RoundRobinRow(Row):
    kind = "round-robin"
    unit = "times slower than 1 stream"
    lower_is_better = True

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self.name = "streams-1000"
        self.title = f"ingest, 1 connection, {streams:,} streams in turn against 1 stream"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        *many, one = stream_names(self._streams + 1)
        pushed: dict[str, list[Pushed]] = {"one": [], "many": []}
        for _ in range(_TURNS):
            for key, names in (("one", [one]), ("many", many)):
                pushed[key].append(self._push(peer, server, names, scale))
        for key, names in (("one", [one]), ("many", many)):
            check_stored(peer, server, names[-1], sum(part.stored for part in pushed[key]) // len(names))
        one_per_s, many_per_s = _per_s(pushed["one"]), _per_s(pushed["many"])
        spent = [part.spent for part in pushed["many"]]
        return Measurement(
            value=one_per_s / many_per_s,
            cpu_us=cpu_us(_together(spent), sum(part.messages for part in pushed["many"])),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={"one_per_s": one_per_s, "many_per_s": many_per_s},
        )

    def _push(self, peer: Peer, server: Server, names: list[str], scale: Scale) -> Pushed:
        payload = make_payload(scale.payload_bytes)
        messages = min(_BATCH_MESSAGES, peer.batch_max) * len(names)
        feed = make_feed(peer, names, payload, scale.feed_bytes, messages, _BATCH_MESSAGES)
        warm = make_feed(peer, names, payload, 0)
        return run_ingest(peer, server, names, feed, Stop(seconds=scale.seconds / _TURNS), scale, warm)


def _per_s(parts: list[Pushed]) -> float:
    return sum(part.messages for part in parts) / sum(part.spent.wall_s for part in parts)


def _together(spent: list[Spent]) -> Spent:
    return Spent(sum(part.wall_s for part in spent), sum(part.cpu_s for part in spent))
