"""A live query as Spark leads it, led by hand: offsets, batches, restarts. No JVM."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StreamCut
from tailrace.shard.stream_files import stream_paths
from tailrace.spark import live, offsets, packed_offsets, scan
from tailrace.spark.directory_source import DirectorySource, DirectoryView
from tailrace.spark.live import TailraceStreamReader
from tailrace.spark.name_files import MissingNames
from tailrace.spark.offsets import DataLoss
from tailrace.spark.options import InvalidOption, parse_options
from tailrace.spark.slices import BadStreams
from tailrace.spark.source import StreamRef
from tests.spark.data import START_US, add_stream, append, make_directory, open_log, plain, trim

SCHEMA = StructType([StructField("stream", StringType()), StructField("seq", LongType())])
Seen = list[tuple[str, int | None]]


class Query:
    """Spark's part: its calls in their order, and a checkpoint that is JSON."""

    def __init__(self, data: DataDirectory, schema: StructType = SCHEMA, **options: str) -> None:
        self._schema = schema
        self._said = {"path": str(data.path), **options}
        self.done: str | None = None  # the checkpoint
        self.planned: tuple[str, str] | None = None
        self.restart()

    def restart(self) -> None:
        self.reader = TailraceStreamReader(parse_options(self._said), self._schema)

    def plan(self, rows: int | None = None) -> bool:
        """The next batch, written down; False without one."""
        start = self.done if self.done is not None else json.dumps(self.reader.initialOffset())
        limit = self.reader.getDefaultReadLimit() if rows is None else ReadMaxRows(rows)
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit))
        self.planned = (start, end)
        return start != end

    def run(self) -> Seen:
        """The batch that was written down."""
        assert self.planned is not None
        start, end = map(json.loads, self.planned)
        found: Seen = []
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                found += [(row["stream"], row["seq"]) for row in batch.to_pylist()]
        return found

    def batch(self, rows: int | None = None) -> Seen:
        if not self.plan(rows):
            return []
        found = self.run()
        assert self.planned is not None
        self.done = self.planned[1]
        return found


def seqs(name: str, start: int, end: int) -> Seen:
    return [(name, seq) for seq in range(start, end)]


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return make_directory(tmp_path / "data", {"a": plain(10), "b": plain(4)})


def grow(data: DataDirectory, name: str, count: int) -> None:
    log = open_log(data, name)
    append(log, plain(count, START_US + 10_000_000))
    log.close()


def test_the_past_first_and_then_what_comes(data: DataDirectory) -> None:
    query = Query(data)
    assert query.batch() == seqs("a", 0, 10) + seqs("b", 0, 4)
    assert query.batch() == []
    grow(data, "b", 3)
    assert query.batch() == seqs("b", 4, 7)


def test_new_begins_with_what_comes_and_with_all_of_new_streams(data: DataDirectory) -> None:
    query = Query(data, **{"from": "new"})
    assert query.batch() == []
    query.plan()
    query.done = query.planned[1] if query.planned else None
    grow(data, "a", 2)
    add_stream(data, "later", plain(3))
    assert query.batch() == seqs("a", 10, 12) + seqs("later", 0, 3)


def test_a_time_to_begin_at(data: DataDirectory) -> None:
    query = Query(data, **{"from": str(START_US + 3_000)})
    assert query.batch() == seqs("a", 3, 10) + seqs("b", 3, 4)


def test_batches_have_as_many_rows_as_may_be(data: DataDirectory) -> None:
    query = Query(data, maxRowsPerBatch="5")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(5)
    found = [query.batch() for _ in range(4)]
    assert [len(batch) for batch in found] == [5, 5, 4, 0]
    assert sorted(row for batch in found for row in batch) == sorted(seqs("a", 0, 10) + seqs("b", 0, 4))
    assert {name for name, _ in found[0]} == {"a", "b"}
    assert isinstance(Query(data).reader.getDefaultReadLimit(), ReadAllAvailable)


def test_streams_that_come_while_it_runs(data: DataDirectory) -> None:
    query = Query(data)
    query.batch()
    add_stream(data, "z", plain(5))
    assert query.batch(rows=3) == seqs("z", 0, 3)
    query.restart()
    assert query.batch() == seqs("z", 3, 5)


def test_a_batch_that_was_written_down_is_the_same_after_a_restart(data: DataDirectory) -> None:
    query = Query(data)
    add_stream(data, "z", plain(5))
    query.plan(rows=8)
    first = query.run()
    grow(data, "a", 5)
    query.restart()
    assert query.run() == first
    assert len(first) == 8
    assert query.planned is not None
    query.done = query.planned[1]
    rest = query.batch()
    assert sorted(first + rest) == sorted(seqs("a", 0, 15) + seqs("b", 0, 4) + seqs("z", 0, 5))


