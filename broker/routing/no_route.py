"""Where publishes and calls to a followed stream go while there is no way to its master: they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tailrace.broker.routing.batch import Batch
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code

NO_WAY_TEXT = "this node follows the stream's master, but has no way to it yet"

CallUp: TypeAlias = Callable[[bytes, str, list[Any], Callable[[Any | Refused], None]], None]
"""Ask the master of a slaved stream: name, verb, arguments, and who gets the value or a `Refused`."""
Confirmed: TypeAlias = tuple[tuple[int, str], set[tuple[str, int]]]
"""A term, and the contacts that have confirmed it so far. It is written down when all have."""


def send_nowhere(batch: Batch) -> None:
    batch.refused(Code.UNAVAILABLE, NO_WAY_TEXT)


def call_nowhere(_name: bytes, _verb: str, _args: list[Any], done: Callable[[Any | Refused], None]) -> None:
    done(Refused(Code.UNAVAILABLE, NO_WAY_TEXT))
