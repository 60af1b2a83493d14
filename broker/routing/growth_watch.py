"""Which workers are notified of the growth of every stream that lives here, and from which message on each has grown.

A worker watches for subscriptions of more streams than they have cursors in (`broker.delivery.wide`).
"""

from __future__ import annotations

from typing import Final

from tailrace.broker.routing.link_table import LinkTable
from tailrace.broker.streams.open_stream import Grown
from tailrace.broker.streams.owner import Owner
from tailrace.protocol import sibling
from tailrace.protocol.sibling import GrownRow
from tailrace.shard.names import base_of, is_reserved

EARLY_S: Final = 60.0
"""After the start of an owner: how long it keeps what grew, for workers that watched its predecessor."""
EARLY_STREAMS_MAX: Final = 16_384


class GrowthWatch:
    """One per owner. `watchers`: slot and generation of each worker that is notified, perhaps of this one; `early`:
    from where on each stream has grown since this owner began, None later. Growth is announced to watchers; at first,
    that of a stream which is not in `early` is noted there.
    """

    def __init__(self, owner: Owner, links: LinkTable, own: tuple[int, int]) -> None:
        self.watchers: dict[tuple[int, int], None] = {}
        self._owner = owner
        self._links = links
        self._own = own
        self.early: dict[bytes, int] | None = None
        self._early_until_s = 0.0

    def owns(self, now_s: float) -> None:
        """This worker owns its streams from now on."""
        self.early, self._early_until_s = {}, now_s + EARLY_S

    def tick(self, now_s: float) -> None:
        if self.early is not None and now_s >= self._early_until_s:
            self.early = None

    def watch(self, slot: int, generation: int, is_wanted: bool) -> list[GrownRow] | None:
        """Notify a worker from now on, or no more. Call it when all growth so far is announced.

        Returns all growth since this owner began; None if that is not known any more.
        """
        if not is_wanted:
            self.watchers.pop((slot, generation), None)
        else:
            if not self.watchers:
                for stream in self._owner.catalog.open.values():
                    stream.announced_seq = stream.log.next_seq
            self.watchers[slot, generation] = None
        return None if self.early is None else [row for row in self.early.items() if _is_watched(row[0])]

    def announce(self, grown: Grown) -> list[GrownRow]:
        """Notify the other workers of this turn's growth. Returns it if this worker watches too, else nothing."""
        firsts = [(name, self._first_seq(name, grown)) for name in grown]
        if self._owner.roles.copies.quiet:
            firsts = self._without_quiet(firsts, grown)
        self._keep_early(firsts)
        rows = [row for row in firsts if _is_watched(row[0])] if self.watchers else []
        for key in list(self.watchers) if rows else ():
            link = self._links.open.get(key)
            if link is not None:
                link.queue(sibling.pack_woke(rows))
                self._links.touch(link)
            elif key != self._own:
                del self.watchers[key]
        return rows if self._own in self.watchers else []

    def _first_seq(self, name: bytes, grown: Grown) -> int:
        """The first message that was not announced: the growth at hand may be only the last of several."""
        growth, stream = grown[name], self._owner.catalog.open.get(name)
        if stream is None:
            return growth.first_seq
        first_seq, stream.announced_seq = min(stream.announced_seq, growth.first_seq), growth.next_seq
        return first_seq

    def _without_quiet(self, firsts: list[GrownRow], grown: Grown) -> list[GrownRow]:
        """Without messages that the streams had before this node began to copy them for readers."""
        quiet, rows = self._owner.roles.copies.quiet, list[GrownRow]()
        for name, first_seq in firsts:
            until_seq = quiet.get(name, 0)
            if grown[name].next_seq > until_seq:
                rows.append((name, max(first_seq, until_seq)))
                quiet.pop(name, None)
        return rows

    def _keep_early(self, rows: list[GrownRow]) -> None:
        if self.early is None:
            return
        for name, first_seq in rows:
            self.early.setdefault(name, first_seq)
        if len(self.early) > EARLY_STREAMS_MAX:
            self.early = None

    def forget(self, name: bytes) -> None:
        """The stream has lost its end, or is no more."""
        if self.early is not None:
            self.early.pop(name, None)


def _is_watched(name: bytes) -> bool:
    """Whether the growth of this stream is anybody's: not of the broker's own streams, nor of companions."""
    return not is_reserved(name) and base_of(name) == name
