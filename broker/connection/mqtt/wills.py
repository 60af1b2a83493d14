"""The wills of one worker's connections: the memory that they take together has a bound.

A connection has its will from CONNECT until its session ends. One that comes from another worker brings its will with
it, beyond the bound if need be; a CONNECT whose will finds no room is refused.
"""

from __future__ import annotations

from typing import Final

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
    """One per worker. Its gauge is the account."""

    def __init__(self, bytes_max: int, metrics: WorkerMetrics) -> None:
        self._bytes_max = bytes_max
        self._metrics = metrics

    def has_room_for(self, will: WillMessage) -> bool:
        return self._metrics.will_bytes + memory_of(will) <= self._bytes_max

    def exchange(self, former: WillMessage | None, will: WillMessage | None) -> None:
        """A connection has this will now."""
        for sign, each in (-1, former), (1, will):
            if each is not None:
                self._metrics.will_bytes += sign * memory_of(each)
