"""Durable consumers: one that takes a stored stream batch by batch, and very many of one stream."""

from __future__ import annotations

from bench.load.consume import consume, consume_many
from bench.load.limits import Deadline, LoadError
from bench.peers.base import Peer, stream_names
from bench.peers.consuming import BATCH
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.base import Measurement, Row, cpu_us, generate
from bench.rows.replay import fill, replay_messages
from bench.scale import Scale
from bench.server import Server

_PART = 5  # of a gigabyte
_BATCH_OF_MANY, _BATCHES_OF_MANY = 50, 2  # messages; of each consumer


class ConsumeRow(Row):
    """Each batch is finished before the next is asked for, and both are said together."""

    name = "consume"
    title = f"a durable consumer, batches of {BATCH:,}, finished one by one"
    kind = "consume"
    unit = "msg/s"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        name, messages = stream_names(1)[0], replay_messages(scale, _PART * peer.replay_part)
        fill(peer, server, name, messages, scale)
        spent = generate(scale, consume, peer, server.target, name, messages, Deadline(scale.timeout_s))
        return Measurement(
            value=messages / spent.wall_s,
            cpu_us=cpu_us(spent, messages),
            peak_rss_bytes=server.peak_rss_bytes(),
        )


class ManyConsumersRow(Row):
    """Each takes a few small batches of the same messages."""

    kind = "consumers"
    unit = "msg/s of all together"

    def __init__(self, consumers: int, share: float = 1.0) -> None:
        self._consumers = max(10, round(consumers * share))
        self.name = f"consumers-{consumers}"
        self.title = f"{self._consumers:,} durable consumers of one stream, batches of {_BATCH_OF_MANY}"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        if not isinstance(peer, TailraceBinary):
            raise LoadError(f"{peer.name} has no consumers here")
        name, batch = stream_names(1)[0], _BATCH_OF_MANY
        fill(peer, server, name, replay_messages(Scale(replay_bytes=1)), scale)
        deadline, each = Deadline(scale.timeout_s), batch * _BATCHES_OF_MANY
        done = generate(scale, consume_many, peer, server.target, name, self._consumers, each, batch, deadline)
        return Measurement(
            value=done.messages / done.spent.wall_s,
            cpu_us=cpu_us(done.spent, done.messages),
            peak_rss_bytes=server.peak_rss_bytes(),
            extras={
                "made_per_s": self._consumers / done.made_s,
                "gets_per_s": done.messages / batch / done.spent.wall_s,
            },
        )
