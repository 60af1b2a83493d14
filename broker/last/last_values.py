"""The last values of all streams of an owner: which streams have some, and when they are brought up to date.

A stream has them if its [[stream]] section asks for it, or once a message is to be retained. They are read from the
log when the stream grows or somebody asks for them, some milliseconds a turn; who asks waits until all that was
published before is taken into account.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.last.page import read_page
from tailrace.broker.last.stream_values import StreamValues, ValueBudget
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import CallArgs, OnResult, Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.topics import has_wildcards
from tailrace.shard.errors import StorageError, peer_text
from tailrace.shard.meta import Role
from tailrace.shard.names import LAST_PREFIX, NAME_BYTES_MAX, is_reserved

log = logging.getLogger(__name__)

TURN_S: Final = 0.002
"""Of one turn, to bring them up to date."""
TRIM_S: Final = 0.02
"""Before a trim, which must not overtake them."""
RETRY_S: Final = 1.0
"""After a failure."""
WAITERS_MAX: Final = 1_024
"""Requests of one worker for last values that are not up to date."""
FAR_TOPICS: Final = 1 << 19
"""Room for this number, and for those not taken into account yet, is more than one turn can fill."""
FAR_TOPIC_BYTES: Final = 256
"""Of each of them, with what it takes in an index: a turn has 16 MiB of messages."""
FAR_STREAMS: Final = 64
"""Not up to date, beyond which that is not looked at."""
WANTED_MAX: Final = 1_024
"""Streams that do not exist and are to have last values from their first message on."""
FULL_TEXT: Final = "this node holds as many last values as max_last_values and max_last_value_bytes allow"
LONG_TEXT: Final = f"a stream with last values has a name of at most {NAME_BYTES_MAX - len(LAST_PREFIX)} bytes"
BEHIND_TEXT: Final = "the last values of this stream are being read; try again in a moment"


class _Waiter(NamedTuple):
    """A request for last values that are to include all messages before `seq`; `answer` raises Refused.

    lists: whether it goes through topics in their order.
    """

    seq: int
    answer: Callable[[StreamValues], object]
    done: OnResult
    lists: bool

    def is_due(self, values: StreamValues) -> bool:
        return values.seq >= self.seq and (values.is_ordered or not self.lists)


class LastValues:
    """One per worker. `due`: streams whose last values are not up to date."""

    def __init__(
        self,
        owner: Owner,
        readers: StreamReaders,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = owner.settings
        self._owner = owner
        self._readers = readers
        self._metrics = metrics
        self._clock = clock
        self._budget = ValueBudget(settings.max_last_values, settings.max_last_value_bytes)
        self._policies = any(policy.last_values for policy in settings.streams)
        self.tracked: dict[bytes, StreamValues | None] = {}  # None: not read yet
        self.due: dict[bytes, None] = {}
        self._wanted: dict[bytes, None] = {}
        self._retry_s: dict[bytes, float] = {}
        self._waiters: dict[bytes, list[_Waiter]] = {}
        self._waiting = 0

    # --- which streams have some --------------------------------------------------------------------------------------

    def start(self) -> None:
        """The shards are this worker's now."""
        names = self._owner.catalog.names
        self.tracked = {name.removeprefix(LAST_PREFIX): None for name in names if name.startswith(LAST_PREFIX)}
        if self._policies:
            for name in list(names):
                self._begin_by_policy(name)

    def role_changed(self, name: bytes) -> None:
        """A stream was made, or its role, its term or its messages are others."""
        base = name.removeprefix(LAST_PREFIX)
        if LAST_PREFIX + base in self._owner.catalog.names:
            values = self.tracked.setdefault(base)
            if values is not None:
                values.forget()
                self.due[base] = None
        elif base == name:
            self._begin_by_policy(name)

    def _begin_by_policy(self, name: bytes) -> None:
        if name in self.tracked or name not in self._owner.catalog.names or is_reserved(name):
            return
        if name not in self._wanted and not (self._policies and self._keeps_all(name)):
            return
        if self._owner.roles.role(name) is Role.MASTER:
            try:
                self._begin(name)
            except Refused as refused:
                log.warning("stream %r cannot have last values: %s", name.decode(), refused.text)

    def _keeps_all(self, name: bytes) -> bool:
        return self._owner.settings.policy(name.decode()).last_values

    def _begin(self, name: bytes) -> None:
        """Raises Refused."""
        if len(name) > NAME_BYTES_MAX - len(LAST_PREFIX):
            raise Refused(Code.NAME, LONG_TEXT)
        self._wanted.pop(name, None)
        self._owner.create(LAST_PREFIX + name, by_command=True)
        self.tracked.setdefault(name)

    def deleted(self, name: bytes) -> None:
        """The stream is about to be no more."""
        base = name.removeprefix(LAST_PREFIX)
        if base == name:
            self._drop(base, Refused(Code.UNKNOWN, "the stream was deleted"))

    def _drop(self, name: bytes, refused: Refused) -> None:
        values = self.tracked.pop(name, None)
        if values is not None:
            values.forget()
        self.due.pop(name, None)
        self._retry_s.pop(name, None)
        self._refuse(name, refused)

    def retire(self) -> None:
        """Give the streams up."""
        for name in list(self.tracked):
            self._drop(name, Refused(Code.UNAVAILABLE, "this worker gives its streams up; try again"))

    # --- bringing them up to date -------------------------------------------------------------------------------------

    def grew(self, names: Iterable[bytes]) -> None:
        """These streams have grown."""
        for name in names:
            if name in self.tracked:
                self.due[name] = None
            elif name.startswith(LAST_PREFIX):
                self._log_grew(name.removeprefix(LAST_PREFIX))

    def _log_grew(self, name: bytes) -> None:
        """By records of this node itself, or by copies of those of the master."""
        values = self.tracked.get(name)
        if name in self.tracked and (values is None or not values.leads):
            self.due[name] = None

    def work(self) -> None:
        """Once a turn, if something is due."""
        end_s = self._clock() + TURN_S
        while self.due:
            name = next(iter(self.due))
            del self.due[name]
            if self._retry_s.get(name, 0.0) > self._clock():
                continue
            if self._step(name):
                self.due[name] = None
            if self._clock() >= end_s:
                break

    def _step(self, name: bytes) -> bool:
        """A step of one stream, and the answers that it makes possible; whether there is more to do."""
        try:
            values = self._values(name)
            goes_on = values.step(self._clock())
        except (Refused, StorageError, OSError, ValueError) as error:
            self._failed(name, error)
            return False
        self._answer(name, values, is_behind=goes_on)
        return goes_on

    def _values(self, name: bytes) -> StreamValues:
        values = self.tracked.get(name)
        if values is None:
            made = StreamValues(self._owner, name, self._budget, keeps_all=self._keeps_all(name))
            values = self.tracked[name] = made
        return values

    def _failed(self, name: bytes, error: Exception) -> None:
        refused = error if isinstance(error, Refused) else Refused(Code.UNAVAILABLE, f"last values: {peer_text(error)}")
        log.warning("the last values of stream %r cannot be brought up to date: %s", name.decode(), error)
        values = self.tracked.get(name)
        if values is not None:
            values.forget()
        self._retry_s[name] = self._clock() + RETRY_S
        self._refuse(name, refused)

    def tick(self) -> None:
        """About once a second."""
        for name in [name for name, at_s in self._retry_s.items() if at_s <= self._clock()]:
            del self._retry_s[name]
            if name in self.tracked:
                self.due[name] = None
        for name, values in self.tracked.items():
            if values is not None and values.seq >= 0:
                try:
                    values.tidy(self._clock())
                except (Refused, StorageError, OSError) as error:
                    log.warning("the log of the last values of stream %r cannot be trimmed: %s", name.decode(), error)
        self._metrics.last_values = self._budget.topics
        self._metrics.last_value_bytes = self._budget.nbytes
        self._metrics.last_values_dropped += self._budget.dropped
        self._budget.dropped = 0

    def require_kept(self, name: bytes, seq: int) -> None:
        """Called before the messages before `seq` are trimmed: their last values are in the log. Raises Refused."""
        if name not in self.tracked or self._owner.roles.role(name) is not Role.MASTER:
            return
        values, end_s = self._values(name), self._clock() + TRIM_S
        while values.seq < seq and self._clock() < end_s and self._step(name):
            pass
        if values.seq < seq:
            self.due[name] = None
            raise Refused(Code.UNAVAILABLE, BEHIND_TEXT)
        values.log.sync(self._clock())

    # --- calls --------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> Mapping[str, Callable[[CallArgs, OnResult], None]]:
        """By verb."""
        return {"last": self.last, "keep_last": self.keep, "missed_last": self.missed}

    def keep(self, args: CallArgs, done: OnResult) -> None:
        """[stream] -> nothing. Messages of the stream are to be retained from now on, if need be once it exists."""
        (name,) = args
        try:
            if name not in self.tracked and self._budget.is_met:
                raise Refused(Code.OVERLOADED, FULL_TEXT)
            if name not in self._owner.catalog.names:
                self._want(name)
            elif name not in self.tracked:
                if self._owner.roles.role(name) is Role.MASTER:
                    self._begin(name)
                else:
                    raise Refused(Code.DISABLED, "the first retained message of a stream is its master's to take")
            done({})
        except Refused as refused:
            done(refused)

    def _want(self, name: bytes) -> None:
        self._wanted.pop(name, None)
        self._wanted[name] = None
        if len(self._wanted) > WANTED_MAX:
            del self._wanted[next(iter(self._wanted))]

    def last(self, args: CallArgs, done: OnResult) -> None:
        """[stream, filter, topic to begin behind, whether of retained messages, how many, bytes] -> a `LastPage`."""
        name, topic_filter, after, retained, most, bytes_max = args

        def answer(values: StreamValues) -> list[object]:
            return list(read_page(self._readers, values, topic_filter, after, most, bytes_max, retained=retained))

        if name not in self.tracked:
            done([b"", 0, after, False])
        else:
            self._when_read(name, answer, done, lists=has_wildcards(topic_filter))

    def missed(self, args: CallArgs, done: OnResult) -> None:
        """[stream, of messages that were to be retained the topic and the seq] -> which of them found no room, by their
        places in the list. They are in the log.
        """
        name, messages = args

        def answer(values: StreamValues) -> list[int]:
            return [place for place, (topic, seq) in enumerate(messages) if values.has_missed(topic, seq)]

        if name not in self.tracked or self._is_far():
            done([])
        else:
            self._when_read(name, answer, done, lists=False)

    def _is_far(self) -> bool:
        """Whether no message of this turn, or one that is not taken into account yet, can meet the bounds."""
        room, unread = self._budget.room, FAR_TOPICS
        for number, name in enumerate(self.due):
            values, stream = self.tracked.get(name), self._owner.catalog.open.get(name)
            if number == FAR_STREAMS or values is None or stream is None or values.seq < 0:
                return False
            unread += stream.log.next_seq - values.seq
        return room.topics > unread and room.nbytes > unread * FAR_TOPIC_BYTES

    def _when_read(self, name: bytes, answer: Callable[[StreamValues], object], done: OnResult, *, lists: bool) -> None:
        """Answer once all messages that the stream has by now are taken into account."""
        if self._waiting >= WAITERS_MAX:
            done(Refused(Code.OVERLOADED, BEHIND_TEXT))
            return
        try:
            seq = self._owner.stream(name).log.next_seq
        except Refused as refused:
            done(refused)
            return
        waiter = _Waiter(seq, answer, done, lists)
        self._waiters.setdefault(name, []).append(waiter)
        self._waiting += 1
        values = self.tracked[name]
        if values is not None and waiter.is_due(values) and name not in self.due:
            self._answer(name, values, is_behind=False)
        else:
            self._retry_s.pop(name, None)
            self.due[name] = None

    def _answer(self, name: bytes, values: StreamValues, *, is_behind: bool) -> None:
        """`is_behind`: whether anything is left to be read, in which case the answers may have to wait."""
        waiters = self._waiters.get(name)
        if waiters is None or values.seq < 0:
            return
        ready = [each for each in waiters if not is_behind or each.is_due(values)]
        left = [each for each in waiters if is_behind and not each.is_due(values)]
        self._waiting -= len(ready)
        if left:
            self._waiters[name] = left
        else:
            del self._waiters[name]
        for each in ready:
            try:
                each.done(each.answer(values))
            except Refused as refused:
                each.done(refused)
            except (StorageError, OSError) as error:
                each.done(Refused(Code.UNAVAILABLE, f"the last values cannot be read: {peer_text(error)}"))

    def _refuse(self, name: bytes, refused: Refused) -> None:
        waiters = self._waiters.pop(name, [])
        self._waiting -= len(waiters)
        for each in waiters:
            each.done(refused)
