"""Reads short ranges of many streams over one connection at one time, as each of them alone costs three turns between
task and node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.errors import broker_error
from tailrace.protocol import messages as m
from tailrace.spark.broker_connection import BrokerConnection, Chunk
from tailrace.spark.slices import FETCHED_MAX, Slice

MESSAGES_MAX: Final = 1_000
"""Of a range that is short."""
RANGE_BYTES: Final = 32 << 10
"""Frames that the broker may send of each of them. Behind these it sends no more than one message."""
TOTAL_BYTES: Final = FETCHED_MAX * RANGE_BYTES
"""Frames of all of them, after which those that have not ended are given up. What is on the way then still comes."""


def fetch(connection: BrokerConnection, slices: Sequence[Slice]) -> dict[Slice, list[Chunk]]:
    """The first chunks of slices: all messages of short ones, or a part if a message is long. Slices that the broker
    refuses, or whose stream ends before them, are left out. Raises ConnectionLost, OperationTimeout, BrokerError.
    """
    asked = dict.fromkeys(slices)
    ends = connection.listed_ends(list(dict.fromkeys(slice_.stream for slice_ in asked)))
    ranges = ShortRanges(
        connection, [each for each in asked if each.stream in ends and each.end_seq <= ends[each.stream].row.next_seq]
    )
    while not ranges.is_done:
        ranges.take(connection.next_response())
    return ranges.found


class ShortRanges:
    """Subscriptions of ranges that end behind all of their messages."""

    def __init__(self, connection: BrokerConnection, slices: Sequence[Slice]) -> None:
        self.found: dict[Slice, list[Chunk]] = {}
        self._connection = connection
        requests = [connection.range_request(each.stream, each.first_seq, each.end_seq, RANGE_BYTES) for each in slices]
        self._running = dict(zip([request.id for request in requests], slices, strict=True))
        self._trimmed: set[int] = set()
        self._left_bytes = dict.fromkeys(self._running, RANGE_BYTES)  # of those that are not given up
        self._total_left_bytes = TOTAL_BYTES
        connection.send_bytes(b"".join(map(m.pack, requests)))

    @property
    def is_done(self) -> bool:
        return not self._running

    def take(self, response: m.Response) -> None:
        """Raises BrokerError if the connection has ended."""
        if isinstance(response, m.Failed) and response.fatal:
            raise broker_error(response.code, response.text)
        number = getattr(response, "id", 0)
        if number not in self._running:
            return
        if isinstance(response, m.Chunk):
            self._take_chunk(number, response.frames)
        elif isinstance(response, m.Subscribed):
            if response.next_seq > self._running[number].first_seq:
                self._trimmed.add(number)
        elif isinstance(response, m.Failed) and response.code == "trimmed":
            self._trimmed.add(number)
        elif isinstance(response, m.Failed | m.Ended):
            slice_ = self._running.pop(number)
            if isinstance(response, m.Failed) or response.code:
                self.found.pop(slice_, None)

    def _take_chunk(self, number: int, frames: memoryview) -> None:
        self.found.setdefault(self._running[number], []).append(Chunk(frames, number in self._trimmed))
        self._trimmed.discard(number)
        self._total_left_bytes -= len(frames)
        if number in self._left_bytes:
            self._left_bytes[number] -= len(frames)
        if self._total_left_bytes <= 0:
            self._give_up(list(self._running))
        elif self._left_bytes.get(number, 1) <= 0:
            self._give_up([number])

    def _give_up(self, numbers: Sequence[int]) -> None:
        """Once each. One that has ended meanwhile is answered with an error, which nobody waits for."""
        given_up = [number for number in numbers if self._left_bytes.pop(number, None) is not None]
        self._connection.send_bytes(b"".join(m.pack(m.Unsubscribe(number)) for number in given_up))
