"""Decides which addresses are tried, when, and when to give up. Pure: time and randomness are passed in.

An attempt begins with one address. Another address joins it when the first has not connected after `STAGGER_S`, or at
once when it fails (as in RFC 8305, "Happy Eyeballs"): one that drops packets costs at most that second. The first that
connects is taken, and the others are left. When all have failed there is a pause, longer each time up to a bound. A
connection that was good is replaced at once; one that was cut right after the greeting, after a pause that stays brief,
since a broker is there. Before the first connection a few rounds must do, so that a wrong address is reported soon;
after a lost connection it retries for `reconnect_s`, or until all addresses have denied the login.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tailrace.core.address import Address
from tailrace.core.backoff import BRIEF_MOST_S, Backoff
from tailrace.errors import BrokerError, BrokerFault, ConnectFailed, ConnectionLost, Denied, TailraceError, Unsupported

FIRST_ROUNDS = 3
"""Over all addresses, before the first connection."""
STABLE_S = 1.0
"""A connection that was good for so long, or of some use, is replaced without a pause."""
STAGGER_S = 1.0
"""Between the beginnings of two attempts of which none has connected or failed."""

FINAL = (Denied, Unsupported, BrokerFault)
"""To ask again is no use."""


class ConnectAttempt(NamedTuple):
    """To connect to one of the addresses. `number` is its own; `place` is that of the address among them."""

    number: int
    place: int
    address: Address
    until_s: float


class AddressSelector:
    """The addresses of one client, with one attempt each at a time. `due_s`: when `begin` may have another attempt."""

    def __init__(
        self,
        addresses: Sequence[Address],
        reconnect_s: float,
        random: Callable[[], float],
        now_s: float,
        connect_timeout_s: float = math.inf,
    ) -> None:
        self.due_s = now_s
        self.under_way: dict[int, ConnectAttempt] = {}
        self._addresses = addresses
        self._reconnect_s = reconnect_s
        self._connect_timeout_s = connect_timeout_s
        self._backoff = Backoff(random)
        self._brief_backoff = Backoff(random, most_s=BRIEF_MOST_S)
        self._index = 0  # of the address to begin with
        self._left: deque[int] = deque()  # addresses of this round that no attempt was made to
        self._numbers = 0
        self._sought_since_s = now_s
        self._greeted_s = -math.inf  # the connection that is up, or the last one
        self._ever = False
        self._reasons: dict[Address, TailraceError] = {}

    @property
    def reason(self) -> str:
        """The reason of the failure, as far as it is known."""
        return "; ".join(f"{address}: {error}" for address, error in self._reasons.items())

    @property
    def attempts_due_s(self) -> float:
        """When the oldest attempt times out."""
        return min((each.until_s for each in self.under_way.values()), default=math.inf)

    def begin(self, now_s: float) -> ConnectAttempt | None:
        """The attempt to begin now, or None."""
        if now_s < self.due_s:
            return None
        if not self._left:
            busy = {each.place for each in self.under_way.values()}
            count = len(self._addresses)
            self._left.extend(index for at in range(count) if (index := (self._index + at) % count) not in busy)
        index = self._left.popleft()
        self._numbers += 1
        attempt = ConnectAttempt(self._numbers, index, self._addresses[index], now_s + self._connect_timeout_s)
        self.under_way[attempt.number] = attempt
        self.due_s = now_s + STAGGER_S if self._left else math.inf
        return attempt

    def connected(self, attempt: ConnectAttempt) -> None:
        """This attempt wins; if its broker does not greet, the others are tried again."""
        others = [each.place for each in self.under_way.values() if each is not attempt]
        self._left = deque([*others, *self._left])
        self.under_way = {attempt.number: attempt}
        self.due_s = math.inf

    def greeted(self, now_s: float) -> None:
        """Connected, and the broker has greeted."""
        for attempt in self.under_way.values():
            self._index = attempt.place
        self._greeted_s = now_s
        self._ever = True
        self._reasons.clear()
        self._forget()

    def lost(self, error: TailraceError, now_s: float, *, was_useful: bool, move_on: bool) -> None:
        """The connection that was greeted is gone. `move_on`: begin with the next address."""
        self._reasons = {self._addresses[self._index]: error}
        self._sought_since_s = now_s
        self._forget()
        if move_on:
            self._index = (self._index + 1) % len(self._addresses)
        if was_useful or now_s - self._greeted_s >= STABLE_S:
            self._backoff.reset()
            self._brief_backoff.reset()
            self.due_s = now_s
        else:
            backoff = self._brief_backoff if isinstance(error, ConnectionLost) else self._backoff
            self.due_s = now_s + backoff.next_s()

    def failed(self, attempt: ConnectAttempt, error: TailraceError, now_s: float) -> TailraceError | None:
        """The address could not be reached, or its broker did not greet. What to give up with, or None."""
        self.under_way.pop(attempt.number, None)
        self._reasons[attempt.address] = error
        if self._left:
            self.due_s = now_s
            return None
        if self._is_enough(now_s):
            return self._give_up()
        self.due_s = now_s + self._backoff.next_s()
        return None

    def _forget(self) -> None:
        self.under_way.clear()
        self._left.clear()
        self.due_s = math.inf

    def _is_enough(self, now_s: float) -> bool:
        sought_s = now_s - self._sought_since_s
        if self._ever:
            return sought_s >= self._reconnect_s or self._is_denied
        if self.under_way and sought_s < self._connect_timeout_s:
            return False
        if not self.under_way and sought_s >= self._connect_timeout_s and len(self._reasons) == len(self._addresses):
            return True
        is_final = len(self._reasons) == len(self._addresses) and all(
            isinstance(each, FINAL) for each in self._reasons.values()
        )
        return self._backoff.tries + 1 >= FIRST_ROUNDS or is_final

    @property
    def _is_denied(self) -> bool:
        """Whether the brokers at all addresses have refused this client, as they would again."""
        reasons = self._reasons.values()
        return len(reasons) == len(self._addresses) and all(isinstance(each, Denied) for each in reasons)

    def _give_up(self) -> TailraceError:
        if self._is_denied:
            return next(iter(self._reasons.values()))
        if self._ever:
            return ConnectionLost(f"the connection did not come back within {self._reconnect_s:.0f} s ({self.reason})")
        errors = list(self._reasons.values())
        if len(errors) == 1 and isinstance(errors[0], BrokerError):
            return errors[0]
        return ConnectFailed(f"cannot connect to {self.reason}")
