"""A chain of two or three tailrace nodes, each a slave of the one before. Binary batches go to the master."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bench.peers.base import RequestStep, Site
from bench.peers.programs import OWN_MODULES, run_together
from bench.peers.tailrace import tailrace_command
from bench.peers.tailrace_binary import TailraceBinary, handle_of
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.messages import PUBLISHED_HEAD, Ack, pack_publish, pack_published
from tailrace.shard.frame import pack_frame

NODES_MAX = 3
_SETTLE_NAME = "b.999998"  # of a stream that no row uses
_ANSWER_BEGINS = pack_published(0, [(0, 0, 0)])[: HEAD_BYTES + PUBLISHED_HEAD.size]
CONFIG = """
[timing]
replication_timeout_s = 300
"""
_FOLLOW = """
[[slave]]
streams = "*"
upstream = "127.0.0.1:{port}"
"""


class TailraceNodes(TailraceBinary):
    def __init__(self, *, replicas: int = 0, interpreted: bool = False, workers: int = 2) -> None:
        """`replicas`: how many slaves hold a message before it is acknowledged."""
        super().__init__(acked=True, interpreted=interpreted, workers=workers)
        self.name = "tailrace-slaves-held" if replicas else "tailrace-slaves"
        self.title = f"tailrace, replicated {replicas}" if replicas else "tailrace and slaves"
        self.kinds = frozenset({"replicated", "lease-replicated"} if replicas else {"replicated", "hop", "catch-up"})
        self.replicas = replicas
        self.nodes = 2
        self.following = True

    def held_by_all(self) -> Self:
        """The same, whose publishes are acknowledged when every node has them."""
        return self.changed(replicas=self.nodes - 1)

    def slave_ports(self, site: Site) -> list[int]:
        """Ports of the nodes behind the master, in their order. ValueError unless there are 2 to NODES_MAX nodes."""
        if not 2 <= self.nodes <= NODES_MAX:
            raise ValueError(f"a chain of {self.nodes} nodes; it has 2 to {NODES_MAX}, as many as there are ports for")
        return [site.further[2 * number] for number in range(self.nodes - 1)]

    def ports(self, site: Site) -> list[int]:
        return [site.port, *self.slave_ports(site)]

    def data(self, site: Site, number: int = 0) -> Path:
        return site.directory / f"data-{number}"

    def command(self, site: Site) -> list[str]:
        follow = ["", *(_FOLLOW.format(port=port) for port in self.ports(site)[:-1])]
        return run_together(site, self.node_commands(site, *(CONFIG + each * self.following for each in follow)))

    def node_commands(self, site: Site, *configs: str) -> list[list[str]]:
        """How to start each node. configs: of each, or one of all; written there."""
        metrics_ports = [site.spare_port, *(site.further[2 * number + 1] for number in range(self.nodes - 1))]
        commands = []
        for number, ports in enumerate(zip(self.ports(site), metrics_ports, strict=True)):
            path = site.directory / f"node-{number}.toml"
            path.write_text(configs[number % len(configs)])
            command = tailrace_command(self.data(site, number), *ports, self.workers)
            commands.append([*command, "--config", str(path)])
        return commands

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **OWN_MODULES}

    def prepare(self) -> list[RequestStep]:
        """Until all nodes follow."""
        if not self.following:
            return []
        return self.publish_to_all(_SETTLE_NAME, b"settled")

    def publish_to_all(self, name: str, payload: bytes) -> list[RequestStep]:
        """One message; over when every node has it, and so everything before it."""
        return [*self.publisher(0, [name]), RequestStep(self.held_by_all().publish(name, payload), _ANSWER_BEGINS)]

    def publish_many(self, name: str, payload: bytes, count: int, serial: int = 0) -> bytes:
        frames = pack_frame(payload) * count
        ack = Ack.REPLICATED if self.replicas else Ack.APPENDED
        return pack_publish(serial, ack, [handle_of(name)], frames, self.replicas) + frames
