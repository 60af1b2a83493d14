"""Copies of streams that this node makes only while they are read here.

A node that is no replica of a group follows none of its streams until one is wanted: a call that reads it waits until
the copy has all that the stream has, and reads the files here then, as at any slave. A stream and its companions are
copied and dropped together. A copy is dropped `copy_idle_s` after its last use: that is a call, a cursor of a
subscription or of a node below, or a call to the master that has no answer yet. While the growth of all streams is
watched here, all of them are copied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tailrace.broker.replication.upstream.fetchers import FetchState, ReplicaFetcher, ReplicaFetchers
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError
from tailrace.shard.names import base_of

log = logging.getLogger(__name__)

WAIT_S: Final = 10.0
"""How long a call waits for a copy; that goes on then, and a later call may find it ready."""
WAITS_MAX: Final = 4_096
"""Calls of one worker that wait for copies."""
LOOKS_A_TICK: Final = 256
"""At streams whose copies may be dropped."""
DROPS_AT_ONCE: Final = 32
"""Copies of one worker: each drop waits for the disk, and readers who come back meanwhile wait for it."""

BEHIND_TEXT = (
    "this node makes a copy of the stream for its readers, and has {held} of {total} messages ({why}); ask again later,"
    " or ask the node that leads it, {upstream}"
)
BEGUN_TEXT = (
    "this node follows all streams for such a subscription, and {count} cannot be followed yet; ask again later"
)
FULL_TEXT = f"{WAITS_MAX} requests of this worker wait for copies of streams; ask again later"
LEAVING_TEXT = "this worker gives its streams up; ask again"


class CopyPlace(NamedTuple):
    """A copy, those that it is one of, and the address of the node that it is copied from."""

    fetchers: ReplicaFetchers
    copy: ReplicaFetcher
    upstream: str


class CopyWait(NamedTuple):
    """A call that waits for the copies of `name`, or for all if that is empty."""

    name: bytes
    deadline_s: float
    step: Callable[[], None]
    done: OnResult


class CopiesOnDemand:
    """One per worker."""

    def __init__(
        self,
        owner: Owner,
        copy_of: Callable[[bytes], CopyPlace | None],
        copies: Callable[[], Iterable[CopyPlace]],
        is_read: Callable[[bytes], bool],
        is_watched: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`copies`: all that are made on demand. `is_read`: whether a stream has cursors, here or at other workers;
        `is_watched`: whether the growth of all streams is watched.
        """
        self._owner = owner
        self._copy_of = copy_of
        self._copies = copies
        self._is_read = is_read
        self._is_watched = is_watched
        self._clock = clock
        self._used_s: dict[bytes, float] = {}  # streams that may have copies, and their last use
        self._awake: set[bytes] = set()  # those that are wanted
        self._wants_all = False
        self._has_begun_all = False  # since something was added, or woken
        self._calls: dict[bytes, int] = {}  # to masters, without an answer
        self._waits: list[CopyWait] = []
        self._dropping: list[ReplicaFetcher] = []
        self._is_stirred = False  # a copy has become ready

    def _unit(self, name: bytes) -> list[CopyPlace]:
        """The copies that are made together with this one."""
        base = base_of(name)
        found = map(self._copy_of, (base, *self._owner.catalog.companions.of(base)))
        return [each for each in found if each is not None and each.copy.for_readers]

    def added(self, name: bytes) -> bool:
        """A stream is to be copied on demand. Returns whether it is wanted now."""
        base = base_of(name)
        self._used_s.setdefault(base, self._clock())
        self._has_begun_all = False
        if self._wants_all or self._is_read(name):
            self._awake.add(base)
        return base in self._awake

    # --- readers ----------------------------------------------------------------------------------------------------

    def hold(self, name: bytes, step: Callable[[], None], done: OnResult) -> bool:
        """Whether a call that reads this stream has to wait for its copy; else it may be made now. `step`: make it;
        `done`: its answer if that takes too long.
        """
        unit = self._unit(name)
        if not unit:
            return False
        self._wake(base_of(name), unit)
        return not _are_ready(unit) and self._await(name, step, done)

    def hold_all(self, step: Callable[[], None], done: OnResult) -> bool:
        """Whether a call has to wait until all copies have been begun, so that their growth is known from then on."""
        if not self._wants_all:
            self._wants_all, self._has_begun_all = True, False
            for each in self._copies():
                self._wake(base_of(each.copy.name), [each])
        return not self._have_all_begun() and self._await(b"", step, done)

    def _await(self, name: bytes, step: Callable[[], None], done: OnResult) -> bool:
        if len(self._waits) >= WAITS_MAX:
            done(Refused(Code.OVERLOADED, FULL_TEXT))
        else:
            self._waits.append(CopyWait(name, self._clock() + WAIT_S, step, done))
        return True

    def _wake(self, base: bytes, unit: Iterable[CopyPlace]) -> None:
        self._awake.add(base)
        self._used_s[base] = self._clock()
        for each in unit:
            if not each.copy.is_awake:
                self._has_begun_all = False
                each.fetchers.wake(each.copy)

    def _have_all_begun(self) -> bool:
        self._has_begun_all = self._has_begun_all or not self._not_begun()
        return self._has_begun_all

    def _not_begun(self) -> int:
        return sum(not each.copy.is_begun for each in self._copies())

    def calls_master(self, name: bytes, done: OnResult) -> OnResult:
        """A call goes to the master of a stream, and its answer may name messages to be read here."""
        base = base_of(name)
        if base not in self._awake:
            return done
        self._calls[base] = self._calls.get(base, 0) + 1

        def answered(value: object) -> None:
            left = self._calls.pop(base, 1) - 1
            if left:
                self._calls[base] = left
            if base in self._used_s:
                self._used_s[base] = self._clock()
            done(value)

        return answered

    def note_ready(self, name: bytes) -> None:
        self._is_stirred = True
        if base_of(name) in self._used_s:
            self._used_s[base_of(name)] = self._clock()  # a call that has waited for it reads it now

    def work(self) -> None:
        """Once a turn: make the calls whose copies are ready."""
        if not self._is_stirred:
            return
        self._is_stirred = False
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.name and _are_ready(self._unit(wait.name)):
                wait.step()
            else:
                self._waits.append(wait)

    def stop(self) -> None:
        """This worker gives its streams up."""
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.done(Refused(Code.UNAVAILABLE, LEAVING_TEXT))
        self._used_s.clear()
        self._awake.clear()
        self._wants_all = False

    # --- by the clock -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Make calls that wait for all copies, refuse those that wait for too long, and drop copies without readers."""
        if self._owner.roles.copies.on_demand or self._waits:
            self._end_waits(self._clock())
            self._drop_some(self._clock())

    def _end_waits(self, now_s: float) -> None:
        has_begun = any(not wait.name for wait in self._waits) and self._have_all_begun()
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.deadline_s > now_s and (wait.name or not has_begun):
                self._waits.append(wait)
            elif (refused := self._refusal(wait)) is None:
                wait.step()
            else:
                wait.done(refused)

    def _refusal(self, wait: CopyWait) -> Refused | None:
        if not wait.name:
            count = 0 if self._has_begun_all else self._not_begun()
            return Refused(Code.UNAVAILABLE, BEGUN_TEXT.format(count=count)) if count else None
        missing = next((each for each in self._unit(wait.name) if not each.copy.is_ready), None)
        if missing is None:
            return None
        copy = missing.copy
        texts = {"held": copy.next_seq, "total": copy.end_seq, "why": copy.why or copy.state.value}
        return Refused(Code.UNAVAILABLE, BEHIND_TEXT.format(**texts, upstream=missing.upstream))

    def _drop_some(self, now_s: float) -> None:
        """Look at some streams, those first that have not been looked at for longest."""
        if self._wants_all:
            self._wants_all = self._is_watched() or any(not wait.name for wait in self._waits)
            self._used_s = dict.fromkeys(self._used_s, now_s)
            return
        waiting = {base_of(wait.name) for wait in self._waits}
        for base in self._next_names(LOOKS_A_TICK):
            used_s = self._used_s.pop(base)
            unit = self._unit(base)
            if base in waiting or base in self._calls or any(self._is_read(each.copy.name) for each in unit):
                used_s = now_s
                self._wake(base, unit)  # they may have waited since before this worker
            if now_s - used_s < self._owner.settings.copy_idle_s or not self._drop(base, unit, now_s):
                self._used_s[base] = used_s

    def _next_names(self, count: int) -> list[bytes]:
        names: Iterator[bytes] = iter(self._used_s)
        return [name for name, _ in zip(names, range(count), strict=False)]

    def _drop(self, base: bytes, unit: Iterable[CopyPlace], now_s: float) -> bool:
        """Drop the copies of a stream, if its upstream is known to have all their messages."""
        held = [each for each in unit if each.copy.state is not FetchState.IDLE]
        self._dropping = [copy for copy in self._dropping if copy.state is FetchState.CUTTING]
        has_room = not held or len(self._dropping) < DROPS_AT_ONCE
        if not has_room or any(each.copy.state is not FetchState.FOLLOWING for each in held):
            return False
        try:
            for each in held:
                each.fetchers.drop(each.copy, now_s)
                self._dropping.append(each.copy)
        except (Refused, StorageError, OSError) as error:
            log.warning("the copies of stream %r cannot be dropped now: %s", base.decode(), error)
            return False
        self._awake.discard(base)
        return True


def _are_ready(unit: Iterable[CopyPlace]) -> bool:
    return all(each.copy.is_ready for each in unit)
