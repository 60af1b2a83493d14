"""The prometheus side of `WorkerMetrics`: one set of shared files a running worker, merged by the metrics process.

prometheus_client's multiprocess mode keeps each process's values in mapped files that a collector adds up. Its traps,
and what is done about each:

- Files named by process id pile up with every restart. Here they are named by a *lane*, `SLOT.N`: the lowest lane of
  the slot whose lock file this process could lock. A restarted worker continues its predecessor's counters, and during
  a rolling replacement, when two workers hold one slot, they never write to the same file.
- A dead worker's gauges stay in the sum. A lane whose lock can be taken has nobody in it: `sweep_dead_gauges`, called
  before each scrape, deletes its gauges. No process has to be told of a death, so none can be forgotten.
- The files are sparse, and a page that a full tmpfs cannot give is a SIGBUS. They are allocated whole before use, so
  that a lack of memory is an `OSError` at start.
- Metric objects made before a fork share files. They are made in the worker, in no registry.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from prometheus_client import Counter, Gauge, Histogram, values
from prometheus_client.multiprocess import mark_process_dead

from tailrace.broker.process.metrics import (
    MAX_LABEL_VALUES,
    MAX_NODES,
    OTHER,
    TIME_BOUNDS_S,
    Tally,
    Timing,
    Traffic,
    WorkerMetrics,
)

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
LANES_MAX = 8  # two workers of one slot at a time, and room for ones that take long to die
FILE_BYTES = 1 << 16  # what prometheus_client takes first; a test holds that a full set of values fits
MAKE_ATTEMPTS_MAX = 5
OWNER_LOCK = "node.lock"
FILE_KINDS = ("counter", "histogram", "gauge_livesum", "gauge_livemax")

# (name, attribute of WorkerMetrics, help)
COUNTERS = (
    ("tailrace_appended_messages", "appended_messages", "Messages appended to streams."),
    ("tailrace_appended_bytes", "appended_bytes", "Bytes of whole frames appended to streams."),
    ("tailrace_forwarded_messages", "forwarded_messages", "Publishes passed to the worker owning their stream."),
    ("tailrace_forwarded_bytes", "forwarded_bytes", "Bytes of frames passed to the worker owning their stream."),
    ("tailrace_accepted_connections", "accepted", "Client connections accepted."),
    ("tailrace_handed_over_connections", "handed_over", "Client connections passed to a less loaded worker."),
    ("tailrace_trimmed_messages", "trimmed_messages", "Messages dropped by trim or retention."),
    ("tailrace_trimmed_bytes", "trimmed_bytes", "Bytes of frames dropped by trim or retention."),
    ("tailrace_diverged_messages", "diverged_messages", "Messages set aside, their stream's master not having them."),
    ("tailrace_sync_failures", "sync_failures", "Syncs of streams, or of the file system, that the disk refused."),
    ("tailrace_torn_bytes", "torn_bytes", "Bytes cut off torn tails when streams were opened after a crash."),
)
TALLIES = (
    ("tailrace_refused_commands", "refused", "code", "Commands answered with an error, by its code."),
    ("tailrace_closed_connections", "dropped", "reason", "Client connections that are no more, by reason."),
)
TRAFFIC = (
    ("tailrace_received_messages", "messages_in", "Messages accepted from publishers, by protocol."),
    ("tailrace_received_bytes", "bytes_in", "Bytes received from clients, by protocol."),
    ("tailrace_sent_messages", "messages_out", "Messages sent to subscribers, by protocol."),
    ("tailrace_sent_bytes", "bytes_out", "Bytes sent to clients, by protocol."),
)
PROTOCOLS = ("line", "binary")  # each an attribute of WorkerMetrics
TIMINGS = (
    ("tailrace_append_seconds", "append", "Time a turn of the work loop spends appending."),
    ("tailrace_commit_seconds", "commit", "Time one sync of a stream to the disk takes."),
)
GAUGES = (
    ("tailrace_connections", "connections", "livesum", "Client connections now."),
    ("tailrace_subscriptions", "subscriptions", "livesum", "Subscriptions now."),
    ("tailrace_lag_bytes", "lag_bytes_max", "livemax", "Bytes that the subscriber furthest behind is behind."),
    ("tailrace_link_queue_bytes", "link_queue_bytes", "livesum", "Bytes waiting on links between workers."),
    ("tailrace_partial_request_bytes", "partial_bytes", "livesum", "Bytes of requests that have not ended."),
    ("tailrace_producer_bytes", "producer_bytes", "livesum", "Bytes of what is known of producers."),
    (
        "tailrace_waiting_steps",
        "waiting_steps",
        "livesum",
        "Openings of streams and the like that wait their turn.",
    ),
    ("tailrace_streams", "streams", "livesum", "Streams of the node."),
    ("tailrace_open_streams", "open_streams", "livesum", "Streams whose files are open."),
    ("tailrace_damaged_streams", "damaged_streams", "livesum", "Streams that refuse to open, a file being damaged."),
    ("tailrace_sync_failed_streams", "sync_failed_streams", "livesum", "Streams whose last sync has failed."),
    (
        "tailrace_diverged_tails",
        "diverged_tails",
        "livesum",
        "Tails of streams that lie set aside.",
    ),
    ("tailrace_stream_disk_bytes", "disk_bytes", "livesum", "Bytes that the files of the streams take on the disk."),
    ("tailrace_clock_jump_seconds", "clock_ahead_s", "livemax", "How far the clock has jumped; max_age_s waits."),
    ("tailrace_consumers", "consumers", "livesum", "Durable consumers."),
    ("tailrace_consumer_lag_messages", "consumer_lag_messages_max", "livemax", "Messages the hindmost consumer lacks."),
    ("tailrace_consumer_lag_seconds", "consumer_lag_s_max", "livemax", "Age of the oldest message a consumer lacks."),
    (
        "tailrace_consumers_soon_abandoned",
        "consumers_soon_abandoned",
        "livesum",
        "Consumers idle for most of their time.",
    ),
    ("tailrace_consumers_abandoned", "consumers_abandoned", "livesum", "Consumers for which nothing is kept any more."),
    ("tailrace_replication_waits", "replication_waits", "livesum", "Batches that wait until other nodes hold them."),
    ("tailrace_copies_lag_messages", "copies_lag_messages", "livesum", "Messages that copies lack of their upstreams."),
)
# (name, attribute, label, help)
LABELLED_GAUGES = (
    ("tailrace_parked_cursors", "parked", "reason", "Subscriptions that wait now, by reason."),
    ("tailrace_copies", "copies", "state", "Streams that follow another node, by state."),
    ("tailrace_upstream_links", "upstream_links", "upstream", "Connections there are to be to upstream nodes."),
    ("tailrace_upstream_links_up", "upstream_links_up", "upstream", "Connections that are up to upstream nodes."),
)
# (name, attribute of SlaveMeasures, mode, help); by node
SLAVE_GAUGES = (
    ("tailrace_slave_streams", "streams", "livesum", "Streams that a node follows."),
    ("tailrace_slave_caught_up_streams", "caught_up", "livesum", "Streams of which a node holds all there is."),
    ("tailrace_slave_lag_messages", "lag_messages", "livesum", "Messages that a node lacks."),
    ("tailrace_slave_lag_bytes", "lag_bytes", "livesum", "Bytes of messages that a node lacks."),
    ("tailrace_slave_lag_seconds", "lag_s", "livemax", "Age of the oldest message that a node lacks."),
)


class _CounterFeed:
    """Carries a number that only grows into a prometheus counter, which may continue an earlier worker's."""

    __slots__ = ("_published", "_target")

    def __init__(self, target: Counter) -> None:
        self._target = target
        self._published = 0

    def take(self, total: int) -> None:
        if total != self._published:
            self._target.inc(total - self._published)
            self._published = total


