"""The searches for streams that were made later: one after the other, but none waits for one that is long.

A search that has looked at many names pauses between its pages (`broker.connection.patterns`). The next one begins
meanwhile, and all that pause take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class SearchTurns(Generic[Key]):
    """`passed_over`: a key was due while its search was under way, which may have been past what is new."""

    def __init__(self, search: Callable[[Key, Callable[[], None], Callable[[], None]], None]) -> None:
        """search: begins one; it calls the first function when it begins to pause, and the second when it has ended."""
        self._search = search
        self._due: deque[Key] = deque()
        self._under_way: set[Key] = set()
        self._present: Key | None = None
        self._looping = False
        self.passed_over = False

    @property
    def is_idle(self) -> bool:
        """Whether more may begin: all that are under way pause."""
        return not self._due and self._present is None

    def begin(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self._under_way:
                self.passed_over = True
            else:
                self._due.append(key)
        self._go_on()

    def take_passed_over(self) -> bool:
        """Whether some were, and all searches have ended since."""
        found = self.passed_over and not self._under_way
        self.passed_over = self.passed_over and not found
        return found

    def _go_on(self) -> None:
        """Begin those that are due, up to the first whose answer does not come at once."""
        if self._looping:
            return
        self._looping = True
        while self._due and self._present is None:
            key = self._present = self._due.popleft()
            self._under_way.add(key)
            self._search(key, partial(self._let_go, key), partial(self._ended, key))
        self._looping = False

    def _let_go(self, key: Key) -> None:
        if self._present == key:
            self._present = None
            self._go_on()

    def _ended(self, key: Key) -> None:
        self._under_way.discard(key)
        self._let_go(key)
