"""A row of the report: one kind of load, put on each of the peers that take part in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from bench.load.apart import apart
from bench.load.dial import dialled
from bench.load.ingest import Pushed, Stop, ingest
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.peers.base import Feed, Peer
from bench.scale import Scale
from bench.server import Server

P = ParamSpec("P")
R = TypeVar("R")

# The generator's own deadline is the first to pass, so that it can say what it was waiting for.
_APART_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One peer, one row, one round. `extras` are further figures, their unit at the end of their names."""

    value: float
    cpu_us: float
    peak_rss_bytes: int
    extras: dict[str, float] = field(default_factory=dict)


class Row(ABC):
    """`value` is in `unit`; `cpu_us` is the server's processor time for each `counted`."""

    name: str
    title: str
    kind: str
    unit: str
    counted: str = "message"
    lower_is_better: bool = False

    def suited(self, peer: Peer) -> Peer:
        """The peer as it is started for this row."""
        return peer

    @abstractmethod
    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        """Put the load on a fresh server. LoadError if it does not go through."""


def generate(scale: Scale, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a part of the generator in a process of its own."""
    return apart(scale.timeout_s + _APART_MARGIN_S, function, *args, **kwargs)


def run_ingest(
    peer: Peer, server: Server, names: list[str], feed: Feed, stop: Stop, scale: Scale, warm: Feed | None = None
) -> Pushed:
    return generate(scale, ingest, peer, server.target, names, feed, stop, Deadline(scale.timeout_s), warm)


def check_stored(peer: Peer, server: Server, name: str, messages: int, timeout_s: float = 5.0) -> None:
    """LoadError unless the stream holds what was published; does nothing for peers that cannot tell."""
    step = peer.stored(name, messages)
    if step is None:
        return
    try:
        with dialled(server.site.port, [[step]], Deadline(timeout_s)):
            pass
    except LoadError as error:
        raise LoadError(f"{peer.name} does not hold the {messages} messages published to {name}: {error}") from error


def cpu_us(spent: Spent, count: int) -> float:
    return spent.cpu_s / count * 1e6