class _TallyFeed:
    """The same for a Tally: one feed a label value, made when it is first seen."""

    __slots__ = ("_counter", "_feeds")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._feeds: dict[str, _CounterFeed] = {}

    def take(self, tally: Tally) -> None:
        for value, total in tally.counts.items():
            feed = self._feeds.get(value)
            if feed is None:
                feed = self._feeds[value] = _CounterFeed(self._counter.labels(value))
            feed.take(total)


class _TimingFeed:
    """Carries local bucket counts into a prometheus histogram.

    prometheus_client can only observe one event at a time; its buckets are reached into, so that a flush costs the same
    however many events it carries. A test reads the result back through the library's own exposition.
    """

    __slots__ = ("_published", "_published_sum_s", "_target")

    def __init__(self, target: Histogram) -> None:
        self._target = target
        self._published = [0] * (len(TIME_BOUNDS_S) + 1)
        self._published_sum_s = 0.0

    def take(self, timing: Timing) -> None:
        if timing.counts == self._published:
            return
        for bucket, count, published in zip(self._target._buckets, timing.counts, self._published, strict=True):
            if count != published:
                bucket.inc(count - published)
        self._target._sum.inc(timing.sum_s - self._published_sum_s)
        self._published = timing.counts.copy()
        self._published_sum_s = timing.sum_s


