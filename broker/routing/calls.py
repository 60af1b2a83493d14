"""Calls of a worker by slot: those that each worker answers itself, and those for the owner of the slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.broker.process.work import NOBODY, Asker
from tailrace.broker.routing.router import Router
from tailrace.broker.streams.refused import OnResult


class WorkerCalls:
    """`own`: by verb, what a worker answers of itself rather than as the owner of its streams."""

    def __init__(self, router: Router, slot: int, own: Mapping[str, Callable[..., Any]]) -> None:
        self.router = router
        self._slot = slot
        self._own = own

    def answers(self, verb: str) -> bool:
        """Whether every worker answers this verb, also one that owns nothing."""
        return verb in self._own

    def call_slot(
        self,
        slot: int,
        verb: str,
        args: list[Any],
        done: OnResult,
        asker: Asker = NOBODY,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        """Call the worker of a slot; as `Router.call_slot`."""
        if verb in self._own and slot == self._slot:
            done(self._own[verb](*args))
        else:
            self.router.call_slot(slot, verb, args, done, asker, give_back)
