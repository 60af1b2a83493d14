"""A stored stream is read from its beginning by one reader or several at once."""

from __future__ import annotations

from bench.load.ingest import Stop
from bench.load.limits import Deadline
from bench.load.replay import replay
from bench.peers.base import Peer, make_feed, make_payload, stream_names
from bench.peers.plain import BareSendfile
from bench.rows.base import Measurement, Row, check_stored, cpu_us, generate, run_ingest
from bench.scale import Scale
from bench.server import Server
from tailrace.shard.frame import HEADER_BYTES

FILL_MESSAGES = 10_000  # of one feed, whatever the peer, so that all hold the same number of messages


class ReplayRow(Row):
    kind = "replay"
    unit = "MB/s"

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self.name = f"replay-{readers}"
        self.title = f"replay, {readers} reader{'s' if readers > 1 else ''}, all readers together, on the wire"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        name, messages = stream_names(1)[0], replay_messages(scale, peer.replay_part)
        if not isinstance(peer, BareSendfile):
            fill(peer, server, name, messages, scale)
        deadline, size = Deadline(scale.timeout_s), scale.payload_bytes
        done = generate(scale, replay, peer, server.target, name, messages, size, self._readers, deadline)
        return Measurement(
            value=done.wire_bytes / done.spent.wall_s / 1e6,
            cpu_us=cpu_us(done.spent, done.messages),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={"messages_per_s": done.messages / done.spent.wall_s},
        )


def replay_messages(scale: Scale, part: int = 1) -> int:
    """As many as make about `replay_bytes` / `part` of frames in tailrace's log, in whole feeds."""
    feed_bytes = FILL_MESSAGES * (HEADER_BYTES + scale.payload_bytes)
    return max(1, scale.replay_bytes // part // feed_bytes) * FILL_MESSAGES


def fill(peer: Peer, server: Server, name: str, messages: int, scale: Scale) -> None:
    feed = make_feed(peer, [name], make_payload(scale.payload_bytes), 0, FILL_MESSAGES)
    run_ingest(peer, server, [name], feed, Stop(messages=messages), scale)
    check_stored(peer, server, name, messages)
