"""Streams read from brokers, over the binary protocol: for machines that do not have the node's disk.

Several addresses are those of one node, or of nodes that hold the same streams, as for the client. Checksums are always
verified here.
"""

from __future__ import annotations

import logging
import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

import numpy as np

from tailrace.core.subscription_state import RESUMED, RESUMED_ELSEWHERE
from tailrace.errors import (
    BrokerClosing,
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    DamagedMessage,
    Denied,
    OperationTimeout,
    SeqFault,
    StreamBehind,
)
from tailrace.protocol import listing
from tailrace.protocol.messages import Subscribed
from tailrace.protocol.places import From
from tailrace.shard.epochs import DEFAULT_HISTORY, History, find_epochs
from tailrace.shard.frame import SEQ_OFFSET
from tailrace.shard.leaves import load
from tailrace.shard.walk import fault_text
from tailrace.spark import short_ranges
from tailrace.spark.broker_connection import (
    BrokerConnection,
    Chunk,
    GrowthReport,
    ListedEnd,
    list_grown,
    list_streams,
)
from tailrace.spark.entries import ENTRY, Entries, no_entries
from tailrace.spark.frames import index_of
from tailrace.spark.patterns import is_exact, is_wanted, needs_listing
from tailrace.spark.slices import NO_IDENTITY, Identity, Slice, Stamp, StreamReplaced
from tailrace.spark.source import Block, Scan, SourceOptions, StreamRef, scan_all

LOG = logging.getLogger("tailrace.spark")
ATTEMPTS_MAX: Final = 6
"""Connections in a row that bring no message, before a slice is given up: about six seconds."""
PAUSE_S: Final = 0.2
"""After the first of them; each further pause is twice as long."""
UNKNOWN_SHARD: Final = -1
BOOT_BITS: Final = 48
Told = TypeVar("Told")
LOST: Final = (ConnectionLost, OperationTimeout, BrokerClosing)
NO_GROWTH: Final = GrowthReport("", -1, None)

_check = load("tailrace.shard.frame_cy").check