def test_available_now_ends_where_the_streams_did(data: DataDirectory) -> None:
    query = Query(data)
    query.reader.prepareForTriggerAvailableNow()
    grow(data, "a", 5)
    add_stream(data, "z", plain(5))
    found = query.batch(rows=9) + query.batch(rows=9)
    assert sorted(found) == seqs("a", 0, 10) + seqs("b", 0, 4)
    assert query.batch() == []


def test_it_reports_how_far_there_is_to_go(data: DataDirectory) -> None:
    query = Query(data)
    query.batch(rows=2)
    assert query.reader.reportLatestOffset()["a"]["seq"] == 10


# --- losses ---------------------------------------------------------------------------------------------------------


def test_messages_that_were_trimmed_before_they_were_read_are_a_loss(data: DataDirectory) -> None:
    query = Query(data)
    query.batch(rows=4)
    trim(data.path, "a", 6)
    with pytest.raises(DataLoss, match="stream 'a': 4 messages were trimmed"):
        query.batch()
    lenient = Query(data, failOnDataLoss="false")
    lenient.done = query.done
    assert lenient.batch() == seqs("a", 6, 10) + seqs("b", 2, 4)


def test_what_was_trimmed_before_the_query_began_is_none(data: DataDirectory) -> None:
    trim(data.path, "a", 6)
    assert Query(data).batch() == seqs("a", 6, 10) + seqs("b", 0, 4)


def part_ways(data: DataDirectory) -> None:
    """The end of the stream is set aside, and it grows beyond its former end with other messages."""
    log = open_log(data, "a")
    log.set_aside(7)
    append(log, plain(9, START_US + 20_000_000, text="another"))
    log.close()


def test_a_stream_with_another_end_is_not_taken_for_the_same(data: DataDirectory) -> None:
    query = Query(data)
    query.batch()
    part_ways(data)
    with pytest.raises(DataLoss, match="its end was set aside"):
        query.batch()
    lenient = Query(data, failOnDataLoss="false")
    lenient.done = query.done
    assert lenient.batch() == []
    grow(data, "a", 1)
    assert lenient.batch() == seqs("a", 16, 17)


