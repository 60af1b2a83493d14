"""The sources of streams: a data directory, or brokers. Both look the same to planning and to reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from tailrace.core.address import Address
from tailrace.errors import ConnectFailed, ConnectionLost, OperationTimeout, TailraceError
from tailrace.shard.epochs import History
from tailrace.shard.errors import StorageError
from tailrace.shard.names import InvalidName
from tailrace.spark.broker_connection import NO_LOGIN, BrokerLogin
from tailrace.spark.entries import Entries
from tailrace.spark.slices import FETCHED_MAX, Identity, Slice, Stamp

STREAM_ERRORS: Final = (StorageError, TailraceError, InvalidName, OSError)
"""What one stream that cannot be read may raise; the others are not concerned."""
CONNECTION_ERRORS: Final = (ConnectFailed, ConnectionLost, OperationTimeout)
"""Those of them that concern all streams: no stream is bad because the broker is away. Catch these first."""


class SourceOptions(NamedTuple):
    """Either `path`, of a data directory, or `brokers`. `only_synced`: leave out what the node has not synced yet, of a
    data directory. Picklable.
    """

    path: str = ""
    brokers: tuple[Address, ...] = ()
    login: BrokerLogin = NO_LOGIN
    check_crc: bool = False
    only_synced: bool = False


class StreamRef(NamedTuple):
    """`shard` is -1 if unknown."""

    shard: int
    stream: str


class Scan(NamedTuple):
    """Streams by their names, in order; those that have changed since the scan before; and those that may change
    without being `changed` in the next scan. A view of any other one shows the same as after the scan before."""

    refs: Mapping[str, StreamRef]
    changed: Set[str]
    unsettled: Set[str]


PREPARED_MAX: Final = 1_000


def prepared(source: Source, refs: Sequence[StreamRef]) -> Iterator[StreamRef]:
    """The same, in their order, each of which is to be viewed at once. Raises CONNECTION_ERRORS."""
    for first in range(0, len(refs), PREPARED_MAX):
        source.prepare(refs[first : first + PREPARED_MAX])
        yield from refs[first : first + PREPARED_MAX]


def fetched(source: Source, task: Sequence[Slice]) -> Iterator[Slice]:
    """The same, in their order, each of which is to be read at once."""
    for first in range(0, len(task), FETCHED_MAX):
        source.fetch(task[first : first + FETCHED_MAX])
        yield from task[first : first + FETCHED_MAX]


class Block(NamedTuple):
    """Consecutive messages, and their frames one after the other on request."""

    entries: Entries
    frames: memoryview | None


class TimedView(Protocol):
    """A stream in which times can be found. The committed end is read once, when it is opened.

    stream_id: that of its files; 0 if a node does not send it. exists: False for a name over a connection that no
    stream has, which is shown as an empty one.
    """

    stream: str
    stream_id: int
    exists: bool
    shard: int
    first_seq: int
    next_seq: int
    identity: Identity

    def seq_at(self, timestamp_us: int) -> int:
        """Returns the first seq from first_seq on with at least this timestamp; next_seq without any."""

    def timestamp_at(self, seq: int) -> int:
        """The time of a message from first_seq to next_seq; if it has been trimmed since, that of a later one."""

    def history(self) -> History:
        """The terms of the messages, and one that begins right behind them, as far as they are known; empty if nothing
        is. Raises STREAM_ERRORS."""


class StreamView(TimedView, Protocol):
    """A stream for planning.

    `possible_seq`: messages from next_seq up to there may exist, but are not shown, as they are not synced or nobody
    has looked at them since the machine went down. `boot`: another number when messages that were not synced may have
    been lost, and their seqs given to others. `boot_is_of_files`: it is another one, too, whenever the stream may have
    other messages before its former end. `last`: of the last message, if it is known without a look.
    """

    possible_seq: int
    boot: int
    boot_is_of_files: bool
    last: Stamp | None

    def stamp_at(self, seq: int) -> Stamp | None:
        """The identity of a message from first_seq to next_seq; None if it has been trimmed since."""


class SliceReader(Protocol):
    """Reads a slice, in a task. Trimmed messages are left out, also if they are trimmed meanwhile."""

    def blocks(self, *, frames: bool) -> Iterator[Block]:
        """All of the slice. Each block has at least a message, and bounded memory."""

    def entries(self, seq: int, count: int) -> Entries:
        """Reads up to `count` messages from `seq` on, in one array; `seq` may lie before the slice. May be empty."""


class Source(Protocol):
    """Close it: `contextlib.closing`."""

    def streams(self, patterns: Sequence[str]) -> list[StreamRef]:
        """Returns the streams that the patterns select (`spark.patterns`), in the order of their names. A stream
        named without a wildcard is included even if it does not exist: `view` reports that."""

    def scan(self, patterns: Sequence[str]) -> Scan:
        """The same streams, and which of them may end elsewhere than before. `refs` is the same object while the
        streams are the same."""

    def ref(self, stream: str) -> StreamRef:
        """Views a stream that may not exist."""

    def node_id(self) -> str:
        """The id of the node that the streams are read from."""

    def prepare(self, refs: Sequence[StreamRef]) -> None:
        """To be called before many streams are viewed, with no more than PREPARED_MAX: the ends that the next view of
        each shows may be those of now. Raises CONNECTION_ERRORS."""

    def view(self, ref: StreamRef) -> AbstractContextManager[StreamView]:
        """Raises STREAM_ERRORS."""

    def prune(self, slice_: Slice, topics: bytes) -> list[Slice]:
        """The parts of a slice that may have messages whose topics a filter matches, in their order. Raises
        CONNECTION_ERRORS."""

    def fetch(self, slices: Sequence[Slice]) -> None:
        """To be called before slices are read in this order, with no more than FETCHED_MAX: short ones may be read at
        once. Errors are left to the readers."""

    def open(self, slice_: Slice) -> AbstractContextManager[SliceReader]:
        """Raises STREAM_ERRORS, as does the returned iterator."""

    def close(self) -> None:
        """Hold nothing any more. It may be used again."""


def scan_all(refs: Sequence[StreamRef]) -> Scan:
    """Streams that must be asked each time."""
    found = {ref.stream: ref for ref in refs}
    return Scan(found, set(), found.keys())


def open_source(options: SourceOptions) -> Source:
    """Raises DirectoryError; ConnectFailed and others of tailrace.errors."""
    if options.brokers:
        from tailrace.spark.broker_source import BrokerSource

        return BrokerSource(options)
    from tailrace.spark.directory_source import DirectorySource

    return DirectorySource(options)
