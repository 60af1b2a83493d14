from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.core.headers import pack_headers
from tailrace.spark.columns import FAULT, SCHEMA, BatchMaker, Part, WrongSchema, gather
from tailrace.spark.entries import no_entries
from tailrace.spark.options import PayloadForm
from tailrace.spark.payloads import CORRUPT
from tailrace.spark.plan import make_plan
from tailrace.spark.source import Block, Source, SourceOptions, StreamRef, open_source
from tests.spark.data import START_US, Sent, make_directory, plain


@pytest.fixture
def source(tmp_path: Path) -> Source:
    odd = [Sent(START_US + i, b"%d" % i, pack_headers({"k": "v"}) if i % 2 else b"", epoch=i + 1) for i in range(4)]
    data = make_directory(tmp_path / "data", {"ü": plain(3), "odd": odd})
    return open_source(SourceOptions(str(data.path)))


def parts_of(source: Source, *, frames: bool = True) -> list[Part]:
    found = []
    for task in make_plan(source, ()).tasks:
        for slice_ in task:
            with source.open(slice_) as reader:
                found += [Part(StreamRef(slice_.shard, slice_.stream), block) for block in reader.blocks(frames=frames)]
    return found


def maker(*names: str, form: PayloadForm = "binary", **types: pa.DataType) -> BatchMaker:
    known = {**dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), CORRUPT: pa.binary(), FAULT: pa.string()}
    return BatchMaker(pa.schema([(name, types.get(name, known.get(name, pa.string()))) for name in names]), form)


def test_every_column_of_several_streams_in_one_batch(source: Source) -> None:
    parts = parts_of(source)
    batch = maker(*SCHEMA.names).batch(parts)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    rows = batch.to_pydict()
    assert rows["stream"] == ["odd"] * 4 + ["ü"] * 3
    assert rows["shard"] == [parts[0].ref.shard] * 4 + [parts[1].ref.shard] * 3
    assert rows["seq"] == [0, 1, 2, 3, 0, 1, 2]
    assert [int(time.timestamp() * 1e6) - START_US for time in rows["timestamp"]] == [0, 1, 2, 3, 0, 1_000, 2_000]
    assert rows["epoch"] == [1, 2, 3, 4, 1, 1, 1]
    headers = len(pack_headers({"k": "v"}))
    assert rows["size"] == [1, 1 + headers, 1, 1 + headers, 9, 9, 9]
    assert [dict(pairs) for pairs in rows["headers"]] == [{}, {"k": b"v"}, {}, {"k": b"v"}, {}, {}, {}]
    assert rows["key"] == [None] * 7
    assert rows["payload"] == [b"0", b"1", b"2", b"3", b"message 0", b"message 1", b"message 2"]


def test_headers_of_any_size_are_not_part_of_the_payload(tmp_path: Path) -> None:
    sent = [Sent(START_US, b"payload", pack_headers({"k": "v" * size})) for size in (0, 250, 260, 60_000)]
    data = make_directory(tmp_path / "large", {"s": sent})
    batch = maker("payload", "headers").batch(parts_of(open_source(SourceOptions(str(data.path)))))
    assert batch.to_pydict()["payload"] == [b"payload"] * 4
    assert [len(dict(pairs)["k"]) for pairs in batch.to_pydict()["headers"]] == [0, 250, 260, 60_000]


def test_one_part_and_several_give_the_same(source: Source) -> None:
    made, parts = maker(*SCHEMA.names), parts_of(source)
    apart = [made.batch([part]) for part in parts]
    assert made.batch(parts).to_pydict() == pa.Table.from_batches(apart).to_pydict()


def test_the_order_and_choice_of_columns_is_the_schemas(source: Source) -> None:
    made = maker("size", "seq", "stream")
    assert not made.needs_frames
    batch = made.batch(parts_of(source, frames=False))
    assert batch.schema.names == ["size", "seq", "stream"]
    assert batch.num_rows == 7


@pytest.mark.parametrize(("name", "needed"), [("payload", True), ("headers", True), (CORRUPT, True), ("epoch", False)])
def test_frames_are_read_only_for_what_needs_them(name: str, needed: bool) -> None:
    assert maker("seq", name).needs_frames == needed


def test_decoded_payloads_and_what_is_corrupt(source: Source) -> None:
    batch = maker("payload", CORRUPT, form="json", payload=pa.int64()).batch(parts_of(source))
    assert batch.to_pydict() == {
        "payload": [0, 1, 2, 3, None, None, None],
        CORRUPT: [None, None, None, None, b"message 0", b"message 1", b"message 2"],
    }
    batch = maker(CORRUPT, "seq", form="utf8").batch(parts_of(source))
    assert batch.to_pydict()[CORRUPT] == [None] * 7


def test_other_widths_and_times_without_zone(source: Source) -> None:
    wide = {"size": pa.int64(), "shard": pa.int64(), "timestamp": pa.timestamp("us")}
    batch = maker("size", "shard", "timestamp", **wide).batch(parts_of(source))
    assert batch.schema.types == list(wide.values())
    assert batch.to_pydict()["size"][-1] == 9


def test_a_shard_that_nobody_knows_is_null(source: Source) -> None:
    parts = [part._replace(ref=part.ref._replace(shard=-1)) for part in parts_of(source)]
    assert maker("shard").batch(parts).to_pydict() == {"shard": [None] * 7}


def test_a_row_for_what_is_wrong(source: Source) -> None:
    made = maker("stream", "seq", "payload", FAULT)
    row = made.fault("b", "it is damaged")
    assert row is not None
    assert row.to_pylist() == [{"stream": "b", "seq": None, "payload": None, FAULT: "it is damaged"}]
    assert made.batch(parts_of(source)).schema == row.schema
    assert maker("stream").fault("b", "it is damaged") is None


@pytest.mark.parametrize(
    ("schema", "form", "text"),
    [
        ([("sequence", pa.int64())], "binary", "unknown column 'sequence'; the columns are stream, shard"),
        ([("seq", pa.int32())], "binary", "the column seq is int64, not int32"),
        ([("timestamp", pa.int64())], "binary", "the column timestamp is timestamp"),
        ([("payload", pa.string())], "binary", "payloads are binary, not string"),
        ([("payload", pa.map_(pa.string(), pa.string()))], "json", "JSON payloads cannot be read"),
        ([(CORRUPT, pa.string())], "json", "the column _corrupt is binary"),
        ([(CORRUPT, pa.binary())], "json", "the column _corrupt needs the column payload"),
    ],
)
def test_a_wrong_schema_is_told(schema: list[tuple[str, pa.DataType]], form: PayloadForm, text: str) -> None:
    with pytest.raises(WrongSchema, match=text):
        BatchMaker(pa.schema(schema), form)


def part_of(nbytes: int) -> Part:
    entries = no_entries(0)._replace(table=no_entries(0).table.repeat(0))
    return Part(StreamRef(0, "s"), Block(entries, memoryview(bytes(nbytes))))


def test_gathering_keeps_the_order_and_both_limits(source: Source) -> None:
    parts = parts_of(source)
    assert list(gather(parts, rows=7)) == [parts]
    assert list(gather(parts, rows=6)) == [[parts[0]], [parts[1]]]
    small = [part_of(10) for _ in range(5)]
    assert [len(each) for each in gather(small, nbytes=20)] == [2, 2, 1]
    assert [len(each) for each in gather([part_of(50), part_of(1)], nbytes=20)] == [1, 1]
    assert list(gather([])) == []
