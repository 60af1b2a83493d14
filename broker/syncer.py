"""The helper thread that waits for the disk, so that the loop never does.

The only thread of a worker, but for one of this kind that looks up the hosts of upstream nodes. It takes logs from a
queue, syncs each, and puts the outcome where the loop picks it up; an eventfd wakes the loop. One sync covers all that
was appended to the log before it began, so that many publishes under `always` share one (group commit).
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)


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
    error: OSError | None
    seconds: float


class Syncer:
    """`request` from the loop, `outcomes` in the loop when the eventfd is readable."""

    __slots__ = ("_done", "_event_fd", "_queue", "_thread")

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Syncable, object] | None] = queue.SimpleQueue()
        self._done: deque[Outcome] = deque()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="syncer", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._event_fd

    def request(self, target: Syncable, token: object) -> None:
        """Sync soon. The caller has at most one request a log under way, which bounds the queue by the open logs."""
        self._queue.put((target, token))

    def outcomes(self) -> list[Outcome]:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            return []
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        """Finish what was asked for and end the thread. What it did is left in `outcomes`."""
        self._queue.put(None)
        self._thread.join()

    def abandon(self) -> None:
        """End the thread once it is through, which nobody waits for; what it still does is lost."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            target, token = item
            error = None
            began_s = time.monotonic()
            try:
                target.sync()
            except OSError as failed:
                log.error("cannot sync stream %r: %s", target.name, failed)
                error = failed
            self._done.append(Outcome(target, token, error, time.monotonic() - began_s))
            os.eventfd_write(self._event_fd, 1)
