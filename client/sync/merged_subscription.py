"""The synchronous shell: several streams as one iterator."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import cast

from tailrace.core.merged_state import MergedState
from tailrace.core.subscription_state import Arrived, SubscriptionState
from tailrace.errors import OperationTimeout
from tailrace.sync.driver import Driver
from tailrace.sync.subscription import Subscription


class MergedSubscription(Subscription):
    """The messages of several streams. Those of one stream are in order; streams take turns.

    Made by `Client.subscribe` for a list of names or a pattern. `stream` has all of them, a message its own.
    """

    def __init__(self, driver: Driver, merged: MergedState) -> None:
        super().__init__(driver, cast(SubscriptionState, merged))  # for its facts; what differs is below
        self._merged = merged

    @property
    def streams(self) -> frozenset[str]:
        """The streams that are read so far."""
        return frozenset(self._merged.names)

    def cancel(self) -> None:
        """Ends the subscription: no more messages arrive, and iterations end. May be called by any thread."""
        driver, self._rest = self._driver, iter(())
        if driver.is_severed:
            return
        with driver.lock, driver.step:
            self._merged.cancel()
            driver.push()

    def __del__(self) -> None:
        pass  # its streams end with the client, or by `cancel`

    def _next_arrived(self, deadline_s: float) -> Arrived | None:
        driver, merged = self._driver, self._merged
        with driver.lock, driver.step:
            while True:
                arrived = merged.next_arrived(self._given)
                driver.push()
                if arrived is not None or merged.is_over:
                    return arrived
                self._given = None
                merged.poll(monotonic())
                driver.push()
                poll_s = merged.poll_s
                driver.wait_until(partial(merged.has_changed, poll_s), min(deadline_s, poll_s))
                if not merged.has_news and monotonic() >= deadline_s:
                    raise OperationTimeout(f"{merged.stream}: no message came in time")
