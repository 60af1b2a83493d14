"""Days for the benchmark."""

from __future__ import annotations

from pathlib import Path

from bench.rollups.data import BURST, DAY_START_US, DAY_US, Shape, make_day
from shard.catalog import all_streams
from shard.directory import open_data_dir
from shard.reader import StreamReader


def test_every_stream_has_its_part_within_the_day(tmp_path: Path) -> None:
    make_day(tmp_path / "data", Shape(4, 4 * 7 * BURST))
    data = open_data_dir(tmp_path / "data")
    found = list(all_streams(data))
    assert len(found) == 4
    for shard, name in found:
        with StreamReader.open(data.shard_path(shard), name) as reader:
            assert reader.next_seq() == 7 * BURST
            assert DAY_START_US <= reader.entry(0).timestamp_us < reader.entry(69).timestamp_us < DAY_START_US + DAY_US
