"""From blocks of messages to Arrow record batches, column by column. What is not asked for is not touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shard.frame import HEADER_BYTES
from spark.entries import Entries, Int64s
from spark.frames import frame_starts
from spark.headers import HEADERS_TYPE, headers_array
from spark.options import PayloadForm
from spark.payloads import CORRUPT, Decoded, UnsupportedType, make_decoder, natural_type
from spark.source import Block, StreamRef

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
        ("payload", pa.binary()),
    ]
)
"""A message. The payload's type is another where it is decoded."""
FAULT: Final = "_fault"
"""What could not be read of a stream, in a row of its own; only where the schema has this column."""
FROM_FRAMES: Final = frozenset({"headers", "payload", CORRUPT})
"""Columns that need the content; for the others the index is enough."""


class WrongSchema(ValueError):
    """The schema asks for a column that is not there, or for another type than it has."""


class Messages(NamedTuple):
    """Of one stream. Without frames the last three are empty."""

    ref: StreamRef
    entries: Entries
    frames: memoryview
    starts: Int64s  # of the frames, in bytes
    metadata_bytes: Int64s


class BatchMaker:
    """Record batches of one schema."""

    def __init__(self, schema: pa.Schema, form: PayloadForm) -> None:
        """Raises WrongSchema."""
        check_schema(schema)
        self._schema = schema
        self.needs_frames = not FROM_FRAMES.isdisjoint(schema.names)
        self._decode = None
        if not {"payload", CORRUPT}.isdisjoint(schema.names):
            type_ = schema.field("payload").type if "payload" in schema.names else natural_type(form)
            try:
                self._decode = make_decoder(form, type_)
            except UnsupportedType as error:
                raise WrongSchema(str(error)) from None

    def batch(self, ref: StreamRef, block: Block) -> pa.RecordBatch:
        messages = part(ref, block)
        decoded = self._decode(payload_array(messages)) if self._decode else None
        arrays = [_column(messages, decoded, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def fault(self, ref: StreamRef, cause: str) -> pa.RecordBatch | None:
        """A row that tells what is wrong with a stream; None where the schema has no place for it."""
        if FAULT not in self._schema.names:
            return None
        said = {"stream": ref.stream, "shard": ref.shard, FAULT: cause}
        arrays = [pa.array([said.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def check_schema(schema: pa.Schema) -> None:
    """Raises WrongSchema. What a payload may be is for its decoder to say."""
    types = {**dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), CORRUPT: pa.binary(), FAULT: pa.string()}
    for field in schema:
        if field.name not in types:
            raise WrongSchema(f"there is no column {field.name!r}; there are {', '.join(types)}")
        if field.name != "payload" and not _is_like(field.type, types[field.name]):
            raise WrongSchema(f"the column {field.name} is {types[field.name]}, not {field.type}")


def part(ref: StreamRef, block: Block) -> Messages:
    """Find what there is in the frames."""
    if block.frames is None:
        nothing = np.empty(0, np.int64)
        return Messages(ref, block.entries, memoryview(b""), nothing, nothing)
    starts = frame_starts(block.entries)
    raw = np.frombuffer(block.frames, np.uint8)
    low, high = raw[starts + METADATA_BYTES_AT], raw[starts + METADATA_BYTES_AT + 1]
    return Messages(ref, block.entries, block.frames, starts, low + high.astype(np.int64) * 256)


def payload_array(messages: Messages) -> pa.Array:
    """The payloads, binary. One array over the frames, in which payloads and what stands before them take turns."""
    n = messages.entries.messages
    bounds = np.empty(2 * n + 1, np.int32)
    bounds[0:-1:2] = messages.starts
    bounds[1::2] = messages.starts + HEADER_BYTES + messages.metadata_bytes
    bounds[-1] = messages.entries.nbytes
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(messages.frames)]
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * n, buffers)
    return both.take(pa.array(np.arange(1, 2 * n, 2, dtype=np.int32)))


def coalesce(
    batches: Iterable[pa.RecordBatch], rows: int = BATCH_ROWS, nbytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """Put batches together while they have fewer rows and bytes than this in all."""
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        if held and (held_rows + batch.num_rows > rows or held_bytes + batch.nbytes > nbytes):
            yield _joined(held)
            held, held_rows, held_bytes = [], 0, 0
        held.append(batch)
        held_rows += batch.num_rows
        held_bytes += batch.nbytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


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
    name = messages.ref.stream.encode()
    n = messages.entries.messages
    offsets = np.arange(n + 1, dtype=np.int32) * len(name)
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(name * n))


def _shard(messages: Messages) -> pa.Array:
    if messages.ref.shard < 0:  # nobody says it
        return pa.nulls(messages.entries.messages, pa.int32())
    return pa.array(np.full(messages.entries.messages, messages.ref.shard, np.int32))


def _seq(messages: Messages) -> pa.Array:
    return pa.array(messages.entries.seq)


def _timestamp(messages: Messages) -> pa.Array:
    return pa.array(messages.entries.timestamp_us).view(SCHEMA.field("timestamp").type)


def _epoch(messages: Messages) -> pa.Array:
    return pa.array(messages.entries.table["epoch"].astype(np.int64))


def _size(messages: Messages) -> pa.Array:
    return pa.array(messages.entries.table["length"].astype(np.int32) - HEADER_BYTES)


def _headers(messages: Messages) -> pa.Array:
    return headers_array(messages.frames, messages.starts + HEADER_BYTES, messages.metadata_bytes)


def _no_fault(messages: Messages) -> pa.Array:
    return pa.nulls(messages.entries.messages, pa.string())


_MAKERS: Final[dict[str, Callable[[Messages], pa.Array]]] = {
    "stream": _stream,
    "shard": _shard,
    "seq": _seq,
    "timestamp": _timestamp,
    "epoch": _epoch,
    "size": _size,
    "headers": _headers,
    FAULT: _no_fault,
}