class _LabelledGauge:
    """Sets a gauge by label; a value that is no longer named goes to zero. Values that come after so many others are
    OTHER.
    """

    __slots__ = ("_gauge", "_seen", "_values_max")

    def __init__(self, gauge: Gauge, values_max: int = MAX_LABEL_VALUES) -> None:
        self._gauge = gauge
        self._values_max = values_max
        self._seen: set[str] = set()

    def take(self, measures: Mapping[str, float]) -> None:
        numbers = dict.fromkeys(self._seen, 0.0)
        for value, number in measures.items():
            if value not in numbers and len(numbers) >= self._values_max:
                value = OTHER
            numbers[value] = numbers.get(value, 0) + number
        for value, number in numbers.items():
            self._gauge.labels(value).set(number)
        self._seen = set(numbers)


class PrometheusSink:
    """A worker's place in the shared directory. Make it after the fork, once a process."""

    def __init__(self, directory: Path, slot: int, codes: Iterable[str] = ()) -> None:
        """Take a lane of `slot` and make every value in it.

        `codes` are the error codes to show as zero from the start, so that a rate over the first refusal is not lost.
        Raises OSError when the directory cannot be written or has no memory left, RuntimeError when every lane is
        taken.
        """
        self.lane, self._lock_fd = _take_lane(directory, slot)
        try:
            for kind in FILE_KINDS:
                _allocate(directory / f"{kind}_{self.lane}.db")
        except OSError:
            os.close(self._lock_fd)
            raise
        os.environ[DIRECTORY_VARIABLE] = str(directory)
        lane = self.lane
        values.ValueClass = values.MultiProcessValue(lambda: lane)  # type: ignore[no-untyped-call]
        self._feeds = [*_count_feeds(codes), *_measure_feeds()]

    def take(self, metrics: WorkerMetrics) -> None:
        """Publish everything that changed since the last call."""
        for feed in self._feeds:
            feed(metrics)

    def close(self) -> None:
        """Leave the lane: its counters stay for the slot's next worker, its gauges are swept at the next scrape."""
        self._feeds = []
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


Feed = Callable[[WorkerMetrics], None]


def _count_feeds(codes: Iterable[str]) -> Iterable[Feed]:
    for name, attribute, text in COUNTERS:
        yield _feed(_CounterFeed(Counter(name, text, registry=None)).take, attribute)
    for name, attribute, label, text in TALLIES:
        tally = _TallyFeed(Counter(name, text, (label,), registry=None))
        if attribute == "refused":
            tally.take(_zeros(codes))
        yield _feed(tally.take, attribute)
    for name, attribute, text in TRAFFIC:
        counter = Counter(name, text, ("protocol",), registry=None)
        for protocol in PROTOCOLS:
            yield _traffic_feed(counter, protocol, attribute)
    for name, attribute, text in TIMINGS:
        yield _feed(_TimingFeed(Histogram(name, text, registry=None, buckets=TIME_BOUNDS_S)).take, attribute)


def _measure_feeds() -> Iterable[Feed]:
    for name, attribute, mode, text in GAUGES:
        gauge = Gauge(name, text, registry=None, multiprocess_mode=_mode(mode))
        yield _feed(gauge.set, attribute)
    for name, attribute, label, text in LABELLED_GAUGES:
        labelled = Gauge(name, text, (label,), registry=None, multiprocess_mode="livesum")
        values_max = MAX_NODES if label == "upstream" else MAX_LABEL_VALUES
        yield _feed(_LabelledGauge(labelled, values_max).take, attribute)
    for name, attribute, mode, text in SLAVE_GAUGES:
        gauge = Gauge(name, text, ("node",), registry=None, multiprocess_mode=_mode(mode))
        yield _slave_feed(_LabelledGauge(gauge, MAX_NODES).take, attribute)


def _mode(mode: str) -> Literal["livemax", "livesum"]:
    return "livemax" if mode == "livemax" else "livesum"


