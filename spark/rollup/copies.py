"""Finds rows of other nodes that count the same messages as this run's, as those of a master and its slaves do.

A slave's log holds the frames of its master's at the same seqs. So their rows of a minute have the same seqs, bytes and
sum of gaps. In two streams that only share a name, these sums are not equal by chance: gaps are microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tailrace.spark.rollup.merge import Identity

_SAME: Final = ["stream", "start", "first_seq", "last_seq", "messages", "bytes", "gaps", "gap_sum_us"]
_IDENTITY: Final = list(Identity._fields)
_TYPES: Final = {**dict.fromkeys(_SAME + _IDENTITY, pa.int64()), **dict.fromkeys(_IDENTITY, pa.string())}


def find_copies(fresh: Sequence[Path], before: Sequence[Path], others: Collection[Identity]) -> set[Identity]:
    """Returns those of `others` that have a row in common with this run. `fresh`: files of the new rows of minutes;
    `before`: of the day's former rows. Raises OSError.
    """
    if not (others and fresh and before):
        return set()
    wanted = pc.field("stream").isin(sorted({each.stream for each in others})) & (pc.field("gaps") > 0)
    same = _read(fresh, _SAME, wanted).join(_read(before, [*_SAME, *_IDENTITY[1:]], wanted), _SAME, join_type="inner")
    found = same.group_by(_IDENTITY).aggregate([]).select(_IDENTITY).to_pylist()
    return {Identity(**row) for row in found} & set(others)


def _read(files: Sequence[Path], names: list[str], wanted: pc.Expression) -> pa.Table:
    start = pa.timestamp("us", tz="UTC")
    schema = pa.schema([(name, start if name == "start" else _TYPES[name]) for name in names])
    return ds.dataset(list(map(str, files)), format="parquet", schema=schema).to_table(filter=wanted)
