"""tailrace over its line protocol: silent publishes, or each one acknowledged."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Self

from bench.peers.base import Contestant, RequestStep, Site, digits_total, shares
from bench.peers.programs import under_slow_flush
from tailrace.shard.leaves import INTERPRETED_VARIABLE

# What stands around the name, sequence number and payload of a delivered message; the time has 16 digits until 2286.
_MESSAGE_AROUND = len(b"msg   ") + 16 + len(b"  |\r\n")

_PING = RequestStep(b"ping\r\n", b"ok pong\r\n")


_PUBLISHED = frozenset({"ingest", "turns"})
_DELIVERED = frozenset({"fanout", "replay", "latency", "connections", "neighbour", "flooded", "topics"})
_TOPICS = frozenset({"ingest-topics", "topics-turns"})
_STORED = frozenset({"round-robin", "streams", "durability"})


class Tailrace(Contestant):
    def __init__(self, *, acked: bool = False, interpreted: bool = False, workers: int = 2) -> None:
        self.acked = acked
        self.name = "tailrace-acks" if acked else "tailrace"
        self.title = "tailrace, acks" if acked else "tailrace"
        self.kinds = _PUBLISHED if acked else _PUBLISHED | _DELIVERED | _STORED | _TOPICS
        self.interpreted = interpreted
        self.workers = workers
        self.config = ""
        self.flush_ms = 0
        self.bounds_addresses = False

    def data(self, site: Site, number: int = 0) -> Path:
        """The data directory of a node; the first one is published to."""
        return site.directory / "data"

    def command(self, site: Site) -> list[str]:
        command = tailrace_command(
            self.data(site),
            site.port,
            site.spare_port,
            self.workers,
            bounds_addresses=self.bounds_addresses,
        )
        if self.config:
            file = site.directory / "tailrace.toml"
            file.write_text(self.config)
            command += ["--config", str(file)]
        return under_slow_flush(command, site.directory, self.flush_ms) if self.flush_ms else command

    def environment(self) -> Mapping[str, str]:
        return {INTERPRETED_VARIABLE: "1" if self.interpreted else "0"}

    def changed(self, **settings: object) -> Self:
        """The same with other settings, such as workers=1. Raises ValueError for an unknown one."""
        if unknown := settings.keys() - vars(self).keys():
            raise ValueError(f"{self.name} has no setting {', '.join(sorted(unknown))}")
        changed = copy.copy(self)
        vars(changed).update(settings)
        return changed

    def version(self) -> str:
        try:
            return f"tailrace {package_version('tailrace')}, {self.workers} workers"
        except PackageNotFoundError:
            return f"tailrace (not installed), {self.workers} workers"

    def ready(self) -> list[RequestStep]:
        return [_PING]

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        return [RequestStep(b"ack on\r\n", b"ok ack on\r\n")] if self.acked else [_PING]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return b"pub %s |%s\r\n" % (name.encode(), payload)

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        total = 0
        for part, count in shares(len(names), requests):
            around = sum(len(b"ok pub  \r\n") + len(name.encode()) for name in names[part])
            total += around * count + len(names[part]) * digits_total(0, count)
        return total

    def stored(self, name: str, messages: int) -> RequestStep:
        return RequestStep(b"sub %s new\r\n" % name.encode(), b"ok sub %s %d\r\n" % (name.encode(), messages))

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        return [RequestStep(b"sub %s new wait\r\n" % name.encode(), b"ok sub %s 0\r\n" % name.encode())]

    def topic_subscriber(self, name: str, client: int) -> list[RequestStep]:
        stream = name.partition("/")[0]
        return [RequestStep(b"sub %s new wait\r\n" % name.encode(), f"ok sub {name} 0 stream={stream}\r\n".encode())]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        fixed = _MESSAGE_AROUND + len(name.encode()) + len(str(payload_bytes)) + payload_bytes
        return messages * fixed + digits_total(0, messages)

    def replay_request(self, name: str) -> bytes:
        return b"sub %s 0\r\n" % name.encode()

    def replay_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return len(b"ok sub %s 0\r\n" % name.encode()) + self.delivered_bytes(name, messages, payload_bytes)


def tailrace_command(
    data: Path, port: int, metrics_port: int, workers: int, *, bounds_addresses: bool = False
) -> list[str]:
    """How to start a node on loopback. bounds_addresses: with its default bounds for each address."""
    options = ["--host", "127.0.0.1", "--port", str(port), "--metrics-host", "127.0.0.1"]
    if not bounds_addresses:  # a crowd of clients comes from one address here, and is no attack
        options += ["--max-address-connections", "0", "--max-address-accepts", "0"]
    options += ["--metrics-port", str(metrics_port), "--data", str(data), "--workers", str(workers)]
    return [*launcher(), "serve", *options]


def launcher() -> list[str]:
    """The installed command of this interpreter's environment, or the module if it has none."""
    script = Path(sys.executable).with_name("tailrace")
    return [str(script)] if script.exists() else [sys.executable, "-m", "tailrace.cli.main"]
