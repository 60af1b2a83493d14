"""Planning when the index has wrong times."""

from __future__ import annotations

import struct
from itertools import chain
from pathlib import Path

import pytest

from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.frame import INDEX_ENTRY_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.frame_view import frame_time, frame_views
from tailrace.spark.source import SourceOptions, open_source
from tests.shard.helpers import flip
from tests.spark.data import DAY_US, make_directory, plain
from tests.spark.rollup.directories import DAY, DAY_START_US


def set_time(data: DataDirectory, name: str, seq: int, timestamp_us: int) -> None:
    """Into the entry of a message in the index."""
    with Path(stream_paths(data.stream_directory(name), name).index_file).open("r+b") as file:
        file.seek(HEADER_PAGE_BYTES + INDEX_ENTRY_BYTES * seq)
        file.write(struct.pack("<Q", timestamp_us))


EDGES: dict[str, tuple[int, int]] = {
    "first": (500, DAY_START_US - 1),
    "before": (499, DAY_START_US),
    "last": (3_999, DAY_START_US + 86_400_000_000),
    "behind": (4_000, DAY_START_US + 86_400_000_000 - 1),
}
"""Of 500 messages before a day, 3,500 of it and 500 behind it: a message beside midnight, and a time on the other side
of it, which is between the times of its neighbours."""


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """1,000 messages of the day before, 3,000 of the day, 1,000 of the day after."""
    messages = plain(1_000, DAY_START_US - 86_400_000_000) + plain(3_000, DAY_START_US)
    return make_directory(tmp_path / "data", {"a": messages + plain(1_000, DAY_START_US + 86_400_000_000)})


@pytest.mark.parametrize("timestamp_us", [0, DAY_START_US - 1, DAY_START_US + 2 * 86_400_000_000, 1 << 60])
def test_one_wrong_time_takes_nothing_from_the_day(data: DataDirectory, timestamp_us: int) -> None:
    """Whichever entry has it: also those that a search looks at first."""
    source, views = open_source(SourceOptions(str(data.path))), frame_views(data)
    fooled = 0
    for seq in sorted({*range(1_001, 3_999, 97), 2_500, 1_250, 3_750, 1_875, 3_125}):
        index = Path(stream_paths(data.stream_directory("a"), "a").index_file)
        before = index.read_bytes()
        set_time(data, "a", seq, timestamp_us)
        for verify in (False, True):
            plan = plan_day(source, DAY, frame_views=views, verify=verify)
            ((unit,),) = plan.tasks
            assert (unit.slice.first_seq, unit.slice.end_seq) == (1_000, 4_000), (seq, verify)
            fooled += len(plan.contradictory)
        index.write_bytes(before)
    assert fooled, "a search was led astray at least once"


@pytest.mark.parametrize("edge", EDGES)
def test_a_plausible_wrong_time_beside_midnight(tmp_path: Path, edge: str) -> None:
    messages = [plain(500, DAY_START_US - DAY_US), plain(3_500, DAY_START_US), plain(500, DAY_START_US + DAY_US)]
    data = make_directory(tmp_path / "edge", {"a": [*chain(*messages)]})
    set_time(data, "a", *EDGES[edge])
    plan = plan_day(open_source(SourceOptions(str(data.path))), DAY, frame_views=frame_views(data))
    ((unit,),) = plan.tasks
    assert (unit.slice.first_seq, unit.slice.end_seq, unit.by_frames) == (500, 4_000, True)
    assert "contradicts its index entry; its frames were read instead" in plan.contradictory[0].cause


def test_a_search_in_the_index_says_so(data: DataDirectory) -> None:
    source = open_source(SourceOptions(str(data.path)))
    set_time(data, "a", 2_500, 0)
    with source.view(source.ref("a")) as view, pytest.raises(StreamDamaged, match="before that of the message before"):
        view.seq_at(DAY_START_US)


def test_the_time_of_a_frame(data: DataDirectory) -> None:
    paths = stream_paths(data.stream_directory("a"), "a")
    set_time(data, "a", 1_001, 7)
    flip(paths.content_file, Path(paths.content_file).read_bytes().index(b"message 17"))
    with StreamReader.open(data.stream_directory("a"), "a") as reader:
        assert frame_time(reader, 1_001) == DAY_START_US + 1_000
        assert frame_time(reader, 17) == DAY_START_US - 86_400_000_000 + 17_000, "its frame is damaged"
