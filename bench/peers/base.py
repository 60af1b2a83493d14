"""The harness's description of a broker: how to start it, and the bytes of its protocol.

A Peer holds no socket and no clock. Its byte counts are exact, so that the generator can throw away received data
unread (MSG_TRUNC) and still know when everything has come.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# The first byte of every payload. But for framed deliveries nothing else of a protocol or a name holds it, so that
# counting it counts messages.
PAYLOAD_MARK = b"@"
# The id that every subscriber of framed deliveries gives its only subscription.
SUBSCRIPTION = 1
BLOCK = bytes(range(256)) * 4096
"""A megabyte that files are filled with."""


class Unavailable(Exception):
    """This machine has not got the peer's server."""


@dataclass(frozen=True, slots=True)
class RequestStep:
    """Send `send`; the step is over once the data received since then contains `until` (b"": at once)."""

    send: bytes
    until: bytes = b""


@dataclass(frozen=True, slots=True)
class Site:
    """The place of one server: its own empty directory, its port on loopback, a second free port.

    A server of several nodes has `further` free ports for those behind the first.
    """

    directory: Path
    port: int
    spare_port: int
    further: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestFeed:
    """Whole requests, ready to send: `messages` in `requests`, round-robin over the streams, equally many to each.

    A request holds one message; where the protocol has batches, as many of one stream as the feed holds of it.
    """

    data: bytes
    messages: int
    requests: int


