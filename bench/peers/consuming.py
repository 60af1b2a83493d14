"""Durable consumers: tailrace's, and the sizes that the consumers of all brokers share.

A consumer asks for BATCH messages at a time, acknowledges a batch together with its next request, and counts confirmed
messages. tailrace and JetStream have AHEAD requests under way; Redis gains nothing by it. Payloads are thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.peers.base import Puller
from tailrace.protocol.consuming import GOT_HEAD, GOT_RANGE, GOT_RUN, DeliveredRun, FinishedRow, Get
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.messages import Op, pack

BATCH: Final = 1_000
"""Messages of one request."""
AHEAD: Final = 2
"""Requests that stand at the broker at one time, so that it need not wait for the next."""
WAIT_MS: Final = 10_000
"""How long a request of tailrace's waits for messages."""
MEMBER: Final = b"m"


class TailraceConsumers(Puller):
    """`consumers` of one stream on one connection, of which each takes `due` messages; at most `lanes` GETs stand at
    the broker at one time, `AHEAD` of them of one consumer.
    """

    def __init__(self, name: str, consumers: Sequence[bytes], due: int, lanes: int = AHEAD, batch: int = BATCH) -> None:
        self._stream = name.encode()
        self._batch = batch
        self._left = dict.fromkeys(consumers, due)  # still to be asked for
        self._idle = iter([consumer for consumer in consumers for _ in range(AHEAD)])
        self._lanes = [_Lane() for _ in range(lanes)]
        self._held = b""  # a part of the head of a GOT
        self._skipping = 0  # bytes of frames

    def open(self) -> bytes:
        return b"".join(self._begin(number) for number in range(len(self._lanes)))

    def feed(self, data: bytes) -> bytes:
        requests, position = [], 0
        data = self._held + data if self._held else data
        while True:
            skipped = min(self._skipping, len(data) - position)
            self._skipping -= skipped
            position += skipped
            head = _read_head(data, position)
            if head is None:
                break
            number, rows, position, self._skipping = head
            requests.append(self._got(number, rows))
        self._held = data[position:]
        return b"".join(requests)

    def _begin(self, number: int) -> bytes:
        """Let a lane go on with another consumer."""
        consumer = next(self._idle, None)
        if consumer is None:
            return b""
        self._lanes[number] = _Lane(consumer)
        return self._ask(number)

    def _got(self, number: int, rows: Sequence[DeliveredRun]) -> bytes:
        lane = self._lanes[number]
        self.messages += sum(last - first + 1 for first, last, _ in lane.held)  # this confirms them
        lane.held = tuple((first, first + count - 1, epoch) for first, count, _, epoch in rows)
        self._left[lane.consumer] += lane.asked - sum(run[1] for run in rows)
        over = not rows and not lane.asked
        return self._begin(number) if over else self._ask(number)

    def _ask(self, number: int) -> bytes:
        """Request the next batch and acknowledge the last one; only acknowledge if nothing is left to ask for."""
        lane = self._lanes[number]
        lane.asked = min(self._batch, self._left[lane.consumer])
        self._left[lane.consumer] -= lane.asked
        get = Get(number, self._stream, lane.consumer, MEMBER, lane.held, (), lane.asked, wait_ms=WAIT_MS, fresh=True)
        return pack(get)


def _read_head(data: bytes, start: int) -> tuple[int, list[DeliveredRun], int, int] | None:
    """Return (number, runs, position of the frames, bytes of frames) of the GOT at `start`; None if it is incomplete.

    Its requests show the broker that a consumer is there, so that a PING needs no answer. Raises ValueError if the
    broker sends anything else.
    """
    if len(data) - start < HEAD_BYTES:
        return None
    opcode, length = HEAD.unpack_from(data, start)
    start, end = start + HEAD_BYTES, start + HEAD_BYTES + length
    if opcode == Op.PING:
        return _read_head(data, end) if end <= len(data) else None
    if opcode != Op.GOT:
        if opcode == Op.ERROR and end > len(data):
            return None
        raise ValueError(f"tailrace sent {data[start:end]!r} (opcode {opcode})")
    if len(data) - start < GOT_HEAD.size:
        return None
    number, runs, stale, _trimmed = GOT_HEAD.unpack_from(data, start)
    start += GOT_HEAD.size
    frames = start + runs * GOT_RUN.size + stale * GOT_RANGE.size
    if frames > len(data):
        return None
    return number, [GOT_RUN.unpack_from(data, start + GOT_RUN.size * i) for i in range(runs)], frames, end - frames


class _Lane:
    """One GET after the other of one consumer. `held`: received and not acknowledged."""

    __slots__ = ("asked", "consumer", "held")

    def __init__(self, consumer: bytes = b"") -> None:
        self.consumer = consumer
        self.asked = 0
        self.held: tuple[FinishedRow, ...] = ()
