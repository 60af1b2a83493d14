"""Rows of Spark: reading a day of messages, rolling it up, and following a live node.

Spark over a day's files is a server of its own (`bench.load.spark_server`) that answers questions with seconds.
"""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import Final

from bench.figures import median
from bench.load.base import Load
from bench.load.limits import Deadline, LoadError
from bench.load.live import LiveQuery
from bench.load.meter import Meter
from bench.load.publishing import ingest_feeds
from bench.peers.base import Contestant, RequestFeed, stream_names
from bench.peers.spark import SparkSession
from bench.peers.tailrace import Tailrace
from bench.rows.base import BenchRow, Measurement, RowRun, cpu_us
from bench.server import PeerServer
from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES

REPEATS: Final = 3
"""Of each question, after one that is not counted."""
HOUR_WARM: Final = 6
HOUR_REPEATS: Final = 5
"""Of the short question: its first answers are slow while Java compiles what they run."""
PREPARE_TIMEOUT_S: Final = 900.0
ROLLUP_TIMEOUT_S: Final = 900.0
LIVE_STREAMS: Final = 8
LIVE_RATE: Final = 50_000
"""Messages per second."""
ROUND_MESSAGES: Final = 5_000
"""Of all streams together, sent at once ten times a second."""
WARM_BATCHES: Final = 5
"""Not counted: Java compiles what it runs."""
LIVE_START_TIMEOUT_S: Final = 120.0
"""Of Java, and of the first batch."""


def spark_scan_row() -> BenchRow:
    """All messages of a day, payloads included; and one hour of that day, without them.

    The value counts the bytes that the messages have in tailrace's files, index included, for either peer.
    """
    title = "Spark, 2 cores, warm: all messages of a day in 8 streams, payloads included"
    return BenchRow("spark-scan", title, "spark-scan", "MB/s", _measure_scan)


def _measure_scan(run: RowRun) -> Measurement:
    assert isinstance(run.peer, SparkSession)
    server, timeout_s = run.server, run.scale.timeout_s
    _, messages, payload_bytes = run.peer.sizes
    ask(server, "prepare", PREPARE_TIMEOUT_S)
    extras = {"export_s": ask(server, "export", PREPARE_TIMEOUT_S)} if run.peer.kind == "parquet" else {}
    scan_s, spent_cpu_us = repeated(server, "scan", timeout_s, messages)
    for _ in range(HOUR_WARM - 1):
        ask(server, "hour", timeout_s)
    hour_s, _ = repeated(server, "hour", timeout_s, repeats=HOUR_REPEATS)
    extras |= {"messages_per_s": messages / scan_s, "hour_s": hour_s}
    nbytes = messages * (HEADER_BYTES + INDEX_ENTRY_BYTES + payload_bytes)
    return Measurement(nbytes / scan_s / 1e6, spent_cpu_us, server.peak_rss_bytes(), extras)


def rollup_row(streams: int) -> BenchRow:
    """A day is rolled up: minutes with exact percentiles of size and gap, of each stream."""
    title = f"a day in {streams:,} streams rolled up by stream and minute, 2 cores, warm"
    measure, suited = partial(_measure_rollup, streams=streams), partial(_over_streams, streams)
    return BenchRow(f"rollup-{streams}", title, "rollup", "msg/s", measure, suited=suited)


def _over_streams(streams: int, peer: Contestant) -> Contestant:
    assert isinstance(peer, SparkSession)
    return SparkSession(peer.kind, peer.kinds, (streams, *peer.sizes[1:]))


def _measure_rollup(run: RowRun, streams: int) -> Measurement:
    assert isinstance(run.peer, SparkSession)
    server, (found, messages, _) = run.server, run.peer.sizes
    if found != streams:
        raise LoadError(f"{run.peer.name} has the data of {found} streams")
    ask(server, "prepare", PREPARE_TIMEOUT_S)
    extras: dict[str, float] = {}
    if run.peer.kind != "files":
        extras["export_s"] = ask(server, "export", PREPARE_TIMEOUT_S)
    seconds, spent_cpu_us = repeated(server, "rollup", ROLLUP_TIMEOUT_S, messages)
    if run.peer.kind == "polars":
        extras["all_levels_s"], _ = repeated(server, "rollup-all", ROLLUP_TIMEOUT_S)
    return Measurement(messages / seconds, spent_cpu_us, server.peak_rss_bytes(), extras)


def repeated(
    server: PeerServer, question: str, timeout_s: float, messages: int = 1, repeats: int = REPEATS
) -> tuple[float, float]:
    """Ask again and again; return the median of the seconds, and the last one's processor time per message, in µs."""
    ask(server, question, timeout_s)
    seconds = []
    for _ in range(repeats):
        meter = Meter(server.target.pid)
        seconds.append(ask(server, question, timeout_s))
        spent = meter.stop()
    return median(seconds), cpu_us(spent, messages)


def ask(server: PeerServer, question: str, timeout_s: float) -> float:
    """Return the seconds that the answer took. Raises LoadError if none comes in time, or if it is an error."""
    try:
        with socket.create_connection(("127.0.0.1", server.site.port), timeout_s) as sock:
            sock.sendall(f"{question}\n".encode())
            with sock.makefile("r", encoding="utf-8") as stream:
                word, _, rest = stream.readline().strip().partition(" ")
    except OSError as error:
        raise LoadError(f"{question}: {error}") from error
    if word != "done":
        raise LoadError(f"{question}: {rest or 'the connection was closed'}")
    return float(rest)


def live_row() -> BenchRow:
    """Spark follows a node that is published to; the value is the longest batch after the first ones."""
    title = f"Spark follows {LIVE_RATE:,} msg/s in {LIVE_STREAMS} streams, a batch a second: the longest batch"
    return BenchRow("spark-live", title, "spark-live", "s", _measure_live, lower_is_better=True)


def _measure_live(run: RowRun) -> Measurement:
    if not isinstance(run.peer, Tailrace):
        raise LoadError(f"{run.peer.name} has no files that Spark could read")
    names, directory, seconds = stream_names(LIVE_STREAMS), run.server.site.directory, run.scale.live_seconds
    deadline = Deadline(LIVE_START_TIMEOUT_S + seconds + run.scale.timeout_s)
    load = Load(run.peer, run.server.target, run.payload, deadline)
    feed = run.feed(names, messages_min=ROUND_MESSAGES)
    published = _publish(load, names, feed, 0.0)
    with LiveQuery(directory / "data", directory, deadline) as query:
        meter = load.meter()
        sent = _publish(load, names, feed, seconds)
        spent = meter.stop()
        lived = query.finish()
    if lived.rows != published + sent:
        raise LoadError(f"the live query has read {lived.rows} messages of {published + sent}")
    counted = sorted(lived.batches[WARM_BATCHES:])
    if not counted:
        raise LoadError(f"there were only {len(lived.batches)} batches")
    extras = {"batch_median_s": median(counted), "batch_p95_s": counted[len(counted) * 95 // 100]}
    extras |= {"batches": float(len(counted)), "reached_per_s": sent / spent.wall_s}
    return run.measured(counted[-1], spent, sent, extras)


def _publish(load: Load, names: list[str], feed: RequestFeed, seconds: float) -> int:
    """Publish at LIVE_RATE for `seconds`, `feed` at least once, all acknowledged; return the number of messages."""
    begin, sent = time.monotonic(), 0
    while not sent or sent < seconds * LIVE_RATE:
        sent += ingest_feeds(load, names, [feed]).messages
        time.sleep(max(0.0, begin + min(sent / LIVE_RATE, seconds) - time.monotonic()))
    return sent