class BrokerSource:
    """See `spark.source.Source`. One connection serves all views."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection: BrokerConnection | None = None
        self._boot = 0
        self._node_id = ""  # of the node that was reached first: ids of streams are its own
        self._is_elsewhere = False  # the node takes this for another machine than its own
        self._ends: dict[str, End] = {}  # each for the next view of its stream
        self._reading = IdleConnection(options)
        self._fetched: dict[Slice, list[Chunk]] = {}  # each for the next reader of its slice
        self._growth = NO_GROWTH  # the last report on this connection
        self._patterns: Sequence[str] = ()
        self._refs: dict[str, StreamRef] = {}  # as they were listed last, by these patterns

    def streams(self, patterns: Sequence[str]) -> list[StreamRef]:
        names = list(patterns)
        if needs_listing(patterns):
            found = (name for name in self._all_names() if is_wanted(name, patterns))
            names = sorted({*found, *filter(is_exact, patterns)})
        return list(map(self.ref, names))

    def _all_names(self) -> list[str]:
        return self._asked(lambda connection: list_streams(connection.address), BrokerConnection.names)

    def _asked(self, by_line: Callable[[BrokerConnection], Told], by_list: Callable[[BrokerConnection], Told]) -> Told:
        """Lines are answered to administrators, and have no login here; only they name dead letters."""
        connection = self._connected()
        if not (self._options.login.user or self._is_elsewhere):
            try:
                return by_line(connection)
            except Denied:
                self._is_elsewhere = True
        return by_list(connection)

    def scan(self, patterns: Sequence[str]) -> Scan:
        """The node says which streams have grown, as long as one connection to it lasts."""
        if not needs_listing(patterns):
            return scan_all(self.streams(patterns))
        if patterns != self._patterns:
            self._patterns, self._growth = patterns, NO_GROWTH
        before = self._growth
        try:
            self._growth = self._ask_growth()
        except LOST:
            self.close()
            self._growth = self._ask_growth()
        names, number = self._growth.names, self._growth.number
        changed = None if names is None else {name for name in names if is_wanted(name, patterns)}
        if changed is None or number != before.number or not changed <= self._refs.keys():
            refs = {ref.stream: ref for ref in self.streams(patterns)}
            self._refs = self._refs if refs == self._refs else refs
        named = set(filter(is_exact, patterns))  # they may not exist
        return Scan(self._refs, self._refs.keys() if changed is None else changed, named)

    def _ask_growth(self) -> GrowthReport:
        """Asks which streams have grown since the last report on this connection."""

        def ask(mark: str) -> GrowthReport:
            return self._asked(lambda one: list_grown(one.address, mark), lambda one: one.grown(mark))

        self._connected()  # without a connection before, the mark is of another node
        found = ask(self._growth.mark)
        if found.names is None:
            # Workers begin to note at this question, one after the other: only the next mark is behind all of them.
            found = found._replace(mark=ask(found.mark).mark)
        self._connected().check()  # the node has not come back in between, without messages that were not synced
        return found

    def ref(self, stream: str) -> StreamRef:
        return StreamRef(UNKNOWN_SHARD, stream)

    def node_id(self) -> str:
        return self._connected().node_id

    def prepare(self, refs: Sequence[StreamRef]) -> None:
        with suppress(*LOST):  # then each view asks for itself
            self._ends = {}
            self._ends = self._find_ends(self._connected(), [ref.stream for ref in refs])

    @contextmanager
    def view(self, ref: StreamRef) -> Iterator[BrokerView]:
        try:
            found = self._view(ref)
        except LOST:  # such as a worker that was replaced since the last look
            self.close()
            found = self._view(ref)
        try:
            yield found
        except LOST:
            self.close()
            raise

    def _view(self, ref: StreamRef) -> BrokerView:
        connection, name = self._connected(), ref.stream
        end = self._ends.pop(name, None) or self._find_ends(connection, [name]).get(name)
        return BrokerView(connection, name, self._boot, end or find_end(connection, name))

    def _find_ends(self, connection: BrokerConnection, names: Sequence[str]) -> dict[str, End]:
        """Streams that the broker refuses are left out. Raises TailraceError."""
        listed = connection.listed_ends(names)
        others = connection.ends([name for name in names if name not in listed])
        opened = connection.listed_ends(list(others))  # those that are there are open now, and have ids
        ends = {name: End.of_listed(each) for name, each in listed.items()}
        for name, answer in others.items():
            end, own = End.of_answer(answer), opened.get(name)
            exists = own is not None or end.next_seq > 0
            ends[name] = end._replace(exists=exists, files=own.files if own else NO_IDENTITY)
        if connection.node_id != self._node_id:
            return {name: end._replace(files=NO_IDENTITY) for name, end in ends.items()}
        return ends

    def _connected(self) -> BrokerConnection:
        if self._connection is None:
            self._connection = BrokerConnection(self._options.brokers, self._options.login, (listing.FEATURE,))
            self._growth, self._is_elsewhere, self._ends = NO_GROWTH, False, {}
            # No machine goes down without the connection: each one may have come after a crash.
            self._boot = secrets.randbits(BOOT_BITS)
            self._node_id = self._node_id or self._connection.node_id
        return self._connection

    def prune(self, slice_: Slice, topics: bytes) -> list[Slice]:
        """The index is the node's: all messages come over the connection."""
        return [slice_]

    def fetch(self, slices: Sequence[Slice]) -> None:
        self._fetched = {}
        short = [each for each in slices if each.messages <= short_ranges.MESSAGES_MAX]
        if len(short) > 1:
            with suppress(ConnectFailed, BrokerError, *LOST), self._reading.use() as connection:
                self._fetched = short_ranges.fetch(connection, short)

    @contextmanager
    def open(self, slice_: Slice) -> Iterator[BrokerSlice]:
        yield BrokerSlice(self._options, slice_, self._reading, self._fetched.pop(slice_, ()))

    def close(self) -> None:
        self._reading.close()
        if self._connection is not None:
            self._connection.close()
            self._connection, self._ends = None, {}


