"""Which messages a consumer with a topic filter may be given next, as far as its stream was read. Pure.

A consumer with a filter passes over the messages that do not match. They are read ahead of its cursor a piece at a
time, and the matches found are kept here until they are given. None of it is logged: it follows from the stream. The
others are logged as finished, together with the next message that is given behind them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from tailrace.broker.consumers.state.ranges import SeqRange

COUNTED_MAX: Final = 4_096
"""Runs of matching messages in one piece that is counted; a piece with more is counted in parts."""
MATCHES_MAX: Final = 4_096
"""Runs of matching messages of one consumer that were found and not given yet; no more are looked for beyond them."""


class MatchedPiece(NamedTuple):
    """`ranges`: of the messages before `end_seq`, those that match."""

    ranges: list[SeqRange]
    end_seq: int


class FilteredSource(Protocol):
    """A stream that can be read for the messages that match a filter."""

    @property
    def first_seq(self) -> int: ...

    @property
    def next_seq(self) -> int: ...

    def matching(self, first_seq: int, topics: bytes, ranges_max: int) -> MatchedPiece:
        """Read a piece of the stream from this message on, whose end may be its beginning if it is not the time yet."""


class Lookahead:
    """The matches from the consumer's `next_seq` on, before `end_seq`. `is_short`: the last `look` wanted more.

    Behind them matches are only counted, for the lag: there are `tail_count` before `tail_end_seq`.
    """

    __slots__ = ("count", "end_seq", "is_short", "ranges", "tail_count", "tail_end_seq")

    def __init__(self, seq: int) -> None:
        self.end_seq = self.tail_end_seq = seq
        self.ranges: list[SeqRange] = []
        self.count = self.tail_count = 0
        self.is_short = False

    @property
    def first_seq(self) -> int:
        """The first match, or where the search goes on."""
        return self.ranges[0][0] if self.ranges else self.end_seq

    def look(self, stream: FilteredSource, topics: bytes, wanted: int) -> None:
        """Read one piece more, if there are fewer than `wanted` matches. Raises what the stream raises."""
        if self.end_seq < stream.next_seq and self._wants(wanted):
            first_seq = max(self.end_seq, stream.first_seq)
            if first_seq > self.end_seq:  # some that were counted may be gone
                self.tail_count, self.tail_end_seq = 0, self.end_seq
            self._add(stream.matching(first_seq, topics, MATCHES_MAX - len(self.ranges)))
        self.is_short = self.end_seq < stream.next_seq and self._wants(wanted)

    def count_on(self, stream: FilteredSource, topics: bytes) -> bool:
        """Count the matches of one piece more; whether there are more pieces. Raises what the stream raises."""
        first_seq = max(self.tail_end_seq, stream.first_seq)
        if first_seq < stream.next_seq:
            piece = stream.matching(first_seq, topics, COUNTED_MAX)
            self.tail_count += _messages(piece.ranges)
            first_seq = piece.end_seq
        self.tail_end_seq = first_seq
        return first_seq < stream.next_seq

    def lag_messages(self, next_seq: int) -> int:
        """The matches before this end of the stream; messages that were not looked at count as if they matched."""
        return self.count + self.tail_count + max(0, next_seq - self.tail_end_seq)

    def _wants(self, wanted: int) -> bool:
        return self.count < wanted and len(self.ranges) < MATCHES_MAX

    def _add(self, piece: MatchedPiece) -> None:
        for first, last in piece.ranges:
            self.count += last - first + 1
            if self.ranges and self.ranges[-1][1] + 1 == first:
                self.ranges[-1] = (self.ranges[-1][0], last)
            else:
                self.ranges.append((first, last))
        self.end_seq = piece.end_seq
        if self.tail_end_seq >= piece.end_seq:
            self.tail_count -= _messages(piece.ranges)
        else:
            self.tail_count, self.tail_end_seq = 0, piece.end_seq

    def next_match(self, seq: int) -> int:
        """The first match from this message on, or where the search goes on."""
        return next((max(first, seq) for first, last in self.ranges if last >= seq), self.end_seq)

    def between(self, first_seq: int, end_seq: int) -> list[SeqRange]:
        """The messages from `first_seq` on, before `end_seq`, that do not match."""
        gaps: list[SeqRange] = []
        seq = first_seq
        for first, last in self.ranges:
            if first >= end_seq:
                break
            if first > seq:
                gaps.append((seq, first - 1))
            seq = max(seq, last + 1)
        return [*gaps, (seq, end_seq - 1)] if seq < end_seq else gaps

    def matches_before(self, seq: int) -> int:
        """How many of the matches are before this message."""
        return sum(min(last, seq - 1) - first + 1 for first, last in self.ranges if first < seq)

    def drop_before(self, seq: int) -> None:
        """The consumer has gone on to this message."""
        kept = 0
        while kept < len(self.ranges) and self.ranges[kept][1] < seq:
            first, last = self.ranges[kept]
            self.count -= last - first + 1
            kept += 1
        del self.ranges[:kept]
        if self.ranges and self.ranges[0][0] < seq:
            self.count -= seq - self.ranges[0][0]
            self.ranges[0] = (seq, self.ranges[0][1])
        if seq > self.end_seq:
            self.end_seq = self.tail_end_seq = seq
            self.tail_count = 0


def _messages(ranges: list[SeqRange]) -> int:
    return sum(last - first + 1 for first, last in ranges)