def _slave_feed(take: Callable[[dict[str, float]], None], attribute: str) -> Feed:
    def feed(metrics: WorkerMetrics) -> None:
        take({node: getattr(measures, attribute) for node, measures in metrics.slaves.items()})

    return feed


def _feed(take: Callable[[Any], None], attribute: str) -> Feed:
    def feed(metrics: WorkerMetrics) -> None:
        take(getattr(metrics, attribute))

    return feed


def _traffic_feed(counter: Counter, protocol: str, attribute: str) -> Feed:
    target = _CounterFeed(counter.labels(protocol))

    def feed(metrics: WorkerMetrics) -> None:
        traffic: Traffic = getattr(metrics, protocol)
        target.take(getattr(traffic, attribute))

    return feed


def _zeros(codes: Iterable[str]) -> Tally:
    tally = Tally()
    for code in codes:
        tally.add(code, 0)
    return tally


def open_metrics(directory: Path, slot: int, codes: Iterable[str] = ()) -> WorkerMetrics:
    """The metrics of the worker in `slot`, published in `directory`. Errors as in `PrometheusSink`."""
    return WorkerMetrics(PrometheusSink(directory, slot, codes))


# --- lanes ------------------------------------------------------------------------------------------------------------


def _take_lane(directory: Path, slot: int) -> tuple[str, int]:
    for number in range(LANES_MAX):
        lane = f"{slot}.{number}"
        fd = _try_lock(directory / f"lane_{lane}.lock")
        if fd is not None:
            return lane, fd
    raise RuntimeError(f"all {LANES_MAX} metrics lanes of slot {slot} in {directory} are taken by running processes")


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed or the process ends; None when another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _allocate(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, FILE_BYTES)
    finally:
        os.close(fd)


def sweep_dead_gauges(directory: Path) -> None:
    """Delete the gauges of workers that are gone. For the metrics process, before each scrape."""
    for path in directory.glob("lane_*.lock"):
        fd = _try_lock(path)
        if fd is not None:
            try:
                mark_process_dead(path.stem.removeprefix("lane_"), str(directory))  # type: ignore[no-untyped-call]
            finally:
                os.close(fd)


# --- the shared directory ---------------------------------------------------------------------------------------------


def make_directory(data: Path) -> Path:
    """An empty directory in memory for the node whose data directory is `data`; what an earlier run left is deleted.

    The name is derived from `data`, so a node that was killed leaves nothing behind once it starts again; and whatever
    other killed nodes left is swept. A descriptor stays open in this process and in those it forks: its lock says that
    the directory is in use. Call it with the lock of `data` held. Raises OSError when no place can be written.
    """
    root = _memory_root()
    _sweep_abandoned(root)
    mark = hashlib.blake2b(os.fsencode(data.resolve()), digest_size=8).hexdigest()
    path = root / f"{_prefix()}{mark}"
    for _ in range(MAKE_ATTEMPTS_MAX):
        made = _make_empty(path)
        if _claim(made):
            return made
    raise OSError(errno.EAGAIN, "swept away by another node each time it was made", str(path))


def _make_empty(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not _is_ours(path):
            return Path(tempfile.mkdtemp(prefix=_prefix(), dir=path.parent))
        shutil.rmtree(path)
        path.mkdir(mode=0o700)
    return path


def _claim(directory: Path) -> bool:
    """Lock the directory for the life of this process; False when another node's sweep was faster and deleted it."""
    lock = directory / OWNER_LOCK
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(fd), lock.stat()):
            return True
        os.close(fd)
    except FileNotFoundError:
        pass
    return False


def _sweep_abandoned(root: Path) -> None:
    """Delete the directories of nodes whose processes are all gone."""
    for path in root.glob(f"{_prefix()}*"):
        try:
            if not _is_ours(path):
                continue
            fd = os.open(path / OWNER_LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # just being made, or just gone
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)


def _prefix() -> str:
    return f"tailrace-{os.getuid()}-"


def remove_directory(path: Path) -> None:
    """Delete the directory and what is in it; one that is gone already is no error."""
    shutil.rmtree(path, ignore_errors=True)


def _memory_root() -> Path:
    for candidate in (os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0], "/dev/shm"):
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def _is_ours(path: Path) -> bool:
    """Whether `path` is a real directory of this user: in a place that all may write, a name alone proves nothing."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
