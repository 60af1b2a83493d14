"""What publishers lose while Spark rolls up the data of the node that they publish to."""

from __future__ import annotations

from bench.load.ingest import Pushed, Stop
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.load.rollups import Rollups
from bench.peers.base import Peer, make_feed, make_payload, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import Measurement, Row, check_stored, cpu_us, run_ingest
from bench.rows.replay import replay_messages
from bench.scale import Scale
from bench.server import Server
from bench.statistics import median

SLICES_MIN, SLICES_MAX = 4, 12  # of each kind, in turn; more of them until a rollup has ended
_PARTS = 3  # of the time that an ingest takes in other rows


class BesideRollupRow(Row):
    """Ingest in slices, by turns beside rollups and while these are held still."""

    name = "beside-rollup"
    title = "acknowledged ingest beside a rollup of the same node, against alone"
    kind = "beside-rollup"
    unit = "% slower"
    lower_is_better = True

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        if not isinstance(peer, Tailrace):
            raise LoadError(f"{peer.name} has no files that Spark could read")
        names = stream_names(1 + 2 * SLICES_MAX)
        feed = make_feed(peer, names[:1], make_payload(scale.payload_bytes), scale.feed_bytes)
        run_ingest(peer, server, names[:1], feed, Stop(messages=replay_messages(scale)), scale)
        alone: list[Pushed] = []
        beside: list[Pushed] = []
        deadline, fresh = Deadline(scale.timeout_s), iter(names[1:])
        with Rollups(server.site.directory / "data", server.site.directory / "rollups") as rollups:
            while len(beside) < SLICES_MIN or (not rollups.finished and len(beside) < SLICES_MAX):
                deadline.check("a rollup is to end")
                beside.append(self._slice(peer, server, next(fresh), scale))
                with rollups.still():
                    alone.append(self._slice(peer, server, next(fresh), scale))
                rollups.go_on()
            finished = rollups.finished
        alone_per_s, beside_per_s = _per_s(alone), _per_s(beside)
        spent = Spent(sum(part.spent.wall_s for part in beside), sum(part.spent.cpu_s for part in beside))
        return Measurement(
            value=100 * (1 - beside_per_s / alone_per_s),
            cpu_us=cpu_us(spent, sum(part.messages for part in beside)),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={"alone_per_s": alone_per_s, "beside_per_s": beside_per_s, "rollups": float(finished)},
        )

    def _slice(self, peer: Peer, server: Server, name: str, scale: Scale) -> Pushed:
        feed = make_feed(peer, [name], make_payload(scale.payload_bytes), scale.feed_bytes)
        pushed = run_ingest(peer, server, [name], feed, Stop(seconds=scale.seconds / _PARTS), scale)
        check_stored(peer, server, name, pushed.stored)
        return pushed


def _per_s(parts: list[Pushed]) -> float:
    return median([part.messages / part.spent.wall_s for part in parts])
