"""What one worker counts and measures, and the table of /metrics: one field, one family.

A field of `WorkerMetrics`, `Traffic`, `SlaveMeasures`, `StreamMeasures` or `ConsumerMeasures` declares the family that
it is shown as: name, kind, labels, help. The work loop adds to the fields once a batch: an integer add, no lock, no
label lookup. The coarse timer stores them in the worker's row of shared cells about once a second
(`broker.process.metric_cells`). Killing a worker loses at most the counts since its last store.

Counters only grow. Gauges hold the present state; the worker sets them before it stores them.
"""

# ruff: noqa: RUF009 - the helpers are dataclasses.field with a description

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from tailrace.broker.access.identity import LoginFailure, Proof
from tailrace.broker.connection.deadlines import Awaited
from tailrace.protocol.errors import Code

log = logging.getLogger(__name__)

# Bounds of both histograms: from one small append to a disk that hangs.
TIME_BOUNDS_S = (
    0.000_01,
    0.000_025,
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
BUCKETS = (*map(repr, TIME_BOUNDS_S), "+Inf")
SUM = "sum"

MAX_USERS = 64  # users that have their own label; the rest are OTHER
MAX_NODES = 32  # other nodes that have their own label; the rest are OTHER
MAX_STREAMS = 128  # streams of a worker that are measured one by one; the rest are counted as left out
MAX_CONSUMERS = 128  # consumers of those streams, likewise
MAX_LABEL_VALUES = 64  # reasons and states are enumerations; values beyond this many are counted as OTHER
OTHER = "other"
LABELS_SEPARATOR = "\0"  # between the values of two labels of one family
PROOFS = (Proof.BEARER.value, Proof.SCRAM.value, Proof.CERTIFICATE.value)  # those of users
UNMEASURED = ("streams", "consumers")
MQTT_POOLS = ("sessions", "wills")
UDP_LOSSES = ("ignored", "junk", "refused", "trimmed", "unanswered", "unsendable", "unsent")
PROTOCOLS = ("line", "binary", "mqtt", "udp")  # each a field of WorkerMetrics


class MetricKind(Enum):
    """How a family is shown, and how the values of several workers become one."""

    COUNTER = "counter"  # added up, those of dead workers included
    HISTOGRAM = "histogram"  # the same; its labels are BUCKETS (not cumulative) and SUM
    GAUGE = "gauge"  # added up over the workers that run
    GAUGE_MAX = "gauge_max"  # the greatest of them
    COUNTER_MAX = "counter_max"  # the same, shown as a counter: it is kept in files, and no worker begins it at 0


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One family of /metrics. Without `labels` it has one value, whose label text is "".

    `vanishes`: a label value that is no longer measured is not shown; otherwise it is shown as 0.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    known: tuple[str, ...] = ("",)  # label values shown from the start
    texts_max: int = 0  # how many more there may be; further ones are OTHER
    vanishes: bool = False

    @property
    def is_gauge(self) -> bool:
        return self.kind in (MetricKind.GAUGE, MetricKind.GAUGE_MAX)

    @property
    def outlives_workers(self) -> bool:
        """Whether the counts of dead workers are part of it."""
        return self.kind in (MetricKind.COUNTER, MetricKind.HISTOGRAM)


ReadFamily = Callable[["WorkerMetrics"], Mapping[str, float]]
"""The values of a family by label value."""


class Timing:
    """A histogram of seconds, kept locally: one `observe` costs 0.15 us."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * len(BUCKETS)  # not cumulative
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count `count` events that took `seconds` each; a bound is part of the bucket below it."""
        self.counts[bisect_left(TIME_BOUNDS_S, seconds)] += count
        self.sum_s += count * seconds

    def by_label(self) -> dict[str, float]:
        found: dict[str, float] = dict(zip(BUCKETS, self.counts, strict=True))
        found[SUM] = self.sum_s  # (CPython 3.11 keeps each freed tuple of 20, up to 2,000, and never uses one again)
        return found


class LabelCounts:
    """Counts by a label whose values are an enumeration of the program, never a peer's text."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, value: str, count: int = 1) -> None:
        """Add `count` to the events labelled `value`."""
        counts = self.counts
        if value not in counts and len(counts) >= MAX_LABEL_VALUES:
            value = OTHER
        counts[value] = counts.get(value, 0) + count


# --- the table --------------------------------------------------------------------------------------------------------


def _counter(name: str, help: str) -> Any:
    return field(default=0, metadata=_shown_as(MetricFamily(name, MetricKind.COUNTER, help)))


def _gauge(name: str, help: str, kind: MetricKind = MetricKind.GAUGE) -> Any:
    return field(default=0, metadata=_shown_as(MetricFamily(name, kind, help)))


def _gauge_max(name: str, help: str) -> Any:
    return _gauge(name, help, MetricKind.GAUGE_MAX)


def _counter_max(name: str, help: str) -> Any:
    return _gauge(name, help, MetricKind.COUNTER_MAX)


def _timing(name: str, help: str) -> dict[str, MetricFamily]:
    return _shown_as(MetricFamily(name, MetricKind.HISTOGRAM, help, known=(*BUCKETS, SUM)))


def _counts_by(name: str, label: str, help: str, known: Iterable[str] = ()) -> Any:
    family = MetricFamily(name, MetricKind.COUNTER, help, (label,), (*map(str, known),), MAX_LABEL_VALUES)
    return field(default_factory=LabelCounts, metadata=_shown_as(family))


def _gauges_by(name: str, label: str, help: str, texts_max: int = MAX_LABEL_VALUES, known: tuple[str, ...] = ()) -> Any:
    family = MetricFamily(name, MetricKind.GAUGE, help, (label,), known, texts_max)
    return field(default_factory=dict, metadata=_shown_as(family))


def _shown_as(family: MetricFamily) -> dict[str, MetricFamily]:
    return {"family": family}


@dataclass(slots=True)
class Traffic:
    """Client traffic of one protocol. Bytes are those of the socket, line ends and commands included."""

    # messages_in: when their lines are accepted; messages_out: when their bytes are sent
    messages_in: int = _counter("tailrace_received_messages", "Messages accepted from publishers, by protocol.")
    bytes_in: int = _counter("tailrace_received_bytes", "Bytes received from clients, by protocol.")
    messages_out: int = _counter("tailrace_sent_messages", "Messages sent to subscribers, by protocol.")
    bytes_out: int = _counter("tailrace_sent_bytes", "Bytes sent to clients, by protocol.")


@dataclass(slots=True)
class SlaveMeasures:
    """Another node's copies of the streams of one worker, put together."""

    streams: int = _gauge("tailrace_slave_streams", "Streams that a node follows.")
    caught_up: int = _gauge("tailrace_slave_caught_up_streams", "Streams of which a node holds all there is.")
    lag_messages: int = _gauge("tailrace_slave_lag_messages", "Messages that a node lacks.")
    lag_bytes: int = _gauge("tailrace_slave_lag_bytes", "Bytes of messages that a node lacks.")
    lag_s: float = _gauge_max("tailrace_slave_lag_seconds", "Age of the oldest message that a node lacks.")


@dataclass(slots=True)
class StreamMeasures:
    """One stream that `[metrics] streams` names."""

    messages: int = _counter_max("tailrace_stream_messages", "Messages of a stream so far, dropped ones included.")
    log_bytes: int = _counter_max("tailrace_stream_bytes", "Bytes of a stream so far, dropped ones included.")
    kept_messages: int = _gauge_max("tailrace_stream_kept_messages", "Messages that a stream holds.")
    kept_bytes: int = _gauge_max("tailrace_stream_kept_bytes", "Bytes of the messages that a stream holds.")
    first_s: float = _gauge_max(
        "tailrace_stream_first_timestamp_seconds", "Time of the oldest message that a stream holds, 0 without any."
    )
    last_s: float = _gauge_max(
        "tailrace_stream_last_timestamp_seconds", "Time of a stream's last message, 0 before the first."
    )
    subscribers: int = _gauge_max(
        "tailrace_stream_subscribers", "Subscribers of a stream, members of consumers included."
    )


@dataclass(slots=True)
class ConsumerMeasures:
    """One durable consumer of such a stream."""

    lag_messages: int = _gauge_max("tailrace_stream_consumer_lag_messages", "Messages a consumer has not finished.")
    lag_s: float = _gauge_max(
        "tailrace_stream_consumer_lag_seconds", "Age of the oldest message that a consumer has not finished."
    )
    in_flight: int = _gauge_max("tailrace_stream_consumer_in_flight", "Messages that members of a consumer have now.")
    members: int = _gauge_max("tailrace_stream_consumer_members", "Members of a consumer.")
    redelivered: int = _counter_max("tailrace_stream_consumer_redelivered", "Messages delivered to a consumer again.")
    dead: int = _counter_max("tailrace_stream_consumer_dead", "Messages of a consumer that became dead letters.")


@dataclass(slots=True)
class WorkerMetrics:
    """Everything that a worker counts or measures."""

    line: Traffic = field(default_factory=Traffic)
    binary: Traffic = field(default_factory=Traffic)
    mqtt: Traffic = field(default_factory=Traffic)
    udp: Traffic = field(default_factory=Traffic)
    append: Timing = field(
        default_factory=Timing,
        metadata=_timing("tailrace_append_seconds", "Time a turn of the work loop spends appending."),
    )
    commit: Timing = field(
        default_factory=Timing,
        metadata=_timing("tailrace_commit_seconds", "Time one sync of a stream to the disk takes."),
    )
    refused: LabelCounts = _counts_by(
        "tailrace_refused_commands", "code", "Commands answered with an error, by its code.", Code
    )
    logins: LabelCounts = _counts_by("tailrace_logins", "proof", "Logins, by how the user was proven.", PROOFS)
    login_failures: LabelCounts = _counts_by(
        "tailrace_login_failures", "reason", "Logins that failed, by reason.", LoginFailure
    )
    dropped: LabelCounts = _counts_by(
        "tailrace_closed_connections", "reason", "Client connections that are no more, by reason."
    )
    overdue: LabelCounts = _counts_by(
        "tailrace_overdue_connections", "what", "Connections closed as something did not come in time.", Awaited
    )
    mqtt_beyond_share: LabelCounts = _counts_by(
        "tailrace_mqtt_beyond_share", "what", "MQTT requests refused as one user has its share of it.", MQTT_POOLS
    )
    udp_dropped: LabelCounts = _counts_by(
        "tailrace_udp_dropped", "reason", "Datagrams from or to clients that came to nothing, by reason.", UDP_LOSSES
    )

    appended_messages: int = _counter("tailrace_appended_messages", "Messages appended to streams.")
    appended_bytes: int = _counter("tailrace_appended_bytes", "Bytes of whole frames appended to streams.")
    forwarded_messages: int = _counter(
        "tailrace_forwarded_messages", "Publishes passed to the worker owning their stream."
    )
    forwarded_bytes: int = _counter(
        "tailrace_forwarded_bytes", "Bytes of frames passed to the worker owning their stream."
    )
    accepted: int = _counter("tailrace_accepted_connections", "Client connections accepted.")
    delayed: int = _counter("tailrace_delayed_connections", "Connections that waited for their address's rate.")
    throttled: int = _counter("tailrace_throttled_reads", "Times a connection was read later for its address's rate.")
    tls_handshakes: int = _counter("tailrace_tls_handshakes", "TLS handshakes that were completed.")
    tls_failures: int = _counter("tailrace_tls_failed_handshakes", "TLS handshakes that failed or took too long.")
    upstream_moves: int = _counter("tailrace_upstream_moves", "Moves to another node of a list in [[slave]] upstream.")
    upstream_denied: int = _counter(
        "tailrace_upstream_denied", "Connections to other nodes that they ended with denied, as after a failed login."
    )
    handed_over: int = _counter(
        "tailrace_handed_over_connections", "Client connections passed to a less loaded worker."
    )
    trimmed_messages: int = _counter("tailrace_trimmed_messages", "Messages dropped by trim or retention.")
    trimmed_bytes: int = _counter("tailrace_trimmed_bytes", "Bytes of frames dropped by trim or retention.")
    data_refused_messages: int = _counter(
        "tailrace_data_refused_messages", "Messages refused as the node's max_bytes or reserve_bytes was met."
    )
    diverged_messages: int = _counter(
        "tailrace_diverged_messages", "Messages set aside, their stream's master not having them."
    )
    sync_failures: int = _counter(
        "tailrace_sync_failures", "Syncs of streams, or of the file system, that the disk refused."
    )
    torn_bytes: int = _counter(
        "tailrace_torn_bytes", "Bytes cut off torn tails when streams were opened after a crash."
    )

    connections: int = _gauge("tailrace_connections", "Client connections now.")
    user_connections: dict[str, int] = _gauges_by(
        "tailrace_user_connections", "user", "Client connections now, by user.", MAX_USERS
    )
    subscriptions: int = _gauge("tailrace_subscriptions", "Subscriptions now.")
    wide_subscriptions: int = _gauge(
        "tailrace_wide_subscriptions", "Subscriptions of more streams than a connection may read at a time."
    )
    wide_waiting: int = _gauge("tailrace_wide_waiting_streams", "Streams that wait to be read by a wide subscription.")
    parked: dict[str, int] = _gauges_by("tailrace_parked_cursors", "reason", "Subscriptions that wait now, by reason.")
    sessions: int = _gauge("tailrace_mqtt_sessions", "Durable MQTT sessions.")
    connected_sessions: int = _gauge("tailrace_mqtt_sessions_connected", "Durable MQTT sessions with a connection.")
    session_bytes: int = _gauge("tailrace_mqtt_session_bytes", "Bytes of memory of the durable MQTT sessions.")
    udp_peers: int = _gauge("tailrace_udp_addresses", "Addresses that have subscriptions by UDP.")
    udp_subscriptions: int = _gauge("tailrace_udp_subscriptions", "Subscriptions by UDP.")
    udp_expired: int = _counter("tailrace_udp_expired", "Addresses whose lease of subscriptions by UDP has ended.")
    shared_sent: int = _counter("tailrace_shared_sent", "Messages of streams in memory sent to other nodes.")
    shared_received: int = _counter("tailrace_shared_received", "Messages of streams in memory from other nodes.")
    shared_dropped: int = _counter(
        "tailrace_shared_dropped", "Messages of streams in memory from or for other nodes that were dropped."
    )
    shared_filters: int = _gauge(
        "tailrace_shared_filters", "Different topic filters of streams in memory that other nodes want."
    )
    last_values: int = _gauge("tailrace_last_values", "Topics that have a last value.")
    last_value_bytes: int = _gauge("tailrace_last_value_bytes", "Bytes of memory of the topics that have a last value.")
    last_values_dropped: int = _counter("tailrace_last_values_dropped", "Last values without room for their topic.")
    topic_filters: int = _gauge("tailrace_topic_filters", "Different topic filters of subscriptions, by worker.")
    filter_wakes: int = _counter("tailrace_filter_wakes", "Subscriptions woken by a message that their filter matches.")
    topic_scanned_bytes: int = _counter(
        "tailrace_topic_scanned_bytes", "Bytes of streams and their topic indexes that were searched for topics."
    )
    topic_skipped_bytes: int = _counter(
        "tailrace_topic_skipped_bytes", "Bytes of streams that topic indexes have spared such a search."
    )
    lag_bytes_max: int = _gauge_max("tailrace_lag_bytes", "Bytes that the subscriber furthest behind is behind.")
    link_queue_bytes: int = _gauge("tailrace_link_queue_bytes", "Bytes waiting on links between workers.")
    partial_bytes: int = _gauge("tailrace_partial_request_bytes", "Bytes of requests that have not ended.")
    will_bytes: int = _gauge("tailrace_mqtt_will_bytes", "Bytes of memory of the wills of MQTT connections.")
    producer_bytes: int = _gauge("tailrace_producer_bytes", "Bytes of what is known of producers.")
    waiting_steps: int = _gauge("tailrace_waiting_steps", "Openings of streams and the like that wait their turn.")
    streams: int = _gauge("tailrace_streams", "Streams of the node.")  # owned by this worker
    open_streams: int = _gauge("tailrace_open_streams", "Streams whose files are open.")
    damaged_streams: int = _gauge("tailrace_damaged_streams", "Streams that refuse to open, a file being damaged.")
    sync_failed_streams: int = _gauge("tailrace_sync_failed_streams", "Streams whose last sync has failed.")
    diverged_tails: int = _gauge("tailrace_diverged_tails", "Tails of streams that lie set aside.")
    memory_bytes: int = _gauge("tailrace_stream_memory_bytes", "Bytes of memory that the streams in memory take.")
    disk_bytes: int = _gauge("tailrace_stream_disk_bytes", "Bytes that the files of the streams take on the disk.")
    data_used_bytes: int = _gauge("tailrace_data_used_bytes", "Bytes of all streams' files, where a bound is set.")
    data_max_bytes: int = _gauge_max("tailrace_data_max_bytes", "The setting max_bytes of the node, 0 without.")
    data_reserve_bytes: int = _gauge_max("tailrace_data_reserve_bytes", "The setting reserve_bytes, 0 without.")
    data_refusing: int = _gauge_max("tailrace_data_refusing", "1 while max_bytes or reserve_bytes refuses publishes.")
    clock_ahead_s: float = _gauge_max("tailrace_clock_jump_seconds", "How far the clock has jumped; max_age_s waits.")
    consumers: int = _gauge("tailrace_consumers", "Durable consumers.")  # of the owned streams
    consumer_lag_messages_max: int = _gauge_max(
        "tailrace_consumer_lag_messages", "Messages the hindmost consumer lacks."
    )
    consumer_lag_s_max: float = _gauge_max(
        "tailrace_consumer_lag_seconds", "Age of the oldest message a consumer lacks."
    )
    consumers_soon_abandoned: int = _gauge(
        "tailrace_consumers_soon_abandoned", "Consumers idle for most of their time."
    )
    consumers_abandoned: int = _gauge("tailrace_consumers_abandoned", "Consumers for which nothing is kept any more.")
    held_letter_streams: int = _gauge(
        "tailrace_held_letter_streams", "Streams whose dead letters cannot be published now."
    )
    slaves: dict[str, SlaveMeasures] = field(default_factory=dict)  # of the owned streams, by node id
    measured_streams: dict[str, StreamMeasures] = field(default_factory=dict)  # owned and chosen, by name
    measured_consumers: dict[str, ConsumerMeasures] = field(default_factory=dict)  # by stream, LABELS_SEPARATOR, name
    unmeasured: dict[str, int] = _gauges_by(
        "tailrace_unmeasured", "what", "Chosen streams, and consumers of them, beyond what is measured.", 0, UNMEASURED
    )
    replication_waits: int = _gauge("tailrace_replication_waits", "Batches that wait until other nodes hold them.")
    copies: dict[str, int] = _gauges_by("tailrace_copies", "state", "Streams that follow another node, by state.")
    copies_lag_messages: int = _gauge("tailrace_copies_lag_messages", "Messages that copies lack of their upstreams.")
    upstream_links: dict[str, int] = _gauges_by(
        "tailrace_upstream_links", "upstream", "Connections there are to be to upstream nodes.", MAX_NODES
    )
    upstream_links_up: dict[str, int] = _gauges_by(
        "tailrace_upstream_links_up", "upstream", "Connections that are up to upstream nodes.", MAX_NODES
    )

    def note_losses(self, stream: str, messages: int, torn_bytes: int) -> None:
        """Opening a stream has found what a loss of power cost: count it, and log it if there is any."""
        self.torn_bytes += torn_bytes
        if messages or torn_bytes:
            text = "stream %r: %d unsynced messages are lost, %d torn bytes were cut off into its .torn file"
            log.warning(text, stream, messages, torn_bytes)


def _declared(owner: type) -> Iterator[tuple[str, MetricFamily]]:
    """(field, family) of the fields that declare one."""
    for each in fields(owner):
        if "family" in each.metadata:
            yield each.name, each.metadata["family"]


def _table() -> Iterator[tuple[MetricFamily, ReadFamily]]:
    for name, family in _declared(WorkerMetrics):
        yield family, _reader_of(name, family)
    for name, family in _declared(Traffic):
        yield replace(family, labels=("protocol",), known=PROTOCOLS), _traffic_reader(name)
    for name, family in _declared(SlaveMeasures):
        yield replace(family, labels=("node",), known=(), texts_max=MAX_NODES), _measures_reader("slaves", name)
    for name, family in _declared(StreamMeasures):
        shown = replace(family, labels=("stream",), known=(), texts_max=MAX_STREAMS, vanishes=True)
        yield shown, _measures_reader("measured_streams", name)
    for name, family in _declared(ConsumerMeasures):
        shown = replace(family, labels=("stream", "consumer"), known=(), texts_max=MAX_CONSUMERS, vanishes=True)
        yield shown, _measures_reader("measured_consumers", name)


def _reader_of(name: str, family: MetricFamily) -> ReadFamily:
    if family.kind is MetricKind.HISTOGRAM:
        return lambda metrics: getattr(metrics, name).by_label()
    if not family.labels:
        return lambda metrics: {"": getattr(metrics, name)}
    if family.is_gauge:
        return lambda metrics: getattr(metrics, name)
    return lambda metrics: getattr(metrics, name).counts


def _traffic_reader(name: str) -> ReadFamily:
    return lambda metrics: {protocol: getattr(getattr(metrics, protocol), name) for protocol in PROTOCOLS}


def _measures_reader(group: str, name: str) -> ReadFamily:
    return lambda metrics: {label: getattr(found, name) for label, found in getattr(metrics, group).items()}


TABLE: dict[MetricFamily, ReadFamily] = dict(_table())
