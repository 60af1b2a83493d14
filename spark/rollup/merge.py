"""Merges rows of an earlier run whose messages have been trimmed since.

A row that the tables have of another node, or of an earlier stream of the same name, stays beside the new ones. Any
other stays when its stream was trimmed since up to the row's first message or further, and it counts more than can be
read now. Hours and days of such streams are made of their minutes; the percentiles are those of a row, old or new, of
just the same messages, and null without one: percentiles cannot be added up.

Of a copy of a stream that has messages which are not of the stream (`spark.rollup.terms`), the rows with such messages
are left out, whether they are old or fresh.

The tables are merged in parts, each the streams of a range of names, so that memory is bounded. The files of both are
in the order of names, so of each file only the parts with such names are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tailrace.shard.epochs import NEVER_SEQ
from tailrace.spark.entries import Int64s
from tailrace.spark.rollup.kernel import LEVELS, WIDTHS_US, Rows, merge_rows
from tailrace.spark.rollup.quantile import NO_VALUE
from tailrace.spark.rollup.store import TABLES, staged_node
from tailrace.spark.rollup.table import (
    FILE_SCHEMA,
    NODE,
    SKETCHES,
    TABLE_SCHEMA,
    open_tables,
    to_batch,
    to_file_rows,
)
from tailrace.spark.rollup.tasks import ROW_GROUP_ROWS, TableFile

FILE_ROWS: Final = 5_000_000
"""About as many rows of a merged table go into one file."""
PART_SERIES: Final = 250
"""Streams, of a node and a run, that are merged at one time: at most 1,440 minutes each, 360,000 rows in all. They
take about 350 MB."""
KEPT_FROM_MAX: Final = (1 << 63) - 1
"""The oldest message that is kept, of a stream of which nothing can be read any more."""

_PERCENTILES: Final = ("size_p50", "size_p99", "gap_p50_us", "gap_p99_us")
_COUNTS: Final = Rows._fields[2:]
_OWN: Final = 1 << 32
"""More than any shard."""
_ORDER: Final = [(name, "ascending") for name in ("stream", "node", "stream_id", "start")]


class Identity(NamedTuple):
    """Which stream the rows of the tables are of. `stream_id` is None if the stream was read over a connection."""

    stream: str
    node: str
    stream_id: str | None


class Kept(NamedTuple):
    """Rows that cannot be made again. Their stream keeps messages from `kept_from` on. `now` is the same stream as it
    was read this time, whose rows are merged with them; None if they stay unchanged. Messages from `end_seq` on are not
    of the stream.
    """

    was: Identity
    kept_from: int = KEPT_FROM_MAX
    now: Identity | None = None
    end_seq: int = NEVER_SEQ


class Fresh(NamedTuple):
    """A stream that was read this time: `into` is whose rows the merged ones become. Its messages from `end_seq` on are
    not of the stream.
    """

    now: Identity
    into: Identity
    end_seq: int = NEVER_SEQ


class Named(NamedTuple):
    """See `spark.rollup.table.Series`."""

    stream: str
    shard: int
    stream_id: str | None


def write_merged(
    fresh: Mapping[str, Sequence[Path]],
    old: Mapping[str, Sequence[Path]],
    node: str,
    wanted: Sequence[Kept],
    run: Path,
    show: Callable[[int, int], None],
    streams: Sequence[Fresh] = (),
) -> Counter[Identity]:
    """Stage the three tables made of the fresh rows of a node, by level, and of those that the day had before, by
    table: the folders of the nodes whose rows are to be replaced. `streams`: those of which the default of `Fresh` is
    not right. Returns how many messages were left out of whose rows.

    Raises OSError.
    """
    fresh_tables = {level: _open_fresh(fresh.get(level, ()), node) for level in LEVELS}
    old_tables = {level: _open_old(old.get(table, ())) for level, table in TABLES.items()}
    parts = list(_name_ranges(fresh_tables["day"], old_tables["day"]))
    merge = _Merge(wanted, streams)
    with ExitStack() as stack:
        files = {level: _NodeFiles(run, table) for level, table in TABLES.items()}
        for file in files.values():
            stack.callback(file.close)
        for done, names in enumerate(parts):
            show(done, len(parts))
            found = {level: (_read(fresh_tables[level], names), _read(old_tables[level], names)) for level in LEVELS}
            for level, table in merge.tables(found):
                files[level].add(table)
    return merge.left_out


class _Merge:
    """Decides how old and fresh rows become those of the tables."""

    def __init__(self, wanted: Sequence[Kept], streams: Sequence[Fresh]) -> None:
        self.left_out = Counter[Identity]()
        self._wanted = wanted
        self._was = pa.array([_key(*kept.was) for kept in wanted], pa.string())
        self._kept_from = np.array([kept.kept_from for kept in wanted], np.int64)
        self._was_end = np.array([kept.end_seq for kept in wanted], np.int64)
        now = {(kept.now.stream, kept.now.node): Fresh(kept.now, kept.now) for kept in wanted if kept.now is not None}
        now |= {(each.now.stream, each.now.node): each for each in streams}
        places = {key: place for place, key in enumerate(now)}
        self._now = list(now.values())
        self._now_end = np.array([each.end_seq for each in self._now], np.int64)
        self._now_keys = pa.array([_key(*each) for each in now], pa.string())
        self._now_of = np.array(
            [-1 if kept.now is None else places[kept.now.stream, kept.now.node] for kept in wanted], np.int64
        )

    def tables(self, found: Mapping[str, tuple[pa.Table, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
        """The rows of each level, from (fresh, old) rows of it."""
        minutes: Rows | None = None
        shards = np.zeros(len(self._now), np.int64)
        for level in LEVELS:
            fresh, old = found[level]
            whole, kept, kept_sketches = self._kept(level, old, shards)
            others, again, sketches = self._fresh(level, fresh, shards)
            both = _concatenated(again, kept)
            if level == "minute":
                minutes = rows = _fill_missing(_fuller(both, len(again.messages)))
                places = np.full(len(rows.messages), -1, np.int64)
            else:
                assert minutes is not None
                rows, places = _from_minutes(minutes, level, both)
            sketches = pa.concat_tables([sketches, kept_sketches]).take(pa.array(places, mask=places < 0))
            table = self._table(level, rows, shards, sketches)
            yield level, pa.concat_tables([others, whole, table]).sort_by(_ORDER)

    def _kept(self, level: str, old: pa.Table, shards: Int64s) -> tuple[pa.Table, Rows, pa.Table]:
        """Old rows that stay as they are, and those that are merged with their sketches, whose shards are put down."""
        place = _places(old, ("stream", "node", "stream_id"), self._was)
        stays = place >= 0
        stays[stays] = _numbers(old, "first_seq")[stays] <= self._kept_from[place[stays]]
        now = np.full(len(place), -1, np.int64)
        now[stays] = self._now_of[place[stays]]
        whole = old.filter(pa.array(stays & (now < 0)))
        whose = [kept.was for kept in self._wanted]
        self._put_down(shards, old, now, place, whose)
        self._leave_out(level, old, now, place, whose, self._was_end)
        return whole, _to_rows(old, now), _sketches(old, now)

    def _fresh(self, level: str, fresh: pa.Table, shards: Int64s) -> tuple[pa.Table, Rows, pa.Table]:
        """Fresh rows that nothing is merged with, and the others with their sketches, whose shards are put down."""
        now = _places(fresh, ("stream", "node"), self._now_keys)
        others = fresh.filter(pa.array(now < 0))
        whose = [each.now for each in self._now]
        self._put_down(shards, fresh, now, now, whose)
        self._leave_out(level, fresh, now, now, whose, self._now_end)
        return others, _to_rows(fresh, now), _sketches(fresh, now)

    def _put_down(self, shards: Int64s, table: pa.Table, now: Int64s, place: Int64s, whose: Sequence[Identity]) -> None:
        """One more than the greatest of several shards, as -1 is for streams that were read over a connection; and _OWN
        if it is that of the node that the merged rows are of."""
        wanted = now >= 0
        pairs = set(zip(place[wanted].tolist(), now[wanted].tolist(), strict=True))
        own = np.zeros(len(whose) + 1, np.int64)
        own[[each for each, to in pairs if whose[each].node == self._now[to].into.node]] = _OWN
        np.maximum.at(shards, now[wanted], (_numbers(table, "shard") + 1 + own[place])[wanted])

    def _leave_out(
        self, level: str, table: pa.Table, now: Int64s, place: Int64s, whose: Sequence[Identity], ends: Int64s
    ) -> None:
        """Take rows with messages that are not of the stream out of `now`; `place` is whose rows they are."""
        if not (ends < NEVER_SEQ).any():
            return
        is_out = now >= 0
        is_out[is_out] = _numbers(table, "last_seq")[is_out] >= ends[place[is_out]]
        if level == "minute":
            counts = zip(place[is_out].tolist(), _numbers(table, "messages")[is_out].tolist(), strict=True)
            for each, messages in counts:
                self.left_out[whose[each]] += messages
        now[is_out] = -1

    def _table(self, level: str, rows: Rows, shards: Int64s, sketches: pa.Table) -> pa.Table:
        used, places = np.unique(rows.stream, return_inverse=True)
        into = [self._now[place].into for place in used.tolist()]
        shard_of = (shards[used] % _OWN - 1).tolist()
        named = [Named(each.stream, shard, each.stream_id) for each, shard in zip(into, shard_of, strict=True)]
        nodes = pa.array([each.node for each in into], NODE.type).take(pa.array(places))
        rows = rows._replace(stream=places)
        columns = [column.combine_chunks() for column in sketches.columns]
        made = to_file_rows(to_batch(level, rows, named, columns))
        return pa.Table.from_arrays([nodes, *made.columns], schema=TABLE_SCHEMA)


class _NodeFiles:
    """The files of a table. At most ROW_GROUP_ROWS are held for all nodes together."""

    def __init__(self, run: Path, table: str) -> None:
        self._run = run
        self._table = table
        self._files: dict[str, _RollingFile] = {}

    def add(self, table: pa.Table) -> None:
        for node in sorted(pc.unique(table["node"]).to_pylist()):
            if node not in self._files:
                self._files[node] = _RollingFile(staged_node(self._run, self._table, node))
            rows = table.filter(pc.equal(table["node"], node)).select(FILE_SCHEMA.names)
            self._files[node].add(rows)
        while sum(file.held_rows for file in self._files.values()) >= ROW_GROUP_ROWS:
            max(self._files.values(), key=lambda file: file.held_rows).write_held()

    def close(self) -> None:
        with ExitStack() as stack:
            for file in self._files.values():
                stack.callback(file.close)


class _RollingFile:
    """The files of a node's rows, one after the other. Its folder is made with the first rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        self._file: TableFile | None = None

    def add(self, table: pa.Table) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = TableFile(self._folder / file_name(self._files))
            self._files += 1
        for batch in table.to_batches():
            self._file.add(batch)
        if self._file.rows >= FILE_ROWS:
            self.close()

    @property
    def held_rows(self) -> int:
        return 0 if self._file is None else self._file.held_rows

    def write_held(self) -> None:
        if self._file is not None:
            self._file.write_held()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def file_name(number: int) -> str:
    """Reads the rows of a table's file."""
    return f"part-{number:05d}.parquet"


