"""A cluster of three tailrace nodes, each with its agent, and one member of etcd. Binary batches go to the leader."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from bench.peers.base import RequestStep, Site
from bench.peers.programs import find_program, program_version, run_together
from bench.peers.tailrace import launcher
from bench.peers.tailrace_nodes import CONFIG, NODES_MAX, TailraceNodes

_CLUSTER = """upstream_timeout_s = 2
[cluster]
start_fenced = true
[replication]
peers = [{peers}]
"""


class TailraceCluster(TailraceNodes):
    """A publish is answered once all nodes that are in sync have it, and at least two."""

    def __init__(self, *, interpreted: bool = False, workers: int = 2) -> None:
        super().__init__(replicas=1, interpreted=interpreted, workers=workers)
        self.name = "tailrace-cluster"
        self.title = "tailrace cluster, replicated"
        self.kinds = frozenset({"cluster", "forwarded"})
        self.nodes = NODES_MAX

    def command(self, site: Site) -> list[str]:
        """The first node founds the cluster, and so leads its one group of streams."""
        addresses = [f"127.0.0.1:{port}" for port in self.ports(site)]
        peers = ", ".join(f'"{address}"' for address in addresses)
        commands = [_etcd(site)]
        for number, command in enumerate(self.node_commands(site, CONFIG + _CLUSTER.format(peers=peers))):
            found = ["--address", addresses[number], *([] if number else ["--found"])]
            commands += [command, _agent(site, self.data(site, number), found)]
        return run_together(site, commands)

    def ready(self) -> list[RequestStep]:
        """Once it leads, and the two others follow it and so are in sync."""
        return self.prepare()

    def version(self) -> str:
        return f"{super().version()}; {program_version('etcd', '--version')}"


def _agent(site: Site, data: Path, options: Sequence[str]) -> list[str]:
    """How to start the agent of a node, once the node is there."""
    agent = [*launcher(), "agent", "--cluster", "bench", "--etcd", f"127.0.0.1:{site.further[4]}", "--data", str(data)]
    await_node = f"until [ -S {shlex.quote(str(data / 'admin.sock'))} ]; do sleep 0.1; done"
    return ["sh", "-c", f"{await_node}; exec {shlex.join([*agent, *options])}"]


def _etcd(site: Site) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in site.further[4:6])
    options = ["--data-dir", str(site.directory / "etcd"), "--log-level", "warn", "--listen-peer-urls", peer]
    options += ["--listen-client-urls", client, "--advertise-client-urls", client]
    return [find_program("etcd"), *options]
