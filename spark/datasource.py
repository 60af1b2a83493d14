"""`format("tailrace")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

There is no `pushFilters` here, and there must be none with Spark 4.3.0: filters that were pushed stay with the
relation, which all queries of a DataFrame or view share, so the second one silently gets the rows of the first. Streams
and times are chosen by options, columns by the schema. tests/spark/test_pushdown.py checks that.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tailrace.spark.avro import to_ddl
from tailrace.spark.options import TYPED_FORMS, InvalidOption, Options, parse_options
from tailrace.spark.payloads import CORRUPT
from tailrace.spark.workers import settle

NAME = "tailrace"
COLUMNS = (
    "stream string, shard int, seq bigint, timestamp timestamp, epoch bigint, size int, headers map<string, binary>, "
    "key binary, topic string"
)


def ddl(options: Options) -> str:
    """The columns that there are when none are asked for. Raises InvalidOption."""
    if options.payload == "binary":
        return f"{COLUMNS}, payload binary"
    if options.avro_schema:
        payload = to_ddl(options.avro_schema)
    elif options.payload_schema:
        payload = f"struct<{options.payload_schema}>"
    elif options.payload in TYPED_FORMS:
        raise InvalidOption(f"payload {options.payload!r} needs the option payloadSchema, or a schema with a payload")
    else:
        payload = "string"
    return f"{COLUMNS}, payload {payload}, {CORRUPT} binary"


def _parse(said: Mapping[str, str]) -> Options:
    """The options of a reader. Raises InvalidOption."""
    options = parse_options(said)
    path = options.source.path
    if "://" in path:
        raise InvalidOption(f"{path!r} is a URL; only `tailrace rollup` reads those: give a folder of this machine")
    return options


class TailraceDataSource(DataSource):
    """docs/spark.md lists the options and columns."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ddl(_parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from tailrace.spark.batch import TailraceReader

        return TailraceReader(_parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tailrace.spark.live import TailraceStreamReader

        return TailraceStreamReader(_parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tailrace.spark.sink_options import parse_sink_options
        from tailrace.spark.writer import TailraceWriter

        return TailraceWriter(parse_sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tailrace.spark.sink_options import parse_sink_options
        from tailrace.spark.writer import TailraceStreamWriter

        return TailraceStreamWriter(parse_sink_options(self.options), schema, overwrite)


settle()
