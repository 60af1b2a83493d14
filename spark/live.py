"""Live queries: offsets per stream, batches of bounded size, new streams while it runs.

Exactly once holds because a batch is a set of ranges of seqs, which Spark writes down before it reads them: every
repeated read gets the same messages. If some are lost meanwhile the query fails, unless it is configured to continue.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tailrace.errors import StreamBehind, StreamDeleted, UnknownStream
from tailrace.shard.errors import StreamCut, StreamMissing
from tailrace.spark.batch import TaskPartition, batch_maker
from tailrace.spark.columns import BatchMaker, Part
from tailrace.spark.name_files import NameFiles
from tailrace.spark.offsets import (
    PACKED_FROM,
    DataLoss,
    Mark,
    Offset,
    OffsetPacker,
    advance,
    is_same_stream,
    is_short,
    pack_offset,
    parse_offset,
)
from tailrace.spark.options import InvalidOption, Options
from tailrace.spark.places import Range
from tailrace.spark.plan import is_unborn, resolve
from tailrace.spark.planning import make_tasks
from tailrace.spark.reading import LOG, batches, needs_frames, read_slice, told
from tailrace.spark.slices import NO_IDENTITY, BadStream, BadStreams, Identity, Slice, Stamp
from tailrace.spark.source import (
    CONNECTION_ERRORS,
    STREAM_ERRORS,
    Scan,
    Source,
    StreamRef,
    StreamView,
    fetched,
    open_source,
    prepared,
)

GONE: Final = "stream {!r} no longer exists; the query has read all messages it could"


LOSSES: Final = (StreamCut, StreamMissing, StreamBehind, StreamDeleted, UnknownStream)
"""What a batch meets whose messages were there when it was planned, and are not any more."""
LOOKS_EVERY: Final = 100
LOOKS_MAX: Final = 100
"""Each stream is looked at once in LOOKS_EVERY triggers, changed or not; in more if there are very many."""


class TailraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver, in a Python process of its own; `read` runs in the tasks, on a copy."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.range.end is not None:
            raise InvalidOption("the option to is for queries of the past; a live query has no end")
        self._options = options
        self._schema = schema
        self._source: Source | None = None
        self._first: Offset = {}  # where streams begin that the query has not seen yet
        self._latest: Offset = {}
        self._replaced: set[str] = set()  # the last message that the query has read of these is another one now
        self._frozen: Offset | None = None
        self._vanished: set[str] = set()  # streams that the query has read and that do not exist now
        self._refs: Mapping[str, StreamRef] = {}  # of the last scan
        self._boots: dict[str, int] = {}  # of the last look at a stream's last message read
        self._sure: set[str] = set()  # streams that need no look until the scan finds them changed
        self._looked: set[str] = set()  # streams that the last look has opened
        self._behind: dict[str, int] = {}  # messages that the last batch has left, by streams
        self._turn = 0
        self._packer = OffsetPacker(_name_files(options))
        self._known: list[tuple[dict[str, Any], Offset]] = []  # the latest offsets as Spark has them, and parsed
        self._planned: Offset | None = None  # the end of the last batch, if nothing went wrong
        batch_maker(options, schema)

    # --- what Spark calls -------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._look({})
        # With "new" the streams that are there begin at their ends; those that come later, at their beginnings.
        return self._pack(self._latest if self._options.from_new else self._first)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = self._parse(start)
        self._look(done)
        self._first = {name: mark for name, mark in self._first.items() if name not in done}
        latest = self._reachable(self._looked | self._behind.keys())
        begun = {**done, **{name: mark for name, mark in self._first.items() if name in latest}}
        for name in self._looked & begun.keys():
            begun[name] = self._checked(name, begun[name])
        latest = {
            name: mark._replace(resumed=begun[name].resumed if begun[name] != done.get(name) else None)
            for name, mark in latest.items()
            if mark.seq > begun[name].seq
        }
        end = advance(begun, latest, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        self._mark(begun, end, latest.keys())
        for name in (self._vanished | {name for name, mark in done.items() if mark.is_gone}) - latest.keys():
            end[name] = end[name]._replace(is_gone=name in self._vanished)
        for name in find_gone(done, {name: end[name] for name in self._vanished}):
            LOG.warning(GONE.format(name))
        self._note(done, end)
        packed = self._pack(end)
        self._planned = self._parse(packed)
        return packed

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows_per_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._look({})
        self._frozen = dict(self._latest)

    def reportLatestOffset(self) -> dict[str, Any]:
        """For the progress only. Of many streams just the sums; `$lag` is what the last batch has left."""
        lag = {"messages": sum(self._behind.values()), "streams": len(self._behind)}
        is_few = len(self._latest) < PACKED_FROM
        marks = pack_offset(self._latest, self._packer) if is_few else {"$streams": len(self._latest)}
        return {**marks, "$lag": lag}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ended = self._parse(start), self._parse(end)
        moved = {name: mark for name, mark in ended.items() if begun.get(name) is not mark and begun.get(name) != mark}
        slices = [self._slice(name, begun.get(name), mark) for name, mark in moved.items()]
        tasks = [TaskPartition(task) for task in make_tasks(slices, self._options.rows_per_task, os.cpu_count() or 1)]
        gone = tuple(BadStream(name, GONE.format(name)) for name in find_gone(begun, moved))
        return [*tasks, *([TaskPartition((), gone)] if gone else [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        maker = batch_maker(self._options, self._schema)
        yield from told(partition.bad, maker)
        with closing(open_source(self._options.source)) as source:
            bad: list[BadStream] = []
            slices = fetched(source, partition.task)
            parts = (each for slice_ in slices for each in read_all(source, slice_, maker, self._options, bad))
            yield from batches(parts, maker, self._options.topics)
            yield from told(bad, maker)

    def stop(self) -> None:
        if self._source is not None:
            self._source.close()

    # --- how --------------------------------------------------------------------------------------------------------

    def _opened(self) -> Source:
        if self._source is None:
            self._source = open_source(self._options.source)
        return self._source

    def _pack(self, offset: Offset) -> dict[str, Any]:
        """Remembers it: Spark gives it back, as the end of this batch and as the start of the next one."""
        for packed, same in self._known:
            if same == offset:
                return packed
        self._known = [(pack_offset(offset, self._packer), offset), *self._known[:1]]
        return self._known[0][0]

    def _parse(self, said: dict[str, Any]) -> Offset:
        found = next((offset for packed, offset in self._known if packed == said), None)
        if found is None:
            found = parse_offset(said, self._packer)
            self._known = [(said, found), *self._known[:1]]
        return found

    def _look(self, known: Offset) -> None:
        """Notes the beginning of every stream for this query, and its end now, looking only at streams that may have
        changed. Raises BadStreams."""
        source, bad = self._opened(), []
        self._replaced.clear()
        scan = source.scan(self._options.streams)
        self._looked = self._stale(scan, known)
        self._latest = {name: mark for name, mark in self._latest.items() if name in self._sure}
        for ref in prepared(source, [scan.refs[name] for name in sorted(self._looked)]):
            name = ref.stream
            self._sure.discard(name)
            try:
                if self._look_at(source, ref, known.get(name), self._latest) and name not in scan.unsettled:
                    self._sure.add(name)
            except CONNECTION_ERRORS:
                raise
            except STREAM_ERRORS as error:
                self._latest.pop(name, None)
                if not is_unborn(error, ref, self._options.streams):
                    bad.append(BadStream(name, str(error)))
        if bad and not self._options.skip_bad:
            raise BadStreams(bad)
        for each in bad:
            LOG.warning("left out for now: %s", each.cause)
        self._vanished = known.keys() - self._latest.keys() - {each.stream for each in bad}

    def _stale(self, scan: Scan, known: Offset) -> set[str]:
        """The streams to look at: those of which another look may find something else, and some in any case."""
        if known is not self._planned:
            self._sure.clear()
        self._planned = None
        self._sure -= scan.changed
        if scan.refs is not self._refs:
            self._refs = scan.refs
            self._sure &= scan.refs.keys()
            self._boots = {name: boot for name, boot in self._boots.items() if name in scan.refs}
        self._turn += 1
        every = max(LOOKS_EVERY, -(-len(scan.refs) // LOOKS_MAX))
        due = islice(scan.refs, self._turn % every, None, every)
        return (scan.refs.keys() - self._sure).union(due)

    def _reachable(self, names: Iterable[str]) -> Offset:
        """The ends of these streams; with `availableNow`, no message that came after its beginning."""
        found = {name: self._latest[name] for name in names if name in self._latest}
        return found if self._frozen is None else _no_further(found, self._frozen)

    def _note(self, done: Offset, end: Offset) -> None:
        """Notes the messages that this batch leaves, and the streams that the next trigger must look at."""
        touched = self._looked | self._behind.keys()
        self._sure.difference_update(name for name in touched if end.get(name) != done.get(name))
        left = ((name, self._latest.get(name)) for name in touched if name in end)
        self._behind = {name: mark.seq - end[name].seq for name, mark in left if mark and mark.seq > end[name].seq}

    def _look_at(self, source: Source, ref: StreamRef, known: Mark | None, latest: Offset) -> bool:
        """Returns whether the view shows all there is of the stream, and nothing is wrong with it."""
        self._looked.add(ref.stream)
        with source.view(ref) as view:
            end = Mark(view.next_seq, view.identity)
            if known is None:
                slice_ = resolve(view, Range(self._options.range.start))
                self._first[ref.stream] = Mark(slice_.first_seq, view.identity)
            elif view.next_seq < known.seq <= view.possible_seq:
                end = end._replace(seq=known.seq)  # what follows is not shown yet, and not known to be lost
            elif self._boots.get(ref.stream) != view.boot or (known.seq < view.next_seq and not view.boot_is_of_files):
                self._boots[ref.stream] = view.boot
                if is_replaced(view, known):
                    self._replaced.add(ref.stream)
            if view.last is not None and end.seq == view.next_seq:
                end = end._replace(time_us=view.last.timestamp_us, epoch=view.last.epoch)
            latest[ref.stream] = end
            return view.possible_seq == view.next_seq and ref.stream not in self._replaced

    def _checked(self, name: str, mark: Mark) -> Mark:
        """Returns where to continue in a stream. Raises DataLoss if it is not the stream that the query has read."""
        latest = self._latest.get(name)
        if latest is None:
            return mark
        is_same = is_same_stream(latest.identity, mark.identity)
        if is_same and latest.seq >= mark.seq and name not in self._replaced:
            return mark
        source = self._opened()
        try:
            with source.view(source.ref(name)) as view:
                cause, resumed = find_loss(view, mark)
        except LOSSES:
            return mark  # it was deleted in this moment, which the next trigger finds
        if self._options.fail_on_data_loss:
            raise DataLoss(name, cause)
        LOG.warning("stream %r: %s: continuing at seq %d", name, cause, resumed)
        return Mark(resumed, latest.identity, None, resumed)

    def _mark(self, begun: Offset, end: Offset, names: Iterable[str]) -> None:
        """Adds to the ends of a batch what the look at the streams has not shown."""
        source = self._opened()
        left = sorted(name for name in names if not is_marked(begun[name], end[name]))
        for ref in prepared(source, list(map(source.ref, left))):
            end[ref.stream] = self._marked(source, ref, begun[ref.stream], end[ref.stream])

    def _marked(self, source: Source, ref: StreamRef, begun: Mark, mark: Mark) -> Mark:
        """With the stamp of the last message before it, and whether its stream has vanished; `begun` if the stream was
        replaced since it was looked at."""
        name = ref.stream
        mark = mark._replace(is_gone=name in self._vanished)
        with suppress(*LOSSES), source.view(ref) as view:
            if is_same_stream(view.identity, mark.identity) and view.first_seq < mark.seq <= view.next_seq:
                stamp = view.stamp_at(mark.seq - 1)
                if stamp is not None and stamp.epoch != begun.epoch and is_replaced(view, begun):
                    self._sure.discard(name)  # the next trigger reports it
                    return begun
                if stamp is not None:
                    return mark._replace(time_us=stamp.timestamp_us, epoch=stamp.epoch)
        return mark

    def _slice(self, name: str, begun: Mark | None, end: Mark) -> Slice:
        source = self._opened()
        ref = source.ref(name)
        if begun is None:
            begun = self._first.get(name) or self._begun_again(source, ref, end)
        elif end.resumed is not None and begun._replace(is_gone=False) != end._replace(is_gone=False):
            begun = end._replace(seq=end.resumed)
        elif not is_same_stream(begun.identity, end.identity):
            begun = end  # it goes on behind a cut, where the messages in between are given up
        latest = None if end.time_us is None or end.epoch is None else Stamp(end.time_us, end.epoch)
        return Slice(name, ref.shard, min(begun.seq, end.seq), end.seq, self._whole(ref, end.identity), latest)

    def _begun_again(self, source: Source, ref: StreamRef, end: Mark) -> Mark:
        """Returns where a stream begins that is new in this batch, after a restart; its end if it is gone and that is
        allowed. Raises DataLoss, STREAM_ERRORS."""
        try:
            self._look_at(source, ref, None, {})
        except LOSSES as error:
            if self._options.fail_on_data_loss:
                raise DataLoss(ref.stream, f"it was deleted before the query has read it: {error}") from error
            LOG.warning("%s: continuing without it", error)
            return end
        return self._first[ref.stream]

    def _whole(self, ref: StreamRef, identity: Identity) -> Identity:
        """The identity with all bits of the id, if it is still that of the stream."""
        if is_short(identity):
            with suppress(*STREAM_ERRORS), self._opened().view(ref) as view:
                return view.identity if is_same_stream(view.identity, identity) else identity
        return identity


def _name_files(options: Options) -> NameFiles | None:
    if not options.checkpoint:
        return None
    source = options.source
    return NameFiles(options.checkpoint, repr((source.path, source.brokers, options.streams)))


def is_marked(begun: Mark, end: Mark) -> bool:
    """Whether the last message before the end of a batch is known, and of the term of the one before its beginning."""
    return end.time_us is not None and (begun.time_us is None or begun.epoch == end.epoch)


def is_replaced(view: StreamView, mark: Mark) -> bool:
    """Whether the last message before the mark has changed since the mark was made. Raises STREAM_ERRORS."""
    if mark.time_us is None or not view.first_seq < mark.seq <= view.next_seq:
        return False
    stamp = view.stamp_at(mark.seq - 1)
    if stamp is None or not stamp.timestamp_us:  # it was trimmed in this moment
        return False
    return stamp.timestamp_us != mark.time_us or mark.epoch not in (None, stamp.epoch)


def find_gone(begun: Offset, end: Offset) -> list[str]:
    """The streams that have vanished in this batch."""
    return [name for name, mark in end.items() if mark.is_gone and not (name in begun and begun[name].is_gone)]


def find_loss(view: StreamView, mark: Mark) -> tuple[str, int]:
    """Returns the fate of the messages before the mark, and the seq from which the stream has others.

    Raises STREAM_ERRORS.
    """
    read = f"the query has read it up to seq {mark.seq}"
    if not is_same_stream((view.identity[0], 0), (mark.identity[0], 0)):
        return f"it was made anew; {read} before", view.first_seq
    if not is_same_stream(view.identity, mark.identity):
        return f"its end was set aside; {read}, and now it ends at {view.next_seq}", view.next_seq
    resumed = view.next_seq if mark.time_us is None else min(view.seq_at(mark.time_us + 1), mark.seq)
    if NO_IDENTITY in (view.identity, mark.identity):
        causes = "its node has lost the end of it, it was deleted, it was made anew, or it is another node's"
        return f"it has other messages from seq {resumed} on: {causes}; {read}", resumed
    return f"its node has lost the end of it, and gives the seqs from {resumed} on to other messages; {read}", resumed


def read_all(
    source: Source, slice_: Slice, maker: BatchMaker, options: Options, bad: list[BadStream]
) -> Iterator[Part]:
    """Yields all messages of a slice. Raises DataLoss or one of LOSSES if some are lost, unless that is allowed; others
    of STREAM_ERRORS unless bad streams are skipped, which are then passed to `bad`."""
    messages, had_bad = 0, len(bad)
    on_bad, frames = bad.append if options.skip_bad else None, needs_frames(maker, options.topics)
    try:
        for part in read_slice(source, slice_, frames, on_bad):
            messages += part.block.entries.messages
            yield part
    except LOSSES as error:
        if options.fail_on_data_loss:
            if isinstance(error, StreamCut | StreamBehind):
                raise
            raise DataLoss(slice_.stream, f"it was deleted before the query has read it: {error}") from error
        LOG.warning("%s: continuing without it", error)
    if messages < slice_.messages and options.fail_on_data_loss and len(bad) == had_bad:
        missing = slice_.messages - messages
        raise DataLoss(slice_.stream, f"{missing} messages were trimmed before the query has read them")


def _no_further(latest: Offset, frozen: Offset) -> Offset:
    """The latest offset, but no stream and no message that came after `frozen` was noted."""
    return {name: _no_later(mark, frozen[name].seq) for name, mark in latest.items() if name in frozen}


def _no_later(mark: Mark, seq: int) -> Mark:
    return mark if mark.seq <= seq else mark._replace(seq=seq, time_us=None, epoch=None)
