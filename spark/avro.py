"""Payloads in Avro, written with one schema that is kept in a file: their types, and their decoding.

Needs fastavro, the extra `avro`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from struct import error as StructError
from typing import Any, Final

SCHEMA_BYTES_MAX: Final = 1_000_000
UNDECODABLE: Final = (EOFError, IndexError, KeyError, AttributeError, AssertionError, StructError, MemoryError)
"""What fastavro raises for bytes that are not of the schema, beside ValueError and others."""
_PLAIN: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL: Final = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
"""Others, but decimals, are read as the numbers, texts and bytes that they stand on."""


class InvalidAvroSchema(ValueError):
    """The schema cannot be used; the text says why."""


def read_schema(path: str) -> str:
    """The text of a schema file, checked. Raises InvalidAvroSchema."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(SCHEMA_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidAvroSchema(f"{path}: {error}") from None
    if len(text) > SCHEMA_BYTES_MAX:
        raise InvalidAvroSchema(f"{path}: longer than {SCHEMA_BYTES_MAX:,} characters")
    try:
        to_ddl(text)
    except InvalidAvroSchema as error:
        raise InvalidAvroSchema(f"{path}: {error}") from None
    return text


def to_ddl(text: str) -> str:
    """The type of Spark for the values of a schema. Raises InvalidAvroSchema."""
    return _type(_parsed(text), {})


def make_unpack(text: str) -> Callable[[bytes], Any]:
    """Decodes one payload. Raises UNDECODABLE and ValueError for one that is not of the schema."""
    from fastavro import schemaless_reader

    schema = _parsed(text)

    def unpack(payload: bytes) -> Any:
        stream = BytesIO(payload)
        value = schemaless_reader(stream, schema, None)
        if stream.tell() != len(payload):
            raise ValueError("bytes behind the value")
        return value

    return unpack


def _parsed(text: str) -> Any:
    """As fastavro wants it, without logical types that tables do not have."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException
    except ImportError:
        raise InvalidAvroSchema("payloads in Avro need fastavro: pip install 'tailrace[avro]'") from None
    try:
        return parse_schema(_without_foreign(json.loads(text)))
    except (SchemaParseException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidAvroSchema(f"not a schema of Avro: {error}") from None


def _without_foreign(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_foreign(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_foreign = schema.get("logicalType") not in (*_LOGICAL, "decimal")
    kept = {name: value for name, value in schema.items() if not (name == "logicalType" and is_foreign)}
    for name in ("type", "items", "values", "fields"):
        if name in kept:
            kept[name] = _without_foreign(kept[name])
    return kept


def _type(schema: Any, named: dict[str, Any], above: tuple[str, ...] = ()) -> str:
    """`named`: the types with names so far; `above`: those that this is a part of."""
    if isinstance(schema, list):
        return _type(_only(schema), named, above)
    if isinstance(schema, str):
        if schema in named:
            return _type(named[schema], named, above)
        return _type({"type": schema}, named, above)
    kind, name = schema["type"], schema.get("name", "")
    if name:
        named[name] = schema
    if name in above and name:
        raise InvalidAvroSchema(f"{name} is a part of itself, which no column can be")
    if schema.get("logicalType") == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if kind in _PLAIN:
        return _PLAIN[kind]
    return _nested(kind, schema, named, (*above, name))


def _nested(kind: Any, schema: Any, named: dict[str, Any], above: tuple[str, ...]) -> str:
    match kind:
        case "record":
            fields = schema["fields"]
            if not fields:
                raise InvalidAvroSchema(f"the record {schema.get('name')} has no fields")
            return f"struct<{_fields(fields, named, above)}>"
        case "array":
            return f"array<{_type(schema['items'], named, above)}>"
        case "map":
            return f"map<string, {_type(schema['values'], named, above)}>"
        case dict() | list():
            return _type(kind, named, above)
    raise InvalidAvroSchema(f"{kind!r} cannot be a column")


def _fields(fields: Iterable[Any], named: dict[str, Any], above: tuple[str, ...]) -> str:
    return ", ".join(f"`{each['name']}`: {_type(each['type'], named, above)}" for each in fields)


def _only(union: list[Any]) -> Any:
    """The type beside null. Raises InvalidAvroSchema."""
    left = [each for each in union if each != "null"]
    if len(left) != 1:
        raise InvalidAvroSchema(f"a union of {len(left)} types cannot be a column, only one with null")
    return left[0]
