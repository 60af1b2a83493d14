"""LIST and LISTED of the binary protocol: the streams of a node, page by page, and its workers.

These messages are accepted only on a connection whose HELLO asked for the feature `FEATURE` and got it.

docs/binary-protocol.md draws all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from tailrace.protocol import features
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FeatureReaders
from tailrace.protocol.fields import ELEMENTS_MAX, U32_MAX, Fields, pack_map
from tailrace.protocol.names import readable_name, shown
from tailrace.protocol.opcodes import Op
from tailrace.shard.names import name_bytes_valid

FEATURE: Final = features.LISTING
STREAMS_MAX: Final = 100
"""The most streams of one answer."""
NAMES_MAX: Final = 1_000
"""The most names of one answer."""
ENDS_MAX: Final = 250
"""The most streams whose ends one LIST asks for: with long names it is a third of the largest request."""
WORKERS_MAX: Final = 1_024
MARK_CHARS_MAX: Final = 64
WAIT_MAX_MS: Final = 1_000
"""The longest time for which an answer waits until a stream has grown."""
_END_KINDS: Final = (int,) * 4

ListedKind: TypeAlias = Literal["names", "streams", "grown", "ends", "workers", "total"]


@dataclass(frozen=True, slots=True)
class List:
    """Asks for the `what` of the node. Streams: those that begin with `prefix` and come after `after` in the order of
    their names' bytes; both may be empty. `mark`: that of an earlier answer, for those that have grown since. `names`:
    those whose ends are asked for. `wait_ms`: how long the answer waits while none has grown.
    """

    id: int
    what: ListedKind
    prefix: bytes = b""
    after: bytes = b""
    mark: str = ""
    names: tuple[bytes, ...] = ()
    wait_ms: int = 0


class EndRow(NamedTuple):
    """The oldest message that is kept, the next one, and time and epoch of the last, which are 0 without any."""

    first_seq: int
    next_seq: int
    timestamp_us: int
    epoch: int


class FilesRow(NamedTuple):
    """`stream_id` in 16 hexadecimal digits, and another number of `cuts` whenever messages were cut off the end."""

    stream_id: str
    cuts: int


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream. Bytes: of its messages, and of its files; the last minute's messages and their bytes; its durable
    consumers and the lag of the one furthest behind; of a copy, how many messages it lacks.
    """

    name: str
    role: str
    epoch: int
    first_seq: int
    next_seq: int
    content_bytes: int
    disk_bytes: int
    first_timestamp_us: int
    last_timestamp_us: int
    minute_messages: int
    minute_bytes: int
    consumers: int
    consumer_lag_messages: int
    lag_messages: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker process; `beat_age_us`: since it last said that it is well."""

    worker: int
    pid: int
    state: str
    beat_age_us: int
    connections: int
    subscriptions: int
    streams: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Listed:
    """`next`: the name to go on after; empty at the end. `total`: streams of the node, of any name. `version`: another
    number after each stream that was made or deleted. `known`: whether the node knows which streams have grown since
    the mark of the question; `mark` is for the next one. `ends`: one for each of the names; `files` likewise, or
    none from a node that does not send them."""

    id: int
    names: tuple[str, ...] = ()
    streams: tuple[StreamRow, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    next: str = ""
    total: int = 0
    version: int = 0
    mark: str = ""
    known: bool = False
    ends: tuple[EndRow, ...] = ()
    files: tuple[FilesRow, ...] = ()


# --- their bytes ----------------------------------------------------------------------------------------------------


def _pack_list(message: List) -> bytes:
    body = {"id": message.id, "what": message.what, "prefix": message.prefix.decode(), "after": message.after.decode()}
    more = {"mark": message.mark, "names": [name.decode() for name in message.names], "wait_ms": message.wait_ms}
    return pack_map(Op.LIST, body | {name: value for name, value in more.items() if value})


def _pack_listed(message: Listed) -> bytes:
    body = {field.name: getattr(message, field.name) for field in fields(message)}
    body["streams"], body["workers"] = [[asdict(row) for row in rows] for rows in (message.streams, message.workers)]
    return pack_map(Op.LISTED, {name: value for name, value in body.items() if value or name == "id"})


def _list(read: Fields) -> List:
    number, what = read.number("id", U32_MAX), read.text("what")
    if what not in get_args(ListedKind):
        raise PeerError(Code.USAGE, f"LIST: the field `what` must be one of {', '.join(get_args(ListedKind))}")
    prefix, after = [read.text(name).encode() if name in read else b"" for name in ("prefix", "after")]
    for name in filter(None, (prefix, after)):
        if not name_bytes_valid(name):
            raise PeerError(Code.NAME, f"LIST: {shown(name)} cannot begin a stream name")
    mark = read.text("mark") if "mark" in read else ""
    if len(mark) > MARK_CHARS_MAX:
        raise PeerError(Code.USAGE, f"LIST: the field `mark` has more than {MARK_CHARS_MAX} characters")
    names = read.texts("names") if "names" in read else ()
    wait_ms = read.number("wait_ms", WAIT_MAX_MS, default=0)
    return List(number, cast(ListedKind, what), prefix, after, mark, (*map(_readable, names),), wait_ms)


def _readable(name: str) -> bytes:
    """Raises PeerError."""
    return readable_name(name.encode())


def _row(kind: type, read: Fields) -> Any:
    values = {
        field.name: read.text(field.name) if field.type == "str" else read.number(field.name, default=0)
        for field in fields(kind)
    }
    return kind(**values)


def _listed(read: Fields) -> Listed:
    return Listed(
        id=read.number("id", U32_MAX),
        names=read.texts("names") if "names" in read else (),
        streams=tuple([_row(StreamRow, row) for row in read.maps("streams")]) if "streams" in read else (),
        workers=tuple([_row(WorkerRow, row) for row in read.maps("workers")]) if "workers" in read else (),
        next=read.text("next") if "next" in read else "",
        total=read.number("total", default=0),
        version=read.number("version", default=0),
        mark=read.text("mark") if "mark" in read else "",
        known=read.flag("known") if "known" in read else False,
        ends=(*map(EndRow._make, read.rows("ends", _END_KINDS)),) if "ends" in read else (),
        files=(*map(FilesRow._make, read.rows("files", (str, int))),) if "files" in read else (),
    )


ListingRequest: TypeAlias = List
ListingResponse: TypeAlias = Listed
PACKERS: Final[Mapping[type, Callable[[Any], bytes]]] = {List: _pack_list, Listed: _pack_listed}
features.PACKERS.update(PACKERS)
READERS: Final = FeatureReaders(
    {Op.LIST: _list}, {Op.LISTED: _listed}, max(ELEMENTS_MAX, ENDS_MAX), max(NAMES_MAX, STREAMS_MAX, WORKERS_MAX)
)
