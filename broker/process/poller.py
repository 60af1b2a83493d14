"""The worker's epoll: which file descriptor is whose, and what to call when something happens on it."""

from __future__ import annotations

import select
from collections.abc import Callable

Handler = Callable[[int], None]


class Poller:
    """Level-triggered: an event that was not dealt with comes again.

    `poll` waits for that many seconds at most, and gives the events, at most 1,023: the kernel hands out the others
    next time, and in turn.
    """

    __slots__ = ("_epoll", "_masks", "handlers", "poll")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.poll: Callable[[float], list[tuple[int, int]]] = self._epoll.poll  # without a frame of ours
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

    def has_events(self) -> bool:
        """Whether `poll` would give anything at once."""
        return bool(self._epoll.poll(0, 1))

    def close(self) -> None:
        self._epoll.close()
        self.handlers.clear()