class Puller(ABC):
    """A reader that must look at the received data: it must ask for more, or the lengths cannot be known."""

    messages: int = 0

    @abstractmethod
    def open(self) -> bytes:
        """The first request."""

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Take received data, count its messages, and return the bytes to send now (often none)."""


class Contestant(ABC):
    """One contestant: a broker, and one way of talking to it. A method that it lacks raises NotImplementedError."""

    name: str
    title: str
    acked: bool = False
    # The kinds of row (`Row.kind`) it takes part in.
    kinds: frozenset[str] = frozenset()
    # The most messages one publish request may hold here.
    batch_max: int = 1
    # It delivers CHUNK envelopes of stamped frames; their heads are not in the counts of delivered bytes.
    framed: bool = False
    # Its readers copy received data into memory, and do not let the kernel throw it away.
    copied: bool = False
    # Its subscribers acknowledge each message.
    acknowledges: bool = False
    # What an idle connection may receive at any time, and the answers to it.
    chatter: Mapping[bytes, bytes] = MappingProxyType({})
    # Of the connections to it, if they are under TLS.
    tls: ssl.SSLContext | None = None
    # Its readers throw away what they get under TLS without decrypting it.
    undecrypted: bool = False
    # One byte that every answer to a publish contains exactly once, if their lengths cannot be known beforehand.
    answer_mark: bytes = b""
    # How many requests may wait for their answers at one time; 0 for as many as fit the sockets. For acknowledged
    # variants of known answer lengths that do better so.
    window_requests: int = 0
    # It replays this factor fewer messages than tailrace, because filling it would take minutes; rates are compared.
    replay_part: int = 1

    @abstractmethod
    def command(self, site: Site) -> list[str]:
        """How to start a new server on `site`; writes its configuration there. Unavailable if not installed."""

    def environment(self) -> Mapping[str, str]:
        """What to add to the environment of the server."""
        return {}

    def version(self) -> str:
        """One line for the report. Unavailable if the server is not installed."""
        return ""

    @abstractmethod
    def ready(self) -> list[RequestStep]:
        """Steps that succeed on a new connection once the server serves."""

    def prepare(self) -> list[RequestStep]:
        """Steps taken once, on a connection of their own, before anything is published."""
        return []

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        """First steps of a connection that publishes to `names`. After them only answers come from the server."""
        return self.ready()

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        """One message by connection `client`. `serial` counts the requests of a feed."""
        raise self._lacks("publishes")

    def publish_many(self, name: str, payload: bytes, count: int, serial: int = 0) -> bytes:
        """One request with `count` equal messages, 1 to `batch_max`."""
        if count != 1:
            raise NotImplementedError(f"{self.name} publishes one message at a time")
        return self.publish(name, payload, serial)

    def sealed(self, request: bytes) -> bytes:
        """A publish of one message whose payload was changed since, with the checksums that it needs."""
        return request

    def barrier(self, name: str) -> RequestStep:
        """Answered once everything sent before it on this connection to stream `name` has been executed."""
        return self.ready()[0]

    def ends(self, names: Sequence[str]) -> Sequence[str]:
        """The streams whose barriers, one after the other, stand for all that was sent to `names`."""
        return names[-1:]

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        """All answers to the first `requests`, round-robin over new streams. Acknowledged variants only."""
        raise self._lacks("answers of known length")

    def answers_due(self, names: Sequence[str], requests: int) -> int:
        """The count of those answers: marks if the peer has one, otherwise bytes."""
        return requests if self.answer_mark else self.answers_bytes(names, requests)

    def stored(self, name: str, messages: int) -> RequestStep | None:
        """Succeeds only if stream `name` holds exactly `messages`; None if nothing is stored, or answers show it."""
        return None

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        """Steps of a connection that subscribes to the new stream `name`."""
        raise self._lacks("subscribers")

    def topic_subscriber(self, name: str, client: int) -> list[RequestStep]:
        """Steps of a connection that subscribes to a topic that nobody has published to."""
        return self.subscriber(name, client)

    def listener(self, name: str, client: int) -> list[RequestStep]:
        """The same in as few steps as the protocol allows; `chatter` may come after them."""
        return self.subscriber(name, client)

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        """What one subscriber gets for the first `messages` of a new stream."""
        raise self._lacks("deliveries of known length")

    def receipts(self, deliveries: bytes, one_bytes: int) -> bytes:
        """What a subscriber that acknowledges sends for these whole deliveries of `one_bytes` each."""
        raise self._lacks("subscribers that acknowledge")

    def live_puller(self, name: str) -> Puller | None:
        """For peers whose subscribers must ask again and again; None if messages are pushed."""
        return None

    def replayer(self, name: str, client: int) -> list[RequestStep]:
        """What a replaying connection does before its request."""
        return self.ready()

    def replay_request(self, name: str) -> bytes:
        """Asks for the whole stream; for peers without a `replay_puller`."""
        raise self._lacks("replays by one request")

    def replay_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        """Everything that is received after the request, up to the end of the last message."""
        raise self._lacks("replays by one request")

    def replay_puller(self, name: str, client: int, messages: int) -> Puller | None:
        """For peers that are replayed by asking again and again for the next of `messages`; None otherwise."""
        return None

    def consumer(self, name: str, client: int) -> list[RequestStep]:
        """Makes a durable consumer of the stream `name`, from its beginning, on the connection that uses it."""
        raise self._lacks("durable consumers")

    def consuming_puller(self, name: str, client: int, messages: int) -> Puller:
        """The consumer that takes `messages`; it counts those that it has acknowledged, once that is confirmed."""
        raise self._lacks("durable consumers")

    def _lacks(self, feature: str) -> NotImplementedError:
        return NotImplementedError(f"{self.name} has no {feature} here")


def digits_total(start: int, count: int) -> int:
    """The characters of the decimal numbers start, start + 1, ... (`count` of them; start >= 0)."""
    if start < 0 or count < 0:
        raise ValueError(f"digits_total({start}, {count}): both must be 0 or more")
    end, total = start + count, 0
    width, low, high = 1, 0, 10
    while low < end:
        total += width * max(0, min(end, high) - max(start, low))
        width, low, high = width + 1, high, high * 10
    return total


def shares(streams: int, messages: int) -> list[tuple[slice, int]]:
    """How `messages` fall on `streams` round-robin: runs of streams with their count of messages each."""
    rounds, rest = divmod(messages, streams)
    return [(slice(0, rest), rounds + 1), (slice(rest, streams), rounds)]


def make_feed(
    peer: Contestant,
    names: Sequence[str],
    payload: bytes,
    bytes_min: int,
    messages_min: int = 0,
    batch_max: int = 1 << 30,
) -> RequestFeed:
    """Publishes to `names` in turn: at least `messages_min` messages, and `bytes_min` bytes if each went alone.

    What the feed holds of one stream goes in requests of up to `peer.batch_max` messages (and `batch_max`), as a client
    that gathered the feed would send it.
    """
    batch_max = min(batch_max, peer.batch_max)
    one_round = sum(len(peer.publish(name, payload)) for name in names)
    each = max(1, -(-bytes_min // one_round), -(-messages_min // len(names)))
    counts = [min(batch_max, each - start) for start in range(0, each, batch_max)]
    wanted = ((name, count) for count in counts for name in names)
    requests = [peer.publish_many(name, payload, count, serial) for serial, (name, count) in enumerate(wanted)]
    return RequestFeed(b"".join(requests), each * len(names), len(requests))


def stream_names(count: int) -> list[str]:
    """Names every peer takes as they are; all of one length for one count."""
    return [f"b.{i:06d}" for i in range(count)]


def topic_names(count: int) -> list[str]:
    """The same as topics of one stream."""
    return [f"b/{name}" for name in stream_names(count)]


def make_payload(payload_bytes: int) -> bytes:
    """One PAYLOAD_MARK, then filler that holds no mark of any kind."""
    return (PAYLOAD_MARK + b"abcdefghijklmnopqrstuvwxyz" * (payload_bytes // 26 + 1))[:payload_bytes]
