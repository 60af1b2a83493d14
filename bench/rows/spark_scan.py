"""Spark reads a day of messages, payloads and all; and one hour of that day, without them."""

from __future__ import annotations

import socket
from typing import Final

from bench.load.limits import LoadError
from bench.load.meter import Meter
from bench.peers.base import Peer
from bench.peers.spark import SparkSession
from bench.rows.base import Measurement, Row, cpu_us
from bench.scale import Scale
from bench.server import Server
from bench.statistics import median
from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES

REPEATS: Final = 3
"""Of each question, after one that is not counted."""
HOUR_WARM: Final = 6
HOUR_REPEATS: Final = 5
"""Of the short question: what its first answers take is Java's compiling, beside them, of what they run."""
PREPARE_TIMEOUT_S: Final = 900.0


class SparkScanRow(Row):
    """`value` counts the bytes that the messages have in tailrace's files, index included, for either peer."""

    name = "spark-scan"
    title = "Spark, 2 cores, warm: all messages of a day in 8 streams, payloads included"
    kind = "spark-scan"
    unit = "MB/s"

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        assert isinstance(peer, SparkSession)
        _, messages, payload_bytes = peer.sizes
        ask(server, "prepare", PREPARE_TIMEOUT_S)
        export_s = ask(server, "export", PREPARE_TIMEOUT_S) if peer.kind == "parquet" else 0.0
        scan_s, spent_cpu_us = repeated(server, "scan", scale.timeout_s, messages)
        for _ in range(HOUR_WARM - 1):
            ask(server, "hour", scale.timeout_s)
        hour_s, _ = repeated(server, "hour", scale.timeout_s, repeats=HOUR_REPEATS)
        nbytes = messages * (HEADER_BYTES + INDEX_ENTRY_BYTES + payload_bytes)
        extras = {"messages_per_s": messages / scan_s, "hour_s": hour_s}
        return Measurement(
            value=nbytes / scan_s / 1e6,
            cpu_us=spent_cpu_us,
            peak_rss_bytes=server.peak_rss_bytes(),
            extras=extras | ({"export_s": export_s} if export_s else {}),
        )


def repeated(
    server: Server, question: str, timeout_s: float, messages: int = 1, repeats: int = REPEATS
) -> tuple[float, float]:
    """The median of the seconds it takes, and the processor time of the last time for each message, in µs."""
    ask(server, question, timeout_s)
    seconds = []
    for _ in range(repeats):
        meter = Meter(server.target.pid)
        seconds.append(ask(server, question, timeout_s))
        spent = meter.stop()
    return median(seconds), cpu_us(spent, messages)


def ask(server: Server, question: str, timeout_s: float) -> float:
    """The seconds that the answer took. LoadError when there is none in time, or it says what went wrong."""
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
