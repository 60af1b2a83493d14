"""Messages gathered into one publish, and what became of those before. Shared by both shells' batchers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from broker.protocol.messages import Ack
from shard.frame import HEADER_BYTES
from tailrace.errors import InvalidArgument, TailraceError
from tailrace.framing import pack_frames, publication_of
from tailrace.message import Receipt
from tailrace.publications import Publication

MAX_MESSAGES = 10_000
MAX_BYTES = 256 << 10
LINGER_S = 0.005


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of one batch, whose messages were added as number `index` (from 0) and after: receipt or error."""

    index: int
    count: int
    receipt: Receipt | None
    error: TailraceError | None


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is sent: with so many messages, so many bytes of frames, or so long after its first message."""

    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    linger_s: float = LINGER_S

    def __post_init__(self) -> None:
        if self.max_messages < 1 or self.max_bytes < 1 or not self.linger_s >= 0:
            raise InvalidArgument(f"{self}: at least 1 message, 1 byte, 0 s")


class Batch:
    """The batch that grows, and the batches under way, oldest first."""

    def __init__(self, stream: str, limits: BatchLimits, ack: Ack, timeout_s: float, retry: bool) -> None:
        self.due_s = math.inf  # when what was added is to be sent
        self.count = 0  # of the messages of the batch that grows
        self.added = 0  # messages, in all
        self.acknowledged = 0  # messages, in all
        self.failed = 0  # messages, in all
        self.stream = stream
        self._limits = limits
        self._ack = Ack(ack)
        self._timeout_s = timeout_s
        self._retry = retry
        self._nbytes = 0
        self._payloads: list[bytes] = []  # of the same metadata, not framed yet
        self._metadata = b""
        self._framed: list[bytearray] = []
        self._under_way: deque[tuple[int, Publication]] = deque()

    @property
    def is_full(self) -> bool:
        return self.count >= self._limits.max_messages or self._nbytes >= self._limits.max_bytes

    def add(self, payloads: list[bytes], metadata: bytes, now_s: Callable[[], float]) -> int:
        """Take as many of the payloads as make the batch full; how many."""
        head = payloads[: max(1, self._limits.max_messages - self.count)]
        beside = HEADER_BYTES + len(metadata)
        size = beside * len(head) + sum(map(len, head))
        if len(head) > 1 and self._nbytes + size > self._limits.max_bytes:
            head = head[: _fitting(head, beside, self._limits.max_bytes - self._nbytes)]
            size = beside * len(head) + sum(map(len, head))
        if metadata != self._metadata:
            self._frame()
            self._metadata = metadata
        if not self.count:
            self.due_s = now_s() + self._limits.linger_s
        self._payloads += head
        self._nbytes += size
        self.count += len(head)
        self.added += len(head)
        return len(head)

    def add_one(self, payload: bytes, metadata: bytes, now_s: Callable[[], float]) -> None:
        """Take one message."""
        if metadata is not self._metadata and metadata != self._metadata:
            self._frame()
            self._metadata = metadata
        if not self.count:
            self.due_s = now_s() + self._limits.linger_s
        self._payloads.append(payload)
        self._nbytes += HEADER_BYTES + len(metadata) + len(payload)
        self.count += 1
        self.added += 1

    def take(self) -> Publication:
        """What was added, as one publish that is under way from here on."""
        self._frame()
        frames = self._framed[0] if len(self._framed) == 1 else bytearray().join(self._framed)
        publication = publication_of((self.stream,), frames, self.count, self._ack, self._timeout_s, self._retry)
        self._under_way.append((self.added - self.count, publication))
        self._framed = []
        self.count = self._nbytes = 0
        self.due_s = math.inf
        return publication

    @property
    def oldest_is_done(self) -> bool:
        """Whether `take_results` has any."""
        return bool(self._under_way) and self._under_way[0][1].done

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        under_way = self._under_way
        return not under_way or (under_way[-1][1].done and all(publication.done for _, publication in under_way))

    def take_results(self) -> list[BatchResult]:
        """What became of the oldest batches, as far as it is known, each told once."""
        results = []
        while self._under_way and self._under_way[0][1].done:
            index, publication = self._under_way.popleft()
            receipt = publication.receipts[0] if publication.receipts else None
            results.append(BatchResult(index, publication.count, receipt, publication.error))
            if receipt is None:
                self.failed += publication.count
            elif receipt.seq >= 0:
                self.acknowledged += publication.count
        return results

    def _frame(self) -> None:
        if self._payloads:
            self._framed.append(pack_frames(self._payloads, self._metadata))
            self._payloads = []


def _fitting(payloads: list[bytes], beside: int, room: int) -> int:
    """How many of the payloads fill the room, the one included that overflows it: at least one."""
    for index, payload in enumerate(payloads, 1):
        room -= beside + len(payload)
        if room <= 0:
            return index
    return len(payloads)
