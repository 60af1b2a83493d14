"""The names of all streams of the node, for other nodes that follow all names with a prefix.

Each owner is asked for the names that this worker does not know yet, as soon as the board shows that it has more. Names
come in the order in which the owner learnt them, so "not known yet" is a place in that order, for one owner only.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from tailrace.broker.access.rules import Right
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.refused import CallArgs
from tailrace.protocol.messages import pack
from tailrace.protocol.replication import NAMES_MAX, Names
from tailrace.shard.names import base_of, is_never_copied

NAMES_A_CALL = 2_048
TURN_S = 0.001
"""Of one turn, for looking at names; the watches take turns."""
SCANNED_AT_ONCE = 512
"""Names that are looked at for one watch before the next one has its turn."""
DROPPED_MAX = 1_024
"""Names of deleted streams that are kept, beside as many as there are streams, before all are removed at once."""
OF_NO_WATCH = b"$"
"""In the place of a stream in memory, which no other node can follow."""
UNSENT_MAX_BYTES = 256 << 10
"""A connection with more unsent than this gets no names for now."""


def names(owner: Owner, args: CallArgs) -> list[Any]:
    """[of which owner, from which place] -> [owner, place, names from there]: a verb of `broker.streams.owner_calls`.

    From the beginning, where the place is not this owner's.
    """
    known, start = args
    if known != owner.catalog.incarnation:
        start = 0
    found = islice(owner.catalog.names, start, start + NAMES_A_CALL)
    in_memory = owner.catalog.directory.is_in_memory
    return [owner.catalog.incarnation, start, [OF_NO_WATCH if in_memory(name) else name for name in found]]


class SlotCalls(Protocol):
    """Calls of the worker that owns a slot, in this process or over its link."""

    def call_slot(self, slot: int, verb: str, args: CallArgs, done: Callable[[Any], None]) -> None: ...


class Watcher(Protocol):
    """A connection that wants names."""

    closed: bool
    out: bytearray

    def send_envelope(self, envelope: bytes) -> None: ...

    def may(self, right: Right, stream: bytes) -> bool: ...


class NameWatch:
    """`place`: of the next name to look at, among all that the worker knows."""

    __slots__ = ("client", "number", "place", "prefix")

    def __init__(self, client: Watcher, number: int, prefix: bytes) -> None:
        self.client = client
        self.number = number
        self.prefix = prefix
        self.place = 0


class NameCatalog:
    """One per worker. It asks and keeps nothing until somebody watches."""

    def __init__(self, board: Board, calls: SlotCalls) -> None:
        self._board = board
        self._calls = calls
        self._names: list[bytes] = []
        self._known: set[bytes] = set()
        self._heard: dict[int, tuple[int, int]] = {}  # by slot: of which owner, how many
        self._asking: set[int] = set()
        self._drops = 0
        self._watches: dict[tuple[Watcher, bytes], NameWatch] = {}
        self.due: deque[NameWatch] = deque()  # those that there are names for, since the last tick

    def watch(self, client: Watcher, number: int, prefix: bytes) -> None:
        """From the beginning, also where the client watches this prefix already, by another number then."""
        self._watches[client, prefix] = NameWatch(client, number, prefix)
        self.tick()

    def dropped(self, name: bytes) -> None:
        """A stream was deleted; if one of its name is made later, that is a new one."""
        self._known.discard(name)
        self._heard.clear()
        self._drops += 1
        if len(self._names) > 2 * len(self._known) + DROPPED_MAX:
            self._forget_dropped()

    def _forget_dropped(self) -> None:
        """Keep each name that exists once, and each watch at its place."""
        last = {name: place for place, name in enumerate(self._names) if name in self._known}
        places = sorted(last.values())
        for watch in self._watches.values():
            watch.place = bisect_left(places, watch.place)
        self._names = [self._names[place] for place in places]

    def forget(self, client: Watcher) -> None:
        for key in [key for key in self._watches if key[0] is client]:
            del self._watches[key]
        self.due = deque(watch for watch in self.due if watch.client is not client)

    @property
    def watched(self) -> bool:
        """Whether any node watches for new streams, and so whether `tick` has anything to look for."""
        return bool(self._watches)

    def tick(self) -> None:
        if not self._watches:
            return
        for slot in self._board:
            if slot.index not in self._asking and slot.streams > self._heard.get(slot.index, (0, 0))[1]:
                self._ask(slot.index)
        self.due = deque(watch for watch in self._watches.values() if watch.place < len(self._names))

    def work(self) -> None:
        """In each turn, while any are `due`: look at some of the names."""
        end_s = time.monotonic() + TURN_S
        while self.due:
            watch = self.due.popleft()
            if self._serve(watch):
                self.due.append(watch)
            if time.monotonic() >= end_s:
                return

    def _ask(self, slot: int) -> None:
        self._asking.add(slot)
        (owner, count), drops = self._heard.get(slot, (0, 0)), self._drops
        self._calls.call_slot(slot, "names", [owner, count], lambda value: self._answered(slot, value, drops))

    def _answered(self, slot: int, value: Any, drops: int) -> None:
        self._asking.discard(slot)
        if isinstance(value, Refused) or drops != self._drops:  # it may have a stream that was deleted since
            return  # asked again at the next tick
        owner, start, found = value
        self._heard[slot] = owner, start + len(found)
        for name in found:
            if name not in self._known and not is_never_copied(name):
                self._known.add(name)
                self._names.append(name)

    def _serve(self, watch: NameWatch) -> bool:
        """Look at some names; whether there are more that can be sent now."""
        client = watch.client
        if client.closed or len(client.out) >= UNSENT_MAX_BYTES:
            return False
        found: list[bytes] = []
        for name in islice(self._names, watch.place, watch.place + SCANNED_AT_ONCE):
            watch.place += 1
            if name in self._known and base_of(name).startswith(watch.prefix) and client.may(Right.NODE, name):
                found.append(name)
                if len(found) >= NAMES_MAX:
                    break
        if found:
            client.send_envelope(pack(Names(watch.number, tuple(found))))
        return watch.place < len(self._names)
