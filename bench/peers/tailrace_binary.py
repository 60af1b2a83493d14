"""tailrace over its binary protocol: publishes in batches, silent or acknowledged; deliveries as chunks of frames."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from bench.peers.base import SUBSCRIPTION, Puller, RequestStep
from bench.peers.consuming import TailraceConsumers
from bench.peers.tailrace import Tailrace
from tailrace.protocol.consuming import FEATURE as CONSUMERS_FEATURE
from tailrace.protocol.consuming import Consume, Consumed
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import (
    VERSION,
    Ack,
    Failed,
    Hello,
    Op,
    Open,
    Opened,
    Ping,
    Pong,
    Published,
    Subscribe,
    Subscribed,
    pack,
    pack_publish,
)
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.frame import HEADER_BYTES, pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.names import shard_of
from tailrace.shard.numbering import write_numbering

# An end in the far future, and the answer of the stream's owner to it.
_LATER = ("time", 1 << 62)
_NOT_YET = Failed(
    Code.FROM, "the time at which this subscription is to end has not come yet", False, Op.SUBSCRIBE, SUBSCRIPTION
)
_PRODUCER = b"sixteen bytes id"
_mark_run = load("tailrace.shard.run_cy").mark_run
_PUBLISHED_BYTES = len(pack(Published(0, ((0, 0, 0),))))
_BOTH = frozenset({"ingest", "turns", "fanout", "latency", "round-robin"})
_ACKED = frozenset(
    {"client-wait", "client-tasks", "idempotence", "consume", "consumers", "beside-rollup", "spark-live", "lease"}
)
_OF_SINGLES = frozenset({"ingest", "round-robin", "ingest-topics"})  # elsewhere the others publish one by one too
_SILENT = frozenset({"client-silent", "replay", "connections", "neighbour", "topics-turns"})
_OPENED_AT_ONCE = 1_000


class TailraceBinary(Tailrace):
    batch_max = 1_000
    framed = True
    chatter = MappingProxyType({pack(Ping()): pack(Pong())})
    hello = pack(Hello(VERSION, (), "bench"))

    def __init__(
        self, *, acked: bool = False, interpreted: bool = False, workers: int = 2, single: bool = False
    ) -> None:
        """`single`: every message is a request of its own, as of programs that publish them one by one."""
        super().__init__(acked=acked, interpreted=interpreted, workers=workers)
        self.name = f"tailrace-{'single' if single else 'binary'}{'-acks' if acked else ''}"
        self.title = f"tailrace {'single' if single else 'binary'}{', acks' if acked else ''}"
        self.kinds = _BOTH | (_ACKED if acked else _SILENT)
        if single:
            self.kinds, self.batch_max = _OF_SINGLES, 1

    def ready(self) -> list[RequestStep]:
        return [self.greeting()]

    def greeting(self) -> RequestStep:
        return RequestStep(self.hello + pack(Ping()), pack(Pong()))

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        """Handles for all names; the answers come in order."""
        steps = [self.greeting()]
        for start in range(0, len(names), _OPENED_AT_ONCE):
            some = names[start : start + _OPENED_AT_ONCE]
            opens = b"".join(pack(Open(handle_of(name), name.encode())) for name in some)
            steps.append(RequestStep(opens, pack(Opened(handle_of(some[-1])))))
        return steps

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return self.publish_many(name, payload, 1, serial)

    def publish_many(self, name: str, payload: bytes, count: int, serial: int = 0) -> bytes:
        frames = pack_frame(payload) * count
        return pack_publish(serial, Ack.APPENDED if self.acked else Ack.NONE, [handle_of(name)], frames) + frames

    def publish_numbered(self, name: str, payload: bytes, count: int, number: int) -> bytes:
        """As `publish_many`, by a producer whose messages these are from `number` on."""
        frames: bytearray = _mark_run(pack_frame(payload) * count, write_numbering(b"", _PRODUCER, number))
        return pack_publish(0, Ack.APPENDED if self.acked else Ack.NONE, [handle_of(name)], frames) + bytes(frames)

    def barrier(self, name: str) -> RequestStep:
        """A subscription: to its owner it goes behind the publishes, unlike a PING, which is answered at once.

        The owner's answer is an error of known bytes, since the end that is asked for has not come yet.
        """
        stream = name.partition("/")[0].encode()
        return RequestStep(pack(Subscribe(SUBSCRIPTION, stream, FROM_NEW, end=_LATER)), pack(_NOT_YET))

    def ends(self, names: Sequence[str]) -> Sequence[str]:
        """One stream of each worker: what goes to one worker stays in order."""
        return list({shard_of(name.partition("/")[0].encode()) % self.workers: name for name in names}.values())

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        return requests * _PUBLISHED_BYTES

    def stored(self, name: str, messages: int) -> RequestStep:
        return RequestStep(self.hello + _subscribe(name, FROM_NEW), pack(Subscribed(SUBSCRIPTION, messages, 0)))

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        return [self.stored(name, 0)]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return messages * (HEADER_BYTES + payload_bytes)

    def replay_request(self, name: str) -> bytes:
        return _subscribe(name, From("seq", 0))

    def replay_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return self.delivered_bytes(name, messages, payload_bytes)

    def consumer(self, name: str, client: int) -> list[RequestStep]:
        return self.consumers(name, [b"c%d" % client])

    def consumers(self, name: str, consumers: Sequence[bytes]) -> list[RequestStep]:
        """Many of one stream, on one connection, made one by one."""
        hello = pack(Hello(VERSION, (CONSUMERS_FEATURE,), "bench")) + pack(Ping())
        steps = [RequestStep(hello, pack(Pong()))]
        for number, consumer in enumerate(consumers):
            consume = Consume(number, "create", name.encode(), consumer, From("seq", 0))
            steps.append(RequestStep(pack(consume), pack(Consumed(number, next_seq=0, created=True))))
        return steps

    def consuming_puller(self, name: str, client: int, messages: int) -> Puller:
        return TailraceConsumers(name, [b"c%d" % client], messages)


def _subscribe(name: str, start: From) -> bytes:
    return pack(Subscribe(SUBSCRIPTION, name.encode(), start, wait=True))


def handle_of(name: str) -> int:
    """One for each of `stream_names`; 0 is left out because errors without a handle have it."""
    return int(name.rpartition(".")[2]) + 1
