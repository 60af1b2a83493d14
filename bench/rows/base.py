"""A row of the report: one kind of load on each of the peers that take part, and what one measurement has at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from bench.load.base import Load, Stop, apart
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.load.publishing import Pushed, ingest
from bench.load.sockets import take_steps
from bench.peers.base import Contestant, RequestFeed, make_feed, make_payload
from bench.peers.tailrace import Tailrace
from bench.scale import Scale
from bench.server import PeerServer
from tailrace.shard.frame import HEADER_BYTES

P = ParamSpec("P")
R = TypeVar("R")

STREAM = "b.000000"
"""The stream of rows that need one: the first of `stream_names`."""
_TOPICS_CONFIG = "[limits]\nmax_handles = 200_000\n"
FILL_MESSAGES = 10_000  # of one feed, the same for all peers, so that all hold the same number of messages
WINDOW_FEEDS = 4  # a feed is this part of the window, if there is one, so that the window stays full
# The generator's own deadline is the first to pass, so that its error names the wait.
APART_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One peer, one row, one round. `extras` are further figures, with the unit at the end of their names."""

    value: float
    cpu_us: float
    peak_rss_bytes: int
    extras: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowRun:
    """One measurement: a peer, its new server, and the helpers that rows share. They raise LoadError."""

    peer: Contestant
    server: PeerServer
    scale: Scale

    @property
    def payload(self) -> bytes:
        return make_payload(self.scale.payload_bytes)

    @property
    def load(self) -> Load:
        """For one part of the measurement: its time begins now."""
        return Load(self.peer, self.server.target, self.payload, Deadline(self.scale.timeout_s))

    def generate(self, function: Callable[Concatenate[Load, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a load generator in a process of its own."""
        return apart(self.scale.timeout_s + APART_MARGIN_S, function, self.load, *args, **kwargs)

    def feed(
        self, names: Sequence[str], bytes_min: int = 0, messages_min: int = 0, batch_max: int = 1 << 30
    ) -> RequestFeed:
        return make_feed(self.peer, names, self.payload, bytes_min, messages_min, batch_max)

    def full_feed(self, names: Sequence[str]) -> RequestFeed:
        """As much as is sent at once in the rows that publish as fast as they can."""
        window = self.peer.window_requests
        if window:
            return self.feed(names, messages_min=window // WINDOW_FEEDS)
        return self.feed(names, self.scale.feed_bytes)

    def ingest(self, names: list[str], feed: RequestFeed, stop: Stop, warm: RequestFeed | None = None) -> Pushed:
        return self.generate(ingest, names, feed, stop, warm)

    def fill(self, name: str, messages: int) -> None:
        """Publish `messages` to the stream, in whole feeds of FILL_MESSAGES."""
        self.ingest([name], self.feed([name], messages_min=FILL_MESSAGES), Stop(messages=messages))
        self.check_stored(name, messages)

    def check_stored(self, name: str, messages: int, timeout_s: float = 5.0) -> None:
        """Raise LoadError unless the stream holds `messages`; do nothing for peers that cannot count them."""
        step = self.peer.stored(name, messages)
        if step is None:
            return
        try:
            take_steps(self.server.site.port, [step], Deadline(timeout_s), self.peer.tls)
        except LoadError as error:
            text = f"{self.peer.name} does not hold the {messages} messages published to {name}: {error}"
            raise LoadError(text) from error

    def measured(self, value: float, spent: Spent, count: int, extras: dict[str, float] | None = None) -> Measurement:
        """The result; `count` messages or deliveries share the processor time."""
        return Measurement(value, cpu_us(spent, count), self.server.peak_rss_bytes(), extras or {})


def with_topics(peer: Contestant) -> Contestant:
    """A node at which a connection may have a handle for each topic."""
    return peer.changed(config=_TOPICS_CONFIG) if isinstance(peer, Tailrace) else peer


def _as_it_is(peer: Contestant) -> Contestant:
    return peer


@dataclass(frozen=True, slots=True)
class BenchRow:
    """`measure` puts the load on a new server; the value is in `unit`, processor time is for each `counted`.

    `suited` returns the peer as it is started for this row. `measure` raises LoadError if the load does not go through.
    """

    name: str
    title: str
    kind: str
    unit: str
    measure: Callable[[RowRun], Measurement]
    counted: str = "message"
    lower_is_better: bool = False
    suited: Callable[[Contestant], Contestant] = _as_it_is


def replay_messages(scale: Scale, part: int = 1) -> int:
    """As many as make about `replay_bytes` / `part` of frames in tailrace's log, in whole feeds."""
    feed_bytes = FILL_MESSAGES * (HEADER_BYTES + scale.payload_bytes)
    return max(1, scale.replay_bytes // part // feed_bytes) * FILL_MESSAGES


def cpu_us(spent: Spent, count: int) -> float:
    return spent.cpu_s / count * 1e6


def total(parts: Sequence[Spent]) -> Spent:
    return Spent(
        sum(part.wall_s for part in parts), sum(part.cpu_s for part in parts), sum(part.busy_s for part in parts)
    )
