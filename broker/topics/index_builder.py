"""The thread of a worker that makes and extends topic indexes, one stream at a time, and waits for the disk."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Final

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.shard.errors import StorageError
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.topic_index_build import build_index

log = logging.getLogger(__name__)

STREAMS_MAX: Final = 64
"""Whose requests wait; another one is dropped, as its stream is searched without an index meanwhile."""
REST_SHARE: Final = 1.0
"""How long the thread rests after each slice, in times of what that took."""
REST_S_MAX: Final = 0.05
CLOSE_S_MAX: Final = 1.0


class IndexBuilder:
    """One per worker. The thread begins with the first request, and ends with the process or `close`."""

    def __init__(self, readers: StreamReaders) -> None:
        self._readers = readers
        self._requests: SimpleQueue[tuple[bytes, bool] | None] = SimpleQueue()
        self._waiting: set[bytes] = set()  # changed by the loop, and by the thread one name at a time
        self._thread: threading.Thread | None = None
        self._closed = False
        self._slice_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a request is not finished yet."""
        return bool(self._waiting)

    def request(self, name: bytes, *, suspect: bool = False) -> None:
        """Make or extend the index of a stream soon; a `suspect` one is read first. Does not wait."""
        if self._closed or name in self._waiting or len(self._waiting) >= STREAMS_MAX:
            return
        self._waiting.add(name)
        self._requests.put((name, suspect))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="topic-index", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread after the slice that it is at, and waits a moment for that. A second call does nothing."""
        self._closed = True
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(CLOSE_S_MAX)
            self._thread = None

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            name, suspect = request
            try:
                self._build(name, suspect)
            except (StorageError, OSError) as error:  # cut, deleted, or the disk's: it is asked for again
                log.info("the topic index of stream %r is not made now: %s", name.decode(errors="replace"), error)
            finally:
                self._waiting.discard(name)

    def _build(self, name: bytes, suspect: bool) -> None:
        self._slice_s = monotonic()
        with self._readers.open_apart(name) as reader:
            paths = stream_paths(self._readers.path(name), name.decode())
            build_index(paths, reader, self._rest, verify=suspect)

    def _rest(self) -> bool:
        """After each slice: leaves the processor to the loop."""
        sleep(min(REST_SHARE * (monotonic() - self._slice_s), REST_S_MAX))
        self._slice_s = monotonic()
        return not self._closed
