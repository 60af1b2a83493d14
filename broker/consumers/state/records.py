"""The messages of `$cursor/X`, which are the changes of the consumers of stream X, and their bytes.

A record holds the outcome of a decision, not the request: `broker.consumers.state.stream_state` applies it without
deciding anything. Runs of messages are flat rows of numbers: first seq, messages, first seq, messages, … rising,
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from tailrace.protocol.names import CONSUMER_BYTES_MAX
from tailrace.protocol.topics import filter_fault
from tailrace.shard.epochs import NEVER_SEQ, EpochStart, History, make_history
from tailrace.shard.replacing import replaceable

Flat: TypeAlias = tuple[int, ...]
"""first seq, messages, first seq, messages, …"""


class BadRecord(ValueError):
    """These bytes are not a record, or it does not fit the records applied before it; the text gives the reason."""


class ConsumerCreated(NamedTuple):
    """A consumer was made, whose first message is `seq`. `topics`: its filter, b"" for all topics."""

    name: bytes
    time_us: int
    seq: int
    ack_wait_us: int
    deliveries_max: int
    retry_us: int = 0
    retry_max_us: int = 0
    topics: bytes = b""


class ConsumerReset(NamedTuple):
    """It goes on at `seq`; nothing is in flight or finished from there on."""

    name: bytes
    time_us: int
    seq: int


class ConsumerDeleted(NamedTuple):
    name: bytes


@replaceable
class Progress(NamedTuple):
    """The outcome of one get. `kept_seq`: messages before it are not kept any more (0: all are that are wanted).

    `failed`: rows of first seq, messages, reason. `delays`: of each of these rows, 0 for that of the consumer's
    settings, else microseconds and one; () if all are 0. `back`: messages returned for the keys of those, which counts
    no delivery. `given`: to this member, now.
    """

    name: bytes
    member: bytes
    time_us: int
    kept_seq: int = 0
    finished: Flat = ()
    failed: tuple[tuple[int, int, str], ...] = ()
    back: Flat = ()
    given: Flat = ()
    delays: tuple[int, ...] = ()

    def with_given(self, given: Flat) -> Progress:
        """Without `_replace`, which takes a step more; each get that gives messages has one."""
        return Progress(*self[:7], given, self.delays)


class FlightReturned(NamedTuple):
    """What a member had in flight for too long, or had when it left. `back`: for the keys of those; counts none.

    `time_us`: when that was, if the messages wait for their next delivery; 0 if they do not.
    """

    name: bytes
    member: bytes
    reason: str
    counted: Flat
    back: Flat = ()
    time_us: int = 0


class LetterPublished(NamedTuple):
    """The dead letter with this number is in X/$dead."""

    name: bytes
    number: int


class HistoryChanged(NamedTuple):
    """Stream X is this line of messages from here on, and ends before `end_seq`.

    All that was done with messages that are not in it is undone.
    """

    history: History
    end_seq: int


class CheckpointBegun(NamedTuple):
    """A checkpoint begins: the records up to `CheckpointEnded` make the whole state."""

    history: History


class ConsumerRow(NamedTuple):
    """One consumer of a checkpoint, all but its unfinished messages."""

    name: bytes
    created_us: int
    era_us: int
    last_us: int
    ack_wait_us: int
    deliveries_max: int
    next_seq: int
    unsure_seq: int
    dead: int
    redelivered: int
    retry_us: int = 0
    retry_max_us: int = 0
    topics: bytes = b""


class ConsumerRows(NamedTuple):
    """Consumers of a checkpoint."""

    rows: tuple[ConsumerRow, ...]


class UnfinishedRows(NamedTuple):
    """What one of them has not finished. Rows of `waiting`: first seq, messages, deliveries, due_us (0: now).

    Rows of `flight`: first seq, messages, deliveries, member, deadline_us. Of `dying`: number, seq, epoch, deliveries,
    reason.
    """

    name: bytes
    waiting: tuple[tuple[int, int, int, int], ...] = ()
    flight: tuple[tuple[int, int, int, bytes, int], ...] = ()
    dying: tuple[tuple[int, int, int, int, str], ...] = ()


class LettersRemoved(NamedTuple):
    """These messages of X/$dead are not dead letters any more: they were published to X again, or purged."""

    ranges: Flat


class LettersCut(NamedTuple):
    """X/$dead ended before `end_seq`: removed ones from there on are lost, and others may have their seqs."""

    end_seq: int


class RemovedRows(NamedTuple):
    """Removed dead letters, as a part of a checkpoint."""

    ranges: Flat


class CheckpointEnded(NamedTuple):
    """The checkpoint has `parts` parts between `CheckpointBegun` and this."""

    parts: int


Record: TypeAlias = (
    ConsumerCreated
    | ConsumerReset
    | ConsumerDeleted
    | Progress
    | FlightReturned
    | LetterPublished
    | HistoryChanged
    | CheckpointBegun
    | ConsumerRows
    | UnfinishedRows
    | CheckpointEnded
    | LettersRemoved
    | LettersCut
    | RemovedRows
)


_TEXT_BYTES_MAX: Final = 1_000
_SEQ_MAX: Final = NEVER_SEQ


def pack(record: Record) -> bytes:
    """The payload of a message of `$cursor/X`. Without filters it is one that older brokers can read."""
    fields: tuple[Any, ...] = record
    if isinstance(record, ConsumerCreated):
        fields = _without_filter(record)
    elif isinstance(record, ConsumerRows):
        fields = ((*map(_without_filter, record.rows),),)
    packed: bytes = msgpack.packb((_NUMBERS[type(record)], *fields))
    return packed


def unpack(payload: bytes | bytearray | memoryview) -> Record:
    """Raises BadRecord."""
    try:
        fields: Any = msgpack.unpackb(payload, use_list=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadRecord(f"{len(payload)} bytes that are no record: {error!r}") from None
    if type(fields) is not tuple or not fields or type(fields[0]) is not int or fields[0] not in _READERS:
        raise BadRecord(f"no record known here: {_shown(fields)}")
    kind, readers = _READERS[fields[0]]
    given = len(fields) - 1
    if given != len(readers) and given not in _OLDER_FIELDS.get(kind, ()):
        raise BadRecord(f"{_shown(fields)}: {given} fields, not {len(readers)}")
    try:
        return kind(*[reader(value) for reader, value in zip(readers[:given], fields[1:], strict=True)])
    except ValueError as error:
        raise BadRecord(f"{_shown(fields)}: {error}") from None


# --- fields -----------------------------------------------------------------------------------------------------------

_FieldReader: TypeAlias = Callable[[Any], Any]


def _name(value: Any) -> bytes:
    if type(value) is not bytes or not 0 < len(value) <= CONSUMER_BYTES_MAX:
        raise ValueError(f"{_shown(value)} is no name of 1 to {CONSUMER_BYTES_MAX} bytes")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _SEQ_MAX:
        raise ValueError(f"{_shown(value)} is no number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _TEXT_BYTES_MAX:
        raise ValueError(f"{_shown(value)} is no text of at most {_TEXT_BYTES_MAX} characters")
    return value


def _flat(value: Any) -> Flat:
    row: Flat = _array(value)
    if len(row) % 2 or not all(type(number) is int for number in row):
        raise ValueError(f"{_shown(value)} are no pairs of numbers")
    end = -1
    for place in range(0, len(row), 2):
        first, count = row[place], row[place + 1]
        if first <= end or count < 1:
            raise ValueError(f"{count} messages from seq {first} do not come after {end}")
        end = first + count  # runs are apart: one that begins here would be the rest of this one
        if end > _SEQ_MAX:
            raise ValueError(f"{count} messages from seq {first} end nowhere")
    return row


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple([_number(each) for each in _array(value)])


def _array(value: Any) -> Any:
    if type(value) is not tuple:
        raise ValueError(f"{_shown(value)} is no array")
    return value


def _without_filter(consumer: ConsumerCreated | ConsumerRow) -> tuple[Any, ...]:
    """Its fields, the last one only if it has a filter."""
    return tuple(consumer) if consumer.topics else tuple(consumer)[:-1]


def _filter(value: Any) -> bytes:
    if type(value) is not bytes or (value and filter_fault(value)):
        raise ValueError(f"{_shown(value)} is no topic filter")
    return value


def _rows(*readers: _FieldReader, older: int = -1) -> _FieldReader:
    """Reads an array of rows, each with these fields, or with the `older` first of them; the others are 0 then."""

    def read(value: Any) -> Any:
        return tuple([_row(each) for each in _array(value)])

    def _row(row: Any) -> tuple[Any, ...]:
        if len(_array(row)) == older:
            row += (0,) * (len(readers) - older)
        if len(row) != len(readers):
            raise ValueError(f"{_shown(row)} has not {len(readers)} fields")
        return tuple([reader(field) for reader, field in zip(readers, row, strict=True)])

    return read


_ROW: Final = (_name, *([_number] * (len(ConsumerRow._fields) - 2)), _filter)
_ROW_OLDER: Final = (len(_ROW) - len(ConsumerRow._field_defaults), len(_ROW) - 1)
_read_terms = _rows(_number, _number, _text)


def _kept(value: Any) -> tuple[ConsumerRow, ...]:
    return tuple([_kept_row(row) for row in _array(value)])


def _kept_row(row: Any) -> ConsumerRow:
    if len(_array(row)) != len(_ROW) and len(row) not in _ROW_OLDER:
        raise ValueError(f"{_shown(row)} has not {len(_ROW)} fields")
    fields: list[Any] = [reader(field) for reader, field in zip(_ROW, row, strict=False)]
    return ConsumerRow(*fields)


def _history(value: Any) -> History:
    return make_history(EpochStart(*row) for row in _read_terms(value))


def _shown(value: Any) -> str:
    return repr(value)[:80]


_READERS: Final[Mapping[int, tuple[Callable[..., Record], tuple[_FieldReader, ...]]]] = {
    1: (Progress, (_name, _name, _number, _number, _flat, _rows(_number, _number, _text), _flat, _flat, _numbers)),
    2: (FlightReturned, (_name, _name, _text, _flat, _flat, _number)),
    3: (ConsumerCreated, (_name, *[_number] * 6, _filter)),
    4: (ConsumerReset, (_name, _number, _number)),
    5: (ConsumerDeleted, (_name,)),
    6: (LetterPublished, (_name, _number)),
    7: (HistoryChanged, (_history, _number)),
    8: (CheckpointBegun, (_history,)),
    9: (ConsumerRows, (_kept,)),
    10: (
        UnfinishedRows,
        (
            _name,
            _rows(_number, _number, _number, _number, older=3),
            _rows(_number, _number, _number, _name, _number),
            _rows(_number, _number, _number, _number, _text),
        ),
    ),
    11: (CheckpointEnded, (_number,)),
    12: (LettersRemoved, (_flat,)),
    13: (LettersCut, (_number,)),
    14: (RemovedRows, (_flat,)),
}
_NUMBERS: Final[Mapping[Any, int]] = {kind: number for number, (kind, _readers) in _READERS.items()}
_OLDER_FIELDS: Final[Mapping[Any, Collection[int]]] = {Progress: (8,), FlightReturned: (5,), ConsumerCreated: (5, 7)}
"""How many fields these records had before failed messages waited: without the others, none does. And before consumers
had filters: without it, they get all topics."""
