"""The progress of a live query in each stream, and the end of its next batch. Pure.

An offset is what Spark keeps in its checkpoint as JSON: for each stream the seq after the last message of the batch,
which files these were (`Identity`), so that a stream whose tail was set aside is not taken for the same one, and time
and epoch of that last message with the boot of the node's machine: after a crash of the machine a node may give seqs
again, to other messages.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np

from tailrace.spark.slices import NO_IDENTITY, Identity


class Mark(NamedTuple):
    """Messages before `seq` are done; `time_us` and `epoch` are those of the last of them, None if unknown.

    `boot`: see `spark.source.StreamView`. `resumed`: the batch that ends here begins at this seq, as the messages done
    before are no longer part of the stream. `is_gone`: the stream has vanished; the first batch that ends with such a
    mark reports it.
    """

    seq: int
    identity: Identity
    time_us: int | None = None
    resumed: int | None = None
    epoch: int | None = None
    boot: int | None = None
    is_gone: bool = False


Offset: TypeAlias = dict[str, Mark]
PACKED_FROM: Final = 1_000
"""Streams in an offset from which on it is packed."""
PACKED: Final = "|packed"
"""No stream has this name."""
OFFSET_BYTES_MAX: Final = 1 << 30
SHOWN_MAX: Final = 1_000
_OPTIONAL: Final = {"us": "time_us", "from": "resumed", "epoch": "epoch", "boot": "boot"}
"""Fields of a mark by their names in the checkpoint."""


class DataLoss(Exception):
    """Messages that the query should have had are lost, or some that it had are no longer part of the stream."""

    def __init__(self, stream: str, cause: str) -> None:
        advice = 'option("failOnDataLoss", "false") continues with the remaining messages'
        super().__init__(f"stream {stream!r}: {cause}. {advice}")
        self.stream = stream


def is_same_stream(one: Identity, other: Identity) -> bool:
    """Over a connection the files are unknown."""
    return one == other or NO_IDENTITY in (one, other)


def pack_offset(offset: Offset) -> dict[str, Any]:
    """Names and marks that can be read, or for many streams a text of columns, compressed, and the names of those that
    have vanished."""
    if len(offset) < PACKED_FROM:
        return {name: _pack(mark) for name, mark in offset.items()}
    seqs, identities, times, resumed, epochs, boots, _ = zip(*offset.values(), strict=True)
    columns = (seqs, times, resumed, epochs, boots, *zip(*identities, strict=True))
    body = msgpack.packb(["\n".join(offset), *map(_pack_column, columns)])
    packed = base64.b64encode(zlib.compress(body, 1)).decode()
    return {PACKED: packed, "gone": [name for name, mark in offset.items() if mark.is_gone]}


def _pack_column(values: Sequence[int | None]) -> tuple[bytes, bytes]:
    """The bytes of the numbers, the lowest of all first, which compresses best; and which of them are there."""
    there = np.ones(len(values), np.bool_)
    if None in values:
        there[[place for place, value in enumerate(values) if value is None]] = False
        values = [value or 0 for value in values]
    numbers = np.array(values, np.uint64)
    return numbers.view(np.uint8).reshape(-1, 8).T.tobytes(), np.packbits(there).tobytes()


def _unpack_column(column: tuple[bytes, bytes], count: int) -> list[int | None]:
    planes = np.frombuffer(column[0], np.uint8).reshape(8, count)
    numbers: list[int | None] = np.ascontiguousarray(planes.T).view(np.uint64)[:, 0].tolist()
    there = np.unpackbits(np.frombuffer(column[1], np.uint8), count=count)
    for place in np.flatnonzero(there == 0).tolist():
        numbers[place] = None
    return numbers


def _parse_packed(text: str, gone: list[str]) -> Offset:
    body = zlib.decompressobj()
    joined, *columns = msgpack.unpackb(body.decompress(base64.b64decode(text), OFFSET_BYTES_MAX))
    names = joined.split("\n")
    seqs, times, resumed, epochs, boots, ids, cuts = (_unpack_column(column, len(names)) for column in columns)
    marks = map(Mark, seqs, zip(ids, cuts, strict=True), times, resumed, epochs, boots)
    offset = dict(zip(names, marks, strict=True))
    for name in gone:
        offset[name] = offset[name]._replace(is_gone=True)
    return offset


def _pack(mark: Mark) -> dict[str, int]:
    packed = {"seq": mark.seq, "id": mark.identity[0], "cuts": mark.identity[1]}
    more = {name: getattr(mark, field) for name, field in _OPTIONAL.items()}
    packed |= {name: value for name, value in more.items() if value is not None}
    return packed | {"gone": 1} if mark.is_gone else packed


def parse_offset(said: Mapping[str, Any]) -> Offset:
    """Raises ValueError for an invalid offset, as from another source's checkpoint."""
    try:
        if PACKED in said:
            return _parse_packed(said[PACKED], said["gone"])
        return {name: _parse(mark) for name, mark in said.items()}
    except (KeyError, TypeError, ValueError, zlib.error, msgpack.UnpackException) as error:
        raise ValueError(f"the checkpoint holds no offset of this source: {str(dict(said))[:SHOWN_MAX]}") from error


def _parse(said: Mapping[str, Any]) -> Mark:
    mark = Mark(int(said["seq"]), (int(said["id"]), int(said["cuts"])))
    more: dict[str, Any] = {field: int(said[name]) for name, field in _OPTIONAL.items() if said.get(name) is not None}
    return mark._replace(**more, is_gone=bool(said.get("gone")))


def admit(waiting: Mapping[str, int], rows: int) -> dict[str, int]:
    """Decides how many of the waiting messages of each stream go into a batch of at most `rows`.

    Streams with few get all of theirs; the others share the rest evenly, so none starves another.
    """
    admitted: dict[str, int] = {}
    left = rows
    for done, (name, count) in enumerate(sorted(waiting.items(), key=lambda item: (item[1], item[0]))):
        admitted[name] = min(count, left // (len(waiting) - done))
        left -= admitted[name]
    # What the division left over goes to those that still want some.
    for name, count in waiting.items():
        more = min(count - admitted[name], left)
        admitted[name] += more
        left -= more
    return admitted


def advance(start: Offset, latest: Offset, rows: int | None) -> Offset:
    """The end of the next batch: up to `latest`, or `rows` messages of it. `start` has a mark for each of its streams
    that has messages to give. Marks within a stream, not at its end, have no time yet."""
    waiting = {name: mark.seq - start[name].seq for name, mark in latest.items() if mark.seq > start[name].seq}
    if rows is None or sum(waiting.values()) <= rows:
        return {**start, **latest}
    admitted = admit(waiting, rows)
    moved = {
        name: latest[name]._replace(seq=start[name].seq + count, time_us=None, epoch=None)
        for name, count in admitted.items()
        if count
    }
    return {**start, **moved}
