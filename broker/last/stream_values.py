"""The last values of one stream at its owner: what follows the stream, and writes them down.

It reads the stream as a subscriber does, a piece at a time, so nothing on the way of a publish waits for it. Its
indexes say where the last frame of each topic is: in `$last/X`, or, on a node that is not the master and writes
nothing, in the stream itself. After a start the log gives the last values up to some message, and the stream those from
there on.

A master that lost its newest messages, or another master before it, may have left records of messages that the stream
does not have. They are recognized by their terms; the whole stream is then read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from tailrace.broker.last.index import ENTRY_BYTES, LastEntry, TopicIndex, entry_bytes
from tailrace.broker.last.value_log import VALUE_BYTES_MAX, ValueLog, frame_in
from tailrace.broker.replication.roles.stream_roles import history_of
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.shard.epochs import NEVER_SEQ, EpochStart, History, epoch_at
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role
from tailrace.shard.topics import TOPIC_BYTES_MAX

STEP_TOPICS: Final = 512
"""Topics, or records, of one step."""
MARK_EVERY_BYTES: Final = 8 << 20
"""Of the stream without a last value in it, between two marks in the log: what a start has to read at most."""
CLEAN_SLACK: Final = 1_024
"""Records beyond twice those that count, from which on the log is made shorter."""
IN_STREAM: Final = 1 << 63
"""Set in the place of a frame that is in the stream, not in the log."""

MISSED_MAX: Final = 4_096
"""Topics of one worker of which it is remembered that their message found no room."""

_leaf = load("tailrace.broker.last.last_cy")
_newest, _records = _leaf.newest, _leaf.records
_ALL: Final = 1 << 40
Topics: TypeAlias = dict[bytes, tuple[int, int, bool]]
"""As the leaf finds them: of each topic the place of its newest frame, its length, whether it has no payload."""
Record: TypeAlias = tuple[bytes, int, int, bool, bool, bool]
"""As the leaf reads it: topic, seq and term in the stream, whether it is to be retained, is empty, is an old one."""
NO_TERM: Final = EpochStart(0, NEVER_SEQ)


class ValueRoom(NamedTuple):
    """What indexes may still take; a new topic needs some of both."""

    topics: int
    nbytes: int

    def after(self, topic: bytes, topics: int) -> ValueRoom:
        """The same when this topic has come (1) or gone (-1)."""
        return ValueRoom(self.topics - topics, self.nbytes - topics * entry_bytes(topic))

    def is_for(self, topics: int) -> bool:
        """Whether this number of topics has room, however long they are."""
        return self.topics >= topics and self.nbytes >= topics * (TOPIC_BYTES_MAX + ENTRY_BYTES)

    @property
    def is_none(self) -> bool:
        return self.topics <= 0 or self.nbytes <= 0


class ValueBudget:
    """The bounds of the indexes of one worker, and what they take. `is_met`: whether there is no room; `dropped`: new
    topics that found none.
    """

    def __init__(self, topics_max: int, bytes_max: int) -> None:
        self._topics_max = topics_max
        self._bytes_max = bytes_max
        self.topics = self.nbytes = self.dropped = 0
        self.is_met = self.room.is_none
        self._missed: dict[tuple[bytes, bytes], int] = {}  # the last one last

    @property
    def room(self) -> ValueRoom:
        return ValueRoom(self._topics_max - self.topics, self._bytes_max - self.nbytes)

    def add(self, topics: int, nbytes: int) -> None:
        self.topics += topics
        self.nbytes += nbytes
        self.is_met = self.topics >= self._topics_max or self.nbytes >= self._bytes_max

    def miss(self, stream: bytes, topic: bytes, seq: int) -> None:
        """This message was to be retained, and found no room: its publisher may ask soon."""
        self._missed.pop((stream, topic), None)
        self._missed[stream, topic] = seq
        if len(self._missed) > MISSED_MAX:
            del self._missed[next(iter(self._missed))]

    def has_missed(self, stream: bytes, topic: bytes, seq: int) -> bool:
        """Whether this message, whose topic has no later one, found no room. If some of those are forgotten, it counts
        as one of them.
        """
        return self._missed.get((stream, topic), -1) >= seq or len(self._missed) >= MISSED_MAX


class _News(NamedTuple):
    """The newest message of a topic, for one of the indexes. `at`, `length`: its frame."""

    topics: TopicIndex
    topic: bytes
    at: int
    length: int
    is_empty: bool


class _Pieces:
    """Reads the frames of a log one piece after the other. `seq`: of the frame at `at`."""

    def __init__(self) -> None:
        self.frames = memoryview(b"")
        self.at = 0
        self.seq = -1

    def read(self, source: StreamLog, seq: int) -> bool:
        """See that the frames from `seq` on are here; False if there are none. Raises StreamDamaged, OSError."""
        if seq == self.seq and self.at < len(self.frames):
            return True
        run = next(source.walk(seq), None)
        if run is None:
            return False
        self.frames, self.at, self.seq = run.frames, 0, seq
        return True

    def passed(self, end: int, frames: int) -> None:
        self.at = end
        self.seq += frames


class StreamValues:
    """`seq`: the first message that is not taken into account; -1 before the log is read. `retained`: of the messages
    that were to be retained; `newest`: of all, if the stream keeps those.
    """

    def __init__(self, owner: Owner, name: bytes, budget: ValueBudget, *, keeps_all: bool) -> None:
        self._owner = owner
        self._budget = budget
        self.name = name
        self.log = ValueLog(owner, name)
        self.leads = False
        self._keeps_all = keeps_all
        self.retained, self.newest = TopicIndex(), TopicIndex()
        self._begin()

    def _begin(self) -> None:
        for index in (self.retained, self.newest):
            self._budget.add(-len(index), -index.nbytes)
        self.retained, self.newest = TopicIndex(), TopicIndex()
        self.seq = self._log_seq = self._clean_seq = -1
        self._scanned_from = 0
        self._upto = 0  # messages before this one are in the log
        self._is_doubtful = False
        self._history: History = ()
        self._unmarked_bytes = 0
        self._stream_pieces, self._log_pieces, self._clean_pieces = _Pieces(), _Pieces(), _Pieces()

    def forget(self) -> None:
        """Begin anew: the stream may have other messages now, or this node another role."""
        self._begin()

    @property
    def live(self) -> int:
        return len(self.retained) + len(self.newest)

    @property
    def is_ordered(self) -> bool:
        """Whether all topics can be listed."""
        return self.retained.is_ordered and self.newest.is_ordered

    def index(self, *, retained: bool) -> TopicIndex:
        """The one for a reader: a stream that keeps no other last values has those that are retained."""
        return self.retained if retained or not self._keeps_all else self.newest

    def step(self, now_s: float) -> bool:
        """Do a bounded piece of work; whether there is more. Raises Refused, StorageError, OSError, ValueError."""
        stream, log = self._owner.stream(self.name), self.log.stream().log
        leads = self._owner.roles.role(self.name) is Role.MASTER and stream.epoch != 0
        if leads is not self.leads or 0 <= self._log_seq < log.first_seq:
            self._begin()
            self.leads = leads
        if self._log_seq < 0:
            self._log_seq = self._clean_seq = log.first_seq
            self._history = history_of(self._owner, stream)
        if (self.seq < 0 or not leads) and self._replay(stream, log):
            return True
        if self.seq < 0:
            start = stream.log.first_seq if self._is_doubtful else max(self._upto, stream.log.first_seq)
            self.seq = self._scanned_from = min(start, stream.log.next_seq)
        self.seq = max(self.seq, stream.log.first_seq)
        follows = self._follow(stream, now_s)
        orders = [index.order() for index in (self.retained, self.newest)]
        return follows or any(orders) or self._clean(log, now_s)

    # --- the log ----------------------------------------------------------------------------------------------------

    def _replay(self, stream: OpenStream, log: StreamLog) -> bool:
        """Take the next records of the log; False if there are none, or the next is of a message to come."""
        pieces = self._log_pieces
        if self._log_seq >= log.next_seq or not pieces.read(log, self._log_seq):
            return False
        records, end = _records(pieces.frames, pieces.at, self.name, STEP_TOPICS)
        next_seq, leads = stream.log.next_seq, self.leads
        taken = self._take_plain(records, next_seq) if self.seq < 0 else 0
        for number, (topic, seq, epoch, flag, is_empty, is_old) in enumerate(records[taken:], taken):
            if not leads and topic and seq >= next_seq:
                if number:
                    pieces.seq = -1  # read again from there
                return number > 0
            if not topic:
                self._on_mark(seq, epoch, settled=flag)
            elif leads and not self._is_of_stream(seq, epoch, next_seq):
                self._is_doubtful = True
            else:
                self._on_record(topic, seq, self._log_seq, flag, is_empty, is_old)
            self._log_seq += 1
        pieces.passed(end, len(records))
        return True

    def _take_plain(self, records: list[Record], next_seq: int) -> int:
        """At a start take the first of these records that are like nearly all of up to a million; how many.

        They are values of the stream's present term, for one of the indexes.
        """
        index, budget, is_retained = self.index(retained=False), self._budget, not self._keeps_all
        if not budget.room.is_for(STEP_TOPICS):
            return 0
        topics, nbytes, place, upto, taken = len(index), index.nbytes, self._log_seq, self._upto, 0
        last_epoch, first_seq, _master = self._history[-1] if self._history else NO_TERM
        for topic, seq, epoch, flag, is_empty, is_old in records:
            if flag is not is_retained or is_empty or is_old or not topic:
                break
            if epoch != last_epoch or not first_seq <= seq < next_seq:
                break
            index.set(topic, seq, place + taken)
            if seq >= upto:
                upto = seq + 1
            taken += 1
        budget.add(len(index) - topics, index.nbytes - nbytes)
        self._log_seq += taken
        self._upto = upto
        return taken

    def _is_of_stream(self, seq: int, epoch: int, next_seq: int) -> bool:
        """Whether the stream has, or had before it was trimmed, this message of this term."""
        if seq >= next_seq:
            return False
        last = self._history[-1] if self._history else NO_TERM
        if seq >= last.first_seq:
            return epoch == last.epoch
        return epoch_at(self._history, seq) in (0, epoch)

    def _on_mark(self, seq: int, epoch: int, *, settled: bool) -> None:
        if self.leads and seq and not self._is_of_stream(seq - 1, epoch, self._owner.stream(self.name).log.next_seq):
            self._is_doubtful = True
            return
        if settled:
            self._is_doubtful = False
        self._upto = max(self._upto, seq)

    def _on_record(self, topic: bytes, seq: int, place: int, is_retained: bool, is_empty: bool, is_old: bool) -> None:
        """`is_old`: a retained message that is not its topic's last one any more, appended again."""
        if seq >= self._upto:
            self._upto = seq + 1
        take = self._put if self.seq < 0 else self._take  # with nothing seen in the stream it is the last one so far
        if is_retained:
            take(self.retained, topic, seq, place, is_empty)
        if self._keeps_all and not is_old:
            take(self.newest, topic, seq, place, is_empty)

    def _take(self, index: TopicIndex, topic: bytes, seq: int, place: int, is_empty: bool) -> None:
        """A record of the log. Values seen in the stream itself are later than it, or the same."""
        found = index.get(topic)
        if self._scanned_from <= seq < self.seq:
            if found is not None and found.seq == seq:
                index.set(topic, seq, place)
        elif found is None or found.seq <= seq:
            self._put(index, topic, seq, place, is_empty)

    def _put(self, index: TopicIndex, topic: bytes, seq: int, place: int, is_empty: bool) -> None:
        budget = self._budget
        if is_empty:
            if index.remove(topic):
                budget.add(-1, -entry_bytes(topic))
        elif budget.is_met and index.get(topic) is None:
            budget.dropped += 1
        elif index.set(topic, seq, place):
            budget.add(1, entry_bytes(topic))

    # --- the stream -------------------------------------------------------------------------------------------------

    def _follow(self, stream: OpenStream, now_s: float) -> bool:
        """Take the next messages of the stream into account; False if there are none."""
        pieces = self._stream_pieces
        if not pieces.read(stream.log, self.seq):
            if self._is_doubtful and self.leads:
                self._mark(stream, now_s, settled=True)
                self._is_doubtful = False
            return False
        found, end, messages = _newest(pieces.frames, pieces.at, self.name, not self._keeps_all, STEP_TOPICS)
        wanted = [(self.newest if self._keeps_all else self.retained, found)]
        if self._keeps_all:
            wanted.append((self.retained, _newest(pieces.frames[:end], pieces.at, self.name, True, _ALL)[0]))
        news = self._news(pieces.frames, wanted)
        places = self._write(pieces.frames, news, now_s)
        for index, topic, at, _length, is_empty in news:
            self._put(index, topic, _seq_of(pieces.frames, at), places[at], is_empty)
        self._unmarked_bytes = 0 if news else self._unmarked_bytes + end - pieces.at
        self.seq += messages
        pieces.passed(end, messages)
        if self.leads and self._unmarked_bytes >= MARK_EVERY_BYTES:
            self._mark(stream, now_s)
        return True

    def _news(self, frames: memoryview, wanted: list[tuple[TopicIndex, Topics]]) -> list[_News]:
        """The changes by these newest messages, in the order their topics came; those without room are counted once."""
        found: list[_News] = []
        room, dropped = self._budget.room, set()
        rows = [_News(index, topic, *frame) for index, topics in wanted for topic, frame in topics.items()]
        for news in rows:
            index, topic, at, length, is_empty = news
            entry, seq = index.get(topic), _seq_of(frames, at)
            if length > VALUE_BYTES_MAX or (entry is None and not is_empty and room.is_none):
                dropped.add(at)
                if index is self.retained:
                    self._budget.miss(self.name, topic, seq)
                continue
            if entry is None and is_empty and not self._keeps_all:
                continue
            if entry is None or seq >= entry.seq:  # a retained message before it may be in the log
                found.append(news)
                room = room.after(topic, (not is_empty) - (entry is not None))
        self._budget.dropped += len(dropped)
        return found

    def has_missed(self, topic: bytes, seq: int) -> bool:
        """Whether this message, which is taken into account and was to be retained, found no room."""
        entry = self.retained.get(topic)
        return (entry is None or entry.seq < seq) and self._budget.has_missed(self.name, topic, seq)

    def _write(self, frames: memoryview, news: Iterable[_News], now_s: float) -> dict[int, int]:
        """Where the frames can be read, by where they are in `frames`; a master logs them. Raises Refused."""
        lengths = dict(sorted((at, length) for _index, _topic, at, length, _is_empty in news))
        if not self.leads:
            return {at: IN_STREAM | _seq_of(frames, at) for at in lengths}
        if not lengths:
            return {}
        first = self.log.append([frames[at : at + length] for at, length in lengths.items()], now_s)
        self._log_seq = first + len(lengths)
        return {at: first + number for number, at in enumerate(lengths)}

    def _mark(self, stream: OpenStream, now_s: float, *, settled: bool = False) -> None:
        last_epoch = stream.log.entry(self.seq - 1).epoch if self.seq > stream.log.first_seq else stream.log.last_epoch
        self.log.append_mark(self.seq, last_epoch, now_s, settled=settled)
        self._log_seq += 1
        self._unmarked_bytes = 0

    # --- keeping the log short ----------------------------------------------------------------------------------------

    def _clean(self, log: StreamLog, now_s: float) -> bool:
        """Let the log begin later, if most of its records count for nothing; whether there is more to do."""
        self._clean_seq = max(self._clean_seq, log.first_seq)
        if log.next_seq - self._clean_seq <= 2 * self.live + CLEAN_SLACK:
            return False
        pieces = self._clean_pieces
        if self.seq < 0 or not pieces.read(log, self._clean_seq):
            return False
        records, end = _records(pieces.frames, pieces.at, self.name, STEP_TOPICS)
        kept = []
        for number, (topic, *_rest) in enumerate(records):
            place = self._clean_seq + number
            owners = [index for index in (self.retained, self.newest) if _is_at(index.get(topic), place)]
            if owners:
                kept.append((topic, place, owners))
        if kept and not self.leads:  # the master appends it again some time
            self.log.trim_later(kept[0][1], now_s)
            return False
        self._append_again(log, kept, now_s)
        self._clean_seq += len(records)
        pieces.passed(end, len(records))
        self.log.trim_later(self._clean_seq, now_s)
        return True

    def _append_again(self, log: StreamLog, kept: list[tuple[bytes, int, list[TopicIndex]]], now_s: float) -> None:
        if not kept:
            return
        pieces = self._clean_pieces
        base = log.entry(self._clean_seq).offset - pieces.at
        records = []
        for _topic, place, indexes in kept:
            entry = log.entry(place)
            record = pieces.frames[entry.offset - base : entry.offset - base + entry.length]
            records.append((frame_in(record), self._keeps_all and self.newest not in indexes))
        first = self.log.append_again(records, now_s)
        for number, (topic, _place, indexes) in enumerate(kept):
            for index in indexes:
                found = index.get(topic)
                assert found is not None
                index.set(topic, found.seq, first + number)
        self._log_seq = first + len(records)

    def tidy(self, now_s: float) -> None:
        """Trim the log as far as that is safe by now. Raises Refused, StorageError, OSError."""
        if self._clean_seq > self.log.stream().log.first_seq:
            self.log.trim_later(self._clean_seq, now_s)
            self.log.trim()


def _is_at(entry: LastEntry | None, place: int) -> bool:
    return entry is not None and entry.place == place


def _seq_of(frames: memoryview, at: int) -> int:
    return int.from_bytes(frames[at + 8 : at + 16], "little")
