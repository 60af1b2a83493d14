"""Converts blocks of messages to Arrow record batches, column by column. Only requested columns are built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from tailrace.shard.frame import HEADER_BYTES
from tailrace.spark.entries import Int64s, Table
from tailrace.spark.headers import HEADERS_TYPE, headers_array, keys_array, topics_array
from tailrace.spark.options import TYPED_FORMS, PayloadForm
from tailrace.spark.payloads import CORRUPT, Decoded, UnsupportedType, make_decoder, natural_type
from tailrace.spark.source import Block, StreamRef

BATCH_ROWS: Final = 1 << 15
BATCH_BYTES: Final = 16 << 20
"""Small batches, as of many small streams, are put together up to this."""
METADATA_BYTES_AT: Final = 30
"""Where in a frame the number of bytes of its metadata stands."""

SCHEMA: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("shard", pa.int32()),
        ("seq", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("epoch", pa.int64()),
        ("size", pa.int32()),
        ("headers", HEADERS_TYPE),
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("payload", pa.binary()),
    ]
)
"""A message. The payload's type is another where it is decoded."""
FAULT: Final = "_fault"
"""What could not be read of a stream, in a row of its own; only where the schema has this column."""
FROM_FRAMES: Final = frozenset({"headers", "key", "topic", "payload", CORRUPT})
"""Columns that need the content; for the others the index is enough."""


class WrongSchema(ValueError):
    """The schema asks for a column that is not there, or for another type than it has."""


class Part(NamedTuple):
    """Messages in a row of one stream."""

    ref: StreamRef
    block: Block


class Messages(NamedTuple):
    """Joins several parts, in order. Without frames the last three are empty."""

    parts: Sequence[Part]
    counts: Int64s  # of the messages of each part
    table: Table
    frames: memoryview
    starts: Int64s  # the offset of each message in `frames`
    metadata_bytes: Int64s


