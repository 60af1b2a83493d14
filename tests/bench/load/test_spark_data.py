from __future__ import annotations

import zlib
from pathlib import Path

from bench.load.spark_data import DAY_START_US, DAY_US, make_data, stream_name
from tailrace.shard.catalog import all_streams
from tailrace.shard.directory import open_data_dir
from tailrace.shard.reader import StreamReader
from tailrace.shard.walk import check


def test_a_day_of_messages_in_each_stream(tmp_path: Path) -> None:
    make_data(tmp_path / "data", 3, 3_030, 100)
    data = open_data_dir(tmp_path / "data")
    assert sorted(name for _, name in all_streams(data)) == [stream_name(number) for number in range(3)]
    with StreamReader.open(data.stream_directory(stream_name(1)), stream_name(1)) as reader:
        assert reader.next_seq() == 1_010
        assert reader.entry(0).timestamp_us == DAY_START_US
        assert DAY_US * 0.98 < reader.entry(1_009).timestamp_us - DAY_START_US < DAY_US
        half = reader.seq_at(DAY_START_US + DAY_US // 2)
        assert abs(half - 505) <= 10
        frames = bytearray(132 * 1_010)
        assert reader.read_into(memoryview(frames), 4_096) == len(frames)
    assert check(frames, 0, len(frames), 0) == (1_010, len(frames), "")
    assert len(zlib.compress(frames)) > 0.75 * len(frames)
