"""JetStream with three replicas: three servers, each with a file of its own; a publish is answered once two have it."""

from __future__ import annotations

from collections.abc import Mapping

from bench.peers.base import Site, Step
from bench.peers.jetstream import STREAM, JetStream, api_call, inbox_of, subscribe_to
from bench.peers.programs import OWN_MODULES, find_program, run_together

NODES = 3
_LEADER = "n1"


class JetStreamCluster(JetStream):
    name = "jetstream-r3"
    title = "JetStream R3 file, acks"
    kinds = frozenset({"replicated"})

    def command(self, site: Site) -> list[str]:
        ports = (site.port, *site.further[: NODES - 1])
        cluster_ports = site.further[NODES - 1 : 2 * NODES - 1]
        commands = []
        for number, (port, cluster_port) in enumerate(zip(ports, cluster_ports, strict=True), 1):
            path = site.directory / f"n{number}.conf"
            node_site = Site(site.directory / f"n{number}", port, cluster_port)
            routes = ", ".join(f'"nats-route://127.0.0.1:{each}"' for each in cluster_ports)
            cluster = f'cluster {{ name: bench, listen: "127.0.0.1:{cluster_port}", routes: [{routes}] }}'
            lines = [line for line in self.configuration(node_site) if not line.startswith("server_name")]
            path.write_text("\n".join([f"server_name: n{number}", *lines, cluster]) + "\n")
            commands.append([find_program("nats-server"), "-c", str(path)])
        return run_together(site, commands)

    def environment(self) -> Mapping[str, str]:
        return OWN_MODULES

    def ready(self) -> list[Step]:
        """Once the cluster has made the stream, led by the server that is published to: no message goes a way round."""
        stream = {"name": STREAM, "subjects": ["b.*"], "storage": "file", "num_replicas": NODES}
        preferred = {"placement": {"preferred": _LEADER}}
        return [
            *super().ready(),
            subscribe_to(inbox_of(0), b"1"),
            api_call(f"$JS.API.STREAM.CREATE.{STREAM}", stream, b'"num_replicas":3'),
            api_call(f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}", preferred, b"stepdown_response"),
            api_call(f"$JS.API.STREAM.INFO.{STREAM}", {}, b'"leader":"%s"' % _LEADER.encode()),
        ]

    def prepare(self) -> list[Step]:
        return []
