"""Several nodes, one behind the other: publishing, what a hop adds to the latency, and filling an empty slave."""

from __future__ import annotations

import time
from functools import partial

from bench.figures import quantile
from bench.load.base import Stop
from bench.load.catchup import catch_up, touch_memory
from bench.load.latency import hop
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.load.reading import replay
from bench.load.sockets import steps_succeed, take_steps
from bench.peers.base import Contestant, make_feed, stream_names
from bench.peers.tailrace_nodes import TailraceNodes
from bench.rows.base import STREAM, BenchRow, Measurement, RowRun, replay_messages, total
from bench.rows.latency import WARM_MESSAGES
from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES

HOP_RATE = 1_000
_PROBE_S = 0.02


def replicated_row(nodes: int) -> BenchRow:
    """Ingest at the master of a chain of nodes; JetStream has its three in each row."""
    slaves = "1 slave" if nodes == 2 else f"a chain of {nodes - 1} slaves"
    title, suited = f"ingest, 1 connection, 1 stream, {slaves}", partial(_chained, nodes)
    return BenchRow(f"replicated-{nodes}", title, "replicated", "msg/s", _measure_replicated, suited=suited)


def cluster_row() -> BenchRow:
    """Ingest at the leader of three nodes, one of which may fail at any time: each publish is held by all in sync."""
    title = "ingest, 1 connection, 1 stream, a cluster of three nodes"
    return BenchRow("replicated-cluster", title, "cluster", "msg/s", _measure_replicated)


def _chained(nodes: int, peer: Contestant) -> Contestant:
    return peer.changed(nodes=nodes) if isinstance(peer, TailraceNodes) else peer


def _measure_replicated(run: RowRun) -> Measurement:
    peer, names = run.peer, [STREAM]
    # The first message is acknowledged by all nodes, so that all slaves follow the stream before the time begins.
    warm = make_feed(peer.held_by_all() if isinstance(peer, TailraceNodes) else peer, names, run.payload, 0)
    pushed = run.ingest(names, run.full_feed(names), Stop(seconds=run.scale.seconds), warm)
    extras = {}
    if isinstance(peer, TailraceNodes):
        begin = time.perf_counter()
        take_steps(run.server.site.port, peer.publish_to_all(STREAM, run.payload), Deadline(run.scale.timeout_s))
        extras["all_hold_ms"] = (time.perf_counter() - begin) * 1e3
        _check_copies(run, peer, pushed.stored + 1)
    return run.measured(pushed.messages / pushed.spent.wall_s, pushed.spent, pushed.messages, extras)


def hop_row(rate: int = HOP_RATE) -> BenchRow:
    """The same message at a subscriber of the master and at one of its slave."""
    title, unit = f"latency that one hop adds, {rate:,} msg/s", "µs later at the slave (median)"
    return BenchRow(f"hop-{rate}", title, "hop", unit, partial(_measure_hop, rate=rate), lower_is_better=True)


def _measure_hop(run: RowRun, rate: int) -> Measurement:
    if not isinstance(run.peer, TailraceNodes):
        raise LoadError(f"{run.peer.name} has no slaves here")
    pairs = run.scale.latency_pairs
    messages = WARM_MESSAGES + int(rate * run.scale.latency_seconds / pairs)
    (slave_port,) = run.peer.slave_ports(run.server.site)
    hops = [run.generate(hop, slave_port, name, rate, messages) for name in stream_names(pairs)]
    at_master = [sample for each in hops for sample in each.master_ns[WARM_MESSAGES:]]
    at_slave = [sample for each in hops for sample in each.slave_ns[WARM_MESSAGES:]]
    added_ns = [slave_ns - master_ns for master_ns, slave_ns in zip(at_master, at_slave, strict=True)]
    extras = {"p99_us": quantile(added_ns, 0.99) / 1e3}
    for name, samples in (("master", at_master), ("slave", at_slave)):
        extras |= {f"{name}_p50_us": quantile(samples, 0.5) / 1e3, f"{name}_p99_us": quantile(samples, 0.99) / 1e3}
    return run.measured(quantile(added_ns, 0.5) / 1e3, total([each.spent for each in hops]), messages * pairs, extras)


def catch_up_row() -> BenchRow:
    """An empty slave receives all of a stream; or a reader receives a file of the same length."""
    title = "catch-up of an empty slave, 1 stream"
    return BenchRow("catch-up", title, "catch-up", "MB/s", _measure_catch_up, suited=_not_following)


def _not_following(peer: Contestant) -> Contestant:
    return peer.changed(following=False) if isinstance(peer, TailraceNodes) else peer


def _measure_catch_up(run: RowRun) -> Measurement:
    messages = replay_messages(run.scale)
    nbytes = messages * (HEADER_BYTES + run.scale.payload_bytes)
    if isinstance(run.peer, TailraceNodes):
        spent = _fill_slave(run, run.peer, messages, nbytes)
    else:
        spent = run.generate(replay, STREAM, messages, 1).spent
    return run.measured(nbytes / spent.wall_s / 1e6, spent, messages, {"messages_per_s": messages / spent.wall_s})


def _fill_slave(run: RowRun, peer: TailraceNodes, messages: int, nbytes: int) -> Spent:
    run.fill(STREAM, messages)
    deadline, (slave_port,) = Deadline(run.scale.timeout_s), peer.slave_ports(run.server.site)
    while not steps_succeed(slave_port, peer.ready(), 1.0):
        deadline.check(f"the node on port {slave_port} does not serve")
        time.sleep(_PROBE_S)
    # A virtual machine's memory that nobody has written to before is many times slower the first time.
    # A quarter more than the log will have: some pages come from elsewhere all the same.
    touch_memory(run.server.site.directory, nbytes * 5 // 4, messages * INDEX_ENTRY_BYTES * 5 // 4)
    spent = run.generate(catch_up, slave_port, STREAM, peer.publish_to_all(STREAM, run.payload))
    _check_copies(run, peer, messages + 1)
    return spent


def _check_copies(run: RowRun, peer: TailraceNodes, messages: int) -> None:
    """Raise LoadError unless every node holds `messages`."""
    run.check_stored(STREAM, messages)
    for port in peer.slave_ports(run.server.site):
        try:
            take_steps(port, [peer.stored(STREAM, messages)], Deadline(run.scale.timeout_s))
        except LoadError as error:
            raise LoadError(f"the slave on port {port} does not hold {messages} messages: {error}") from error
