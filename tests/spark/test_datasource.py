"""Through Spark itself. Everything that needs no JVM is tested elsewhere."""

from __future__ import annotations

import json
import pkgutil
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

import pyspark_tailrace
from bench.load.live import Seen, follow
from bench.load.spark_data import make_data, stream_name
from bench.load.spark_server import FILES, PARQUET, Context
from tailrace.core.headers import pack_headers
from tailrace.shard.directory import DataDirectory, open_data_dir
from tailrace.spark.batch import TailraceReader
from tailrace.spark.datasource import TailraceDataSource, ddl
from tailrace.spark.options import InvalidOption, parse_options
from tests.spark.data import START_US, Sent, add_stream, append, make_directory, open_log, plain, rows_of, trim

HOUR_US = 3_600_000_000


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    readings = [b'{"device":"x","celsius":%d}' % i if i != 3 else b"?" for i in range(6)]
    odd = [Sent(START_US + i * HOUR_US, reading, pack_headers({"n": str(i)})) for i, reading in enumerate(readings)]
    return make_directory(tmp_path / "data", {"a": plain(10), "readings/ü": odd, "empty": []})


def load(session: Any, data: DataDirectory, **options: str) -> Any:
    return session.read.format("tailrace").options(**options).load(str(data.path))


def test_columns_follow_the_payload() -> None:
    assert ddl(parse_options({"path": "/d"})).endswith(
        "headers map<string, binary>, key binary, topic string, payload binary"
    )
    assert ddl(parse_options({"path": "/d", "payload": "utf8"})).endswith("payload string, _corrupt binary")
    said = {"path": "/d", "payload": "json", "payloadSchema": "a int"}
    assert ddl(parse_options(said)).endswith("payload struct<a int>, _corrupt binary")


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_payload_without_a_schema_is_refused(form: str) -> None:
    """Every object would be corrupt."""
    with pytest.raises(InvalidOption, match="needs the option payloadSchema"):
        ddl(parse_options({"path": "/d", "payload": form}))


@pytest.mark.parametrize("method", ["schema", "reader", "streamReader"])
def test_a_url_is_refused(method: str) -> None:
    source = TailraceDataSource({"path": "s3a://bucket/data"})
    with pytest.raises(InvalidOption, match="'s3a://bucket/data' is a URL; only `tailrace rollup` reads those"):
        getattr(source, method)(*([] if method == "schema" else [StructType()]))


def test_nothing_is_pushed_down() -> None:
    """Its relation would keep filters: test_pushdown.py. Once Spark passes the columns of a query, take them."""
    assert TailraceReader.pushFilters is DataSourceReader.pushFilters
    assert not hasattr(DataSourceReader, "pruneColumns")


@pytest.mark.slow
def test_every_column(session: Any, data: DataDirectory) -> None:
    trim(data.path, "a", 4)
    rows = load(session, data).orderBy("stream", "seq").collect()
    assert [(row.stream, row.seq, row.epoch, row["size"], bytes(row.payload)) for row in rows] == [
        (row.stream, row.seq, row.epoch, row.size, row.payload)
        for name in ("a", "readings/ü")
        for row in rows_of(data, name)
    ]
    assert [int(row.timestamp.timestamp()) for row in rows[-2:]] == [START_US // 1_000_000 + i * 3_600 for i in (4, 5)]
    assert [bytes(row.headers["n"]) for row in rows[-2:]] == [b"4", b"5"]
    assert {row.shard for row in rows} == {data.shard_of("a"), data.shard_of("readings/ü")}


@pytest.mark.slow
def test_options_and_schema_prune(session: Any, data: DataDirectory) -> None:
    found = load(session, data, streams="read*", **{"from": str(START_US + HOUR_US), "to": str(START_US + 3 * HOUR_US)})
    assert [row.seq for row in found.collect()] == [1, 2]
    reader = session.read.format("tailrace").schema("seq bigint, size bigint")
    assert reader.load(str(data.path)).groupBy().sum("size").collect()[0][0] == sum(
        row.size for name in ("a", "readings/ü") for row in rows_of(data, name)
    )


@pytest.mark.slow
def test_messages_of_some_topics(session: Any, tmp_path: Path) -> None:
    sent = [Sent(START_US + i, b"%d" % i, pack_headers({}, topic=f"s/{i % 3}/temp")) for i in range(30)]
    made = make_directory(tmp_path / "data", {"s": sent, "other": plain(3)})
    counts = load(session, made, topics="s/+/temp").where("topic <> 's/0/temp'").groupBy("topic").count()
    assert sorted(map(tuple, counts.collect())) == [("s/1/temp", 10), ("s/2/temp", 10)]


@pytest.mark.thorough
@pytest.mark.slow
def test_payloads_in_plain_sql(session: Any, data: DataDirectory) -> None:
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW readings USING tailrace OPTIONS "
        f"(path '{data.path}', streams 'read*', payload 'json', payloadSchema 'device string, celsius double')"
    )
    rows = session.sql("SELECT payload.device, avg(payload.celsius) FROM readings WHERE _corrupt IS NULL GROUP BY 1")
    assert rows.collect() == [("x", pytest.approx(12 / 5))]
    corrupt = session.sql("SELECT seq, _corrupt FROM readings WHERE _corrupt IS NOT NULL").collect()
    assert [(row.seq, bytes(row[1])) for row in corrupt] == [(3, b"?")]