def _key(*parts: str | None) -> str:
    """No name has a line feed."""
    return "\n".join(part or "" for part in parts)


def _places(table: pa.Table, columns: Sequence[str], keys: pa.Array) -> Int64s:
    """The index of each row's key among the keys; -1 for none."""
    parts = [pc.fill_null(table[name], "") for name in columns]
    found = pc.index_in(pc.binary_join_element_wise(*parts, "\n"), value_set=keys)
    places: Int64s = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return places


class _RowSource(NamedTuple):
    """Rows of files; `node` is that of all rows, None if they have a column for it. `dataset` is None without any."""

    dataset: Any
    node: str | None = None


def _open_fresh(paths: Sequence[Path], node: str) -> _RowSource:
    files = [str(path) for path in paths]
    return _RowSource(ds.dataset(files, schema=FILE_SCHEMA, format="parquet") if files else None, node)


def _open_old(folders: Sequence[Path]) -> _RowSource:
    return _RowSource(open_tables(folders, folders[0].parent) if folders else None)


def _read(source: _RowSource, names: tuple[str | None, str | None]) -> pa.Table:
    if source.dataset is None:
        return TABLE_SCHEMA.empty_table()
    first, end = names
    stream = ds.field("stream")
    wanted = [stream >= first] if first is not None else []
    wanted += [stream < end] if end is not None else []
    condition = wanted[0] if len(wanted) == 1 else wanted[0] & wanted[1] if wanted else None
    found = source.dataset.to_table(filter=condition)
    if source.node is not None:
        found = found.add_column(0, NODE, pa.repeat(pa.scalar(source.node, NODE.type), found.num_rows))
    return found.select(TABLE_SCHEMA.names)


