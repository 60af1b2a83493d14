"""How streams are kept, and which of them follow another node: the repeated sections [[stream]] and [[slave]].

`broker.process.settings` has the rest of the configuration.
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tailrace.broker.process.setting_specs import DAY_S, HOUR_S, KIB, YEAR_S, Durability, Kind, setting


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """How long and how safely the streams whose names match `pattern` are kept (one [[stream]] section)."""

    pattern: str = setting(
        "stream",
        "pattern",
        Kind.PATTERN,
        "*",
        "the streams of this section, as a shell pattern over the whole name: * ? [abc]; the first match wins",
    )
    durability: Durability = setting(
        "stream",
        "durability",
        Kind.CHOICE,
        Durability.ASYNC,
        "when a message is synced: async (by the kernel), interval, always (before its acknowledgement); or memory: the"
        " stream is kept in memory and gone when the node stops",
        choices=tuple(Durability),
    )
    interval_ms: int = setting(
        "stream",
        "interval_ms",
        Kind.MILLISECONDS,
        1_000,
        "time between two syncs when durability is interval",
        low=1,
        high=HOUR_S * 1_000,
    )
    max_age_s: int = setting(
        "stream",
        "max_age_s",
        Kind.SECONDS,
        0,
        "drop messages older than this",
        low=1,
        high=100 * YEAR_S,
        zero="kept for ever",
    )
    max_bytes: int = setting(
        "stream",
        "max_bytes",
        Kind.BYTES,
        0,
        "drop the oldest messages when a stream is larger than this",
        low=4 * KIB,
        high=1 << 50,
        zero="no bound",
    )

    spare_consumers: bool = setting(
        "stream",
        "spare_consumers",
        Kind.FLAG,
        False,
        "whether max_age_s and max_bytes spare messages that a durable consumer has not acknowledged",
    )
    consumer_max_age_s: int = setting(
        "stream",
        "consumer_max_age_s",
        Kind.SECONDS,
        7 * DAY_S,
        "keep no messages for a consumer that has made no request for this long",
        low=1,
        high=100 * YEAR_S,
        zero="never",
    )
    last_values: bool = setting(
        "stream",
        "last_values",
        Kind.FLAG,
        False,
        "whether the last message of each topic is kept beyond the others; those to be retained always are",
    )
    linger_s: int = setting(
        "stream",
        "linger_s",
        Kind.SECONDS,
        60,
        "drop the messages of a stream in memory that has had no subscriber for this long",
        low=1,
        high=100 * YEAR_S,
        zero="never",
    )

    def matches(self, name: str) -> bool:
        """Whether this policy is for the stream `name`; upper and lower case differ."""
        return fnmatchcase(name, self.pattern)


DEFAULT_POLICY = StreamPolicy()


@dataclass(frozen=True, slots=True)
class SlaveRule:
    """Streams that follow another node (one [[slave]] section). Texts as in the file; `broker.replication.roles.rules`
    reads them."""

    streams: str = setting(
        "slave",
        "streams",
        Kind.STREAMS,
        "*",
        "the streams of this section: *, a prefix and *, or one stream's name; the first match wins",
    )
    upstream: tuple[str, ...] = setting(
        "slave",
        "upstream",
        Kind.ADDRESSES,
        (),
        "HOST:PORT of the node they follow, or an array of them, of which one is followed and the others are tried in"
        " this order when it is lost; empty: they are this node's own, also if a later section matches",
    )
    start: str = setting(
        "slave",
        "from",
        Kind.PLACE,
        "0",
        "where a new copy of a stream begins: 0, a time in microseconds, #SEQ or new",
    )
