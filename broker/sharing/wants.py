"""What the subscribers of a node want of streams in memory, counted, for other nodes to send. Pure.

Each worker counts its own subscribers in a `WantTable`. The worker that owns a stream adds up what all workers want
(`NodeWants`), and sends that to the other nodes: whole when a connection is made, and then the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from typing import Final

from tailrace.protocol.sharing import FILTER_BYTES_MAX, FILTERS_MAX, INTEREST_BYTES
from tailrace.protocol.sibling import WantRow

STREAM_FILTERS_MAX: Final = 65_536
"""Different filters of one stream. With more of them everything is wanted, until the stream has no subscriber."""


class StreamWants:
    """The filters of one stream, counted, and those that have come or gone since `changes`."""

    __slots__ = ("_before", "_counts", "_overflowed", "_shown", "_total", "_whole")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._before: dict[bytes, bool] = {}  # of each filter that was touched: whether it was wanted then
        self._shown: bool | None = None  # `everything`, by the last `changes`
        self._whole = 0  # subscribers that want everything
        self._total = 0
        self._overflowed = False

    def __bool__(self) -> bool:
        return self._total > 0

    @property
    def everything(self) -> bool:
        return self._whole > 0 or self._overflowed

    def add(self, topics: bytes) -> None:
        """One more subscriber; with a filter, or with an empty one."""
        self._total += 1
        if not topics or len(topics) > FILTER_BYTES_MAX:
            self._whole += 1
        elif not self._overflowed:
            count = self._counts.get(topics, 0)
            if not count:
                self._before.setdefault(topics, False)
            self._counts[topics] = count + 1
            if len(self._counts) > STREAM_FILTERS_MAX:
                self._overflowed = True
                self._counts, self._before = {}, {}

    def remove(self, topics: bytes) -> None:
        self._total -= 1
        if not topics or len(topics) > FILTER_BYTES_MAX:
            self._whole -= 1
        elif not self._overflowed:
            self._counts[topics] -= 1
            if not self._counts[topics]:
                self._before.setdefault(topics, True)
                del self._counts[topics]

    def changes(self, name: bytes) -> Iterator[WantRow]:
        """One row, or none."""
        before, self._before = self._before, {}
        added = [topics for topics, was_there in before.items() if topics in self._counts and not was_there]
        removed = [topics for topics, was_there in before.items() if topics not in self._counts and was_there]
        if added or removed or self.everything is not self._shown:
            self._shown = self.everything
            yield name, self.everything, added, removed

    def whole(self, name: bytes) -> WantRow:
        return name, self.everything, list(self._counts), []


class WantTable:
    """The wants of each stream. `streams`: those of which something is wanted."""

    def __init__(self) -> None:
        self.streams: dict[bytes, StreamWants] = {}
        self.changed: dict[bytes, bool] = {}  # by stream: whether nothing was wanted of it meanwhile

    def add(self, name: bytes, topics: bytes) -> None:
        wants = self.streams.get(name)
        if wants is None:
            wants = self.streams[name] = StreamWants()
        wants.add(topics)
        self.changed.setdefault(name, False)

    def remove(self, name: bytes, topics: bytes) -> None:
        wants = self.streams[name]
        wants.remove(topics)
        if wants:
            self.changed.setdefault(name, False)
        else:
            del self.streams[name]
            self.changed[name] = True

    def take_changes(self) -> list[WantRow]:
        """The changes since the last call."""
        changed, self.changed = self.changed, {}
        rows: list[WantRow] = []
        for name, has_ended in changed.items():
            if has_ended:
                rows.append((name, None, [], []))
            if name in self.streams:
                rows += self.streams[name].changes(name)
        return rows

    def whole(self) -> list[WantRow]:
        """All of it. The changes since `take_changes` are in it, and are given by that all the same."""
        return [wants.whole(name) for name, wants in self.streams.items()]


class LocalWants:
    """What the subscribers of this worker want. Of streams that are not shared it counts nothing."""

    def __init__(self, is_shared: Callable[[bytes], bool]) -> None:
        self.table = WantTable()
        self.is_shared = is_shared

    def add(self, name: bytes, topics: bytes) -> None:
        """One more subscriber, with a filter or with an empty one."""
        if self.is_shared(name):
            self.table.add(name, topics)

    def remove(self, name: bytes, topics: bytes) -> None:
        if self.is_shared(name):
            self.table.remove(name, topics)


class SourceWants:
    """What one worker wants of a stream."""

    __slots__ = ("everything", "filters")

    def __init__(self) -> None:
        self.everything = False
        self.filters: set[bytes] = set()


class NodeWants(WantTable):
    """The sum of what the workers of a node want of the streams that one of them owns."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[Hashable, dict[bytes, SourceWants]] = {}

    def take(self, source: Hashable, rows: Iterable[WantRow]) -> None:
        """Changes of one worker, or all that it wants if this is the first of them."""
        known = self._sources.setdefault(source, {})
        for name, everything, added, removed in rows:
            if everything is None:
                self._drop(known, name)
                continue
            wants = known.setdefault(name, SourceWants())
            for each in added:
                if each not in wants.filters:
                    wants.filters.add(each)
                    self.add(name, each)
            if everything and not wants.everything:
                self.add(name, b"")
            elif wants.everything and not everything:
                self.remove(name, b"")
            wants.everything = everything
            for each in removed:
                if each in wants.filters:
                    wants.filters.remove(each)
                    self.remove(name, each)
            if not everything and not wants.filters:
                del known[name]

    def forget(self, source: Hashable) -> None:
        """The worker is gone."""
        known = self._sources.pop(source, {})
        for name in list(known):
            self._drop(known, name)

    def _drop(self, known: dict[bytes, SourceWants], name: bytes) -> None:
        wants = known.pop(name, None)
        if wants is None:
            return
        for each in wants.filters:
            self.remove(name, each)
        if wants.everything:
            self.remove(name, b"")


def pieces(rows: Iterable[WantRow]) -> Iterator[WantRow]:
    """The rows in pieces of bounded size; the filters of a row that come are before those that go."""
    for name, everything, added, removed in rows:
        piece: tuple[list[bytes], list[bytes]] = ([], [])
        nbytes = 0
        for place, each in chain(((0, each) for each in added), ((1, each) for each in removed)):
            if max(map(len, piece)) >= FILTERS_MAX or (nbytes and nbytes + len(each) > INTEREST_BYTES):
                yield name, everything, *piece
                piece, nbytes = ([], []), 0
            piece[place].append(each)
            nbytes += len(each)
        yield name, everything, *piece
