"""The worker's epoll: which file descriptor is whose, and what to call when something happens on it."""

from __future__ import annotations

import select
from collections.abc import Callable

Handler = Callable[[int], None]

EVENTS_MAX = 1_024  # of one turn; the kernel hands out the others next time, and in turn


class Poller:
    """Level-triggered: an event that was not dealt with comes again."""

    __slots__ = ("_epoll", "_masks", "handlers")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._masks: dict[int, int] = {}
        self.handlers: dict[int, Handler] = {}

    def register(self, fd: int, mask: int, handler: Handler) -> None:
        self._epoll.register(fd, mask)
        self._masks[fd] = mask
        self.handlers[fd] = handler

    def modify(self, fd: int, mask: int) -> None:
        """Change the events of interest; free when nothing changes."""
        if self._masks[fd] != mask:
            self._epoll.modify(fd, mask)
            self._masks[fd] = mask

    def unregister(self, fd: int) -> None:
        """Call before the descriptor is closed: the kernel gives its number to the next one."""
        del self.handlers[fd], self._masks[fd]
        self._epoll.unregister(fd)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._epoll.poll(timeout_s, EVENTS_MAX)

    def has_events(self) -> bool:
        """Whether `poll` would give anything at once."""
        return bool(self._epoll.poll(0, 1))

    def close(self) -> None:
        self._epoll.close()
        self.handlers.clear()
