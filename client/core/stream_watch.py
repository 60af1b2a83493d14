"""Looks for streams of patterns that are made later. Pure: answers in, names out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

from tailrace.core import listing
from tailrace.core.calls import PendingCall
from tailrace.core.session import Session
from tailrace.errors import StreamDeleted, TailraceError, UnknownStream
from tailrace.protocol.listing import Listed, ListedKind

log = logging.getLogger("tailrace.streams")

POLL_S: Final = 1.0
"""Between two looks whether the node has more streams."""
RELIST_S: Final = 30.0
"""Between two lists of names while their number stays the same: one may have gone as another one came."""


class StreamWatch:
    """`on_names` is called with names of the patterns, known ones too; nothing is asked before `begin`."""

    def __init__(
        self,
        session: Session,
        patterns: tuple[str, ...],
        timeout_s: float,
        on_names: Callable[[Iterable[str], float], None],
    ) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._on_found = on_names
        self._matchers = [(listing.prefix_of(each), listing.matcher(each)) for each in patterns]
        self._names = frozenset(each for each in patterns if not listing.is_pattern(each))
        self._over = False
        self._version = -1
        self._polling = False
        self._relist_s = -math.inf
        self.poll_s = math.inf  # when to look for more streams

    def begin(self, version: int, now_s: float) -> None:
        """`version`: that of the node's names when the first ones were listed."""
        self._version = version
        self.poll_s, self._relist_s = now_s + POLL_S, now_s + RELIST_S

    def end(self) -> None:
        self._over = True
        self.poll_s = math.inf

    def lacks(self, name: str, error: TailraceError) -> bool:
        """Whether this error only means that a pattern has lost a stream. Then its name is looked for again."""
        if not self.is_of_pattern_only(name) or not isinstance(error, StreamDeleted | UnknownStream):
            return False
        self.note_deleted(name)
        return True

    def is_of_pattern_only(self, name: str) -> bool:
        """Whether nobody asked for this stream by its name."""
        return name not in self._names

    def note_deleted(self, name: str) -> None:
        """The names are listed again soon."""
        log.info("%s was deleted; the other streams are read on", name)
        self._version = -1

    def matches(self, name: str) -> bool:
        return any(matches(name) for _prefix, matches in self._matchers)

    def poll(self, now_s: float) -> None:
        """Asks whether there are more streams, if that is due; later, for their names."""
        if now_s < self.poll_s or self._polling:
            return
        self.poll_s, self._polling = math.inf, True
        self._ask("total", "", "", now_s)

    def _ask(self, what: ListedKind, prefix: str, after: str, now_s: float) -> None:
        call = listing.list_call(what, prefix, after, self._timeout_s)
        call.on_result = self._on_total if what == "total" else self._on_names
        self._session.call(call, now_s)

    def _on_total(self, call: PendingCall, answer: Listed | None, now_s: float) -> None:
        if answer is None:
            self._on_failure(call, now_s)
        elif answer.version == self._version and now_s < self._relist_s:
            self._rest(now_s)
        else:
            self._version, self._relist_s = answer.version, now_s + RELIST_S
            self._ask("names", self.common_prefix(), "", now_s)

    def _on_names(self, call: PendingCall, answer: Listed | None, now_s: float) -> None:
        if self._over:
            return
        if answer is None:
            self._on_failure(call, now_s)
            return
        self._on_found(filter(self.matches, answer.names), now_s)
        if answer.next:
            self._ask("names", self.common_prefix(), answer.next, now_s)
        else:
            self._rest(now_s)

    def _on_failure(self, _call: PendingCall, now_s: float) -> None:
        """Asked again later: a broker that is being replaced lists nothing for a moment."""
        self._version = -1
        self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        self._polling = False
        self.poll_s = math.inf if self._over else now_s + POLL_S

    def common_prefix(self) -> str:
        """The longest prefix that all patterns share."""
        prefixes = [prefix for prefix, _matches in self._matchers]
        first, last = min(prefixes), max(prefixes)
        length = next((i for i, each in enumerate(first) if last[i : i + 1] != each), len(first))
        return first[:length]
