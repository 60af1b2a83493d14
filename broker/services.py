"""What the parts of one worker share. The worker makes it; nobody but the supervisor knows the worker itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """The time of this turn of the loop, in seconds of the monotonic clock: read once when events have come."""

    @property
    def now_s(self) -> float: ...


class SlotCalls(Protocol):
    """Calls of the worker that owns a slot, in this process or over its link."""

    def call_slot(self, slot: int, verb: str, args: list[Any], done: Callable[[Any], None]) -> None: ...
