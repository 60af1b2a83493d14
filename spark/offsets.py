"""The progress of a live query in each stream, and the end of its next batch. Pure.

An offset is what Spark keeps in its checkpoint as JSON: for each stream the seq after the last message of the batch,
which files these were (`Identity`), so that a stream whose tail was set aside is not taken for the same one, and time
and epoch of that last message: after a crash of the machine a node may give seqs again, to other messages.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from tailrace.spark.name_files import MissingNames
from tailrace.spark.packed_offsets import PACKED, Mark, Offset, OffsetPacker, is_same_stream, is_short

__all__ = ["DataLoss", "Mark", "Offset", "OffsetPacker", "is_same_stream", "is_short"]

PACKED_FROM: Final = 1_000
"""Streams in an offset from which on it is packed."""
SHOWN_MAX: Final = 1_000
_OPTIONAL: Final = {"us": "time_us", "from": "resumed", "epoch": "epoch"}
"""Fields of a mark by their names in the checkpoint."""


class DataLoss(Exception):
    """Messages that the query should have had are lost, or some that it had are no longer part of the stream."""

    def __init__(self, stream: str, cause: str) -> None:
        advice = 'option("failOnDataLoss", "false") continues with the remaining messages'
        super().__init__(f"stream {stream!r}: {cause}. {advice}")
        self.stream = stream


def pack_offset(offset: Offset, packer: OffsetPacker) -> dict[str, Any]:
    """Names and marks that can be read, or for many streams two short texts, and the names of those that have
    vanished."""
    if len(offset) < PACKED_FROM:
        return {name: _pack(mark) for name, mark in offset.items()}
    return packer.pack(offset)


def _pack(mark: Mark) -> dict[str, int]:
    packed = {"seq": mark.seq, "id": mark.identity[0], "cuts": mark.identity[1]}
    more = {name: getattr(mark, field) for name, field in _OPTIONAL.items()}
    packed |= {name: value for name, value in more.items() if value is not None}
    return packed | {"gone": 1} if mark.is_gone else packed


def parse_offset(said: Mapping[str, Any], packer: OffsetPacker) -> Offset:
    """Raises ValueError for an invalid offset, as from another source's checkpoint."""
    try:
        if PACKED in said:
            return packer.parse(said)
        return {name: _parse(mark) for name, mark in said.items()}
    except MissingNames:
        raise
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
