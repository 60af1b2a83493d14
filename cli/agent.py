"""`tailrace agent`: fails a node over with others of its cluster, by etcd."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path

import click

from tailrace.cli.ending import NO_CONNECTION, OK, CommandError, require
from tailrace.cli.etcd import etcd_options, make_etcd
from tailrace.cli.logs import LEVELS, set_up_logging
from tailrace.cli.values import FILLED, FilePath
from tailrace.cluster.agent import Agent
from tailrace.cluster.node_door import NodeDoor, NodeSocket
from tailrace.cluster.store import ClusterStore
from tailrace.cluster.view import ClusterTiming
from tailrace.protocol.address import split_address
from tailrace.protocol.names import GROUPS_MAX
from tailrace.shard.directory import open_data_dir
from tailrace.shard.errors import DirectoryError

ETCD_TIMEOUT_S = 1.0
GROUPS = 1
REPLICAS_MIN = ClusterTiming().min_isr

EPILOG = """\b
Examples:
  tailrace agent --cluster orders --etcd 10.0.0.9:2379 --address 10.0.0.1:5050 --data /var/lib/tailrace --found
  tailrace agent --cluster orders --etcd 10.0.0.9:2379 --address 10.0.0.2:5050 --data /var/lib/tailrace

One agent runs beside each node, which has `start_fenced = true` in its section [cluster]. TERM or INT let another node
take over.

Exit codes: 0 ended by a signal, 2 wrong arguments, 4 cannot listen for --metrics, 5 the data directory is unusable.
"""


@click.command("agent", epilog=EPILOG)
@click.option(
    "--cluster",
    "name",
    required=True,
    type=FILLED,
    metavar="NAME",
    help="The cluster; its keys in etcd have this name.",
)
@etcd_options
@click.option("--address", required=True, metavar="HOST:PORT", help="The address at which other nodes reach this one.")
@click.option("--data", required=True, type=FilePath(), metavar="DIR", help="The data directory of the node.")
@click.option(
    "--socket", "path", type=FilePath(), metavar="FILE", help="Its socket of administration [default: in DIR]."
)
@click.option("--found", is_flag=True, help="Make the cluster, with this node as its leader, if there is none.")
@click.option(
    "--groups",
    type=click.IntRange(1, GROUPS_MAX),
    default=GROUPS,
    show_default=True,
    help="With --found: how many groups of streams it has, each with a leader; it never changes.",
)
@click.option(
    "--replicas",
    type=click.IntRange(REPLICAS_MIN),
    help="With --found: how many nodes publishes of a group wait for, and elect its leader [default: all].",
)
@click.option(
    "--on-demand",
    is_flag=True,
    help="With --found and --replicas: the other nodes copy a group's streams only while they are read there.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve figures for Prometheus there; needs the extra cluster.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="The lowest level.")
def command(
    name: str,
    address: str,
    data: Path,
    path: Path | None,
    found: bool,
    groups: int,
    replicas: int | None,
    on_demand: bool,
    metrics: str | None,
    log_level: str,
) -> int:
    """Elect a node of a cluster as the master of each group of streams, and let the others follow it."""
    set_up_logging(log_level)
    if on_demand and replicas is None:
        raise click.UsageError("--on-demand is for nodes that are no replicas of a group: give --replicas too")
    try:
        split_address(address)
        scraped = split_address(metrics) if metrics is not None else None
        node = open_data_dir(data).node_id
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except DirectoryError as error:
        raise CommandError(str(error), 5) from None
    timing = ClusterTiming()
    path = path or data / "admin.sock"
    lease, views, writes = (ClusterStore(make_etcd(ETCD_TIMEOUT_S), name, node) for _ in range(3))
    stores = (lease, views, writes)
    doors = NodeDoor(path, node), NodeSocket(path)
    founding = partial(Agent, found=groups if found else 0, replicas=replicas or 0, on_demand=on_demand)
    agent = founding(node, address, stores, *doors, timing)
    if scraped is not None:
        _serve_metrics(scraped, name, agent)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: over.set())
    agent.run(over.is_set)
    agent.leave()
    return OK


def _serve_metrics(address: tuple[str, int], cluster: str, agent: Agent) -> None:
    require(["prometheus_client"], "cluster")
    from tailrace.cluster import metrics

    try:
        metrics.serve(*address, cluster, agent.figures)
    except OSError as error:
        raise CommandError(f"cannot listen for metrics: {error}", NO_CONNECTION) from None
