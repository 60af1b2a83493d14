"""The price of a cluster: publishing to another node than the leader, and the lease that a leader must hold.

The lease is compared on one node, so that nothing else differs. A second node like it never gets one: each turn of the
first is divided by a turn of the second beside it, before the lease and under it. That leaves out how two processes of
one program differ, and other work of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain

from bench.figures import median, quantile
from bench.load.base import Load, ServerProcess, Stop, apart
from bench.load.forwarding import ByTurns, publish_by_turns
from bench.load.limits import Deadline, LoadError
from bench.load.publishing import ingest, turns
from bench.load.sockets import administer
from bench.peers.base import Contestant, RequestStep, stream_names
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_cluster import TailraceCluster
from bench.peers.tailrace_nodes import TailraceNodes
from bench.rows.base import APART_MARGIN_S, BenchRow, Measurement, RowRun, total
from bench.rows.latency import WARM_MESSAGES
from bench.server import PeerServer, fresh_site
from tailrace.shard.directory import open_data_dir

FORWARDED_RATE = 500
"""Publishes per second to both nodes together."""
LEASE_TURNS_PER_S = 5
"""Of either node, before the lease and under it, for each of the seconds that other rows publish."""
LEASE_TURNS_MIN = 2
LEASE_CONNECTIONS = 200
_FAR_MS = 10**11
_COMMAND_S = 10.0


def forwarded_row(*, replicated: bool) -> BenchRow:
    """A publish to a node that passes it on to the leader, against one to the leader itself."""
    name, asked = ("forwarded-replicated", "replicated") if replicated else ("forwarded", "appended")
    title = f"one publish, acknowledged when {asked}, to another node of a cluster than the leader"
    measure, unit = partial(_measure_forwarded, replicated=replicated), "µs more than at the leader (median)"
    return BenchRow(name, title, "forwarded", unit, measure, lower_is_better=True)


def _measure_forwarded(run: RowRun, *, replicated: bool) -> Measurement:
    if not isinstance(run.peer, TailraceCluster):
        raise LoadError(f"{run.peer.name} has no leader here")
    peer = run.peer.changed(replicas=int(replicated))
    run = RowRun(peer, run.server, run.scale)
    _require_lead(run, peer)
    names, (other_port, _) = stream_names(run.scale.latency_pairs), peer.slave_ports(run.server.site)
    count = WARM_MESSAGES + int(FORWARDED_RATE / 2 * run.scale.latency_seconds / len(names))
    found = []
    for name in names:
        found.append(run.generate(publish_by_turns, other_port, name, FORWARDED_RATE, count))
        run.check_stored(name, 2 * count)
    _require_lead(run, peer)
    extras, spent = added(found), total([each.spent for each in found])
    value = extras["other_p50_us"] - extras["leader_p50_us"]
    return run.measured(value, spent, 2 * count * len(names), extras)


def _require_lead(run: RowRun, peer: TailraceCluster) -> None:
    """Raises LoadError unless the first node leads."""
    socket = peer.data(run.server.site) / "admin.sock"
    administer(socket, RequestStep(b"lease *\r\n", b"state held"), Deadline(_COMMAND_S))


def added(found: list[ByTurns]) -> dict[str, float]:
    """Medians and p99 of all pairs of connections together, and by how much the medians of single pairs differ.
    `bare_relay_us`: by how much those of bare requests do, which is as little as a publish can take longer.
    """
    leader = [each.leader_ns[WARM_MESSAGES:] for each in found]
    other = [each.other_ns[WARM_MESSAGES:] for each in found]
    pairs_us = [(median(theirs) - median(ours)) / 1e3 for ours, theirs in zip(leader, other, strict=True)]
    bare = [*chain.from_iterable(each.bare_ns for each in found)]
    relayed = [*chain.from_iterable(each.relayed_ns for each in found)]
    extras = {"best_pair_us": min(pairs_us), "worst_pair_us": max(pairs_us)}
    extras["bare_relay_us"] = (median(relayed) - median(bare)) / 1e3
    for name, samples in (("leader", [*chain(*leader)]), ("other", [*chain(*other)])):
        extras |= {f"{name}_p50_us": quantile(samples, 0.5) / 1e3, f"{name}_p99_us": quantile(samples, 0.99) / 1e3}
    return extras


@dataclass(frozen=True, slots=True)
class LeaseShape:
    """A way of publishing. `messages`: of each turn, which take about 0.2 s of a processor."""

    name: str
    title: str
    kind: str
    batch_max: int
    connections: int
    messages: int


LEASE_SHAPES = (
    LeaseShape("batches", "1,000 messages to a request", "lease", 1_000, 1, 400_000),
    LeaseShape("singles", "one message to a request", "lease", 1, 1, 400_000),
    LeaseShape(
        "turns",
        f"{LEASE_CONNECTIONS} connections, one message each in turn, a stream each",
        "lease",
        1,
        LEASE_CONNECTIONS,
        10_000,
    ),
    LeaseShape("replicated", "1,000 messages to a request, held by a slave", "lease-replicated", 1_000, 1, 200_000),
)


def lease_row(shape: LeaseShape) -> BenchRow:
    """The processor time that acknowledged publishes take longer under a lease."""
    title = f"acknowledged ingest under a lease against none, {shape.title}"
    measure, suited = partial(_measure_lease, shape=shape), _of_one_worker
    return BenchRow(
        f"lease-{shape.name}", title, shape.kind, "% more processor time", measure, lower_is_better=True, suited=suited
    )


def _of_one_worker(peer: Contestant) -> Contestant:
    return peer.changed(workers=1) if isinstance(peer, Tailrace) else peer


def _measure_lease(run: RowRun, shape: LeaseShape) -> Measurement:
    peer = run.peer
    if not isinstance(peer, Tailrace):
        raise LoadError(f"{peer.name} has no lease")
    turns_count = max(LEASE_TURNS_MIN, round(LEASE_TURNS_PER_S * run.scale.seconds))
    with fresh_site(run.server.site.directory.parent, peer.name) as site, PeerServer(peer, site) as server:
        leased, control = (_LeaseNode(RowRun(peer, each, run.scale), peer, shape) for each in (run.server, server))
        for node in (leased, control):
            node.turn()  # makes the streams
        before = _side_by_side(leased, control, turns_count)
        leased.take_lease()
        under = _side_by_side(leased, control, turns_count)
        for node in (leased, control):
            node.check_stored()
    percent = increase_percent(before, under)
    extras = {
        "percent_quarter_below": quantile(percent, 0.25),
        "percent_quarter_above": quantile(percent, 0.75),
        "without_cpu_us": median([ours for ours, _ in before]),
    }
    cpu_us = median([ours for ours, _ in under])
    return Measurement(median(percent), cpu_us, run.server.peak_rss_bytes(), extras)


def increase_percent(before: list[tuple[float, float]], under: list[tuple[float, float]]) -> list[float]:
    """By how much the first of each two exceeds the one that the second and those before lead to expect; in order."""
    usual = median([ours / theirs for ours, theirs in before])
    return sorted(100 * (ours / theirs / usual - 1) for ours, theirs in under)


def _side_by_side(leased: _LeaseNode, control: _LeaseNode, turns_count: int) -> list[tuple[float, float]]:
    """The microseconds of a message on either, in each turn; another one begins each time."""
    found = []
    for number in range(turns_count):
        if number % 2:
            theirs, ours = control.turn(), leased.turn()
        else:
            ours, theirs = leased.turn(), control.turn()
        found.append((ours, theirs))
    return found


class _LeaseNode:
    """A node and its streams. Processor time is that of the node published to, without its slave."""

    def __init__(self, run: RowRun, peer: Tailrace, shape: LeaseShape) -> None:
        self._run = run
        self._peer = peer
        self._shape = shape
        self._names = stream_names(shape.connections)
        self._feed = run.feed(self._names, run.scale.feed_bytes, 0, shape.batch_max)
        self._messages = 0
        self._target = _first_node(run.server, str(peer.data(run.server.site)))

    def turn(self) -> float:
        """Publish, and return the microseconds of processor time that a message took."""
        shape, timeout_s = self._shape, self._run.scale.timeout_s
        load = Load(self._peer, self._target, self._run.payload, Deadline(timeout_s))
        stop, wait_s = Stop(messages=shape.messages), timeout_s + APART_MARGIN_S
        if shape.connections > 1:
            pushed = apart(wait_s, turns, load, self._names, shape.connections, stop)
        else:
            pushed = apart(wait_s, ingest, load, self._names, self._feed, stop)
        self._messages += pushed.stored
        return pushed.spent.busy_s / pushed.messages * 1e6

    def take_lease(self) -> None:
        """For ever, with all of its nodes as in-sync replicas."""
        peer, site = self._peer, self._run.server.site
        nodes = peer.nodes if isinstance(peer, TailraceNodes) else 1
        ids = ",".join(open_data_dir(peer.data(site, number)).node_id for number in range(nodes))
        for command in (f"isr * {ids}", f"lease * 1 {_FAR_MS}"):
            answer = f"ok {command.partition(' ')[0]}"
            step = RequestStep(f"{command}\r\n".encode(), answer.encode())
            administer(peer.data(site) / "admin.sock", step, Deadline(_COMMAND_S))

    def check_stored(self) -> None:
        """Raises LoadError unless the streams hold what was published."""
        self._run.check_stored(self._names[-1], self._messages // len(self._names))


def _first_node(server: PeerServer, data: str) -> ServerProcess:
    """The node with this data directory, or the server if that is one node."""
    pids = [process.pid for process in server.tree().processes if data in process.cmdline()]
    return ServerProcess(server.site.port, pids[0] if pids else server.target.pid)
