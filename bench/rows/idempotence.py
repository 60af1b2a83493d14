"""What it costs that publishes are numbered, so that the broker knows them again."""

from __future__ import annotations

from bench.load.ingest import Pushed, ingest_once
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.peers.base import Feed, Peer, make_payload, stream_names
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.base import Measurement, Row, check_stored, cpu_us, generate
from bench.scale import Scale
from bench.server import Server

_TURNS = 4  # plain, numbered, plain, numbered …: what the machine does meanwhile falls on both
_REQUESTS_PER_S = 40_000  # about so many of one message; of larger ones fewer are sent
_FEED_REQUESTS = 500


class IdempotenceRow(Row):
    """Requests of so many messages, all acknowledged, to a fresh stream in each turn."""

    kind = "idempotence"
    unit = "times slower than plain"
    lower_is_better = True

    def __init__(self, batch_messages: int) -> None:
        self._batch_messages = batch_messages
        self.name = f"idempotence-{batch_messages}"
        self.title = f"acknowledged ingest, {batch_messages} to a request, numbered against plain"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        if not isinstance(peer, TailraceBinary):
            raise LoadError(f"{peer.name} has no numbers here")
        pushed: dict[bool, list[Pushed]] = {False: [], True: []}
        for turn, name in enumerate(stream_names(2 * _TURNS)):
            numbered = turn % 2 == 1
            feeds = self._feeds(peer, name, scale, numbered=numbered)
            deadline = Deadline(scale.timeout_s)
            pushed[numbered].append(generate(scale, ingest_once, peer, server.target, [name], feeds, deadline))
            check_stored(peer, server, name, pushed[numbered][-1].stored)
        plain_per_s, numbered_per_s = _per_s(pushed[False]), _per_s(pushed[True])
        return Measurement(
            value=plain_per_s / numbered_per_s,
            cpu_us=_cpu_us(pushed[True]),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "plain_per_s": plain_per_s,
                "numbered_per_s": numbered_per_s,
                "plain_cpu_us": _cpu_us(pushed[False]),
            },
        )

    def _feeds(self, peer: TailraceBinary, name: str, scale: Scale, *, numbered: bool) -> list[Feed]:
        """All requests, made before they are timed: each has numbers of its own."""
        payload, count = make_payload(scale.payload_bytes), self._batch_messages
        requests = int(scale.seconds / _TURNS * _REQUESTS_PER_S / count**0.5) // _FEED_REQUESTS + 1
        feeds = []
        for first in range(0, requests * _FEED_REQUESTS, _FEED_REQUESTS):
            numbers = range(first * count, (first + _FEED_REQUESTS) * count, count)
            if numbered:
                data = b"".join(peer.publish_numbered(name, payload, count, number) for number in numbers)
            else:
                data = b"".join(peer.publish_many(name, payload, count) for _ in numbers)
            feeds.append(Feed(data, _FEED_REQUESTS * count, _FEED_REQUESTS))
        return feeds


def _per_s(parts: list[Pushed]) -> float:
    return sum(part.messages for part in parts) / sum(part.spent.wall_s for part in parts)


def _cpu_us(parts: list[Pushed]) -> float:
    spent = Spent(sum(part.spent.wall_s for part in parts), sum(part.spent.cpu_s for part in parts))
    return cpu_us(spent, sum(part.messages for part in parts))
