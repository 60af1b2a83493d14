"""The messages of a stream that its subscribers in this worker want, for the owner in another worker to know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Final

from tailrace.protocol.sibling import InterestRow

FILTERS_A_ROW: Final = 512
ROW_BYTES: Final = 64 << 10
"""Of filters in one row, or a single longer one."""
ENVELOPE_BYTES: Final = 64 << 10
"""Of rows in one envelope, or a single longer one: an owner takes them one by one."""
_ROW_OVERHEAD_BYTES: Final = 16


class WantedTopics:
    """The filters of a feed's cursors, counted, and which of them have come or gone since the owner was notified."""

    __slots__ = ("_before", "_filters", "_repeated", "_unfiltered")

    def __init__(self) -> None:
        self._filters: set[bytes] = set()
        self._repeated: dict[bytes, int] = {}  # by filter its cursors beyond the first, if there are more
        self._unfiltered = 0  # cursors that wait for any message
        self._before: dict[bytes, bool] = {}  # of each filter that was touched: whether the owner has it

    def add(self, topics: bytes) -> None:
        """One more cursor; with a filter, or with an empty one."""
        if not topics:
            self._unfiltered += 1
            return
        if topics in self._filters:
            self._repeated[topics] = self._repeated.get(topics, 0) + 1
        else:
            self._before.setdefault(topics, False)
            self._filters.add(topics)

    def remove(self, topics: bytes) -> None:
        if not topics:
            self._unfiltered -= 1
        elif count := self._repeated.pop(topics, 0):
            if count > 1:
                self._repeated[topics] = count - 1
        else:
            self._before.setdefault(topics, True)
            self._filters.remove(topics)

    def changes(self, name: bytes, cursors: int) -> Iterator[InterestRow]:
        """What the owner has to be notified of, which is then taken as known to it."""
        before, self._before = self._before, {}
        added = [topics for topics, was_there in before.items() if topics in self._filters and not was_there]
        removed = [topics for topics, was_there in before.items() if topics not in self._filters and was_there]
        return self._rows(name, cursors, added, removed)

    def whole(self, name: bytes, cursors: int) -> Iterator[InterestRow]:
        """All of it, for an owner that knows nothing yet."""
        self.forget_changes()
        return self._rows(name, cursors, list(self._filters), [])

    def forget_changes(self) -> None:
        """The owner is away; the next one gets all."""
        self._before = {}

    def _rows(self, name: bytes, cursors: int, added: list[bytes], removed: list[bytes]) -> Iterator[InterestRow]:
        if not cursors:
            yield no_interest(name)
            return
        everything = self._unfiltered > 0
        for piece, gone in zip_longest(_pieces(added), _pieces(removed), fillvalue=list[bytes]()):
            yield name, cursors, everything, piece, gone


def no_interest(name: bytes) -> InterestRow:
    """The row of a stream without subscribers."""
    return name, 0, False, [], []


def any_message(name: bytes, cursors: int) -> InterestRow:
    """The row of a stream whose subscribers' filters are not known."""
    return name, cursors, True, [], []


def envelopes(rows: Iterable[InterestRow]) -> Iterator[list[InterestRow]]:
    """The rows in groups of bounded size."""
    group, nbytes = list[InterestRow](), 0
    for row in rows:
        size = len(row[0]) + sum(map(len, row[3])) + sum(map(len, row[4])) + _ROW_OVERHEAD_BYTES
        if group and nbytes + size > ENVELOPE_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(row)
        nbytes += size
    if group:
        yield group


def _pieces(filters: list[bytes]) -> Iterator[list[bytes]]:
    """At least one."""
    piece, nbytes = list[bytes](), 0
    for each in filters:
        if piece and (len(piece) >= FILTERS_A_ROW or nbytes + len(each) > ROW_BYTES):
            yield piece
            piece, nbytes = [], 0
        piece.append(each)
        nbytes += len(each)
    yield piece