def _name_ranges(*days: _RowSource) -> Iterator[tuple[str | None, str | None]]:
    """(first name, name behind the last one) of each part; None for no bound. Together they are all names."""
    counts: Counter[str] = Counter()
    for dataset, _ in days:
        if dataset is not None:
            counts.update(dataset.to_table(columns=["stream"])["stream"].to_pylist())
    first: str | None = None
    series = 0
    for name in sorted(counts):
        if series + counts[name] > PART_SERIES and series:
            yield first, name
            first, series = name, 0
        series += counts[name]
    yield first, None


def _numbers(table: pa.Table, name: str) -> Int64s:
    """A column, NO_VALUE for null."""
    found: Int64s = pc.fill_null(pc.cast(table[name], pa.int64()), NO_VALUE).to_numpy()
    return found


def _to_rows(table: pa.Table, streams: Int64s) -> Rows:
    """For the kernel: rows whose `streams` is not negative."""
    wanted = table.filter(pa.array(streams >= 0))
    return Rows(streams[streams >= 0], _numbers(wanted, "start"), *(_numbers(wanted, name) for name in _COUNTS))


def _sketches(table: pa.Table, streams: Int64s) -> pa.Table:
    """Those of the rows that `_to_rows` gives."""
    return table.select(SKETCHES).filter(pa.array(streams >= 0))


