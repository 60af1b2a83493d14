"""Messages published with `Ack.NONE`: they wait here for each other, since nobody waits for them. Pure.

Those of one stream become one request. A driver sends them when they are due, or when they are `is_full`; the session
sends them before anything else, so that the order in which a program did things is kept.
"""

from __future__ import annotations

import math
from typing import Final

from tailrace.core.batch import Gathered
from tailrace.core.message import Receipt
from tailrace.core.publications import PendingPublication
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import HEADER_BYTES

BUFFER_BYTES: Final = 64 << 10
"""Of frames that are held; then they are sent."""
MESSAGE_BYTES_MAX: Final = 8 << 10
"""Of a message that is held: larger ones gain nothing by it."""
LINGER_S: Final = 0.002
"""How long messages are held where there is no turn of an event loop, after others were sent."""


class Run(Gathered):
    """The messages of one stream, and the receipt that each of them gets."""

    __slots__ = ("receipt",)

    def __init__(self, stream: str) -> None:
        super().__init__(0)
        self.receipt = Receipt(stream, -1, 1, 0)


class Unacknowledged:
    """The buffer of one client. `nbytes`: of the frames in it."""

    __slots__ = ("_runs", "due_s", "full_bytes", "message_bytes_max", "nbytes", "sent_s")

    def __init__(self) -> None:
        self.nbytes = 0
        self.due_s = math.inf  # when a driver without turns sends what is here
        self.sent_s = -math.inf  # the last time
        self.full_bytes = 0
        self.message_bytes_max = -1
        self._runs: dict[str, Run] = {}

    def limit(self, request_bytes: int, message_bytes: int) -> None:
        """Sets the present broker's limits: of the frames of one request; of a message's metadata and payload."""
        self.full_bytes = min(BUFFER_BYTES, request_bytes - MESSAGE_BYTES_MAX - HEADER_BYTES)
        self.message_bytes_max = min(MESSAGE_BYTES_MAX, message_bytes) if self.full_bytes > 0 else -1

    @property
    def is_full(self) -> bool:
        return self.nbytes >= self.full_bytes

    def add(self, stream: str, payload: bytes, metadata: bytes) -> Receipt:
        """Holds a message of at most `message_bytes_max` until it is taken."""
        run = self._runs.get(stream)
        if run is None:
            run = self._runs[stream] = Run(stream)
        run.run_of(metadata).append(payload)
        self.nbytes += HEADER_BYTES + len(metadata) + len(payload)
        return run.receipt

    def take(self, timeout_s: float, now_s: float) -> list[PendingPublication]:
        """One publish for each stream, which the buffer forgets."""
        runs, self._runs = self._runs, {}
        self.nbytes = 0
        self.due_s, self.sent_s = math.inf, now_s
        found = []
        for stream, run in runs.items():
            count = sum(len(payloads) for _, payloads in run.runs)
            found.append(PendingPublication((stream,), run.frames(), count, Ack.NONE, timeout_s))
        return found
