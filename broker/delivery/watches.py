"""The streams that a worker's UDP subscriptions read, a cursor each, from their ends at the first subscription."""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

from tailrace.broker.delivery.cursor import Cursor, Subscriber
from tailrace.broker.process.work import NOBODY, WorkQueue
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError

log = logging.getLogger(__name__)

STREAMS_MAX: Final = 4_096
"""Watched by a worker."""
WAITING_MAX: Final = 1_024
"""Answers to SUB that wait until a stream is watched; clients send again what has no answer."""
GOES_ON: Final = frozenset({Code.DELETED, Code.DIVERGED})
"""Ends of a cursor after which it is known where to go on."""


class WatchingSubscriber(Subscriber, Protocol):
    """The door: all cursors are its own."""

    def answer(self, name: bytes, text: bytes) -> None: ...


class ReadStream:
    """One stream. `wanted`: by how many sets of streams (`broker.udp.subscriptions`)."""

    __slots__ = ("asked", "cursor", "stream", "waiting", "wanted")

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self.wanted = 0
        self.asked = False
        self.cursor: Cursor | None = None
        self.waiting: list[tuple[bytes, bytes]] = []  # answers, with their addresses


class Watches:
    def __init__(self, services: Services, work: WorkQueue, door: WatchingSubscriber) -> None:
        self.by_stream: dict[bytes, ReadStream] = {}
        self._services = services
        self._work = work
        self._door = door
        self._open = True

    def has_room_for(self, streams: tuple[bytes, ...]) -> bool:
        """Whether all of these may be watched; those that are already take no room."""
        return len(self.by_stream) + sum(each not in self.by_stream for each in streams) <= STREAMS_MAX

    def is_watched(self, stream: bytes) -> bool:
        """Whether its messages are read now."""
        watch = self.by_stream.get(stream)
        return watch is not None and watch.cursor is not None

    def want(self, streams: tuple[bytes, ...]) -> None:
        for stream in streams:
            watch = self.by_stream.setdefault(stream, ReadStream(stream))
            watch.wanted += 1
            self._begin(watch)

    def unwant(self, streams: tuple[bytes, ...]) -> None:
        for stream in streams:
            watch = self.by_stream[stream]
            watch.wanted -= 1
            if not watch.wanted:
                del self.by_stream[stream]
                self._end(watch)

    def answer_when_watched(self, streams: tuple[bytes, ...], name: bytes, text: bytes) -> None:
        """Answers a SUB once the last of these streams is watched, about."""
        late = [watch for each in streams if (watch := self.by_stream.get(each)) is not None and watch.cursor is None]
        if not late:
            self._door.answer(name, text)
        elif len(late[-1].waiting) < WAITING_MAX:
            late[-1].waiting.append((name, text))

    def retry(self) -> None:
        """From the timer: begin again after a failure, or after fan-out has ended the cursor."""
        for watch in self.by_stream.values():
            if watch.cursor is None:
                self._begin(watch)

    def close(self) -> None:
        self._open = False
        for watch in self.by_stream.values():
            self._end(watch)

    def ended(self, cursor: Cursor, code: Code | None) -> None:
        """Fan-out has ended a cursor. One of a stream that was deleted or cut goes on at once: what is published there
        from now on is of the same subscriptions.
        """
        watch: ReadStream = cursor.key
        watch.cursor = None
        if code in GOES_ON and watch.wanted and self._open:
            watch.asked = True
            seq = 0 if code is Code.DELETED else cursor.seq
            self._work.later(watch.stream, (NOBODY,), lambda: self._start(watch, seq))

    def _begin(self, watch: ReadStream) -> None:
        if watch.asked or watch.cursor is not None or not self._open:
            return
        watch.asked = True
        self._services.router.call(watch.stream, "end", [watch.stream], lambda value: self._placed(watch, value))

    def _placed(self, watch: ReadStream, value: Any) -> None:
        if isinstance(value, Refused):
            if value.code is not Code.UNKNOWN:
                watch.asked = False
                return
            value = 0  # the stream does not exist yet: all that comes is new
        self._work.do(watch.stream, (NOBODY,), lambda: self._start(watch, value))

    def _start(self, watch: ReadStream, seq: int) -> None:
        watch.asked = False
        if not watch.wanted or not self._open:
            return
        services, stream = self._services, watch.stream
        try:
            cursor = services.fanout.subscribe(
                self._door, stream, seq, remote=services.is_remote(stream), key=watch, may_wait=True, counts=False
            )
        except (StorageError, OSError) as error:
            log.warning("cannot read stream %r for its subscribers: %s", stream, error)
            return
        watch.cursor = cursor
        services.fanout.start(cursor)
        waiting, watch.waiting = watch.waiting, []
        for name, text in waiting:
            self._door.answer(name, text)

    def _end(self, watch: ReadStream) -> None:
        watch.wanted = 0
        if watch.cursor is not None:
            self._services.fanout.end(watch.cursor)
            watch.cursor = None
