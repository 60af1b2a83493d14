"""The numbers by which a broker knows a publish that is sent again. Pure.

Publishes to the same streams stand in a `Line`, which has an id of its own and counts their messages. A line goes on
while all of them are acknowledged. When one fails it is given up: nobody knows whether the next number is still right,
so later publishes stand in another line.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from tailrace.protocol.outgoing import Buffer
from tailrace.shard.frame import HEADER_BYTES, unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering

LINES_MAX: Final = 65_536
"""Of one client; of more, those that nothing is under way in are forgotten, the longest idle first."""
ID_BYTES: Final = 16

_mark_run = load("tailrace.shard.run_cy").mark_run


class Numberable(Protocol):
    """A line's data about a publish. `place`: its position, `marked`: the position that its frames carry."""

    number: int
    count: int
    streams: tuple[str, ...]
    frames: Buffer
    place: Place | None
    marked: Place | None


class Line:
    """`next`: the number of the next message; `undone`: publishes that have no outcome yet, the earliest first."""

    __slots__ = ("id", "is_over", "next", "undone")

    def __init__(self, line_id: bytes) -> None:
        self.id = line_id
        self.next = 0
        self.undone: dict[int, None] = {}
        self.is_over = False

    def is_first(self, publication: Numberable) -> bool:
        """Whether all earlier ones have their result."""
        return next(iter(self.undone), publication.number) == publication.number


class Place(NamedTuple):
    """In a line: its first message has this number."""

    line: Line
    number: int


class Numbering:
    """The lines of one client.

    An exception such as KeyboardInterrupt may come between any two statements; `recover` is called before anything else
    then. So what must never be, a number that is given twice, is left to no order of statements but to that.
    """

    def __init__(self, make_id: Callable[[], bytes] = lambda: os.urandom(ID_BYTES)) -> None:
        self._lines: OrderedDict[tuple[str, ...], Line] = OrderedDict()
        self._make_id = make_id

    def must_wait(self, streams: tuple[str, ...]) -> bool:
        """Whether a new publish to these streams would overtake others, of a line that is given up."""
        line = self._lines.get(streams)
        return line is not None and line.is_over and bool(line.undone)

    def join(self, publication: Numberable) -> None:
        """Give it the next numbers, which are marked in its frames by `mark`."""
        line = self._line(publication.streams)
        publication.place = Place(line, line.next)
        line.next += publication.count
        line.undone[publication.number] = None

    def mark(self, publication: Numberable) -> None:
        """Writes its position into its frames."""
        place = publication.place
        if place is None or publication.marked is place:
            return
        frames = publication.frames
        metadata = bytes(frames[HEADER_BYTES : HEADER_BYTES + unpack_header(frames).metadata_bytes])
        publication.frames = _mark_run(frames, write_numbering(metadata, place.line.id, place.number))
        publication.marked = place

    def leave(self, publication: Numberable) -> None:
        """Its numbers are wrong: it joins another line."""
        self.done(publication, failed=True)
        publication.place = None

    def done(self, publication: Numberable, *, failed: bool) -> None:
        """It has its result."""
        if publication.place is not None:
            line = publication.place.line
            line.undone.pop(publication.number, None)
            line.is_over |= failed

    def recover(self, publications: Iterable[Numberable]) -> None:
        """These are all that have no outcome; an exception has come between two steps."""
        for line in self._lines.values():
            line.undone.clear()
        for publication in publications:
            if publication.place is not None:
                line, number = publication.place
                line.undone[publication.number] = None
                line.next = max(line.next, number + publication.count)

    def _line(self, streams: tuple[str, ...]) -> Line:
        lines = self._lines
        line = lines.get(streams)
        if line is None or line.is_over:
            if len(lines) >= LINES_MAX:
                self._forget_one()
            line = lines[streams] = Line(self._make_id())
        lines.move_to_end(streams)
        return line

    def _forget_one(self) -> None:
        idle = next((streams for streams, line in self._lines.items() if not line.undone), None)
        if idle is not None:
            del self._lines[idle]