@pytest.fixture
def crash(data: DataDirectory, tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Takes back all of stream `a` but its ten first messages, as a crash of the machine does with messages not synced;
    then others are published in their place.
    """
    shutil.copytree(data.path, tmp_path / "synced")

    def lose(count: int) -> None:
        for path in (tmp_path / "synced").glob("shard-*/a.*"):
            shutil.copy(path, data.path / path.relative_to(tmp_path / "synced"))
        log = open_log(data, "a")
        append(log, plain(count, START_US + 30_000_000, text="another"))
        log.close()

    yield lose


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("count", [2, 4, 5, 20])
@pytest.mark.parametrize("rows", [None, 3])
def test_seqs_that_were_given_again_are_a_loss(
    data: DataDirectory, crash: Callable[[int], None], count: int, rows: int | None, is_restarted: bool
) -> None:
    """The query had read four messages beyond the synced ones. In one case as many others have their seqs now."""
    grow(data, "a", 4)
    query, lenient = Query(data), Query(data, failOnDataLoss="false")
    while query.batch(rows):
        pass
    crash(count)
    grown = 0
    if is_restarted:
        query.restart()
    elif count == 4:  # its end is the same as before, and no machine was down: nothing is looked at yet
        assert query.batch() == []
        grow_late(data)
        grown = 1
    with pytest.raises(DataLoss, match="stream 'a': its node has lost the end of it, and gives the seqs from 10 on"):
        query.batch()
    lenient.done = query.done
    end = 10 + count + grown
    found: Seen = []
    while more := lenient.batch(rows):
        found += more
        lenient.restart()
    assert found == seqs("a", 10, end)
    grow_late(data)
    assert lenient.batch() == seqs("a", end, end + 1)


def test_a_machine_that_came_up_again_and_lost_nothing_is_no_loss(data: DataDirectory) -> None:
    query = Query(data)
    query.batch()
    for path in data.path.glob("shard-*/*"):  # another place, as if it was mounted again
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    open_log(data, "a").close()
    query.restart()
    assert query.batch() == []
    grow(data, "a", 2)
    assert query.batch() == seqs("a", 10, 12)


def test_nothing_is_lost_before_the_broker_has_looked(data: DataDirectory) -> None:
    """The machine has come up again, and the broker has not opened the stream yet: only synced messages are shown."""
    query = Query(data)
    query.batch()
    open_log(data, "a", boot_id="another boot").close()
    query.restart()
    grow(data, "b", 1)
    assert query.batch() == seqs("b", 4, 5)
    grow(data, "a", 2)
    assert query.batch() == seqs("a", 10, 12)


def test_only_what_is_synced(data: DataDirectory) -> None:
    log = open_log(data, "a")
    log.sync()
    append(log, plain(3, START_US + 10_000_000))
    query, all_of_it = Query(data, onlySynced="true", streams="a"), Query(data, streams="a")
    assert query.batch() == seqs("a", 0, 10)
    assert all_of_it.batch() == seqs("a", 0, 13)
    all_of_it._said["onlySynced"] = "true"  # it has read more than it may now: that is not a loss
    all_of_it.restart()
    assert all_of_it.batch() == []
    log.sync()
    assert query.batch() == seqs("a", 10, 13)
    log.close()
    grow(data, "a", 1)
    assert all_of_it.batch() == []
    log = open_log(data, "a")
    log.sync()
    log.close()
    assert all_of_it.batch() == query.batch() == seqs("a", 13, 14)
    with pytest.raises(InvalidOption, match="onlySynced is for a path"):
        parse_options({"brokers": "localhost:1", "onlySynced": "true"})


def grow_late(data: DataDirectory) -> None:
    log = open_log(data, "a")
    append(log, plain(1, START_US + 40_000_000))
    log.close()


def test_a_stream_that_was_made_anew_is_read_from_its_beginning(data: DataDirectory) -> None:
    query, lenient = Query(data), Query(data, failOnDataLoss="false")
    query.batch()
    for path in data.path.glob("shard-*/a.*"):
        path.unlink()
    add_stream(data, "a", plain(12))
    with pytest.raises(DataLoss, match="it was made anew; the query has read it up to seq 10 before"):
        query.batch()
    lenient.done = query.done
    assert lenient.batch(rows=5) == seqs("a", 0, 5)
    lenient.restart()
    assert lenient.batch() == seqs("a", 5, 12)
    assert lenient.batch() == []


def test_a_stream_that_vanishes_is_told_once(data: DataDirectory, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(data)
    query.batch()
    for path in data.path.glob("shard-*/a.*"):
        path.unlink()
    for number in range(4, 7):
        grow(data, "b", 1)
        assert query.batch() == seqs("b", number, number + 1)
        assert json.loads(query.done or "")["a"]["gone"]
    told = "stream 'a' no longer exists; the query has read all messages it could"
    assert [each.message for each in caplog.records if "'a'" in each.message] == [told, f"left out: {told}"]


def test_a_stream_that_vanishes_is_a_row_of_its_batch(data: DataDirectory) -> None:
    """Also if the batch is run again; and once more if the stream comes back and vanishes again."""
    query = Query(data, schema=StructType(list(SCHEMA.fields)).add("_fault", StringType()))
    query.batch()
    files = {path: path.read_bytes() for path in data.path.glob("shard-*/a.*")}
    for _ in range(2):
        for path in files:
            path.unlink()
        assert query.plan()
        for _ in range(2):
            assert query.run() == [("a", None)]
            query.restart()
        assert query.planned is not None
        query.done = query.planned[1]
        assert query.batch() == []
        for path, content in files.items():
            path.write_bytes(content)
        assert query.batch() == []
    grow(data, "a", 1)
    assert query.batch() == seqs("a", 10, 11)


@pytest.mark.parametrize("ours", [True, False])
def test_a_checkpoint_from_the_other_way_of_reading_goes_on(data: DataDirectory, ours: bool) -> None:
    """From a path to brokers or back: a connection does not identify the files."""
    query = Query(data)
    query.batch()
    assert query.done is not None
    marks = json.loads(query.done)
    for mark in marks.values():
        mark |= {"id": 0, "cuts": 0} | ({} if ours else {"us": 7})
    query.done = json.dumps(marks)
    query.restart()
    grow(data, "a", 2)
    if ours:
        assert query.batch() == seqs("a", 10, 12)
        return
    with pytest.raises(DataLoss, match="its node has lost the end of it"):  # it is another node's
        query.batch()


def test_a_batch_whose_stream_has_another_end_before_it_is_read(data: DataDirectory) -> None:
    query = Query(data)
    query.plan()
    part_ways(data)
    with pytest.raises(StreamCut):
        query.run()
    lenient = Query(data, failOnDataLoss="false")
    lenient.planned = query.planned
    assert lenient.run() == seqs("b", 0, 4)


def test_a_damaged_stream_stops_the_query_or_waits(data: DataDirectory) -> None:
    index = next(data.path.glob("shard-*/a.indx"))
    whole = index.read_bytes()
    index.write_bytes(b"x" + whole[1:])
    with pytest.raises(BadStreams, match="stream 'a' is damaged"):
        Query(data).batch()
    query = Query(data, badStreams="skip")
    assert query.batch() == seqs("b", 0, 4)
    index.write_bytes(whole)
    assert query.batch() == seqs("a", 0, 10)


def test_a_stream_that_is_only_being_made_stops_nothing(data: DataDirectory) -> None:
    add_stream(data, "new", [])
    next(data.path.glob("shard-*/new.indx")).unlink()
    assert Query(data).batch() == seqs("a", 0, 10) + seqs("b", 0, 4)


def test_another_sources_checkpoint_is_refused(data: DataDirectory) -> None:
    query = Query(data)
    query.done = json.dumps({"partition-1": 5})
    with pytest.raises(ValueError, match="no offset of this source"):
        query.batch()


def test_a_live_query_has_no_end(data: DataDirectory) -> None:
    options: dict[str, Any] = {"to": "#5"}
    with pytest.raises(InvalidOption, match="a live query has no end"):
        Query(data, **options)


# --- very many streams ----------------------------------------------------------------------------------------------


def test_a_trigger_looks_only_at_streams_that_have_changed(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SETTLE_NS", -(10**12))
    monkeypatch.setattr(live, "LOOKS_EVERY", 10**9)
    monkeypatch.setattr(offsets, "PACKED_FROM", 1)
    add_stream(data, "c", plain(2))
    query = Query(data)
    looked: list[str] = []
    view = DirectorySource.view

    def look(source: DirectorySource, ref: StreamRef) -> DirectoryView:
        looked.append(ref.stream)
        return view(source, ref)

    monkeypatch.setattr(DirectorySource, "view", look)
    assert len(query.batch()) == 16
    assert query.batch() == []  # the marks are new, so all of them are looked at
    looked.clear()
    assert query.batch() == []
    assert looked == []
    grow(data, "b", 3)
    assert query.batch() == seqs("b", 4, 7)
    assert set(looked) == {"b"}
    index = Path(stream_paths(data.stream_directory("c"), "c").index_file)
    for path in index.parent.glob("c.*"):
        path.unlink()
    add_stream(data, "c", plain(2))
    with pytest.raises(DataLoss, match="stream 'c': it was made anew"):
        query.batch()


def test_each_stream_is_looked_at_once_in_a_while(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one whose files do not look changed."""
    monkeypatch.setattr(scan, "SETTLE_NS", -(10**12))
    monkeypatch.setattr(live, "LOOKS_EVERY", 5)
    query = Query(data)
    for _ in range(3):
        query.batch()
    index = Path(stream_paths(data.stream_directory("a"), "a").index_file)
    before = index.stat()
    grow(data, "a", 1)
    unchanged = (before.st_ino, before.st_size, before.st_mtime_ns)
    monkeypatch.setattr(scan, "sign_all", lambda files: [unchanged] * len(files))
    assert [row for _ in range(6) for row in query.batch()] == seqs("a", 10, 11)


def test_it_goes_on_from_a_checkpoint_that_has_the_names_in_files(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "PACKED_FROM", 1)
    monkeypatch.setattr(packed_offsets, "NEW_NAMES_MAX", 1)
    former = Query(data)
    assert len(former.batch(rows=6)) == 6, "a checkpoint of an earlier version, with the names in its offsets"
    query = Query(data, checkpointLocation=str(tmp_path / "checkpoint"))
    query.done = former.done
    found = query.batch(rows=4)
    assert query.done is not None and packed_offsets.NAME_FILE in json.loads(query.done)
    for name in ("new", "newer", "newest"):
        add_stream(data, name, plain(3))
        query.plan(rows=2)
        query.restart()  # between the plan and its batch
        found += query.run()
        assert query.planned is not None
        query.done = query.planned[1]
        query.restart()
    found += query.batch()
    assert sorted(found) == [
        *(("a", seq) for seq in range(3, 10)),
        *(("b", seq) for seq in range(3, 4)),
        *((name, seq) for name in ("new", "newer", "newest") for seq in range(3)),
    ]
    former.done = query.done
    with pytest.raises(MissingNames, match='option\\("checkpointLocation"'):
        former.batch()


def test_the_lag_is_in_the_progress(data: DataDirectory) -> None:
    query = Query(data)
    query.batch(rows=5)
    assert query.reader.reportLatestOffset()["$lag"] == {"messages": 9, "streams": 2}
    query.batch()
    assert query.reader.reportLatestOffset()["$lag"] == {"messages": 0, "streams": 0}
