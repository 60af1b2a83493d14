"""What is measured: `make_rows` gives every row of the report, in its order."""

from __future__ import annotations

from bench.rows.base import Row
from bench.rows.beside import BesideRollupRow
from bench.rows.connections import ConnectionsRow
from bench.rows.consume import ConsumeRow, ManyConsumersRow
from bench.rows.durability import FLUSHES_MS, AlwaysRow, IntervalRow
from bench.rows.fanout import FanOutRow
from bench.rows.flooded import FLOODS, FloodedRow
from bench.rows.idempotence import IdempotenceRow
from bench.rows.ingest import IngestRow
from bench.rows.latency import LatencyRow
from bench.rows.live import LiveRow
from bench.rows.neighbour import NeighbourRow
from bench.rows.replay import ReplayRow
from bench.rows.replication import CatchUpRow, HopRow, ReplicatedRow
from bench.rows.rollup import RollupRow
from bench.rows.roundrobin import RoundRobinRow
from bench.rows.spark_scan import SparkScanRow
from bench.rows.streams import StreamsRow
from bench.rows.turns import TurnsRow
from bench.scale import Scale


def make_rows(scale: Scale) -> list[Row]:
    return [
        IngestRow(1),
        IngestRow(scale.streams),
        TurnsRow(scale.connections, 1),
        TurnsRow(scale.connections, scale.connections),
        FanOutRow(100),
        FanOutRow(1_000),
        ReplayRow(1),
        ReplayRow(10),
        ConsumeRow(),
        ManyConsumersRow(10_000, scale.crowd_share),
        LatencyRow(1_000),
        LatencyRow(10_000),
        ConnectionsRow(2_000, scale.crowd_share),
        ConnectionsRow(8_000, scale.crowd_share),
        ConnectionsRow(16_000, scale.crowd_share, long=True),
        NeighbourRow(),
        *(FloodedRow(flood) for flood in FLOODS),
        RoundRobinRow(scale.streams),
        IdempotenceRow(1),
        IdempotenceRow(100),
        StreamsRow(scale.many_streams),
        AlwaysRow(),
        *(AlwaysRow(flush_ms) for flush_ms in FLUSHES_MS),
        IntervalRow(),
        ReplicatedRow(2),
        ReplicatedRow(3),
        HopRow(),
        CatchUpRow(),
        SparkScanRow(),
        RollupRow(8),
        RollupRow(10_000),
        BesideRollupRow(),
        LiveRow(),
    ]
