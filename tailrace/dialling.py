"""Which address is tried next, when, and when to give up. Pure: time and chance are passed in.

Addresses are tried in their order, one right after the other; after each round there is a pause, longer each time up to
a bound. A connection that was good is replaced at once. Before the first connection a few rounds must do, so that a
wrong address is told soon; a connection that was lost is sought for `reconnect_s`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tailrace.address import Address
from tailrace.backoff import Backoff
from tailrace.errors import BrokerError, ConnectFailed, ConnectionLost, Denied, TailraceError, Unsupported

FIRST_ROUNDS = 3
"""Over all addresses, before the first connection."""
STABLE_S = 1.0
"""A connection that was good for so long, or of some use, is replaced without a pause."""

FINAL = (Denied, Unsupported)
"""To ask again is no use."""


class Dialling:
    """One a client. `due_s` is when to dial `address`."""

    def __init__(
        self, addresses: Sequence[Address], reconnect_s: float, random: Callable[[], float], now_s: float
    ) -> None:
        self.due_s = now_s
        self._addresses = addresses
        self._reconnect_s = reconnect_s
        self._backoff = Backoff(random)
        self._random = random
        self._index = 0
        self._tried = 0  # of the addresses of this round
        self._sought_since_s = now_s
        self._greeted_s = -math.inf  # the connection that is up, or the last one
        self._ever = False
        self._reasons: dict[Address, TailraceError] = {}

    @property
    def address(self) -> Address:
        return self._addresses[self._index]

    @property
    def reason(self) -> str:
        """Why there is no connection, as far as it is known."""
        return "; ".join(f"{address}: {error}" for address, error in self._reasons.items())

    def greeted(self, now_s: float) -> None:
        """There is a connection, and a broker at its end."""
        self._greeted_s = now_s
        self._ever = True
        self._reasons.clear()
        self._tried = 0

    def lost(self, error: TailraceError, now_s: float, *, was_useful: bool, move_on: bool) -> None:
        """The connection that was greeted is gone. `move_on`: because this broker does not want it any more."""
        self._reasons = {self.address: error}
        self._sought_since_s = now_s
        if move_on:
            self._next_address()
        if was_useful or now_s - self._greeted_s >= STABLE_S:
            self._backoff.reset()
            self.due_s = now_s
        else:
            self.due_s = now_s + self._backoff.next_s()

    def failed(self, error: TailraceError, now_s: float) -> TailraceError | None:
        """The address could not be reached, or its broker did not greet. What to give up with, or None."""
        self._reasons[self.address] = error
        self._next_address()
        self._tried += 1
        if self._tried < len(self._addresses):
            self.due_s = now_s
            return None
        self._tried = 0
        if self._is_enough(now_s):
            return self._give_up()
        self.due_s = now_s + self._backoff.next_s()
        return None

    def _next_address(self) -> None:
        self._index = (self._index + 1) % len(self._addresses)

    def _is_enough(self, now_s: float) -> bool:
        if self._ever:
            return now_s - self._sought_since_s >= self._reconnect_s
        return self._backoff.tries + 1 >= FIRST_ROUNDS or all(isinstance(e, FINAL) for e in self._reasons.values())

    def _give_up(self) -> TailraceError:
        if self._ever:
            return ConnectionLost(f"the connection did not come back within {self._reconnect_s:.0f} s ({self.reason})")
        errors = list(self._reasons.values())
        if len(errors) == 1 and isinstance(errors[0], BrokerError):
            return errors[0]
        return ConnectFailed(f"cannot connect to {self.reason}")
