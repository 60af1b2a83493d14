"""The helper threads that wait for the disk, so that the loop never does.

They take work from two queues and put the outcomes where the loop picks them up; an eventfd wakes the loop. What a
publisher waits for has threads of its own: no slow sync of another kind stands in front of it. One sync of a log covers
all that was appended to it before the sync began, and logs that wait together are synced together, with one sync of
their file system, so that many publishes under `always` share one (group commit).
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from shard.errors import StorageError
from shard.files import dirty_bytes

log = logging.getLogger(__name__)

URGENT_THREADS = 4
GROUP_MAX = 256  # logs that are synced together: each takes two descriptors meanwhile
# A sync of the file system waits for the writes of others too. About so much is written in the time that one of four
# threads takes for one log: with more of it in memory, for each log of the group, they are synced one by one.
GROUP_DIRTY_BYTES_EACH = 4 << 20


class Syncable(Protocol):
    """What can be synced from another thread: `shard.log.StreamLog`."""

    name: str

    def sync(self) -> object: ...


class Job(NamedTuple):
    """A token for something that is done once only: what to call in the loop when it has been."""

    done: Callable[[], None]


class Outcome(NamedTuple):
    log: Syncable
    token: object
    error: OSError | StorageError | None
    seconds: float


Together = Callable[[Sequence[Any]], Sequence[OSError | StorageError | None]]
"""Sync these logs; gives what each raised."""


class _Item(NamedTuple):
    target: Syncable
    token: object
    in_group: bool


class Syncer:
    """`request` from the loop, `outcomes` in the loop when the eventfd is readable."""

    __slots__ = ("_done", "_event_fd", "_patient", "_threads", "_together", "_urgent")

    def __init__(self, together: Together | None = None) -> None:
        """`together` syncs logs in a group; without it each is synced by itself."""
        self._urgent: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._patient: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._together = together
        self._done: deque[Outcome] = deque()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads: list[threading.Thread] = []
        self._start(self._patient, "syncer")

    def fileno(self) -> int:
        return self._event_fd

    def request(self, target: Syncable, token: object, *, urgent: bool = False, in_group: bool = False) -> None:
        """Sync soon. The caller has at most one request a log under way, which bounds the queues by the open logs.

        `urgent`: somebody waits for it. `in_group`: it may be one of those that are given to `together`.
        """
        if urgent and len(self._threads) == 1:
            for _ in range(URGENT_THREADS):
                self._start(self._urgent, "urgent syncer")
        (self._urgent if urgent else self._patient).put(_Item(target, token, in_group and self._together is not None))

    def outcomes(self) -> list[Outcome]:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            return []
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        """Finish what was asked for and end the threads. What they did is left in `outcomes`."""
        self.abandon()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """End the threads once they are through, which nobody waits for; what they still do is lost."""
        self._patient.put(None)
        for _ in self._threads[1:]:
            self._urgent.put(None)

    def _start(self, items: queue.SimpleQueue[_Item | None], name: str) -> None:
        thread = threading.Thread(target=self._run, args=(items,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, items: queue.SimpleQueue[_Item | None]) -> None:
        while (item := items.get()) is not None:
            group, others, ends = self._gather(items, item)
            if len(group) > 1:
                self._sync_group(group)
            else:
                others += group
            for each in others:
                self._sync(each)
            if ends:
                return

    def _gather(self, items: queue.SimpleQueue[_Item | None], first: _Item) -> tuple[list[_Item], list[_Item], bool]:
        """What is to be synced with this one, what came between them, and whether the thread is to end then."""
        if not first.in_group or items.empty():
            return [], [first], False
        group: list[_Item] = [first]
        others: list[_Item] = []
        ends = False
        while len(group) < GROUP_MAX and not ends:
            try:
                item = items.get_nowait()
            except queue.Empty:
                break
            if item is None:
                ends = True
            else:
                (group if item.in_group else others).append(item)
        if _dirty_bytes() > GROUP_DIRTY_BYTES_EACH * len(group):
            if not ends:  # the other threads take their share of them
                for item in group[1:]:
                    items.put(item._replace(in_group=False))
                del group[1:]
            return [], others + group, ends
        return group, others, ends

    def _sync_group(self, group: list[_Item]) -> None:
        assert self._together is not None
        began_s = time.monotonic()
        errors: Sequence[OSError | StorageError | None]
        try:
            errors = self._together([item.target for item in group])
        except OSError as failed:
            errors = [failed] * len(group)
        seconds = time.monotonic() - began_s
        for item, error in zip(group, errors, strict=True):
            self._note(item, error, seconds)
        os.eventfd_write(self._event_fd, 1)

    def _sync(self, item: _Item) -> None:
        error = None
        began_s = time.monotonic()
        try:
            item.target.sync()
        except (StorageError, OSError) as failed:
            error = failed
        self._note(item, error, time.monotonic() - began_s)
        os.eventfd_write(self._event_fd, 1)

    def _note(self, item: _Item, error: OSError | StorageError | None, seconds: float) -> None:
        if error is not None:
            log.error("cannot sync stream %r: %s", item.target.name, error)
        self._done.append(Outcome(item.target, item.token, error, seconds))


def _dirty_bytes() -> float:
    try:
        return dirty_bytes()
    except OSError:
        return float("inf")
