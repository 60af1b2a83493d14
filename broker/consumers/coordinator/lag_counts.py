"""Counts what the filters of durable consumers match among the messages that no member has asked for yet.

A filter sees its stream as members ask for messages. Until then each message behind that counts towards the lag, which
is too much if few match. So once somebody wants to know the lag, the rest of the stream is looked at, a slice in each
turn, and the count goes on from there the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from tailrace.broker.consumers.coordinator.stream_consumers import StreamConsumers
from tailrace.broker.streams.refused import Refused
from tailrace.shard.errors import StorageError

log = logging.getLogger(__name__)

PIECES_A_TURN: Final = 2
"""Of `log_view.PIECE_BYTES` or one longer message, if gets have left as much of what a turn may read."""
COUNTED_AT_ONCE_MAX: Final = 4_096
"""Consumers of a worker that wait for their count; another one is counted when it is listed again."""


class LagCounts:
    """One per coordinator. `known` returns the consumers of a stream that are in memory.

    wanted: the seq to count to, by stream and consumer.
    """

    def __init__(self, known: Callable[[bytes], StreamConsumers | None]) -> None:
        self._known = known
        self.wanted: dict[tuple[bytes, bytes], int] = {}

    def count(self, stream: bytes, consumers: Iterable[bytes], end_seq: int) -> None:
        """Count for these consumers of a stream, in this turn and the next ones, to its present end: a stream that
        grows as fast as it is read ends none of this.
        """
        for consumer in consumers:
            if len(self.wanted) < COUNTED_AT_ONCE_MAX:
                self.wanted.setdefault((stream, consumer), end_seq)

    def work(self) -> None:
        """A slice, in each turn while there is something to count."""
        for _ in range(PIECES_A_TURN):
            if not self.wanted:
                return
            (stream, consumer), end_seq = next(iter(self.wanted.items()))
            if not self._has_more(stream, consumer, end_seq):
                del self.wanted[stream, consumer]

    def _has_more(self, stream: bytes, consumer: bytes, end_seq: int) -> bool:
        """Count a piece; whether there are more before `end_seq`."""
        book = self._known(stream)
        found = None if book is None else book.consumers.by_name.get(consumer)
        if book is None or found is None or not found.topics:
            return False
        try:
            ahead = found.look_ahead()
            return ahead.count_on(book.current(), found.topics) and ahead.tail_end_seq < end_seq
        except (Refused, StorageError, OSError, ValueError) as error:
            log.warning("the lag of consumers of stream %r is not counted: %s", stream.decode(), error)
            return False
