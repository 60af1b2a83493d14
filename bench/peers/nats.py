"""NATS core: subjects in memory, nothing stored, publishes without answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import MappingProxyType

from bench.peers.base import Contestant, RequestStep, Site
from bench.peers.programs import find_program, program_version

# Protocol 0: no INFO comes unasked once the connection is made.
_CONNECT = json.dumps({"verbose": False, "pedantic": False, "protocol": 0, "lang": "bench", "version": "1"})
CONNECT = b"CONNECT %s\r\nPING\r\n" % _CONNECT.encode()


class Nats(Contestant):
    name = "nats"
    title = "NATS core"
    kinds = frozenset(
        {"ingest", "turns", "packets", "fanout", "latency", "connections", "topics", "topics-turns", "client-silent"}
    )
    # Once a connection is made, and every `ping_interval`.
    chatter = MappingProxyType({b"PING\r\n": b"PONG\r\n"})

    def command(self, site: Site) -> list[str]:
        path = site.directory / "nats.conf"
        path.write_text("\n".join(self.configuration(site)) + "\n")
        return [find_program("nats-server"), "-c", str(path)]

    def configuration(self, site: Site) -> list[str]:
        """Room enough that a subscriber which is a little behind is not dropped; no pings within a run."""
        return [
            "server_name: bench",
            f'listen: "127.0.0.1:{site.port}"',
            "max_pending: 1GB",
            'write_deadline: "60s"',
            'ping_interval: "10m"',
        ]

    def version(self) -> str:
        return program_version("nats-server", "--version")

    def ready(self) -> list[RequestStep]:
        return [RequestStep(CONNECT, b"PONG\r\n")]

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        # Some two seconds after connecting the server pings once to measure the round trip. It is waited for, so that
        # afterwards every byte that comes is known.
        return [RequestStep(CONNECT, b"PONG\r\n"), RequestStep(b"", b"PING\r\n"), RequestStep(b"PONG\r\n")]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return b"PUB %s %d\r\n%s\r\n" % (name.encode(), len(payload), payload)

    def barrier(self, name: str) -> RequestStep:
        return RequestStep(b"PING\r\n", b"PONG\r\n")

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        return [*self.publisher(client), RequestStep(b"SUB %s 1\r\nPING\r\n" % name.encode(), b"PONG\r\n")]

    def listener(self, name: str, client: int) -> list[RequestStep]:
        """The server's ping comes later, as chatter."""
        return [RequestStep(b"CONNECT %s\r\nSUB %s 1\r\nPING\r\n" % (_CONNECT.encode(), name.encode()), b"PONG\r\n")]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return messages * (len(b"MSG %s 1 %d\r\n" % (name.encode(), payload_bytes)) + payload_bytes + 2)
