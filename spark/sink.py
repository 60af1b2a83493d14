"""Rows of a DataFrame as messages: cut from Arrow batches by stream, in their order, and published each once.

A task may be tried more than once, and a retry may bring its rows in another order, as they come out of a shuffle. So a
task first asks the broker whether an earlier attempt has published to a stream. If so it reads those messages, leaves
out the rows that are among them, and numbers the others after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tailrace.core.arguments import check_sizes, checked_stream, pack_frames
from tailrace.core.headers import KEY_HEADER, pack_headers
from tailrace.shard.frame import FLAG_CONTINUES, FLAG_PRODUCER
from tailrace.shard.leaves import load
from tailrace.shard.numbering import ID_KEY, NUMBER_KEY, read_numbering
from tailrace.spark.publisher import NumberedPublisher

PIECE_MESSAGES: Final = 10_000
PIECE_BYTES: Final = 256 << 10
"""Of one publish, about."""
LOGGED_MAX: Final = 4_000_000
"""Messages of an earlier attempt, in one stream, that a retry compares with its rows: about 500 MB of memory."""
COLUMNS: Final = ("stream", "payload", "headers", "key")

_parse = load("tailrace.shard.frame_cy").parse


class WrongRows(ValueError):
    """StreamRows that cannot become messages; the text says how they should be."""


class RowsChanged(Exception):
    """The rows of a task that was tried again are not those that it has published before."""

    def __init__(self, stream: str, text: str) -> None:
        super().__init__(f"stream {stream!r}: {text}; the query must give the same rows when a task is tried again")


class StreamRows(NamedTuple):
    """Messages of a stream, in order; as many of either."""

    stream: str
    payloads: list[bytes]
    metadata: list[bytes]


def check_columns(schema: pa.Schema, has_stream: bool) -> None:
    """Raises WrongRows. `has_stream`: an option names the stream of all rows."""
    for field in schema:
        if field.name not in COLUMNS:
            raise WrongRows(f"unknown column {field.name!r}; the sink takes {', '.join(COLUMNS)}: select these")
        if not _is_taken(field):
            raise WrongRows(f"the column {field.name} is {field.type}; {_FORMS[field.name]}")
    if "payload" not in schema.names:
        raise WrongRows("there is no column payload; select one, such as to_json(struct(*)) AS payload")
    if ("stream" in schema.names) == has_stream:
        raise WrongRows('name the stream either by a column "stream" or by option("stream", "NAME"), not by both')


_FORMS: Final = {
    "stream": "it is a string",
    "payload": "it is binary, or a string, which is sent as UTF-8",
    "headers": "it is a map of strings to binary or strings",
    "key": "it is binary or a string",
}


def _is_taken(field: pa.Field) -> bool:
    if field.name == "headers":
        return bool(pt.is_map(field.type) and pt.is_string(field.type.key_type) and _is_bytes(field.type.item_type))
    return bool(pt.is_string(field.type) if field.name == "stream" else _is_bytes(field.type))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pt.is_binary(type_) or pt.is_string(type_))


def split(batch: pa.RecordBatch, stream: str = "") -> Iterator[StreamRows]:
    """The rows of each stream. Raises WrongRows, InvalidArgument, InvalidStreamName."""
    payloads = _bytes(batch, "payload")
    metadata = _metadata(batch)
    if stream:
        if payloads:
            yield StreamRows(stream, payloads, metadata)
        return
    _refuse_nulls(batch, "stream")
    names = batch.column("stream").dictionary_encode()
    places = names.indices.to_numpy()
    order = np.argsort(places, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
        if len(rows):
            name = checked_stream(names.dictionary[int(places[rows[0]])].as_py())
            yield StreamRows(name, [payloads[row] for row in rows], [metadata[row] for row in rows])


def _refuse_nulls(batch: pa.RecordBatch, name: str) -> None:
    if batch.column(name).null_count:
        raise WrongRows(f"the column {name} is null in {batch.column(name).null_count:,} rows; filter these out")


def _bytes(batch: pa.RecordBatch, name: str) -> list[bytes]:
    _refuse_nulls(batch, name)
    found: list[bytes] = pc.cast(batch.column(name), pa.binary()).to_pylist()
    return found


def _metadata(batch: pa.RecordBatch) -> list[bytes]:
    """StreamRows mostly have the same few headers: each combination is packed once."""
    columns = {name: batch.column(name).to_pylist() for name in ("headers", "key") if name in batch.schema.names}
    if not columns:
        return [b""] * batch.num_rows
    nothing: list[Any] = [None] * batch.num_rows
    packed: dict[Any, bytes] = {}
    found = []
    for headers, key in zip(columns.get("headers", nothing), columns.get("key", nothing), strict=True):
        both = (tuple(headers or ()), key)
        if both not in packed:
            pairs = dict(headers or ())
            if key is not None:
                pairs.pop(KEY_HEADER, None)  # as a query reads both of them
            packed[both] = pack_headers(pairs, key)
        found.append(packed[both])
    return found


class Outbox:
    """The messages of one task to one stream. `number`: of the next one."""

    def __init__(self, publisher: NumberedPublisher, stream: str, has_begun: bool) -> None:
        self._publisher = publisher
        self._stream = stream
        self._hash: int | None = None  # of all rows, in any order; only if there was an earlier attempt
        self._first_seq = 0
        self._logged: Counter[bytes] = Counter()
        self.number = 0
        if has_begun:
            self._hash = 0
            self._first_seq = publisher.first_seq(stream)
            self._logged.update(read_logged(publisher, stream, self._first_seq))
            self.number = self._logged.total()

    def add(self, rows: StreamRows) -> None:
        check_sizes(rows.payloads, max(rows.metadata, key=len), self._publisher.max_message_bytes, self._stream)
        pairs = zip(rows.metadata, rows.payloads, strict=True)
        for piece in pieces(pairs if self._hash is None else filter(self._is_new, pairs)):
            runs = groupby(piece, key=lambda pair: pair[0])
            frames = b"".join(pack_frames([payload for _, payload in run], metadata) for metadata, run in runs)
            self._publisher.publish(self._stream, frames, piece[0][0], self.number)
            self.number += len(piece)

    def _is_new(self, pair: tuple[bytes, bytes]) -> bool:
        assert self._hash is not None
        found = digest(*pair)
        self._hash = _added(self._hash, found)
        if not self._logged.get(found):
            return True
        self._logged[found] -= 1
        return False

    def check(self) -> None:
        """After the last row, once all are answered. Raises RowsChanged if the stream does not have just these."""
        if self._hash is None:
            return
        if missing := self._logged.total():
            raise RowsChanged(self._stream, f"{missing:,} messages of an earlier attempt are not among its rows")
        logged = list(read_logged(self._publisher, self._stream, self._first_seq))
        total = 0
        for each in logged:
            total = _added(total, each)
        if (len(logged), total) != (self.number, self._hash):
            raise RowsChanged(self._stream, "another attempt has published meanwhile")


def pieces(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Metadata and payloads of one publish each."""
    piece: list[tuple[bytes, bytes]] = []
    nbytes = 0
    for pair in pairs:
        if piece and (len(piece) == PIECE_MESSAGES or nbytes + len(pair[1]) > PIECE_BYTES):
            yield piece
            piece, nbytes = [], 0
        piece.append(pair)
        nbytes += len(pair[0]) + len(pair[1])
    if piece:
        yield piece


