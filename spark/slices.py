"""Work passed from the driver to its tasks: which messages of which streams. Small, and picklable."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

from tailrace.shard.errors import StorageError, StreamCut

Identity: TypeAlias = tuple[int, int]
"""Of the files of a stream: their stream_id, and how often its tail was set aside. Over a connection (0, 0), and for a
rollup the stream_id that the node has sent and 0."""
NO_IDENTITY: Identity = (0, 0)
_ID: Final = re.compile("[0-9a-f]{16}")


def show_stream_id(stream_id: int) -> str | None:
    """As 16 hexadecimal digits; None if it is not known."""
    return f"{stream_id:016x}" if stream_id else None


def parse_stream_id(text: str) -> int:
    """0 for an empty text. Raises ValueError."""
    if not text:
        return 0
    if _ID.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not the id of a stream: 16 hexadecimal digits")
    return int(text, 16)


class Stamp(NamedTuple):
    """Distinguishes a message from another one that has its seq."""

    timestamp_us: int
    epoch: int


class StreamReplaced(StreamCut):
    """Over a connection: messages of a slice are not those that it was planned for."""

    def __init__(self, stream: str, seq: int) -> None:
        StorageError.__init__(
            self,
            f"stream {stream!r} has another message {seq} than when this was planned: it was deleted and made again,"
            " or its node has lost the end of it",
        )
        self.name = stream
        self.seq = seq


class Slice(NamedTuple):
    """Messages first_seq..end_seq of a stream, the latter not included.

    `latest`: no message of them has a later time, or a later epoch; for connections, where files have no identity.
    """

    stream: str
    shard: int
    first_seq: int
    end_seq: int
    identity: Identity = NO_IDENTITY
    latest: Stamp | None = None

    @property
    def messages(self) -> int:
        return self.end_seq - self.first_seq

    @property
    def stream_id(self) -> str | None:
        return show_stream_id(self.identity[0])


Task: TypeAlias = tuple[Slice, ...]
FETCHED_MAX: Final = 250
"""Slices of a task that may be read at one time."""


class BadStream(NamedTuple):
    """A stream that cannot be read, and why."""

    stream: str
    cause: str


class BadStreams(Exception):
    """Some of the streams that were asked for cannot be read."""

    def __init__(self, bad: list[BadStream]) -> None:
        shown = "; ".join(each.cause for each in bad[:BAD_SHOWN_MAX])
        more = f"; and {len(bad) - BAD_SHOWN_MAX} more" if len(bad) > BAD_SHOWN_MAX else ""
        advice = 'option("badStreams", "skip") leaves such streams out, and reports them'
        super().__init__(f"{len(bad)} stream{'s' * (len(bad) > 1)} cannot be read: {shown}{more}. {advice}")
        self.bad = bad


BAD_SHOWN_MAX = 10
