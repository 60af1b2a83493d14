from __future__ import annotations

from bench.peers.plain import Plain
from bench.rows.ingest import IngestRow
from tests.bench.rows.conftest import MeasureRow


def test_one_stream_and_many(measure_row: MeasureRow) -> None:
    assert IngestRow(1).name == "ingest-1"
    measure_row(IngestRow(1), Plain(100))
    measure_row(IngestRow(50), Plain(100, acked=True))