class BatchMaker:
    """Record batches of one schema."""

    def __init__(self, schema: pa.Schema, form: PayloadForm, avro_schema: str = "") -> None:
        """`avro_schema`: of payloads in Avro. Raises WrongSchema."""
        check_schema(schema)
        self._schema = schema
        self.needs_frames = not FROM_FRAMES.isdisjoint(schema.names)
        self._decode = None
        if not {"payload", CORRUPT}.isdisjoint(schema.names):
            if "payload" not in schema.names and form in TYPED_FORMS:
                raise WrongSchema(f"the column {CORRUPT} needs the column payload, whose type decides what is corrupt")
            type_ = schema.field("payload").type if "payload" in schema.names else natural_type(form)
            try:
                self._decode = make_decoder(form, type_, avro_schema)
            except UnsupportedType as error:
                raise WrongSchema(str(error)) from None

    def batch(self, parts: Sequence[Part]) -> pa.RecordBatch:
        """Joins parts that all have frames, or all have none."""
        messages = put_together(parts)
        decoded = self._decode(payload_array(messages)) if self._decode else None
        arrays = [_column(messages, decoded, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def fault(self, stream: str, cause: str) -> pa.RecordBatch | None:
        """A row that reports a fault of a stream; None if the schema has no column for it."""
        if FAULT not in self._schema.names:
            return None
        said = {"stream": stream, FAULT: cause}
        arrays = [pa.array([said.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def check_schema(schema: pa.Schema) -> None:
    """Raises WrongSchema. The type of a payload is checked by its decoder."""
    types = {**dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), CORRUPT: pa.binary(), FAULT: pa.string()}
    for field in schema:
        if field.name not in types:
            raise WrongSchema(f"unknown column {field.name!r}; the columns are {', '.join(types)}")
        if field.name != "payload" and not _is_like(field.type, types[field.name]):
            raise WrongSchema(f"the column {field.name} is {types[field.name]}, not {field.type}")


def put_together(parts: Sequence[Part]) -> Messages:
    """One table and one buffer of frames, and the facts about each message in it."""
    tables = [part.block.entries.table for part in parts]
    counts = np.array([len(table) for table in tables], np.int64)
    table = tables[0] if len(tables) == 1 else np.concatenate(tables)
    if parts[0].block.frames is None:
        nothing = np.empty(0, np.int64)
        return Messages(parts, counts, table, memoryview(b""), nothing, nothing)
    pieces = [part.block.frames for part in parts if part.block.frames is not None]
    frames = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    starts = np.cumsum(table["length"], dtype=np.int64) - table["length"]
    raw = np.frombuffer(frames, np.uint8)
    low, high = raw[starts + METADATA_BYTES_AT], raw[starts + METADATA_BYTES_AT + 1]
    return Messages(parts, counts, table, frames, starts, low + high.astype(np.int64) * 256)


def payload_array(messages: Messages) -> pa.Array:
    """The payloads, binary. One array over the frames, in which payloads and what stands before them take turns."""
    n = len(messages.table)
    bounds = np.empty(2 * n + 1, np.int32)
    bounds[0:-1:2] = messages.starts
    bounds[1::2] = messages.starts + HEADER_BYTES + messages.metadata_bytes
    bounds[-1] = len(messages.frames)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(messages.frames)]
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * n, buffers)
    return both.take(pa.array(np.arange(1, 2 * n, 2, dtype=np.int32)))


def gather(parts: Iterable[Part], rows: int = BATCH_ROWS, nbytes: int = BATCH_BYTES) -> Iterator[list[Part]]:
    """Put parts together while they have no more rows and bytes of frames than this in all."""
    held: list[Part] = []
    held_rows = held_bytes = 0
    for part in parts:
        part_rows, part_bytes = part.block.entries.messages, len(part.block.frames or b"")
        if held and (held_rows + part_rows > rows or held_bytes + part_bytes > nbytes):
            yield held
            held, held_rows, held_bytes = [], 0, 0
        held.append(part)
        held_rows += part_rows
        held_bytes += part_bytes
    if held:
        yield held


def _is_like(type_: pa.DataType, natural: pa.DataType) -> bool:
    """Whether a column can be had as this type too: whole numbers of any width that fits, times without a zone."""
    if pt.is_integer(natural):
        return bool(pt.is_integer(type_) and type_.bit_width >= natural.bit_width)
    if pt.is_timestamp(natural):
        return bool(pt.is_timestamp(type_) and type_.unit == natural.unit)
    return bool(type_.equals(natural))


def _column(messages: Messages, decoded: Decoded | None, field: pa.Field) -> pa.Array:
    if decoded is not None and field.name == "payload":
        found = decoded.values
    elif decoded is not None and field.name == CORRUPT:
        found = decoded.corrupt
    else:
        found = _MAKERS[field.name](messages)
    return found if found.type.equals(field.type) else found.cast(field.type)


def _stream(messages: Messages) -> pa.Array:
    if len(messages.parts) > 1:
        names = pa.array([part.ref.stream for part in messages.parts], pa.string())
        return names.take(pa.array(_repeated(messages, np.arange(len(messages.parts)))))
    name, n = messages.parts[0].ref.stream.encode(), len(messages.table)
    offsets = np.arange(n + 1, dtype=np.int32) * len(name)
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(name * n))


def _shard(messages: Messages) -> pa.Array:
    shards = _repeated(messages, np.array([part.ref.shard for part in messages.parts], np.int32))
    return pa.array(shards, mask=shards < 0)  # below 0: unknown


def _seq(messages: Messages) -> pa.Array:
    # Each part counts on from its first seq, wherever in the batch it stands.
    first_seqs = np.array([part.block.entries.first_seq for part in messages.parts], np.int64)
    first_places = np.cumsum(messages.counts) - messages.counts
    return pa.array(np.arange(len(messages.table), dtype=np.int64) + _repeated(messages, first_seqs - first_places))


def _repeated(messages: Messages, values: NDArray[Any]) -> NDArray[Any]:
    """A value for each part, as one for each message."""
    return np.repeat(values, messages.counts)


def _timestamp(messages: Messages) -> pa.Array:
    return pa.array(messages.table["timestamp_us"].astype(np.int64)).view(SCHEMA.field("timestamp").type)


def _epoch(messages: Messages) -> pa.Array:
    return pa.array(messages.table["epoch"].astype(np.int64))


def _size(messages: Messages) -> pa.Array:
    return pa.array(messages.table["length"].astype(np.int32) - HEADER_BYTES)


def _headers(messages: Messages) -> pa.Array:
    return headers_array(messages.frames, messages.starts + HEADER_BYTES, messages.metadata_bytes)


def _key(messages: Messages) -> pa.Array:
    return keys_array(messages.frames, messages.starts + HEADER_BYTES, messages.metadata_bytes)


def _topic(messages: Messages) -> pa.Array:
    starts = messages.starts + HEADER_BYTES
    return topics_array(messages.frames, starts, messages.metadata_bytes, _stream(messages))


def _no_fault(messages: Messages) -> pa.Array:
    return pa.nulls(len(messages.table), pa.string())


_MAKERS: Final[dict[str, Callable[[Messages], pa.Array]]] = {
    "stream": _stream,
    "shard": _shard,
    "seq": _seq,
    "timestamp": _timestamp,
    "epoch": _epoch,
    "size": _size,
    "headers": _headers,
    "key": _key,
    "topic": _topic,
    FAULT: _no_fault,
}
