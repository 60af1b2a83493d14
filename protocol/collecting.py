"""COLLECT, COLLECTED and ADDED of the binary protocol: one subscription of all streams of a pattern.

These messages are accepted only on a connection whose HELLO asked for the feature `FEATURE` and got it.

docs/binary-protocol.md draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from tailrace.protocol import features
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FeatureReaders
from tailrace.protocol.fields import ELEMENTS_MAX, NUMBER_MAX, U32_MAX, Fields, pack_map
from tailrace.protocol.messages import WirePlace
from tailrace.protocol.names import readable_name
from tailrace.protocol.opcodes import Op
from tailrace.protocol.places import From
from tailrace.protocol.topics import topic_filter

FEATURE: Final = features.PATTERNS
POSITIONS_MAX: Final = 1_024
"""Of one COLLECT."""
ADDED_FROM: Final = 1 << 31
"""The ids of subscriptions that the broker chooses begin here."""
NO_POSITIONS: Final[Mapping[bytes, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Collect:
    """Subscribes to the streams of `pattern`, a pattern of names or a filter.

    positions: streams that begin at a seq instead of at `start`; skip, end, credit, topics: of each stream, as those of
    `Subscribe`. at_once: how many of them have a subscription at one time at most, each while it has messages to be
    sent; 0 for no such limit.
    """

    id: int
    pattern: bytes
    start: From
    skip: int = 0
    end: WirePlace | None = None
    credit: int | None = None
    topics: bytes = b""
    positions: Mapping[bytes, int] = field(default_factory=lambda: NO_POSITIONS)
    at_once: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """The answer: the number of streams that are read. An `Added` names each of them. time_us: the node's clock, if
    the Collect has `at_once`."""

    id: int
    streams: int
    time_us: int = 0


@dataclass(frozen=True, slots=True)
class Added:
    """The subscription of one of the streams, as `Subscribed` says it. id: that of the Collect."""

    id: int
    subscription: int
    stream: str
    next_seq: int
    first_seq: int
    end_seq: int | None = None


# --- their bytes ----------------------------------------------------------------------------------------------------


def _pack_collect(message: Collect) -> bytes:
    body = {
        "id": message.id,
        "pattern": message.pattern.decode(),
        "from": message.start,
        "skip": message.skip or None,
        "end": message.end,
        "credit": message.credit,
        "topics": message.topics.decode() or None,
        "positions": [(name.decode(), seq) for name, seq in message.positions.items()] or None,
        "at_once": message.at_once or None,
    }
    return pack_map(Op.COLLECT, body)


def _pack_collected(message: Collected) -> bytes:
    return pack_map(Op.COLLECTED, {"id": message.id, "streams": message.streams, "time": message.time_us or None})


def _pack_added(message: Added) -> bytes:
    return pack_map(Op.ADDED, {name: getattr(message, name) for name in Added.__slots__})


def _collect(read: Fields) -> Collect:
    number, pattern, start = read.number("id", U32_MAX), read.readable_stream("pattern"), read.start("from")
    skip = read.number("skip") if "skip" in read else 0
    if skip and start.kind != "time":
        raise PeerError(Code.USAGE, "COLLECT: the field skip counts messages at a time, so from must be one")
    end: WirePlace | None = read.place("end", ("time", "now")) if "end" in read else None
    credit = read.number("credit") if "credit" in read else None
    topics = topic_filter(read.text("topics").encode()) if "topics" in read else b""
    at_once = read.number("at_once", default=0)
    return Collect(number, pattern, start, skip, end, credit, topics, _positions(read), at_once)


def _positions(read: Fields) -> Mapping[bytes, int]:
    rows = read.rows("positions", (str, int)) if "positions" in read else ()
    found: dict[bytes, int] = {}
    for name, seq in rows:
        if not 0 <= seq <= NUMBER_MAX:
            raise PeerError(Code.USAGE, f"COLLECT: the position {seq} is not a number from 0 to {NUMBER_MAX}")
        found[readable_name(name.encode())] = seq
    return found


def _collected(read: Fields) -> Collected:
    return Collected(read.number("id", U32_MAX), read.number("streams"), read.number("time", default=0))


def _added(read: Fields) -> Added:
    number, subscription, stream = read.number("id", U32_MAX), read.number("subscription", U32_MAX), read.text("stream")
    end_seq = read.number("end_seq") if "end_seq" in read else None
    return Added(number, subscription, stream, read.number("next_seq"), read.number("first_seq"), end_seq)


CollectRequest: TypeAlias = Collect
CollectResponse: TypeAlias = Collected | Added
PACKERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    Collect: _pack_collect,
    Collected: _pack_collected,
    Added: _pack_added,
}
features.PACKERS.update(PACKERS)
READERS: Final = FeatureReaders(
    {Op.COLLECT: _collect}, {Op.COLLECTED: _collected, Op.ADDED: _added}, POSITIONS_MAX, ELEMENTS_MAX
)
