"""A day is rolled up: minutes with exact percentiles of size and gap, of each stream."""

from __future__ import annotations

from bench.load.limits import LoadError
from bench.peers.base import Peer
from bench.peers.spark import SparkSession
from bench.rows.base import Measurement, Row
from bench.rows.spark_scan import PREPARE_TIMEOUT_S, ask, repeated
from bench.scale import Scale
from bench.server import Server

TIMEOUT_S = 900.0


class RollupRow(Row):
    kind = "rollup"
    unit = "msg/s"

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self.name = f"rollup-{streams}"
        self.title = f"a day in {streams:,} streams rolled up by stream and minute, 2 cores, warm"

    def suited(self, peer: Peer) -> Peer:
        assert isinstance(peer, SparkSession)
        _, messages, payload_bytes = peer.sizes
        return peer.sized(self._streams, messages, payload_bytes)

    def measure(self, peer: Peer, server: Server, scale: Scale) -> Measurement:
        assert isinstance(peer, SparkSession)
        streams, messages, _ = peer.sizes
        if streams != self._streams:
            raise LoadError(f"{peer.name} has the data of {streams} streams")
        ask(server, "prepare", PREPARE_TIMEOUT_S)
        extras: dict[str, float] = {}
        if peer.kind != "files":
            extras["export_s"] = ask(server, "export", PREPARE_TIMEOUT_S)
        seconds, spent_cpu_us = repeated(server, "rollup", TIMEOUT_S, messages)
        if peer.kind == "polars":
            extras["all_levels_s"], _ = repeated(server, "rollup-all", TIMEOUT_S)
        return Measurement(messages / seconds, spent_cpu_us, server.peak_rss_bytes(), extras)
