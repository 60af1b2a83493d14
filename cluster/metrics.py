"""Figures of an agent for Prometheus. Needs the extra `cluster`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tailrace.cluster.view import AgentFigures

HELP: Final = {
    "leader": "Whether this node leads a group of streams",
    "has_leader": "Whether each group has a leader, by the last answer of etcd",
    "groups": "Groups of streams",
    "groups_led": "Groups that this node leads",
    "in_sync_replicas": "Nodes that are in sync, the leader included, in the group with the fewest",
    "in_sync_minimum": "Nodes that must be in sync for publishes at REPLICATED",
    "replicas": "Nodes that hold the streams, or copy them",
    "out_of_sync_replicas": "Replicas of a group that are not in sync, in the group with the most",
    "term": "The latest term of a group",
    "node_answers": "Whether the node answers its agent",
    "etcd_age_seconds": "Time since the last answer of etcd",
    "paused": "Whether an operator has paused the cluster",
}


class AgentCollector(Collector):
    """`read` is called by the thread of a scrape."""

    def __init__(self, cluster: str, read: Callable[[], AgentFigures]) -> None:
        self._cluster = cluster
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self._read()._asdict().items():
            family = GaugeMetricFamily(f"tailrace_agent_{name}", HELP[name], labels=["cluster"])
            family.add_metric([self._cluster], value)
            yield family


def serve(host: str, port: int, cluster: str, read: Callable[[], AgentFigures]) -> None:
    """Answer scrapes in a thread of its own, until the process ends. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(cluster, read))
    start_http_server(port, host, registry)
