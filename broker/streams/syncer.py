"""The helper threads that wait for the disk, so that the loop never does.

They take work from queues and put the outcomes where the loop picks them up; an eventfd wakes the loop. Syncs that
publishers wait for have threads of their own: no slow sync of another kind stands in front of them. One sync of a log
covers all that was appended to it before the sync began, and logs that wait together are synced together, with one sync
of their file system, so that many publishes under `always` share one (group commit). Requests that come while a group
is being synced do not wait for its end: the next thread takes all of them.

Work for the processor rather than the disk, such as the hash of a password, has a thread of its own.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, Protocol, TypeAlias

from tailrace.shard.errors import StorageError
from tailrace.shard.files import FileSystem, dirty_bytes
from tailrace.shard.group_journal import journal_together
from tailrace.shard.group_sync import sync_together
from tailrace.shard.journal_writer import JournalWriter
from tailrace.shard.replacing import replaceable

log = logging.getLogger(__name__)

URGENT_THREADS = 4
THREADS_MAX = URGENT_THREADS + 1  # of a syncer, that use the disk
GROUP_MAX = 1_024  # logs: nothing is added to a group of this size
# A sync of the file system waits for the writes of others too. About so much is written in the time that one of four
# threads takes for one log: with more of it in memory, for each log of the group, they are synced one by one.
GROUP_DIRTY_BYTES_EACH = 4 << 20


class Syncable(Protocol):
    """What can be synced from another thread: `shard.log.StreamLog`."""

    name: str

    def sync(self) -> object: ...


class SyncJob(NamedTuple):
    """A token for something that is done once only: what to call in the loop when it has been."""

    done: Callable[[], None]


class SyncOutcome(NamedTuple):
    log: Syncable
    token: object
    error: OSError | StorageError | None
    seconds: float


@replaceable
class SyncRequest(NamedTuple):
    """in_group: it may be one of those that are given to `together`; is_awaited: and to `journal`."""

    target: Syncable
    token: object
    in_group: bool = False
    is_awaited: bool = False


class JournaledGroup(NamedTuple):
    """A token for logs that were put on the disk together, in the journal: the requests for them."""

    requests: list[SyncRequest]


SyncTogether = Callable[[Sequence[Any]], Sequence[OSError | StorageError | None]]
"""Sync these logs; gives what each raised."""
Journal = Callable[[Sequence[Any]], Set[Any]]
"""Put the unsynced frames of these logs on the disk in another way, if possible; gives the logs that are durable."""


_Requests: TypeAlias = "queue.SimpleQueue[list[SyncRequest] | None]"


class Syncer:
    """`request` from the loop, `outcomes` in the loop when the eventfd is readable."""

    __slots__ = (
        "_calculating",
        "_done",
        "_event_fd",
        "_journal",
        "_patient",
        "_served",
        "_threads",
        "_together",
        "_urgent",
    )

    def __init__(self, together: SyncTogether | None = None, journal: Journal | None = None) -> None:
        """`together` syncs logs in a group; without it each is synced by itself. `journal` is tried before that."""
        self._urgent: _Requests = queue.SimpleQueue()
        self._patient: _Requests = queue.SimpleQueue()
        self._calculating: _Requests = queue.SimpleQueue()
        self._served: list[_Requests] = []  # by each thread
        self._together = together
        self._journal = journal
        self._done: deque[SyncOutcome] = deque()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads: list[threading.Thread] = []
        self._start(self._patient, "syncer")

    def fileno(self) -> int:
        return self._event_fd

    def request(self, target: Syncable, token: object) -> None:
        """Do this soon, after the earlier requests."""
        self.request_all([SyncRequest(target, token)])

    def calculate(self, target: Syncable, token: object) -> None:
        """Do this soon. It needs no disk: no sync waits for it, and it waits for none. The caller bounds the queue."""
        if self._calculating not in self._served:
            self._start(self._calculating, "calculator")
        self._calculating.put([SyncRequest(target, token)])

    def request_all(self, requests: list[SyncRequest], *, urgent: bool = False) -> None:
        """Sync these soon, together if that is quicker. `urgent`: somebody waits for them.

        The caller has at most one request a log under way, which bounds the queues by the open logs.
        """
        if urgent and self._urgent not in self._served:
            for _ in range(URGENT_THREADS):
                self._start(self._urgent, "urgent syncer")
        queued = self._urgent if urgent else self._patient
        for start in range(0, len(requests), GROUP_MAX):
            queued.put(requests[start : start + GROUP_MAX])

    def outcomes(self) -> list[SyncOutcome]:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            return []
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        """Finish all requests and end the threads. Their results are left in `outcomes`."""
        self.abandon()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """End the threads once they are through, which nobody waits for; their results are lost."""
        for requests in self._served:
            requests.put(None)

    def _start(self, requests: _Requests, name: str) -> None:
        thread = threading.Thread(target=self._run, args=(requests,), name=name, daemon=True)
        self._threads.append(thread)
        self._served.append(requests)
        thread.start()

    def _run(self, requests: _Requests) -> None:
        ends = False
        while not ends and (first := requests.get()) is not None:
            together, alone, ends = self._gather(requests, first)
            together = self._put_in_journal(together)
            if together and _dirty_bytes() > GROUP_DIRTY_BYTES_EACH * len(together):
                alone += together[:1] if not ends else together
                for each in together[1:] if not ends else ():  # the other threads take their share of them
                    requests.put([each._replace(in_group=False)])
            elif together:
                self._sync_group(together)
            for each in alone:
                self._sync(each)

    def _gather(
        self, requests: _Requests, first: list[SyncRequest]
    ) -> tuple[list[SyncRequest], list[SyncRequest], bool]:
        """The logs to sync together, the jobs that came between, and whether the thread is to end then."""
        together: list[SyncRequest] = []
        alone: list[SyncRequest] = []
        row: list[SyncRequest] | None = first
        while row is not None:
            if self._together is not None:
                together += [each for each in row if each.in_group]
            alone += [each for each in row if not each.in_group] if self._together is not None else row
            if not 0 < len(together) < GROUP_MAX:
                return together, alone, False
            try:
                row = requests.get_nowait()
            except queue.Empty:
                return together, alone, False
        return together, alone, True

    def _put_in_journal(self, group: list[SyncRequest]) -> list[SyncRequest]:
        """Returns those that must be synced."""
        awaited = [item.target for item in group if item.is_awaited]
        if self._journal is None or not awaited:
            return group
        began_s = time.monotonic()
        journaled = self._journal(awaited)
        seconds = time.monotonic() - began_s
        done, left = group, list[SyncRequest]()
        if len(journaled) < len(group):
            done = [item for item in group if item.is_awaited and item.target in journaled]
            left = [item for item in group if not (item.is_awaited and item.target in journaled)]
        if done:
            self._done.append(SyncOutcome(done[0].target, JournaledGroup(done), None, seconds))
            os.eventfd_write(self._event_fd, 1)
        return left

    def _sync_group(self, group: list[SyncRequest]) -> None:
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

    def _sync(self, item: SyncRequest) -> None:
        error = None
        began_s = time.monotonic()
        try:
            item.target.sync()
        except (StorageError, OSError) as failed:
            error = failed
        self._note(item, error, time.monotonic() - began_s)
        os.eventfd_write(self._event_fd, 1)

    def _note(self, item: SyncRequest, error: OSError | StorageError | None, seconds: float) -> None:
        if error is not None:
            log.error("cannot sync stream %r: %s", item.target.name, error)
        self._done.append(SyncOutcome(item.target, item.token, error, seconds))


def syncer_of(file_system: FileSystem, journal: JournalWriter) -> Syncer:
    """For a worker with this file system and this journal."""
    return Syncer(lambda logs: sync_together(logs, file_system), lambda logs: journal_together(logs, journal))


def _dirty_bytes() -> float:
    try:
        return dirty_bytes()
    except OSError:
        return float("inf")
