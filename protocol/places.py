"""Places in a stream, as both protocols name them."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

FromKind: TypeAlias = Literal["time", "seq", "new", "last"]


class From(NamedTuple):
    """A place in a stream: the first message at or after a time (µs since the epoch), a seq, the end, or a number
    of messages before the end."""

    kind: FromKind
    value: int


FROM_THE_END: Final = frozenset({"new", "last"})
"""Kinds of places that are counted from the end."""
FROM_NEW: Final = From("new", 0)
NUMBER_MAX: Final = (1 << 63) - 1
"""The largest seq or time, and the largest number of messages or bytes that is counted off from one."""
