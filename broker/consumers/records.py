"""The messages of `$cursor/X`: what has happened to the consumers of stream X, and their bytes.

A record says what came of something, not what was asked for: whoever applies it (`broker.consumers.state`) decides
nothing more. Runs of messages are flat rows of numbers: first seq, messages, first seq, messages, … rising, apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from shard.epochs import EpochStart, History, make_history

Flat: TypeAlias = tuple[int, ...]
"""first seq, messages, first seq, messages, …"""


class BadRecord(ValueError):
    """These bytes are no record, or it does not fit what was applied before it; the text says why."""


class Created(NamedTuple):
    """A consumer was made, whose first message is `seq`."""

    name: bytes
    time_us: int
    seq: int
    ack_wait_us: int
    deliveries_max: int


class Reset(NamedTuple):
    """It goes on at `seq`; nothing is in flight or finished from there on."""

    name: bytes
    time_us: int
    seq: int


class Deleted(NamedTuple):
    name: bytes


class Progress(NamedTuple):
    """What came of one get. `kept_seq`: messages before it are not kept any more (0: all are that are wanted).

    `failed`: rows of first seq, messages, reason. `back`: what was returned for the keys of those, and counts no
    delivery. `given`: to this member, now.
    """

    name: bytes
    member: bytes
    time_us: int
    kept_seq: int = 0
    finished: Flat = ()
    failed: tuple[tuple[int, int, str], ...] = ()
    back: Flat = ()
    given: Flat = ()


class Returned(NamedTuple):
    """What a member had in flight for too long, or had when it left. `back`: for the keys of those; counts none."""

    name: bytes
    member: bytes
    reason: str
    counted: Flat
    back: Flat = ()


class Buried(NamedTuple):
    """The dead letter with this number is in X/$dead."""

    name: bytes
    number: int


class Line(NamedTuple):
    """Stream X is this line of messages from here on, and ends before `end_seq`.

    What was done with messages that are not in it is undone.
    """

    history: History
    end_seq: int


class Begun(NamedTuple):
    """A checkpoint begins: the records up to `Ended` make the whole state."""

    history: History


class Row(NamedTuple):
    """One consumer of a checkpoint, all but what is not finished."""

    name: bytes
    created_us: int
    era_us: int
    last_us: int
    ack_wait_us: int
    deliveries_max: int
    next_seq: int
    unsure_seq: int
    dead: int
    redelivered: int


class Kept(NamedTuple):
    """Consumers of a checkpoint."""

    rows: tuple[Row, ...]


class Open(NamedTuple):
    """What one of them has not finished. Rows of `waiting`: first seq, messages, deliveries.

    Rows of `flight`: first seq, messages, deliveries, member, deadline_us. Of `dying`: number, seq, deliveries, epoch,
    reason.
    """

    name: bytes
    waiting: tuple[tuple[int, int, int], ...] = ()
    flight: tuple[tuple[int, int, int, bytes, int], ...] = ()
    dying: tuple[tuple[int, int, int, int, str], ...] = ()


class Ended(NamedTuple):
    """The checkpoint has so many parts between `Begun` and this."""

    parts: int


Record: TypeAlias = Created | Reset | Deleted | Progress | Returned | Buried | Line | Begun | Kept | Open | Ended


def pack(record: Record) -> bytes:
    """The payload of a message of `$cursor/X`."""
    raise NotImplementedError


def unpack(payload: bytes | bytearray | memoryview) -> Record:
    """Raises BadRecord."""
    raise NotImplementedError


_UNUSED: Final = (msgpack, Callable, Mapping, Any, EpochStart, make_history)
