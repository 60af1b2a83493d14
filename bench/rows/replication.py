"""Several nodes, one behind the other: publishing, what a hop adds to the latency, and filling an empty slave."""

from __future__ import annotations

import time

from bench.load.catchup import catch_up, touch_memory
from bench.load.dial import dialled, steps_succeed
from bench.load.hop import hop
from bench.load.ingest import Stop
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.load.replay import replay
from bench.peers.base import Peer, make_feed, make_payload, stream_names
from bench.peers.tailrace_nodes import TailraceNodes
from bench.rows.base import Measurement, Row, check_stored, cpu_us, generate, run_ingest
from bench.rows.ingest import WINDOW_FEEDS
from bench.rows.latency import WARM_MESSAGES
from bench.rows.replay import fill, replay_messages
from bench.scale import Scale
from bench.server import Server
from bench.statistics import quantile
from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES

HOP_RATE = 1_000
_PROBE_S = 0.02


class ReplicatedRow(Row):
    """A chain of nodes; JetStream has its three whatever the row."""

    kind = "replicated"
    unit = "msg/s"

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self.name = f"replicated-{nodes}"
        slaves = "1 slave" if nodes == 2 else f"a chain of {nodes - 1} slaves"
        self.title = f"ingest, 1 connection, 1 stream, {slaves}"

    def suited(self, peer: Peer) -> Peer:
        return peer.with_nodes(self._nodes) if isinstance(peer, TailraceNodes) else peer

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        names, payload = stream_names(1), make_payload(scale.payload_bytes)
        feed = make_feed(peer, names, payload, scale.feed_bytes)
        if peer.window_requests:
            feed = make_feed(peer, names, payload, 0, peer.window_requests // WINDOW_FEEDS)
        # So that all slaves follow the stream before the time begins.
        warm = make_feed(peer.held_by_all() if isinstance(peer, TailraceNodes) else peer, names, payload, 0)
        pushed = run_ingest(peer, server, names, feed, Stop(seconds=scale.seconds), scale, warm)
        extras = {}
        if isinstance(peer, TailraceNodes):
            begin = time.perf_counter()
            with dialled(server.site.port, [peer.publish_to_all(names[0], payload)], Deadline(scale.timeout_s)):
                extras["all_hold_ms"] = (time.perf_counter() - begin) * 1e3
            _check_copies(peer, server, names[0], pushed.stored + 1, scale)
        return Measurement(
            value=pushed.messages / pushed.spent.wall_s,
            cpu_us=cpu_us(pushed.spent, pushed.messages),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras=extras,
        )


class HopRow(Row):
    """The same message at a subscriber of the master and at one of its slave."""

    kind = "hop"
    unit = "µs later at the slave (median)"
    lower_is_better = True

    def __init__(self, rate: int = HOP_RATE) -> None:
        self._rate = rate
        self.name = f"hop-{rate}"
        self.title = f"latency that one hop adds, {rate:,} msg/s"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        if not isinstance(peer, TailraceNodes):
            raise LoadError(f"{peer.name} has no slaves here")
        messages = WARM_MESSAGES + int(self._rate * scale.latency_seconds / scale.latency_pairs)
        payload, (slave_port,) = make_payload(scale.payload_bytes), peer.slave_ports(server.site)
        at_master, at_slave, wall_s, cpu_s = list[int](), list[int](), 0.0, 0.0
        for name in stream_names(scale.latency_pairs):
            deadline = Deadline(scale.timeout_s)
            timed = generate(scale, hop, peer, server.target, slave_port, name, payload, self._rate, messages, deadline)
            at_master += timed.master_ns[WARM_MESSAGES:]
            at_slave += timed.slave_ns[WARM_MESSAGES:]
            wall_s, cpu_s = wall_s + timed.spent.wall_s, cpu_s + timed.spent.cpu_s
        added_ns = [slave_ns - master_ns for master_ns, slave_ns in zip(at_master, at_slave, strict=True)]
        return Measurement(
            value=quantile(added_ns, 0.5) / 1e3,
            cpu_us=cpu_us(Spent(wall_s, cpu_s), messages * scale.latency_pairs),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "p99_us": quantile(added_ns, 0.99) / 1e3,
                "master_p50_us": quantile(at_master, 0.5) / 1e3,
                "master_p99_us": quantile(at_master, 0.99) / 1e3,
                "slave_p50_us": quantile(at_slave, 0.5) / 1e3,
                "slave_p99_us": quantile(at_slave, 0.99) / 1e3,
            },
        )


class CatchUpRow(Row):
    """An empty slave gets everything that a stream has; or a reader gets a file as long."""

    name = "catch-up"
    title = "catch-up of an empty slave, 1 stream"
    kind = "catch-up"
    unit = "MB/s"

    def suited(self, peer: Peer) -> Peer:
        return peer.not_following() if isinstance(peer, TailraceNodes) else peer

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        name, messages, size = stream_names(1)[0], replay_messages(scale), scale.payload_bytes
        nbytes, deadline = messages * (HEADER_BYTES + size), Deadline(scale.timeout_s)
        if isinstance(peer, TailraceNodes):
            fill(peer, server, name, messages, scale)
            (slave_port,) = peer.slave_ports(server.site)
            _await_serving(peer, slave_port, deadline)
            # A virtual machine's memory that nobody has written to before is many times slower the first time.
            # A quarter more than the log will have: some pages come from elsewhere all the same.
            touch_memory(server.site.directory, nbytes * 5 // 4, messages * INDEX_ENTRY_BYTES * 5 // 4)
            last = peer.publish_to_all(name, make_payload(size))
            spent = generate(scale, catch_up, server.target, slave_port, name, last, deadline)
            _check_copies(peer, server, name, messages + 1, scale)
        else:
            spent = generate(scale, replay, peer, server.target, name, messages, size, 1, deadline).spent
        return Measurement(
            value=nbytes / spent.wall_s / 1e6,
            cpu_us=cpu_us(spent, messages),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={"messages_per_s": messages / spent.wall_s},
        )


def _await_serving(peer: Peer, port: int, deadline: Deadline) -> None:
    while not steps_succeed(port, peer.ready(), 1.0):
        deadline.check(f"the node on port {port} does not serve")
        time.sleep(_PROBE_S)


def _check_copies(peer: TailraceNodes, server: Server, name: str, messages: int, scale: Scale) -> None:
    """LoadError unless every node has so many messages."""
    check_stored(peer, server, name, messages)
    for port in peer.slave_ports(server.site):
        try:
            with dialled(port, [[peer.stored(name, messages)]], Deadline(scale.timeout_s)):
                pass
        except LoadError as error:
            raise LoadError(f"the slave on port {port} does not hold {messages} messages: {error}") from error
