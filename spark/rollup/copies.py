"""Finds rows of other nodes that count the same messages as this run's, as those of a master and its slaves do.

A slave's log holds the frames of its master's at the same seqs. So their rows of a minute have the same seqs, bytes and
sum of gaps. In two streams that only share a name, these sums are not equal by chance: gaps are microseconds.

Copies may also have no minute in common, if their stream has changed its master. The terms of both show that it is one
stream, and which of them is ahead (`spark.rollup.terms`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tailrace.shard.epochs import NEVER_SEQ
from tailrace.spark.rollup.merge import Fresh, Identity
from tailrace.spark.rollup.table import open_tables
from tailrace.spark.rollup.terms import UNLISTED, Copy, Histories, choose_copy, find_foreign_seq, is_same_stream

_SAME: Final = ["stream", "start", "first_seq", "last_seq", "messages", "bytes", "gaps", "gap_sum_us"]
_IDENTITY: Final = list(Identity._fields)
_TYPES: Final = {**dict.fromkeys(_SAME + _IDENTITY, pa.int64()), **dict.fromkeys(_IDENTITY, pa.string())}


def find_copies(fresh: Sequence[Path], before: Sequence[Path], others: Collection[Identity]) -> set[Identity]:
    """Returns those of `others` that have a row in common with this run. `fresh`: files of the new rows of minutes;
    `before`: the nodes' folders of the day's former rows. Raises OSError.
    """
    if not (others and fresh and before):
        return set()
    wanted = pc.field("stream").isin(sorted({each.stream for each in others})) & (pc.field("gaps") > 0)
    new = ds.dataset(list(map(str, fresh)), format="parquet", schema=_schema(_SAME))
    old = open_tables(before, before[0].parent, _schema([*_SAME, *_IDENTITY[1:]]))
    if old is None:
        return set()
    same = new.to_table(filter=wanted).join(old.to_table(filter=wanted), _SAME, join_type="inner")
    found = same.group_by(_IDENTITY).aggregate([]).select(_IDENTITY).to_pylist()
    return {Identity(**row) for row in found} & set(others)


class FirstRow(NamedTuple):
    """The first minute with messages that a stream has of the day, and its first message."""

    start_us: int
    first_seq: int


def first_rows(
    fresh: Sequence[Path], before: Sequence[Path], doubtful: Collection[Identity]
) -> tuple[dict[str, FirstRow], dict[Identity, FirstRow]]:
    """Those of this run, by stream, and of former rows, of `doubtful` streams. Files as of `find_copies`. Raises
    OSError.
    """
    if not doubtful:
        return {}, {}
    wanted = pc.field("stream").isin(sorted({each.stream for each in doubtful}))
    columns = [*_IDENTITY, "start", "first_seq"]
    new = _first_rows(ds.dataset(list(map(str, fresh)), format="parquet", schema=_schema(columns)), wanted, ["stream"])
    old = _first_rows(open_tables(before, before[0].parent, _schema(columns)), wanted, _IDENTITY)
    return {key[0]: row for key, row in new.items()}, {Identity(*key): row for key, row in old.items()}


def _first_rows(rows: Any, wanted: Any, keys: list[str]) -> dict[tuple[Any, ...], FirstRow]:
    """A stream's messages are in the order of their times."""
    table = rows.to_table(columns=[*keys, "start", "first_seq"], filter=wanted)
    found = table.group_by(keys).aggregate([("start", "min"), ("first_seq", "min")])
    starts = pc.cast(found["start_min"], pa.int64()).to_pylist()
    values = map(FirstRow, starts, found["first_seq_min"].to_pylist())
    return dict(zip(zip(*(found[key].to_pylist() for key in keys), strict=True), values, strict=True))


def _schema(names: list[str]) -> pa.Schema:
    start = pa.timestamp("us", tz="UTC")
    return pa.schema([(name, start if name == "start" else _TYPES[name]) for name in names])


class Copies(NamedTuple):
    """`found`: rows of other nodes, of streams that were read now. `end_seqs`: the first message that is not of the
    stream, of rows that have some. `fresh`: streams that were read now, if `Fresh` has more of them than its defaults.
    """

    found: set[Identity]
    end_seqs: dict[Identity, int]
    fresh: list[Fresh]


def compare_copies(
    now: Mapping[str, Identity],
    histories: Histories,
    before: Mapping[Identity, bool],
    known: Mapping[str, Histories],
    found: Collection[Identity],
    last_seqs: Mapping[Identity, int],
) -> Copies:
    """`now` has the streams that were read now, and `histories` their terms. `before` has the identities of former rows
    of these streams, and whether they are this node's own. `known`: the terms of each node's copies, by its id.
    `found`: copies that are known by their rows. `last_seqs`: of the streams and rows with messages of the day.
    """
    copies = Copies(set(found), {}, [])
    for stream, rivals in _by_stream(now, before, known, last_seqs).items():
        mine = Copy(now[stream].node, histories.get(stream, UNLISTED), last_seqs.get(now[stream], -1))
        _compare(now[stream], mine, rivals, copies)
    return copies


class _Rival(NamedTuple):
    """A copy, and the rows that the tables have of it; `is_own` if it was read from this node earlier. `is_sure`: the
    rows are of the stream of which the terms are."""

    copy: Copy
    was: Identity | None = None
    is_own: bool = False
    is_sure: bool = True


def _by_stream(
    now: Mapping[str, Identity],
    before: Mapping[Identity, bool],
    known: Mapping[str, Histories],
    last_seqs: Mapping[Identity, int],
) -> dict[str, list[_Rival]]:
    """The other copies of the streams, of those that have any."""
    rivals: dict[str, list[_Rival]] = {}
    names = Counter((was.stream, was.node) for was in before)
    for was, is_own in before.items():
        if was.node in known:
            copy = Copy(was.node, known[was.node].get(was.stream, UNLISTED), last_seqs.get(was, -1))
            # Of a stream that was made anew there may be rows of both, and the terms are those of the new one.
            is_sure = names[was.stream, was.node] == 1 and was.node != now[was.stream].node
            rivals.setdefault(was.stream, []).append(_Rival(copy, was, is_own, is_sure))
    for node, listed in known.items():
        for stream, history in listed.items():
            is_new = stream in now and node != now[stream].node and (stream, node) not in names
            if is_new:
                rivals.setdefault(stream, []).append(_Rival(Copy(node, history)))
    return rivals


def _compare(now: Identity, mine: Copy, rivals: Sequence[_Rival], copies: Copies) -> None:
    """Adds to `copies` what is known of one stream."""
    others = [each for each in rivals if _is_copy(each, mine, copies.found)]
    held = {mine: now}  # under which identity a copy has rows
    for each in others:
        ahead = [mine, *(other.copy for other in others if other is not each)]
        end_seq = find_foreign_seq(each.copy, ahead)
        if each.was is not None:
            if end_seq < NEVER_SEQ:
                copies.end_seqs[each.was] = end_seq
            if not each.is_own:
                copies.found.add(each.was)
                held[each.copy] = each.was
    end_seq = find_foreign_seq(mine, [each.copy for each in others if not each.is_own])
    into = held[choose_copy(held, [each.copy for each in others])]
    if end_seq < NEVER_SEQ or into != now:
        copies.fresh.append(Fresh(now, into, end_seq))


def _is_copy(rival: _Rival, mine: Copy, found: Collection[Identity]) -> bool:
    by_terms = rival.is_sure and is_same_stream(rival.copy, mine)
    return rival.is_own or rival.was in found or by_terms
