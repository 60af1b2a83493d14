"""The offsets of very many streams as two short texts, each at the cost of its changes from the one before.

A text is in base 85, of which JSON escapes no character. Names are in order, each without the beginning that it shares
with the one before it; or they are in a file of the checkpoint (`spark.name_files`), but for those that came since.
Marks are columns of numbers, less the lowest of each, in as many bytes as that needs.

Of a stream's id only some bits are kept: a mark with a time distinguishes streams by that, too.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from tailrace.spark.name_files import MissingNames, NameFiles, pack_names, unpack_names
from tailrace.spark.slices import NO_IDENTITY, Identity


class Mark(NamedTuple):
    """Messages before `seq` are done; `time_us` and `epoch` are those of the last of them, None if unknown.

    `resumed`: the batch that ends here begins at this seq, as the messages done before are no longer part of the
    stream. `is_gone`: the stream has vanished; the first batch that ends with such a mark reports it. `identity` may
    lack some bits: compare it by `is_same_stream`.
    """

    seq: int
    identity: Identity
    time_us: int | None = None
    resumed: int | None = None
    epoch: int | None = None
    is_gone: bool = False


Offset: TypeAlias = dict[str, Mark]
Numbers: TypeAlias = NDArray[np.uint64]

PACKED: Final = "|marks"
NAMES: Final = "|names"
NAME_FILE: Final = "|file"
GONE: Final = "gone"
"""The keys of a packed offset. No stream has the name of the first three. The names in the file, if there is one, come
before the others."""
NEW_NAMES_MAX: Final = 1_000
"""Names that an offset has beside those in a file, before another file is written."""
OFFSET_BYTES_MAX: Final = 1 << 30
ID_MASKS: Final = (0xFF, (1 << 40) - 1)
"""The bits that are kept of the id of a stream: of which a message is known by its time, and of others."""
NO_CHECKPOINT: Final = (
    "the names of its streams are in the file {} of the checkpoint: "
    'give the reader option("checkpointLocation", …), as before'
)
COLUMNS: Final = 7
_FLAGS, _TIMED, _RESUMED, _EPOCH, _GONE = 6, 1, 2, 4, 8
_NEEDED: Final = {2: _TIMED, 3: _RESUMED, 4: _EPOCH}
"""Columns with numbers only in rows with this flag."""
_DIGITS: Final = np.frombuffer(base64._b85alphabet, np.uint8)  # type: ignore[attr-defined]
_POWERS: Final = 85 ** np.arange(4, -1, -1, dtype=np.uint32)


def is_same_stream(one: Identity, other: Identity) -> bool:
    """As far as it is known: over a connection the files are not, and of an id perhaps only some bits."""
    if NO_IDENTITY in (one, other):
        return True
    shorter = min(one[0], other[0])
    bits = next((mask for mask in ID_MASKS if shorter <= mask), -1)
    return one[1] == other[1] and _short(one[0], bits) == _short(other[0], bits)


def is_short(identity: Identity) -> bool:
    """Whether only some bits of the id may be known."""
    return 0 < identity[0] <= ID_MASKS[1]


def _short(stream_id: int, mask: int) -> int:
    return stream_id & mask or 1


def _row(mark: Mark) -> tuple[int, ...]:
    seq, (stream_id, cuts), time_us, resumed, epoch, is_gone = mark
    flags = _GONE * is_gone
    for value, flag in ((time_us, _TIMED), (resumed, _RESUMED), (epoch, _EPOCH)):
        if value is not None:
            flags |= flag
    kept = _short(stream_id, ID_MASKS[time_us is None]) if (stream_id, cuts) != NO_IDENTITY else 0
    return seq, kept, time_us or 0, resumed or 0, epoch or 0, cuts, flags


class OffsetPacker:
    """Keeps the columns of the last offset, and which file has its names, if files are to have them."""

    def __init__(self, files: NameFiles | None = None) -> None:
        self._files = files
        self._file = ""
        self._listed: list[str] = []  # the names in it
        self._last: Offset = {}
        self._places: dict[str, int] = {}
        self._names = ""
        self._table: Numbers = np.empty((COLUMNS, 0), np.uint64)

    def pack(self, offset: Offset) -> dict[str, Any]:
        """`offset` must not be changed afterwards. Raises OSError, InvalidUrl if a file cannot be written."""
        if offset.keys() != self._places.keys():
            self._arrange(sorted(offset))
        changed = [(self._places[name], mark) for name, mark in offset.items() if self._last.get(name) is not mark]
        if changed:
            places, marks = zip(*changed, strict=True)
            self._table[:, np.array(places)] = np.array(list(map(_row, marks)), np.uint64).T
        self._last = offset
        gone = [name for name, mark in offset.items() if mark.is_gone]
        packed = {PACKED: _pack_table(self._table), NAMES: self._names, GONE: gone}
        return {**packed, NAME_FILE: self._file} if self._file else packed

    def parse(self, said: Mapping[str, Any]) -> Offset:
        """Raises KeyError, ValueError and others if it is not a packed offset, or its file of names is missing."""
        names = unpack_names(base64.b85decode(said[NAMES]))
        if NAME_FILE in said:
            names = [*self._read(said[NAME_FILE]), *names]
        columns = _unpack_table(said[PACKED], len(names)).tolist()
        return {name: _mark(*row) for name, row in zip(names, zip(*columns, strict=True), strict=True)}

    def _read(self, file: str) -> list[str]:
        """The names in a file, which the next offset refers to, too."""
        if file != self._file:
            if self._files is None:
                raise MissingNames(NO_CHECKPOINT.format(file))
            self._listed, self._places = self._files.read(file), {}
            self._file = file
        return self._listed

    def _arrange(self, names: list[str]) -> None:
        self._last = {}
        new = self._list(names) if self._files is not None else names
        self._places = {name: place for place, name in enumerate([*self._listed, *new])}
        self._table = np.empty((COLUMNS, len(names)), np.uint64)
        self._names = _to_text(pack_names(new))

    def _list(self, names: list[str]) -> list[str]:
        """Returns those that are not in the file."""
        assert self._files is not None
        listed = set(self._listed)
        new = [name for name in names if name not in listed]
        if len(new) <= NEW_NAMES_MAX and len(listed) + len(new) == len(names) and self._file:
            return new
        self._file, self._listed = self._files.write(names), names
        return []


def _mark(seq: int, stream_id: int, time_us: int, resumed: int, epoch: int, cuts: int, flags: int) -> Mark:
    return Mark(
        seq,
        (stream_id, cuts),
        time_us if flags & _TIMED else None,
        resumed if flags & _RESUMED else None,
        epoch if flags & _EPOCH else None,
        bool(flags & _GONE),
    )


def _pack_table(table: Numbers) -> str:
    flags = table[_FLAGS]
    columns = [_pack_column(table[number][_is_there(number, flags)]) for number in range(_FLAGS)]
    return _to_text(zlib.compress(msgpack.packb([_pack_column(flags), *columns]), 1))


def _unpack_table(text: str, count: int) -> Numbers:
    packed_flags, *columns = msgpack.unpackb(_to_bytes(text))
    table = np.zeros((COLUMNS, count), np.uint64)
    table[_FLAGS] = _unpack_column(*packed_flags)
    flags = table[_FLAGS]
    for number, column in enumerate(columns):
        table[number, _is_there(number, flags)] = _unpack_column(*column)
    return table


def _is_there(number: int, flags: Numbers) -> NDArray[np.bool_]:
    """In which rows the column has a number."""
    needed = _NEEDED.get(number)
    return np.ones(len(flags), np.bool_) if needed is None else (flags & np.uint64(needed)) != 0


def _pack_column(numbers: Numbers) -> tuple[int, int, bytes]:
    """The lowest number, and how many bytes are kept of each: all lowest bytes first, which compresses best."""
    if not len(numbers):
        return 0, 0, b""
    low = numbers.min()
    more = numbers - low
    width = -(-int(more.max()).bit_length() // 8)
    return int(low), width, more.view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()


def _unpack_column(low: int, width: int, data: bytes) -> Numbers:
    if not width:
        return np.array([low], np.uint64)
    planes = np.frombuffer(data, np.uint8).reshape(width, -1)
    wide = np.zeros((planes.shape[1], 8), np.uint8)
    wide[:, :width] = planes.T
    return wide.view(np.uint64)[:, 0] + np.uint64(low)


def _to_text(data: bytes) -> str:
    """As base64.b85encode(data, pad=True), at a tenth of its cost."""
    words = np.frombuffer(data + bytes(-len(data) % 4), ">u4").astype(np.uint32)
    digits: NDArray[np.uint8] = _DIGITS[words[:, None] // _POWERS % np.uint32(85)]
    return digits.tobytes().decode()


def _to_bytes(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b85decode(text), OFFSET_BYTES_MAX)
