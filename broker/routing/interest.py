"""What the other workers want of the streams that live here: whether a stream's growth is announced to them, and when.

A worker whose subscribers of a stream all have topic filters is notified of the messages that one of these filters
matches; also of growth that is not looked into since it is large, and at intervals of bytes, so that the end that it
knows is never far behind. A notice only says how far a stream has grown: the other worker looks into the log itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tailrace.broker.routing.link import WorkerLink
from tailrace.broker.streams.open_stream import Growth
from tailrace.broker.topics.match_cache import MatchCache
from tailrace.broker.topics.trie import FilterTrie, TooManyFilters
from tailrace.protocol.sibling import InterestRow
from tailrace.shard.leaves import load

WALKED_MESSAGES_MAX: Final = 256
"""Of a stream in one turn. More are announced to all: the other workers walk over them at once."""
UNANNOUNCED_BYTES_MAX: Final = 256 << 10
"""Of content that none of a worker's filters matches: it has no more to walk over before a message that is for it."""

_UNKNOWN: Final = -1

_walk: Callable[..., tuple[list[tuple[tuple[int, ...], int, int]], int, int, str]] = load(
    "tailrace.broker.topics.pick_cy"
).walk


class LinkInterest:
    """What one worker wants of a stream: its subscribers, whether one wants each message, and the others' filters."""

    __slots__ = ("announced_offset", "everything", "numbers", "overflowed", "subscribers")

    def __init__(self) -> None:
        self.subscribers = 0
        self.everything = False
        self.overflowed = False  # a filter found no room
        self.numbers: set[int] = set()  # of the filters
        self.announced_offset = 0  # in the content, up to which the worker was notified

    @property
    def by_filter(self) -> bool:
        return not self.everything and not self.overflowed


class StreamInterest:
    """What the other workers want of one stream. `subscribers`: of all of them."""

    __slots__ = ("filtered", "links", "subscribers", "walked_seq")

    def __init__(self) -> None:
        self.links: dict[WorkerLink, LinkInterest] = {}
        self.filtered = 0  # links that are notified by filter
        self.subscribers = 0
        self.walked_seq = _UNKNOWN  # the next message to be looked into

    def count(self) -> None:
        self.filtered = sum(each.by_filter for each in self.links.values())
        self.subscribers = sum(each.subscribers for each in self.links.values())


class Interests:
    """One per owner. Its filters take `filter_bytes` at most; a worker whose filters have no room gets all growth."""

    def __init__(self, filter_bytes: int, cache_bytes: int) -> None:
        self.streams: dict[bytes, StreamInterest] = {}
        self.filters = FilterTrie(filter_bytes)
        self._cache = MatchCache(self.filters, cache_bytes)

    # --- rows of the other workers ----------------------------------------------------------------------------------

    def take(self, link: WorkerLink, row: InterestRow) -> bool:
        """Notes a row. Returns whether the worker is to look at the stream now: it wants messages of which it may not
        have been notified.
        """
        name, subscribers, everything, added, removed = row
        if not subscribers:
            self.forget(name, link)
            return False
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = StreamInterest()
        wanted = stream.links.get(link)
        is_new = wanted is None
        if wanted is None:
            wanted = stream.links[link] = LinkInterest()
        wants_more = is_new or bool(added) or (everything and not wanted.everything)
        wanted.subscribers, wanted.everything = subscribers, everything
        self._change(wanted, added, removed)
        stream.count()
        return wants_more

    def _change(self, wanted: LinkInterest, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        for each in removed:
            number = self.filters.number_of(each)
            if number in wanted.numbers:
                wanted.numbers.discard(number)
                self.filters.remove(each)
        try:
            for each in added:
                if self.filters.number_of(each) not in wanted.numbers:
                    wanted.numbers.add(self.filters.add(each))
        except TooManyFilters:
            wanted.overflowed = True

    def forget(self, name: bytes, link: WorkerLink) -> None:
        """The worker wants nothing of the stream any more."""
        stream = self.streams.get(name)
        wanted = None if stream is None else stream.links.pop(link, None)
        if stream is None or wanted is None:
            return
        for number in wanted.numbers:
            self.filters.remove(self.filters[number])
        stream.count()
        if not stream.links:
            del self.streams[name]

    def forget_link(self, link: WorkerLink) -> None:
        """The worker is gone."""
        for name in [name for name, stream in self.streams.items() if link in stream.links]:
            self.forget(name, link)

    # --- growth -----------------------------------------------------------------------------------------------------

    def to_notify(self, name: bytes, growth: Growth) -> Iterable[WorkerLink]:
        """The workers that are to be notified of the growth of a stream."""
        stream = self.streams.get(name)
        if stream is None:
            return ()
        if not stream.filtered:
            return stream.links
        matched = self._matched(name, stream, growth)
        stream.walked_seq = growth.next_seq
        end_offset = growth.end_offset
        links = []
        for link, wanted in stream.links.items():
            if (
                matched is None
                or not wanted.by_filter
                or not wanted.numbers.isdisjoint(matched)
                or end_offset - wanted.announced_offset >= UNANNOUNCED_BYTES_MAX
            ):
                wanted.announced_offset = end_offset
                links.append(link)
        return links

    def filtered_links(self, name: bytes) -> list[WorkerLink]:
        """The workers that may know of an earlier end of the stream than it has."""
        stream = self.streams.get(name)
        if stream is None or not stream.filtered:
            return []
        return [link for link, wanted in stream.links.items() if wanted.by_filter]

    def cut(self, name: bytes) -> None:
        """The stream has lost its end; all workers are notified of that."""
        stream = self.streams.get(name)
        if stream is not None:
            stream.walked_seq = _UNKNOWN

    def _matched(self, name: bytes, stream: StreamInterest, growth: Growth) -> set[int] | None:
        """The numbers of the filters that match one of the new messages; None if that is not known.

        Only the last growth of a turn is at hand, and of some not its frames.
        """
        messages = growth.next_seq - growth.first_seq
        if growth.first_seq != stream.walked_seq or messages > WALKED_MESSAGES_MAX:
            return None
        frames: Any = growth.frames
        hits, passed, _used, fault = _walk(
            frames, len(frames), growth.first_seq, growth.next_seq, name, self._cache.known(), self._cache.match, True
        )
        if fault or passed != messages:
            return None
        return {number for numbers, _place, _length in hits for number in numbers}
