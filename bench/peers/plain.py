"""Not brokers: processes that do the least a broker could do. They show the generator's own limit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from bench.peers.base import BLOCK, Contestant, RequestStep, Site
from bench.peers.programs import OWN_MODULES
from bench.peers.tailrace import Tailrace

ANSWER_BYTES = 24  # about as long as `ok pub b.000000 1234567` and its end of line


class Plain(Contestant):
    """Takes publishes as long as tailrace's without looking at them, and sends them on as they came."""

    def __init__(self, payload_bytes: int, *, acked: bool = False) -> None:
        self.acked = acked
        self.name = "plain-acks" if acked else "plain"
        self.title = "(plain sink, acks)" if acked else "(plain sink or relay)"
        self.kinds = frozenset({"ingest", "turns"} if acked else {"ingest", "turns", "fanout", "latency"})
        self._message_bytes = len(Tailrace().publish("b.000000", bytes(payload_bytes)))

    def command(self, site: Site) -> list[str]:
        sizes = [self._message_bytes, ANSWER_BYTES if self.acked else 0]
        return [sys.executable, "-m", "bench.load.plain", str(site.port), *map(str, sizes)]

    def environment(self) -> Mapping[str, str]:
        return OWN_MODULES

    def ready(self) -> list[RequestStep]:
        return [RequestStep(b"P", b"p")]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return payload.ljust(self._message_bytes, b"\n")

    def barrier(self, name: str) -> RequestStep:
        return RequestStep(b"!", b"done")

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        return requests * ANSWER_BYTES

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        return [RequestStep(b"S", b"s")]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return messages * self._message_bytes


class BareSendfile(Contestant):
    """A file of as many bytes as tailrace's log has in the replay, sent by bare sendfile.

    With `copied` its readers read, as a slave must. Otherwise they throw away, as readers of tailrace do in the replay.
    """

    def __init__(self, file_bytes: int, processes: int = 2, *, copied: bool = False) -> None:
        self.copied = copied
        self.name = "sendfile-read" if copied else "sendfile"
        self.title = "(bare sendfile, read)" if copied else "(bare sendfile)"
        self.kinds = frozenset({"catch-up"} if copied else {"replay", "catch-up"})
        self._file_bytes = file_bytes
        self._processes = processes

    def command(self, site: Site) -> list[str]:
        path = site.directory / "file"
        with path.open("wb") as file:
            for _ in range(self._file_bytes // len(BLOCK)):
                file.write(BLOCK)
            file.write(BLOCK[: self._file_bytes % len(BLOCK)])
        return [sys.executable, "-m", "bench.load.bare", str(site.port), str(path), str(self._processes)]

    def environment(self) -> Mapping[str, str]:
        return OWN_MODULES

    def ready(self) -> list[RequestStep]:
        return [RequestStep(b"?", b"!")]

    def replayer(self, name: str, client: int) -> list[RequestStep]:
        return []

    def replay_request(self, name: str) -> bytes:
        return b"G"

    def replay_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return self._file_bytes
