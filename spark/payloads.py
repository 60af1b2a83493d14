"""Decodes payloads as a whole column: texts, JSON, msgpack, Avro. Invalid payloads are set apart, and stop no query.

Each form is tried on a whole batch at once. If that fails the batch is halved until the bad ones stand alone, so a few
bad ones among many cost a few small decodings more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tailrace.spark import avro
from tailrace.spark.options import PayloadForm

CORRUPT: Final = "_corrupt"
"""The column of payloads that could not be decoded: their bytes, null where all is well."""

_UNDECODABLE = (
    pa.ArrowException,
    msgpack.UnpackException,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    *avro.UNDECODABLE,
)


class Decoded(NamedTuple):
    """`values` have the requested type; a row is null in either if it is not in the other, or if the payload is
    null."""

    values: pa.Array
    corrupt: pa.Array


Attempt: TypeAlias = Callable[[pa.Array], pa.Array]
Decoder: TypeAlias = Callable[[pa.Array], Decoded]


class UnsupportedType(ValueError):
    """Payloads of this form have no such type."""


def make_decoder(form: PayloadForm, type_: pa.DataType, avro_schema: str = "") -> Decoder:
    """Decodes a column of binary payloads to this type. Raises UnsupportedType."""
    attempt = _avro(type_, avro_schema) if form == "avro" else _ATTEMPTS[form](type_)
    return lambda payloads: _decode(payloads, attempt, type_)


def natural_type(form: PayloadForm) -> pa.DataType:
    """The type of payloads if the schema does not name one."""
    return pa.binary() if form == "binary" else pa.string()


def _decode(payloads: pa.Array, attempt: Attempt, type_: pa.DataType) -> Decoded:
    bad: list[int] = []
    pieces = _decode_part(payloads, attempt, type_, 0, bad)
    values = pa.concat_arrays(pieces) if len(pieces) != 1 else pieces[0]
    if not bad:
        return Decoded(values, pa.nulls(len(payloads), pa.binary()))
    right = np.ones(len(payloads), bool)
    right[bad] = False
    return Decoded(values, pc.if_else(pa.array(right), pa.scalar(None, pa.binary()), payloads))


def _decode_part(
    payloads: pa.Array, attempt: Attempt, type_: pa.DataType, start: int, bad: list[int]
) -> list[pa.Array]:
    """The values in pieces; the places of bad ones, counted from `start`, are added to `bad`."""
    if not len(payloads):
        return [pa.nulls(0, type_)]
    try:
        return [attempt(payloads)]
    except _UNDECODABLE:
        if len(payloads) == 1:
            bad.append(start)
            return [pa.nulls(1, type_)]
    half = len(payloads) // 2
    first = _decode_part(payloads[:half], attempt, type_, start, bad)
    return first + _decode_part(payloads[half:], attempt, type_, start + half, bad)


def _binary(type_: pa.DataType) -> Attempt:
    if type_ != pa.binary():
        raise UnsupportedType(f'payloads are binary, not {type_}, unless option("payload") chooses a decoder')
    return lambda payloads: payloads


def _utf8(type_: pa.DataType) -> Attempt:
    if type_ != pa.string():
        raise UnsupportedType(f"payloads that are utf8 are a string, not {type_}")
    return lambda payloads: payloads.cast(pa.string())


def _json(type_: pa.DataType) -> Attempt:
    """Every payload becomes a line `{"p":PAYLOAD,"i":ROW}`: the row numbers show that none has moved."""
    schema = pa.schema([("p", type_), ("i", pa.int64())])
    parsing = pj.ParseOptions(explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore")

    def attempt(payloads: pa.Array) -> pa.Array:
        rows = np.arange(len(payloads))
        lines = pc.binary_join_element_wise(_OPENING, payloads, _row_texts(rows), _NOTHING)
        start, end = np.frombuffer(lines.buffers()[1], np.int32)[[lines.offset, lines.offset + len(lines)]]
        document = lines.buffers()[2].slice(int(start), int(end - start))
        reading = pj.ReadOptions(use_threads=False, block_size=max(document.size, 1))
        table = pj.read_json(pa.BufferReader(document), read_options=reading, parse_options=parsing)
        if not np.array_equal(table["i"].to_numpy(), rows):
            raise ValueError("the payloads are not one JSON value each")
        values = table["p"].combine_chunks()
        values.validate(full=True)  # that texts are UTF-8 is not looked at before
        return values

    try:
        attempt(pa.array([b"null"]))
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedType(f"JSON payloads cannot be read as {type_}: {error}") from None
    return attempt


def _row_texts(rows: Any) -> pa.Array:
    numbers = pa.array(rows).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(_BEFORE_ROW, numbers, _CLOSING, _NOTHING)


_OPENING: Final = pa.scalar(b'{"p":')
_BEFORE_ROW: Final = pa.scalar(b',"i":')
_CLOSING: Final = pa.scalar(b"}\n")
_NOTHING: Final = pa.scalar(b"")


def _msgpack(type_: pa.DataType) -> Attempt:
    """Texts are read as texts, timestamps as times; keys that the type does not know are passed over."""
    unpack = msgpack.unpackb

    def attempt(payloads: pa.Array) -> pa.Array:
        values = [unpack(each, timestamp=3, strict_map_key=False) for each in payloads.to_pylist()]
        return pa.array(values, type_)

    try:
        attempt(pa.array([msgpack.packb(None)]))
    except (pa.ArrowNotImplementedError, TypeError) as error:
        raise UnsupportedType(f"msgpack payloads cannot be read as {type_}: {error}") from None
    return attempt


def _avro(type_: pa.DataType, schema: str) -> Attempt:
    """Fields that the type does not name are passed over."""
    if not schema:
        raise UnsupportedType("payloads in Avro need the option payloadSchemaFile")
    unpack = avro.make_unpack(schema)
    return lambda payloads: pa.array([unpack(each) for each in payloads.to_pylist()], type_)


_ATTEMPTS: Final[dict[PayloadForm, Callable[[pa.DataType], Attempt]]] = {
    "binary": _binary,
    "utf8": _utf8,
    "json": _json,
    "msgpack": _msgpack,
}