class End(NamedTuple):
    """The messages that a stream keeps, and the stamp of the last one if it is known. `files`: see
    `ListedEnd`; `exists`: see `spark.source.TimedView`."""

    first_seq: int
    next_seq: int
    stamp: Stamp | None = None
    files: Identity = NO_IDENTITY
    exists: bool = True

    @classmethod
    def of_listed(cls, listed: ListedEnd) -> End:
        row = listed.row
        stamp = Stamp(row.timestamp_us, row.epoch) if row.first_seq < row.next_seq else None
        return cls(row.first_seq, max(row.first_seq, row.next_seq), stamp, listed.files)

    @classmethod
    def of_answer(cls, answer: Subscribed) -> End:
        """`answer`: the place of the stream's first message."""
        end_seq = answer.first_seq if answer.end_seq is None else answer.end_seq
        return cls(answer.first_seq, max(end_seq, answer.first_seq))


def find_end(connection: BrokerConnection, stream: str) -> End:
    """Raises TailraceError."""
    return End.of_answer(connection.place(stream, From("time", 0)))


class IdleConnection:
    """Keeps a connection from one slice to the next; slices are small if there are many of them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._idle: BrokerConnection | None = None

    @contextmanager
    def use(self) -> Iterator[BrokerConnection]:
        """Not kept if the use ends early, with answers on the way. Raises ConnectFailed, BrokerError."""
        connection, self._idle = self._idle, None
        connection = connection or BrokerConnection(self._options.brokers, self._options.login, (listing.FEATURE,))
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.close()
        self._idle = connection

    def close(self) -> None:
        if self._idle is not None:
            self._idle.close()
        self._idle = None


class BrokerView:
    """See `spark.source.StreamView`."""

    shard = UNKNOWN_SHARD
    identity = NO_IDENTITY

    def __init__(self, connection: BrokerConnection, stream: str, boot: int, end: End) -> None:
        self._connection = connection
        self.stream = stream
        self.first_seq, self.next_seq, self.last, files, self.exists = end
        self.stream_id, self.boot_is_of_files = files[0], files != NO_IDENTITY
        self.boot = hash((boot, *files)) if self.boot_is_of_files else boot
        self.possible_seq = self.next_seq

    def seq_at(self, timestamp_us: int) -> int:
        seq = self._connection.place(self.stream, From("time", max(timestamp_us, 0))).next_seq
        seq = min(max(seq, self.first_seq), self.next_seq)
        if self._is_place(seq, timestamp_us):
            return seq
        # The node has searched its index, which has a wrong time there.
        LOG.warning("stream %r: the index of its node is wrong beside seq %d; searching its messages", self.stream, seq)
        seqs = range(self.first_seq, self.next_seq)
        return self.first_seq + bisect_left(seqs, timestamp_us, key=self.timestamp_at)

    def _is_place(self, seq: int, timestamp_us: int) -> bool:
        """Whether the messages on both sides, as far as they are kept, agree."""
        first, end = max(seq - 1, self.first_seq), min(seq + 1, self.next_seq)
        for chunk in self._connection.chunks(self.stream, first, end) if first < end else ():
            entries = take_apart(self.stream, chunk, first)
            for each, found_us in zip(entries.seq.tolist(), entries.timestamp_us.tolist(), strict=True):
                if (each >= seq) != (found_us >= timestamp_us):
                    return False
        return True

    def timestamp_at(self, seq: int) -> int:
        stamp = self.stamp_at(seq)
        return stamp.timestamp_us if stamp else 0

    def history(self) -> History:
        """Masters are not known. Most streams need one request."""
        if self.first_seq == self.next_seq:
            return ()
        if self._epoch_at(self.next_seq - 1) == DEFAULT_HISTORY[0].epoch:
            return DEFAULT_HISTORY
        found = find_epochs(self._epoch_at, self.first_seq, self.next_seq)
        return tuple(start for start in found if start.epoch)

    def _epoch_at(self, seq: int) -> int:
        """0 if the message has been trimmed since."""
        stamp = self.stamp_at(seq)
        return stamp.epoch if stamp else 0

    def stamp_at(self, seq: int) -> Stamp | None:
        if self.last is not None and seq == self.next_seq - 1:
            return self.last
        for chunk in self._connection.chunks(self.stream, seq, seq + 1):
            entry = index_of(chunk.frames, seq).table[0]
            return Stamp(int(entry["timestamp_us"]), int(entry["epoch"]))
        return None


class BrokerSlice:
    """See `spark.source.SliceReader`. A lost connection is made again, and reading resumes. `fetched`: the first
    messages of the slice, if they are there."""

    def __init__(
        self, options: SourceOptions, slice_: Slice, connection: IdleConnection, fetched: Sequence[Chunk] = ()
    ) -> None:
        self._connection = connection
        self._fetched = fetched
        self._slice = slice_
        # Of several nodes one may not have its copy of the stream yet.
        self._resumed = RESUMED if len(options.brokers) == 1 else RESUMED_ELSEWHERE

    def blocks(self, *, frames: bool) -> Iterator[Block]:
        seq = self._slice.first_seq
        for chunk in self._fetched:
            for entries, data in self._taken(chunk, seq):
                yield Block(entries, data if frames else None)
                seq = entries.end_seq
        for entries, data in self._messages(seq, self._slice.end_seq):
            yield Block(entries, data if frames else None)

    def entries(self, seq: int, count: int) -> Entries:
        if seq < 0 or count <= 0:
            return no_entries(seq + count)
        found = [entries for entries, _ in self._messages(seq, seq + count)]
        if not found:
            return no_entries(seq + count)
        return Entries(found[0].first_seq, np.concatenate([each.table for each in found]).astype(ENTRY, copy=False))

    def _messages(self, seq: int, end_seq: int) -> Iterator[tuple[Entries, memoryview]]:
        attempts = 0
        while seq < end_seq:
            try:
                with self._connection.use() as connection:
                    self._check_end(connection, end_seq)
                    for chunk in connection.chunks(self._slice.stream, seq, end_seq):
                        for known, data in self._taken(chunk, seq, end_seq):
                            seq, attempts = known.end_seq, 0
                            yield known, data
                return
            except (ConnectFailed, *LOST, BrokerError) as error:
                attempts += 1
                if attempts == ATTEMPTS_MAX or (isinstance(error, BrokerError) and error.code not in self._resumed):
                    raise
                time.sleep(PAUSE_S * 2 ** (attempts - 1))

    def _taken(self, chunk: Chunk, seq: int, end_seq: int = 0) -> Iterator[tuple[Entries, memoryview]]:
        """The messages of a chunk. Raises StreamReplaced behind those for which the slice was planned."""
        entries = take_apart(self._slice.stream, chunk, seq)
        known = self._known(entries) if end_seq <= self._slice.end_seq else entries
        if known.messages:
            yield known, chunk.frames[: known.nbytes]
        if known.messages < entries.messages:
            raise StreamReplaced(self._slice.stream, known.end_seq)

    def _check_end(self, connection: BrokerConnection, end_seq: int) -> None:
        """A stream that ends before the slice is waited for, if it may be a copy that is behind. Raises StreamReplaced
        if it has messages later than those of the slice."""
        if self._slice.latest is None or end_seq > self._slice.end_seq:
            return
        view = BrokerView(connection, self._slice.stream, 0, find_end(connection, self._slice.stream))
        if view.first_seq < view.next_seq < end_seq:
            stamp = view.stamp_at(view.next_seq - 1)
            if stamp is not None and stamp.epoch > self._slice.latest.epoch:
                raise StreamReplaced(self._slice.stream, view.next_seq - 1)

    def _known(self, entries: Entries) -> Entries:
        """Those that may have been there when the slice was planned: in a stream times and epochs never go back."""
        latest = self._slice.latest
        if latest is None:
            return entries
        later = (entries.table["timestamp_us"] > latest.timestamp_us) | (entries.table["epoch"] > latest.epoch)
        return entries.part(0, int(later.argmax())) if later[-1] else entries


def take_apart(stream: str, chunk: Chunk, next_seq: int) -> Entries:
    """The entries of a chunk. Raises DamagedMessage, and StreamBehind or SeqFault when `next_seq` is not its first."""
    frames = chunk.frames
    seq = int.from_bytes(frames[SEQ_OFFSET : SEQ_OFFSET + 8], "little")
    found, _, fault = _check(frames, 0, len(frames), seq)
    if fault:
        raise DamagedMessage(f"{stream}: message {seq + found}: {fault_text(fault)}")
    if seq < next_seq:
        raise StreamBehind(stream, next_seq, seq)
    if seq > next_seq and not chunk.trimmed:
        raise SeqFault(f"{stream}: seq {seq} came where {next_seq} was next")
    return index_of(frames, seq)
