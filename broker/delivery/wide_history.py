"""What a wide subscription (`broker.delivery.wide`) still has to read of the streams that were there when it began.

Their names are listed a page at a time, and wait in a queue until there is room for a cursor. A stream whose name comes
after the last page is in a later one, so that its growth needs no note: it is read from its place to its end, and on
from there. A page that is under way may lack a stream that was made after its owner listed it, so that growth is noted
until the page is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tailrace.protocol.listing import NAMES_MAX
from tailrace.protocol.places import From
from tailrace.protocol.sibling import GrownRow

QUEUE_LEAST: Final = NAMES_MAX // 2
"""With fewer streams in the queue the next page is asked for; so the queue has at most this and a page."""


class WidePlace(NamedTuple):
    """Where a stream is read from. `is_growth`: it has all from there on, so a trim that was quicker is reported."""

    start: From
    skip: int = 0
    is_growth: bool = False


class WideHistory:
    """`queue`: the streams that come next; `reading`: those that may not have got to the end of their stream yet.
    `after`: the last name that was listed; `known`: streams that are read already; `unsure`: from where on streams have
    grown that a page under way may lack.
    """

    __slots__ = ("after", "is_asking", "is_listed", "known", "place", "prefix", "queue", "reading", "unsure")

    def __init__(
        self,
        prefix: bytes,
        place: WidePlace,
        first: Iterable[bytes] = (),
        *,
        known: Iterable[bytes] = (),
        is_listed: bool = False,
    ) -> None:
        """`first`: streams that are not listed by the prefix; `is_listed`: these are all."""
        self.prefix = prefix
        self.place = place
        self.known = frozenset(known)
        self.queue = {name: None for name in first if is_listed or not name.startswith(prefix)}
        self.reading: dict[bytes, None] = {}
        self.after = b""
        self.is_asking = False
        self.is_listed = is_listed
        self.unsure: dict[bytes, int] = {}

    @property
    def wants_page(self) -> bool:
        return not (self.is_listed or self.is_asking) and len(self.queue) < QUEUE_LEAST

    @property
    def is_taken(self) -> bool:
        """Whether all of its streams have got a cursor."""
        return self.is_listed and not self.queue

    def has(self, name: bytes, first_seq: int) -> bool:
        """Whether a stream that has grown, from `first_seq` on, is read from its place."""
        if name in self.queue:
            return True
        if self.is_listed or name <= self.after or name in self.known or not name.startswith(self.prefix):
            return False
        if self.is_asking:
            self.unsure.setdefault(name, first_seq)
        return True

    def take(self) -> bytes:
        """The stream that is next; it is being read from now on."""
        name = next(iter(self.queue))
        del self.queue[name]
        self.reading[name] = None
        return name

    def add_page(self, names: list[bytes], is_wanted: Callable[[bytes], bool]) -> list[GrownRow]:
        """The names after `after`. Returns the growth of streams that were made since these were listed."""
        self.is_asking, self.is_listed = False, len(names) < NAMES_MAX
        listed, until = set(names), names[-1] if names else self.after
        later = [row for row in self.unsure.items() if row[0] not in listed and (self.is_listed or row[0] <= until)]
        self.queue.update((name, None) for name in names if name not in self.known and is_wanted(name))
        self.after = until
        self.unsure.clear()
        return later

    def page_failed(self) -> None:
        """It is asked for again, and has all that grew meanwhile."""
        self.is_asking = False
        self.unsure.clear()