def read_logged(publisher: NumberedPublisher, stream: str, first_seq: int) -> Iterator[bytes]:
    """The digests of the producer's messages in a stream, in order. Raises RowsChanged, TailraceError."""
    next_number, is_own = 0, False
    for chunk in publisher.chunks(stream, first_seq):
        for _seq, _time, _epoch, flags, metadata, payload in _parse(chunk.frames, 0, len(chunk.frames), True):
            number = next_number
            if flags & FLAG_PRODUCER:
                producer, number = read_numbering(metadata)
                is_own = producer == publisher.producer
                metadata = _without_numbering(metadata)
            elif not flags & FLAG_CONTINUES:
                is_own = False
            if is_own:
                if number != next_number:
                    raise RowsChanged(stream, "messages of an earlier attempt were trimmed or lost")
                next_number += 1
                if next_number > LOGGED_MAX:
                    raise RowsChanged(stream, f"an earlier attempt has published more than {LOGGED_MAX:,} messages")
                yield digest(metadata, payload)


def digest(metadata: bytes, payload: bytes) -> bytes:
    found = blake2b(len(metadata).to_bytes(4, "little") + metadata, digest_size=16)
    found.update(payload)
    return found.digest()


def _added(total: int, found: bytes) -> int:
    return (total + int.from_bytes(found, "little")) % (1 << 128)


def _without_numbering(metadata: bytes) -> bytes:
    fields = msgpack.unpackb(metadata)
    left = {key: value for key, value in fields.items() if key not in (ID_KEY, NUMBER_KEY)}
    packed: bytes = msgpack.packb(left) if left else b""
    return packed


def write_rows(publisher: NumberedPublisher, batches: Iterable[pa.RecordBatch], stream: str = "") -> int:
    """Publishes the rows of a task; returns their number. Raises WrongRows, RowsChanged, TailraceError."""
    outboxes: dict[str, Outbox] = {}
    count = 0
    for batch in batches:
        found = list(split(batch, stream))
        _open(publisher, outboxes, [rows.stream for rows in found])
        for rows in found:
            outboxes[rows.stream].add(rows)
            count += len(rows.payloads)
    publisher.flush()
    for outbox in outboxes.values():
        outbox.check()
    return count


def _open(publisher: NumberedPublisher, outboxes: dict[str, Outbox], streams: Sequence[str]) -> None:
    """Outboxes of the streams that the task has not had yet."""
    fresh = [stream for stream in streams if stream not in outboxes]
    begun = set(publisher.find_begun(fresh)) if fresh else set()
    for stream in fresh:
        outboxes[stream] = Outbox(publisher, stream, stream in begun)
