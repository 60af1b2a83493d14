"""Who waits until a stream has grown whose name begins in some way: lists of grown streams, not answered yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from tailrace.protocol.sibling import GrownRow

WAKES_A_TURN: Final = 32
"""Of one worker; each then asks all workers what has grown, for which they take about 0.1 ms together."""

OnGrowth = Callable[[], None]


class GrowthWaiters:
    """One per worker. Growth of a stream costs a look-up for each length of a prefix, at most the 200 of names, however
    many wait. Those that are `woken` are called in turn, WAKES_A_TURN at a time.
    """

    def __init__(self) -> None:
        self._prefixes: dict[OnGrowth, bytes] = {}
        self._by_prefix: dict[bytes, dict[OnGrowth, None]] = {}
        self._lengths = Counter[int]()  # of the prefixes
        self.woken: dict[OnGrowth, None] = {}

    def __len__(self) -> int:
        return len(self._prefixes) + len(self.woken)

    def add(self, prefix: bytes, grew: OnGrowth) -> None:
        """Call `grew` once, after a stream whose name begins so has grown."""
        self.discard(grew)
        self._prefixes[grew] = prefix
        if prefix not in self._by_prefix:
            self._by_prefix[prefix] = {}
            self._lengths[len(prefix)] += 1
        self._by_prefix[prefix][grew] = None

    def discard(self, grew: OnGrowth) -> None:
        """It is not called any more."""
        self.woken.pop(grew, None)
        prefix = self._prefixes.pop(grew, None)
        if prefix is None:
            return
        del self._by_prefix[prefix][grew]
        if not self._by_prefix[prefix]:
            self._take(prefix)

    def note(self, rows: Iterable[GrownRow]) -> None:
        """These streams have grown."""
        for name, _first_seq in rows:
            for prefix in [name[:length] for length in self._lengths]:
                if prefix in self._by_prefix:
                    self._wake(self._take(prefix))

    def note_any(self) -> None:
        """Any stream may have grown."""
        for prefix in list(self._by_prefix):
            self._wake(self._take(prefix))

    def call(self) -> None:
        """Call those that have waited longest since they were woken."""
        for _ in range(min(WAKES_A_TURN, len(self.woken))):
            grew = next(iter(self.woken))
            del self.woken[grew]
            grew()

    def _wake(self, waiters: dict[OnGrowth, None]) -> None:
        for grew in waiters:
            del self._prefixes[grew]
        self.woken.update(waiters)

    def _take(self, prefix: bytes) -> dict[OnGrowth, None]:
        length = len(prefix)
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]
        return self._by_prefix.pop(prefix)
