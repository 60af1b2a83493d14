"""Messages gathered into one publish, and the results of earlier ones. Shared by both shells' batchers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.core.arguments import (
    Payload,
    check_sizes,
    checked_payload,
    checked_payloads,
    checked_replicas,
    pack_frames,
)
from tailrace.core.headers import pack_headers
from tailrace.core.message import Receipt
from tailrace.core.publications import PendingPublication
from tailrace.errors import InvalidArgument, TailraceError
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import HEADER_BYTES

if TYPE_CHECKING:
    from tailrace.core.session import Session

MAX_MESSAGES = 10_000
MAX_BYTES = 256 << 10
LINGER_S = 0.005


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one batch, whose first message was added as number `index` (from 0): receipt or error."""

    index: int
    count: int
    receipt: Receipt | None
    error: TailraceError | None


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is sent: after this many messages or bytes of frames, or this long after its first message."""

    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    linger_s: float = LINGER_S

    def __post_init__(self) -> None:
        if self.max_messages < 1 or self.max_bytes < 1 or not self.linger_s >= 0:
            raise InvalidArgument(f"{self}: at least 1 message, 1 byte, 0 s")


class Gathered:
    """Messages of one batch; those in a row with the same metadata are kept together."""

    __slots__ = ("count", "due_s", "index", "nbytes", "publication", "runs")

    def __init__(self, index: int) -> None:
        self.index = index  # of its first message among all
        self.runs: list[tuple[bytes, list[bytes]]] = []  # metadata, payloads
        self.count = 0
        self.nbytes = 0  # of frames
        self.due_s = math.inf  # when it has lingered enough
        self.publication: PendingPublication | None = None  # once it is taken

    def run_of(self, metadata: bytes) -> list[bytes]:
        """The payloads to add those with this metadata to."""
        if not self.runs or self.runs[-1][0] != metadata:
            self.runs.append((metadata, []))
        return self.runs[-1][1]

    def frames(self) -> bytearray:
        framed = [pack_frames(payloads, metadata) for metadata, payloads in self.runs]
        return framed[0] if len(framed) == 1 else bytearray().join(framed)


class Batches:
    """The batch that grows, and the batches under way, oldest first.

    A batch is published in steps that can each be repeated: if an exception such as KeyboardInterrupt comes between
    them, the next call continues there.
    """

    def __init__(
        self, stream: str, limits: BatchLimits, ack: Ack, timeout_s: float, retry: bool, replicas: int = 0
    ) -> None:
        """Raises InvalidArgument."""
        self.acknowledged = 0  # messages, in all
        self.failed = 0  # messages, in all
        self.stream = stream
        self._limits = limits
        self._ack = Ack(ack)
        self._replicas = checked_replicas(ack, replicas)
        self._timeout_s = timeout_s
        self._retry = retry
        self._growing = Gathered(0)
        self._under_way: deque[Gathered] = deque()

    @property
    def count(self) -> int:
        """Messages in the batch that grows."""
        return self._open().count

    @property
    def added(self) -> int:
        """Messages, in all."""
        return self._growing.index + self._growing.count

    @property
    def due_s(self) -> float:
        """When the open batch is to be sent."""
        return self._growing.due_s

    @property
    def is_full(self) -> bool:
        growing, limits = self._growing, self._limits
        return growing.count >= limits.max_messages or growing.nbytes >= limits.max_bytes

    def add(self, payloads: list[bytes], metadata: bytes, now_s: Callable[[], float]) -> int:
        """Take as many of the payloads as make the batch full; how many."""
        growing, limits = self._open(), self._limits
        head = payloads[: max(1, limits.max_messages - growing.count)]
        beside = HEADER_BYTES + len(metadata)
        size = beside * len(head) + sum(map(len, head))
        if len(head) > 1 and growing.nbytes + size > limits.max_bytes:
            head = head[: _fitting(head, beside, limits.max_bytes - growing.nbytes)]
            size = beside * len(head) + sum(map(len, head))
        if not growing.count:
            growing.due_s = now_s() + limits.linger_s
        growing.run_of(metadata).extend(head)
        growing.nbytes += size
        growing.count += len(head)
        return len(head)

    def add_one(self, payload: bytes, metadata: bytes, now_s: Callable[[], float]) -> None:
        """Take one message."""
        growing = self._growing if self._growing.publication is None else self._open()
        if not growing.count:
            growing.due_s = now_s() + self._limits.linger_s
        growing.run_of(metadata).append(payload)
        growing.nbytes += HEADER_BYTES + len(metadata) + len(payload)
        growing.count += 1

    def take(self) -> None:
        """Makes the open batch one publish, which joins the `unsent`."""
        growing = self._open()
        if growing.runs:
            count = sum(len(payloads) for _, payloads in growing.runs)
            growing.publication = PendingPublication(
                (self.stream,),
                growing.frames(),
                count,
                self._ack,
                self._timeout_s,
                replicas=self._replicas,
                retry=self._retry,
            )
            self._open()

    def unsent(self, is_held: Callable[[PendingPublication], bool]) -> list[PendingPublication]:
        """The publishes that were not handed over yet, in order. They are the newest."""
        found = []
        for gathered in reversed(self._under_way):
            publication = gathered.publication
            if publication is None or publication.done or is_held(publication):
                break
            found.append(publication)
        return found[::-1]

    @property
    def oldest_is_done(self) -> bool:
        """Whether `take_results` has any."""
        return bool(self._under_way) and _is_done(self._under_way[0])

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        under_way = self._under_way
        return not under_way or (_is_done(under_way[-1]) and all(map(_is_done, under_way)))

    def take_results(self) -> list[BatchResult]:
        """Yields the results of the oldest batches, as far as they are known, each once."""
        results = []
        while self._under_way and _is_done(self._under_way[0]):
            gathered = self._under_way.popleft()
            publication = gathered.publication
            assert publication is not None
            receipt = publication.outcome()[0] if publication.error is None else None
            results.append(BatchResult(gathered.index, publication.count, receipt, publication.error))
            if receipt is None:
                self.failed += publication.count
            elif receipt.seq >= 0:
                self.acknowledged += publication.count
        return results

    def _open(self) -> Gathered:
        """The batch that grows: another one, when that is taken."""
        growing = self._growing
        if growing.publication is not None:
            if not self._under_way or self._under_way[-1] is not growing:
                self._under_way.append(growing)
            growing.runs = []
            self._growing = Gathered(growing.index + growing.publication.count)
        return self._growing


class BatcherInput:
    """What both shells' batchers share: the counts, and the checks of what is added."""

    def __init__(
        self,
        session: Session,
        batches: Batches,
        headers: Mapping[str, str | bytes] | None,
        topic: str | None,
        on_result: Callable[[BatchResult], None] | None,
    ) -> None:
        self._batches = batches
        self._on_result = on_result
        self._session = session
        self._headers = headers
        self._topic = topic
        self._metadata = pack_headers(headers, topic=topic)

    @property
    def added(self) -> int:
        """Messages added so far."""
        return self._batches.added

    @property
    def acknowledged(self) -> int:
        """Messages that are known to be in the stream."""
        return self._batches.acknowledged

    def _checked(
        self, payload: Payload, headers: Mapping[str, str | bytes] | None, key: str | bytes | None, topic: str | None
    ) -> tuple[bytes, bytes]:
        """A message's payload and metadata. Raises InvalidArgument, MessageTooLarge."""
        data = checked_payload(payload)
        metadata = self._metadata
        if headers is not None or key is not None or topic is not None:
            headers = self._headers if headers is None else headers
            metadata = pack_headers(headers, key, self._topic if topic is None else topic)
        limit = self._session.limits["max_message_bytes"]
        if len(data) + len(metadata) > limit:
            check_sizes([data], metadata, limit, self._batches.stream)
        return data, metadata

    def _checked_many(self, payloads: Iterable[Payload]) -> list[bytes]:
        """Raises InvalidArgument, MessageTooLarge."""
        messages = checked_payloads(payloads)
        check_sizes(messages, self._metadata, self._session.limits["max_message_bytes"], self._batches.stream)
        return messages


def _is_done(gathered: Gathered) -> bool:
    return gathered.publication is not None and gathered.publication.done


def _fitting(payloads: list[bytes], beside: int, room: int) -> int:
    """How many of the payloads fill the room, the one included that overflows it: at least one."""
    for index, payload in enumerate(payloads, 1):
        room -= beside + len(payload)
        if room <= 0:
            return index
    return len(payloads)
