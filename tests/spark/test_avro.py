"""Payloads in Avro: the types of their schemas, and the payloads that are set apart."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace.spark.avro import InvalidAvroSchema, read_schema, to_ddl
from tailrace.spark.options import InvalidOption, parse_options
from tailrace.spark.payloads import make_decoder
from tests.spark.data import START_US, Sent, make_directory
from tests.spark.test_batch import read, reader_of

fastavro = pytest.importorskip("fastavro", reason="needs the extra `avro` (pip install -e '.[avro]')")

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["on", "off"]}},
        {"name": "before", "type": ["State", "null"]},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}
TEXT = json.dumps(SCHEMA)
DDL = (
    "struct<`device`: string, `celsius`: double, `at`: timestamp, `price`: decimal(9,2), `state`: string, "
    "`before`: string, `id`: string, `tags`: array<string>, `counts`: map<string, int>>"
)
TYPE = pa.struct(
    [
        ("device", pa.string()),
        ("celsius", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
        *((name, pa.string()) for name in ("state", "before", "id")),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
    ]
)
VALUE = {
    "device": "a",
    "celsius": None,
    "at": datetime(2026, 11, 20, tzinfo=UTC),
    "price": Decimal("12.50"),
    "state": "on",
    "before": "off",
    "id": "not looked at",
    "tags": ["x", "y"],
    "counts": {"n": 3},
}


def pack(value: Any, schema: Any = SCHEMA) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, json.loads(json.dumps(schema).replace(', "logicalType": "uuid"', "")), value)
    return stream.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "reading.avsc"
    path.write_text(TEXT)
    return str(path)


def test_the_type_of_a_schema() -> None:
    assert to_ddl(TEXT) == DDL
    assert to_ddl('"string"') == "string"


def test_a_query_of_payloads_in_avro(tmp_path: Path, file: str) -> None:
    """The schema goes with the query: the file is not needed any more."""
    from tailrace.spark.datasource import TailraceDataSource

    payloads = [pack(VALUE), b"\xff", pack(VALUE) + b"\0", pack({**VALUE, "celsius": 1.5})]
    messages = [Sent(START_US + place, payload) for place, payload in enumerate(payloads)]
    data = make_directory(tmp_path / "data", {"a": messages})
    options = {"payload": "avro", "payloadSchemaFile": file}
    schema = TailraceDataSource({"path": str(data.path), **options}).schema()
    assert schema.endswith(f"payload {DDL}, _corrupt binary")
    types = from_arrow_schema(pa.schema([("payload", TYPE), ("_corrupt", pa.binary())]))
    reader = reader_of(str(data.path), types, **options)
    Path(file).unlink()
    rows = read(reader)
    wanted = {**VALUE, "counts": [("n", 3)]}
    assert [row["payload"] for row in rows] == [wanted, None, None, {**wanted, "celsius": 1.5}]
    assert [row["_corrupt"] for row in rows] == [None, *payloads[1:3], None]


@given(st.lists(st.one_of(st.binary(max_size=40), st.just(pack(VALUE))), max_size=6))
def test_any_bytes_are_decoded_or_set_apart(payloads: list[bytes]) -> None:
    decode = make_decoder("avro", TYPE, TEXT)
    found = decode(pa.array(payloads, pa.binary()))
    for payload, value, corrupt in zip(payloads, found.values.to_pylist(), found.corrupt.to_pylist(), strict=True):
        assert (value is None) == (corrupt == payload)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "not a schema of Avro"),
        ('{"type": "record"}', "not a schema of Avro"),
        ('["int", "string"]', "a union of 2 types"),
        ('{"type": "array", "items": "null"}', "'null' cannot be a column"),
        ('{"type": "record", "name": "R", "fields": []}', "has no fields"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}', "a part of itself"),
    ],
)
def test_schemas_that_cannot_be(tmp_path: Path, schema: str, text: str) -> None:
    path = tmp_path / "x.avsc"
    path.write_text(schema)
    with pytest.raises(InvalidAvroSchema, match=text):
        read_schema(str(path))
    with pytest.raises(InvalidOption, match="payloadSchemaFile"):
        parse_options({"path": "/d", "payload": "avro", "payloadSchemaFile": str(path)})


def test_options_that_do_not_go_together(file: str) -> None:
    for options in ({"payload": "avro"}, {"payloadSchemaFile": file}, {"payload": "json", "payloadSchemaFile": file}):
        with pytest.raises(InvalidOption, match="goes with the option payload"):
            parse_options({"path": "/d", **options})
    with pytest.raises(InvalidOption, match="No such file"):
        parse_options({"path": "/d", "payload": "avro", "payloadSchemaFile": f"{file}.gone"})