@pytest.mark.slow
def test_payloads_in_avro(session: Any, tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro", reason="needs the extra `avro` (pip install -e '.[avro]')")
    fields = [{"name": "device", "type": "string"}, {"name": "order", "type": ["null", "long"]}]
    schema = {"type": "record", "name": "Reading", "fields": fields}
    (tmp_path / "reading.avsc").write_text(json.dumps(schema))
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, {"device": "x", "order": 7})
    messages = [Sent(START_US, stream.getvalue(), pack_headers(None, "k")), Sent(START_US, b"?")]
    data = make_directory(tmp_path / "avro", {"a": messages})
    table = load(session, data, payload="avro", payloadSchemaFile=str(tmp_path / "reading.avsc"))
    rows = table.selectExpr("string(key)", "payload.device", "payload.`order`", "string(_corrupt)").collect()
    assert [tuple(row) for row in rows] == [("k", "x", 7, None), (None, None, None, "?")]


@pytest.mark.slow
def test_the_payloads_type_may_be_said_by_the_schema(session: Any, data: DataDirectory) -> None:
    reader = session.read.format("tailrace").option("payload", "json").option("streams", "read*")
    rows = reader.schema("seq bigint, payload struct<celsius: int>").load(str(data.path)).collect()
    assert [row.payload.celsius if row.payload else None for row in rows] == [0, 1, 2, None, 4, 5]


@pytest.mark.slow
def test_a_bad_stream_fails_the_query_with_its_name(session: Any, data: DataDirectory) -> None:
    index = next(data.path.glob("shard-*/a.indx"))
    index.write_bytes(index.read_bytes()[: 4_096 + 24 * 5] + bytes(24 * 5))
    with pytest.raises(Exception, match="stream 'a' is damaged"):
        load(session, data).count()
    reader = session.read.format("tailrace").option("badStreams", "skip")
    rows = reader.schema("stream string, seq bigint, _fault string").load(str(data.path)).collect()
    assert len(rows) == 7
    assert [row.stream for row in rows if row._fault] == ["a"]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_questions_of_the_benchmark(session: Any, tmp_path: Path) -> None:
    make_data(tmp_path / "data", 2, 960, 10)
    context = Context(session, tmp_path / "data", tmp_path, 2, 960)
    for question in (*FILES.values(), *PARQUET.values()):
        question(context)
    assert context.table().count() == context.exported().count() == 960
    for question in (FILES["hour"], PARQUET["hour"]):
        found: Any = question(context)
        assert sorted(found) == [(stream_name(number), 20) for number in range(2)]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_live_query_of_the_benchmark(session: Any, data: DataDirectory, tmp_path: Path) -> None:
    seen = Seen()
    query = follow(session, str(data.path), str(tmp_path / "checkpoint"), seen)
    try:
        query.processAllAvailable()
        assert dict(seen.ends) == {row[0]: row[1] for row in load(session, data).groupBy("stream").count().collect()}
        assert [each.numInputRows for each in query.recentProgress][:1] == [seen.ends.total()]
        assert query.lastProgress.durationMs["triggerExecution"] >= 0
    finally:
        query.stop()


def run_live(session: Any, data: DataDirectory, checkpoint: Path, seen: list[tuple[str, int]], **options: str) -> None:
    """All there is now, in batches, from the checkpoint on."""

    def take(batch: Any, _number: int) -> None:
        seen.extend((row.stream, row.seq) for row in batch.collect())

    stream = session.readStream.format("tailrace").options(**options).schema("stream string, seq bigint")
    query = stream.load(str(data.path)).writeStream.foreachBatch(take)
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


@pytest.mark.thorough
@pytest.mark.slow
def test_live_across_restarts(session: Any, data: DataDirectory, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    run_live(session, data, tmp_path / "checkpoint", seen, maxRowsPerBatch="7")
    assert len(seen) == 16
    data = open_data_dir(data.path)
    log = open_log(data, "a")
    append(log, plain(5, START_US + HOUR_US))
    log.close()
    add_stream(data, "later", plain(3))
    run_live(session, data, tmp_path / "checkpoint", seen, maxRowsPerBatch="7")
    wanted = {"a": 15, "readings/ü": 6, "later": 3}
    assert sorted(seen) == sorted((name, seq) for name, count in wanted.items() for seq in range(count))


def test_spark_finds_it_by_itself() -> None:
    """As it looks for sources: modules called pyspark_* on the path, with a DefaultSource."""
    assert "pyspark_tailrace" in {module.name for module in pkgutil.iter_modules()}
    assert pyspark_tailrace.DefaultSource.name() == "tailrace"
