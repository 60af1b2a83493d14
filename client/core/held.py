"""Messages that are held for a moment, to be sent together with others. Pure.

Those with `Ack.NONE` wait here, since nobody waits for them; so do those that are published within one turn of an event
loop. Messages of one stream and one ack that follow each other become one request. A driver sends them when they are
due, or when they are `is_full`; the session sends them before anything else, so that the order in which a program did
things is kept.
"""

from __future__ import annotations

import math
from typing import Any, Final

from tailrace.core.arguments import pack_frames
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

_NONE: Final = Ack.NONE


class Run:
    """Messages of one stream that become one request. `waiters`: one for each, unless nobody waits for them."""

    __slots__ = ("ack", "metadata", "parts", "payloads", "receipt", "stream", "waiters")

    def __init__(self, stream: str, ack: Ack, metadata: bytes) -> None:
        self.stream = stream
        self.ack = ack
        self.waiters: list[Any] = []
        self.receipt = Receipt(stream, -1, 1, 0)  # of each message that nobody waits for
        self.metadata = metadata  # of `payloads`, the latest messages
        self.payloads: list[bytes] = []
        self.parts = [(metadata, self.payloads)]

    def begin_part(self, metadata: bytes) -> None:
        """The next messages have this metadata."""
        self.metadata, self.payloads = metadata, []
        self.parts.append((metadata, self.payloads))

    def publication(self, timeout_s: float) -> PendingPublication:
        framed = [pack_frames(payloads, metadata) for metadata, payloads in self.parts]
        frames = framed[0] if len(framed) == 1 else bytearray().join(framed)
        count = sum(len(payloads) for _, payloads in self.parts)
        publication = PendingPublication((self.stream,), frames, count, self.ack, timeout_s)
        if self.ack is not _NONE:
            publication.waiters = self.waiters
        return publication


class HoldBuffer:
    """The buffer of one client. `nbytes`: of the frames in it; `waiting`: of its messages somebody waits for these."""

    __slots__ = ("_latest", "_runs", "due_s", "full_bytes", "message_bytes_max", "nbytes", "sent_s", "waiting")

    def __init__(self) -> None:
        self.nbytes = 0
        self.waiting = 0
        self.due_s = math.inf  # when a driver without turns sends what is here
        self.sent_s = -math.inf  # the last time
        self.full_bytes = 0
        self.message_bytes_max = -1
        self._runs: list[Run] = []
        self._latest: dict[str, Run] = {}  # the run of each stream that its next message may join

    def limit(self, request_bytes: int, message_bytes: int) -> None:
        """Sets the present broker's limits: of the frames of one request; of a message's metadata and payload."""
        self.full_bytes = min(BUFFER_BYTES, request_bytes - MESSAGE_BYTES_MAX - HEADER_BYTES)
        self.message_bytes_max = min(MESSAGE_BYTES_MAX, message_bytes) if self.full_bytes > 0 else -1

    @property
    def is_full(self) -> bool:
        return self.nbytes >= self.full_bytes

    def add(self, stream: str, payload: bytes, metadata: bytes, ack: Ack = _NONE, waiter: Any = None) -> Receipt:
        """Holds a message of at most `message_bytes_max` until it is taken. Returns its receipt if nobody waits."""
        run = self._latest.get(stream)
        if run is None or run.ack is not ack:
            run = self._latest[stream] = Run(stream, ack, metadata)
            self._runs.append(run)
        elif run.metadata != metadata:
            run.begin_part(metadata)
        run.payloads.append(payload)
        if waiter is not None:
            run.waiters.append(waiter)
            self.waiting += 1
        self.nbytes += HEADER_BYTES + len(metadata) + len(payload)
        return run.receipt

    def take(self, timeout_s: float, now_s: float) -> list[PendingPublication]:
        """One publish for each run, which the buffer forgets."""
        runs, self._runs = self._runs, []
        self._latest = {}
        self.nbytes = self.waiting = 0
        self.due_s, self.sent_s = math.inf, now_s
        return [run.publication(timeout_s) for run in runs]
