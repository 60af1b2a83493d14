"""A stream as the decisions about consumers look at it, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from tailrace.broker.consumers.state.lookahead import MatchedPiece
from tailrace.protocol.consuming import GET_BYTES_MAX, FailedRow, FinishedRow, Get
from tailrace.shard.epochs import EpochStart, History, begin_epoch, cut_history
from tests.broker.topics.naive import matches


def asking(
    name: bytes,
    member: bytes,
    finished: Iterable[FinishedRow] = (),
    failed: Iterable[FailedRow] = (),
    max_messages: int = 0,
    max_bytes: int = GET_BYTES_MAX,
    fresh: bool = False,
    session: int = 0,
) -> Get:
    """A get of a stream that does not matter."""
    rows = tuple(finished), tuple(failed)
    return Get(0, b"s", name, member, *rows, max_messages, max_bytes, fresh=fresh, session=session)


class Message(NamedTuple):
    """`id`: unique, also among messages that had the same seq."""

    id: int
    key: bytes | None
    size: int
    epoch: int
    topic: bytes = b"s"


class Stream:
    def __init__(self, messages: int = 0) -> None:
        self.first_seq = 0
        self.messages: list[Message] = []
        self.history: History = (EpochStart(1, 0, "a"),)
        self.asked = 0
        """How many keys were asked for."""
        self.fits = 0
        """How often `fit` was called."""
        self.looks = 0
        """How often `matching` was called."""
        self.piece = 7
        self._ids = count()
        self.publish([None] * messages)

    @property
    def next_seq(self) -> int:
        return len(self.messages)

    def publish(self, keys: Iterable[bytes | None], size: int = 100, topic: bytes = b"s") -> None:
        self.messages += [Message(next(self._ids), key, size, self.history[-1].epoch, topic) for key in keys]

    def lose(self, next_seq: int) -> None:
        """Messages from there on are gone; others will have their seqs."""
        del self.messages[next_seq:]
        self.history = cut_history(self.history, next_seq)
        self.first_seq = min(self.first_seq, next_seq)

    def promote(self, next_seq: int) -> None:
        """A slave is the master now, which had the messages before this one."""
        self.lose(next_seq)
        epoch = self.history[-1].epoch + 1
        self.history = begin_epoch(self.history, epoch, next_seq, "ab"[epoch % 2])

    def fit(self, first_seq: int, last_seq: int, max_bytes: int) -> tuple[int, int]:
        assert self.first_seq <= first_seq <= last_seq < self.next_seq
        self.fits += 1
        nbytes = 0
        for seq in range(first_seq, last_seq + 1):
            if nbytes + self.messages[seq].size > max_bytes:
                return seq - first_seq, nbytes
            nbytes += self.messages[seq].size
        return last_seq + 1 - first_seq, nbytes

    def matching(self, first_seq: int, topics: bytes, ranges_max: int) -> MatchedPiece:
        """As many messages as `piece` at once."""
        assert self.first_seq <= first_seq < self.next_seq and ranges_max > 0
        self.looks += 1
        ranges: list[tuple[int, int]] = []
        end_seq = min(first_seq + self.piece, self.next_seq)
        for seq in range(first_seq, end_seq):
            if matches(topics.decode(), self.messages[seq].topic.decode()):
                if len(ranges) == ranges_max:
                    return MatchedPiece(ranges, seq)
                ranges.append((seq, seq))
        return MatchedPiece(ranges, end_seq)

    def keys(self, first_seq: int, last_seq: int) -> Sequence[bytes | None]:
        assert 0 <= first_seq <= last_seq < self.next_seq
        self.asked += last_seq + 1 - first_seq
        return [self.messages[seq].key if seq >= self.first_seq else None for seq in range(first_seq, last_seq + 1)]
