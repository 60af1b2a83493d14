"""The options of the data source: names, meanings, and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar, cast

from tailrace.core.address import parse_addresses
from tailrace.errors import InvalidArgument
from tailrace.protocol.topics import filter_fault
from tailrace.spark.avro import read_schema
from tailrace.spark.broker_connection import BrokerLogin, find_login
from tailrace.spark.patterns import split_patterns
from tailrace.spark.places import EVERYTHING, Place, Range, parse_place
from tailrace.spark.source import SourceOptions

T = TypeVar("T")
PayloadForm: TypeAlias = Literal["binary", "utf8", "json", "msgpack", "avro"]

FORMS: Final = ("binary", "utf8", "json", "msgpack", "avro")
TYPED_FORMS: Final = ("json", "msgpack", "avro")
"""What can be decoded depends on the type that is asked for."""
ROWS_MAX: Final = 1 << 40


class InvalidOption(ValueError):
    """An invalid option; the text names it, and the remedy."""


@dataclass(frozen=True, slots=True)
class Options:
    """All of them, checked. `topics`: a valid filter, or empty for all. `avro_schema`: the text of the schema, if
    payloads are in Avro. `max_rows_per_batch`, `fail_on_data_loss` and `checkpoint` are for live queries.
    """

    source: SourceOptions
    streams: tuple[str, ...] = ()
    topics: bytes = b""
    range: Range = EVERYTHING
    from_new: bool = False
    skip_bad: bool = False
    payload: PayloadForm = "binary"
    payload_schema: str = ""
    avro_schema: str = ""
    rows_per_task: int | None = None
    max_rows_per_batch: int | None = None
    fail_on_data_loss: bool = True
    checkpoint: str = ""


def parse_options(said: Mapping[str, str]) -> Options:
    """Parses the names and texts that Spark passes; case of names is ignored. InvalidOption."""
    found = {name.lower(): value for name, value in said.items()}
    unknown = [name for name in said if name.lower() not in _KNOWN]
    if unknown:
        raise InvalidOption(f"unknown option {unknown[0]!r}; the options are {', '.join(KNOWN)}")
    start = found.get("from", "")
    options = Options(
        source=_source(found),
        streams=split_patterns(found.get("streams", "")),
        topics=_checked("topics", found["topics"], parse_filter) if "topics" in found else b"",
        range=Range(None if start.lower() == "new" else _place(found, "from"), _place(found, "to")),
        from_new=start.lower() == "new",
        skip_bad=_choice(found, "badStreams", ("fail", "skip")) == "skip",
        payload=cast(PayloadForm, _choice(found, "payload", FORMS)),
        payload_schema=found.get("payloadschema", ""),
        avro_schema=_avro_schema(found),
        rows_per_task=_number(found, "rowsPerTask"),
        max_rows_per_batch=_number(found, "maxRowsPerBatch"),
        fail_on_data_loss=_choice(found, "failOnDataLoss", ("true", "false")) == "true",
        checkpoint=found.get("checkpointlocation", ""),
    )
    if options.payload_schema and options.payload not in ("json", "msgpack"):
        raise InvalidOption('payloadSchema goes with the option payload, "json" or "msgpack"')
    return options


KNOWN: Final = (
    "path",
    "brokers",
    "token",
    "user",
    "password",
    "streams",
    "topics",
    "from",
    "to",
    "checkCrc",
    "onlySynced",
    "badStreams",
    "payload",
    "payloadSchema",
    "payloadSchemaFile",
    "rowsPerTask",
    "maxRowsPerBatch",
    "failOnDataLoss",
    "checkpointLocation",
)
_KNOWN = frozenset(name.lower() for name in KNOWN)


def _source(found: Mapping[str, str]) -> SourceOptions:
    path, brokers = found.get("path", ""), found.get("brokers", "")
    if bool(path) == bool(brokers):
        raise InvalidOption(
            'give either the data directory, load("DATA"), or option("brokers", "HOST:PORT,…"), '
            f"{'not both' if path else 'one of them'}"
        )
    check_crc = _choice(found, "checkCrc", ("false", "true")) == "true"
    addresses = (
        _checked("brokers", brokers, lambda text: parse_addresses(text.replace(",", " ").split())) if brokers else ()
    )
    only_synced = _choice(found, "onlySynced", ("false", "true")) == "true"
    if only_synced and not path:
        raise InvalidOption("onlySynced is for a path: over a connection the synced seq is unknown")
    return SourceOptions(path, addresses, checked_login(found), check_crc, only_synced)


def checked_login(found: Mapping[str, str]) -> BrokerLogin:
    try:
        return find_login(found)
    except ValueError as error:
        raise InvalidOption(str(error)) from None


def parse_filter(text: str) -> bytes:
    """Raises ValueError."""
    fault = filter_fault(text.encode(errors="surrogatepass"))
    if fault:
        raise ValueError(fault)
    return text.encode()


def _avro_schema(found: Mapping[str, str]) -> str:
    """The text of the schema file. It is read here, on the driver: tasks need no file."""
    path = found.get("payloadschemafile", "")
    if bool(path) != (found.get("payload", "").lower() == "avro"):
        raise InvalidOption('the option payloadSchemaFile, a schema of Avro, goes with the option payload, "avro"')
    return _checked("payloadSchemaFile", path, read_schema) if path else ""


def _place(found: Mapping[str, str], name: str) -> Place | None:
    text = found.get(name)
    return None if text is None else _checked(name, text, parse_place)


def _number(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= ROWS_MAX):
        raise InvalidOption(f"the option {name} is {text!r}; it is a number of rows, from 1 to {ROWS_MAX}")
    return int(text)


def _choice(found: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The given choice, or the first."""
    text = found.get(name.lower(), choices[0]).lower()
    if text not in choices:
        raise InvalidOption(f"the option {name} is {text!r}; it is one of {', '.join(choices)}")
    return text


def _checked(name: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except (InvalidArgument, ValueError) as error:
        raise InvalidOption(f"the option {name}: {error}") from None
