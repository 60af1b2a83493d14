"""The wills of one worker's connections: the memory that they take together has a bound, and each user a share of it.

A connection has its will from CONNECT until its session ends. One that comes from another worker brings its will with
it, beyond the bound if need be; a CONNECT whose will finds no room is refused. Without a user the share is its
address's.
"""

from __future__ import annotations

from typing import Final

from tailrace.broker.access.users import may_hold
from tailrace.broker.connection.accounts import Account
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.protocol.mqtt.packets import WillMessage
from tailrace.protocol.mqtt.properties import PropertyId

WILL_BYTES: Final = 512
"""Memory of a will beyond its texts, about."""
PAIR_BYTES: Final = 192
"""The same of one of its user properties."""
FULL_TEXT: Final = "the wills of this worker's connections take as much memory as max_will_bytes allows"


def memory_of(will: WillMessage) -> int:
    """The bytes of memory that a will takes, about."""
    pairs = will.properties.get(PropertyId.USER_PROPERTY, ())
    texts = (len(value) for value in will.properties.values() if isinstance(value, bytes))
    in_pairs = sum(PAIR_BYTES + len(name) + len(value) for name, value in pairs)
    return WILL_BYTES + len(will.topic) + len(will.payload) + sum(texts) + in_pairs


class Wills:
    """One per worker. Its gauge is the account of all."""

    def __init__(self, bytes_max: int, metrics: WorkerMetrics) -> None:
        self._bytes_max = bytes_max
        self._metrics = metrics

    def refusal(self, account: Account, will: WillMessage) -> str:
        """Why the will of a connection with this account finds no room; empty if it does."""
        size, limits, metrics = memory_of(will), account.limits, self._metrics
        total = metrics.will_bytes + size
        if may_hold(account.will_bytes + size, total, self._bytes_max, limits.will_bytes):
            return ""
        if total > self._bytes_max:
            return FULL_TEXT
        metrics.mqtt_beyond_share.add("wills")
        return f"the wills of {account.key} take as much memory as one {limits.holder} may have of max_will_bytes"

    def exchange(self, account: Account, former: WillMessage | None, will: WillMessage | None) -> None:
        """A connection has this will now."""
        more = (0 if will is None else memory_of(will)) - (0 if former is None else memory_of(former))
        self._metrics.will_bytes += more
        account.will_bytes += more
