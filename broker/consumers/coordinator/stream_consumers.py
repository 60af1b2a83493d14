"""The consumers of one stream at its owner: their state, and the log that it is written to."""

from __future__ import annotations

from tailrace.broker.consumers.coordinator.cursor_log import CursorLog
from tailrace.broker.consumers.coordinator.log_view import LogView, ReadBudget
from tailrace.broker.consumers.state import decide, letters
from tailrace.broker.replication.roles.stream_roles import history_of
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.shard.epochs import NEVER_SEQ, last_epoch
from tailrace.shard.names import dead_name


class StreamConsumers:
    """The consumers of stream `name`. Once the log has failed they are discarded: the stream gets new ones, read anew.

    `posted`: dead letters whose publish has no outcome yet; `scheduled_us`: when somebody looks at the deadlines.
    """

    __slots__ = ("_budget", "_owner", "consumers", "log", "log_view", "name", "posted", "scheduled_us")

    def __init__(self, owner: Owner, name: bytes, budget: ReadBudget | None = None) -> None:
        """Read the log. Raises Refused, StorageError, OSError."""
        self._owner = owner
        self._budget = budget or ReadBudget()
        self.name = name
        self.log = CursorLog(owner, name)
        self.consumers = self.log.load()
        self.posted: set[tuple[bytes, int, int]] = set()
        self.scheduled_us: int | None = None
        self.rewind()

    def rewind(self) -> None:
        """Bring the consumers in line with the stream, which may have other messages now.

        Raises Refused, StorageError, OSError, ValueError.
        """
        stream = self._owner.stream(self.name)
        self.log_view = LogView(stream.log, history_of(self._owner, stream), self._budget)
        self.log.stage(decide.rewind(self.consumers, self.log_view).records, None)
        if self.consumers.removed:
            self.log.stage(letters.cut(self.consumers, self._end_of_letters()).records, None)

    def _end_of_letters(self) -> int:
        """Where X/$dead ends; beyond everything if it cannot be read, in which case it takes no letters either."""
        name = dead_name(self.name)
        if name not in self._owner.catalog.names:
            return 0
        try:
            return self._owner.stream(name).log.next_seq
        except Refused:
            return NEVER_SEQ

    def current(self) -> LogView:
        """The stream as it is now. Raises Refused."""
        stream = self._owner.stream(self.name)
        if stream.log.last_epoch > last_epoch(self.log_view.history):  # a term of which nothing was written down
            self.log_view = LogView(stream.log, history_of(self._owner, stream), self._budget)
        self.log_view.log = stream.log
        return self.log_view

    def has_some(self, consumer: bytes) -> bool:
        """Whether there is anything that a member could be given, as far as that is seen at once. Raises Refused."""
        found = self.consumers.by_name.get(consumer)
        if found is None or found.waiting.count > 0:
            return True
        ahead, next_seq = found.ahead, self.current().next_seq
        return found.next_seq < next_seq if ahead is None else ahead.count > 0 or ahead.end_seq < next_seq

    def is_short(self, consumer: bytes) -> bool:
        """Whether its filter is to see more of the stream before it is known that there is nothing for its members."""
        found = self.consumers.by_name.get(consumer)
        return found is not None and found.ahead is not None and found.ahead.is_short

    def in_flight(self, consumer: bytes, member: bytes) -> int:
        """How many messages a member has."""
        found = self.consumers.by_name.get(consumer)
        known = found.members.get(member) if found is not None else None
        return known.in_flight if known is not None else 0
