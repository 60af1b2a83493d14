"""The rows: `make_rows` returns the table of all of them, in the order of the report."""

from __future__ import annotations

from bench.rows.base import BenchRow
from bench.rows.cluster import LEASE_SHAPES, forwarded_row, lease_row
from bench.rows.delivering import (
    QOS_1,
    connections_row,
    consume_row,
    fan_out_row,
    many_consumers_row,
    replay_row,
    topics_row,
)
from bench.rows.durability import FLUSHES_MS, always_row, interval_row
from bench.rows.latency import FLOODS, beside_rollup_row, connecting_row, flooded_row, latency_row, neighbour_row
from bench.rows.packets import packets_in_row, packets_out_row
from bench.rows.publishing import (
    client_row,
    idempotence_row,
    ingest_row,
    ingest_topics_row,
    round_robin_row,
    streams_row,
    topics_turns_row,
    turns_row,
)
from bench.rows.replication import catch_up_row, cluster_row, hop_row, replicated_row
from bench.rows.spark import live_row, rollup_row, spark_scan_row
from bench.scale import Scale


def make_rows(scale: Scale) -> list[BenchRow]:
    return [
        ingest_row(1),
        ingest_row(scale.streams),
        turns_row("turns-of-10", 10, 1),
        turns_row("turns-of-100", 100, 1),
        turns_row("turns-1", scale.connections, 1),
        turns_row("turns-1000", scale.connections, scale.connections),
        ingest_topics_row(scale.many_streams),
        topics_turns_row(scale.connections),
        packets_in_row(),
        packets_out_row(),
        fan_out_row(100),
        fan_out_row(1_000),
        fan_out_row(100, QOS_1),
        topics_row(10),
        topics_row(10_000, scale.crowd_share),
        replay_row(1),
        replay_row(10),
        consume_row(),
        many_consumers_row(10_000, scale.crowd_share),
        latency_row(1_000),
        latency_row(10_000),
        connections_row(2_000, scale.crowd_share),
        connections_row(8_000, scale.crowd_share),
        connections_row(16_000, scale.crowd_share, long=True),
        connections_row(16_000, scale.crowd_share, qos=QOS_1),
        neighbour_row(),
        *(flooded_row(flood) for flood in FLOODS),
        connecting_row(),
        *(client_row(how) for how in ("wait", "tasks", "silent")),
        round_robin_row(scale.streams),
        idempotence_row(1),
        idempotence_row(100),
        streams_row(scale.many_streams),
        always_row(),
        *(always_row(flush_ms) for flush_ms in FLUSHES_MS),
        interval_row(),
        replicated_row(2),
        replicated_row(3),
        cluster_row(),
        *(forwarded_row(replicated=replicated) for replicated in (False, True)),
        *(lease_row(shape) for shape in LEASE_SHAPES),
        hop_row(),
        catch_up_row(),
        spark_scan_row(),
        rollup_row(8),
        rollup_row(10_000),
        beside_rollup_row(),
        live_row(),
    ]