def _concatenated(*parts: Rows) -> Rows:
    return Rows._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def _taken(rows: Rows, places: Any) -> Rows:
    return Rows._make(column[places] for column in rows)


def _fuller(rows: Rows, fresh: int) -> Rows:
    """Keeps one of two rows of a stream and minute: the one with more messages, or else more gaps, or else the fresh
    one; the first `fresh` rows are. In the order of streams and times.
    """
    is_old = np.arange(len(rows.messages)) >= fresh
    rows = _taken(rows, np.lexsort((is_old, -rows.gaps, -rows.messages, rows.start_us, rows.stream)))
    begins = np.ones(len(rows.messages), np.bool_)
    begins[1:] = (rows.stream[1:] != rows.stream[:-1]) | (rows.start_us[1:] != rows.start_us[:-1])
    return _taken(rows, begins)


def _fill_missing(minutes: Rows) -> Rows:
    """Messages between a row and the one before it that neither counts."""
    missing = minutes.missing.copy()
    lost = minutes.first_seq[1:] - 1 - minutes.damaged[1:] - minutes.last_seq[:-1]
    same = minutes.stream[1:] == minutes.stream[:-1]
    missing[1:] = np.where(same, np.maximum(missing[1:], lost), missing[1:])
    return minutes._replace(missing=missing)


def _from_minutes(minutes: Rows, level: str, known: Rows) -> tuple[Rows, Int64s]:
    """Hours or days from their minutes; the percentiles are those of a known row of the same messages, whose place is
    returned too, -1 for none."""
    if not len(minutes.messages):
        return minutes, np.empty(0, np.int64)
    rows, _ = merge_rows(minutes, WIDTHS_US[level])
    # NO_VALUE is the greatest number: of two known rows, one without percentiles is not the one taken.
    order = np.lexsort((known.gap_p50_us, known.size_p50))[::-1]
    found = dict(zip(_same_row(known, order), order.tolist(), strict=True))
    places = np.array([found.get(key, -1) for key in _same_row(rows, slice(None))], np.int64)
    percentiles = {}
    for name in _PERCENTILES:
        values = np.append(getattr(known, name), NO_VALUE)
        percentiles[name] = values[places]
    return rows._replace(**percentiles), places


def _same_row(rows: Rows, places: Any) -> Iterator[tuple[int, ...]]:
    """The columns that two rows of the same messages have in common."""
    columns = (rows.stream, rows.start_us, rows.messages, rows.gaps, rows.first_seq, rows.last_seq)
    return zip(*(column[places].tolist() for column in columns), strict=True)
