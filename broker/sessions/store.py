"""The durable sessions whose logs this worker owns: who has each, how long it lasts, and its will.

The connection of a session may be at any worker. It stores here what is to survive it, under the number of its turn:
what an older connection of the same client stores is refused. A record is in the log before its request is answered, so
a worker that is killed loses nothing that was answered.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tailrace.broker.access.users import may_hold
from tailrace.broker.routing.batch import LoggedAnswer
from tailrace.broker.sessions.record import (
    MICROSECONDS,
    RECORD_BYTES_MAX,
    Exactness,
    HolderProcess,
    SessionRecord,
    Will,
    is_stepwise,
    log_of,
)
from tailrace.broker.sessions.session_copy import SessionCopy
from tailrace.broker.sessions.session_log import ENTRY_BYTES, SessionLog
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import CallArgs, OnResult, Refused
from tailrace.protocol.address import join_address
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError, peer_text
from tailrace.shard.meta import Role
from tailrace.shard.names import SESSION_LOGS, is_session_log

log = logging.getLogger(__name__)

MEMORY_BYTES_MAX: Final = 256 << 20
"""Of all sessions of a worker, about."""
TICK_S: Final = 0.002
"""Of a tick, to look for sessions that have ended."""
WILLS_A_TICK: Final = 256
GONE_S: Final = 3.0
"""How long the process that has a session's connection is gone before the session counts as left."""
NOTHING_PUT: Final = -1
LIST_MAX: Final = 1_000
"""Sessions in one listing."""
FULL_TEXT: Final = "this node has as many durable sessions as max_sessions allows, or as their memory holds"
SHARE_TEXT: Final = "{holder} may have no more durable sessions here, or no more memory for them"
LARGE_TEXT: Final = f"a session has at most {RECORD_BYTES_MAX} bytes of subscriptions and positions"
GONE_TEXT: Final = "this session is no more, or another connection has it"
ELSEWHERE_TEXT: Final = "this node copies the sessions of another one, and is not their master"
OTHERS_TEXT: Final = "this client identifier has a session of another user"


def is_running(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class SessionStore:
    """One per worker."""

    def __init__(
        self,
        owner: Owner,
        holder: HolderProcess,
        clock_us: Callable[[], int],
        publish_will: Callable[[str, Will], None],
        ended: Callable[[bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """holder: this process. publish_will: gets the user of the session too (`broker.sessions.wills`). `ended` is
        called with the state of a session that is no more.
        """
        self._owner = owner
        users = owner.settings.users
        self._limits = None if users is None else {user.name: user.limits.max_sessions for user in users}
        self._ended = ended
        self._metrics = owner.metrics
        self._holder = holder
        self._clock_us = clock_us
        self._publish_will = publish_will
        self._clock = clock
        self._logs: dict[bytes, SessionLog] = {}
        self._unread: deque[bytes] = deque()
        self._copies: dict[bytes, SessionCopy] = {}  # of other nodes' logs
        self._sweep: deque[tuple[SessionLog, bytes]] = deque()
        self._ownerless: deque[tuple[SessionLog, bytes, int]] = deque()  # with the turn, of users that were removed
        self._gone: dict[bytes, float] = {}  # clients whose connection's process is gone, and since when
        self._wills: list[tuple[int, bytes]] = []
        self._will_due: dict[bytes, int] = {}
        self._put_seq = NOTHING_PUT  # of the last record
        self._replicas = 0  # that are to hold what is put now

    # --- the logs -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The shards are this worker's now. The logs are read one at a tick, or when a client of one comes."""
        self._unread.extend(name for name in SESSION_LOGS if name in self._owner.catalog.names)

    def retire(self) -> None:
        """Give the shards up."""
        for held in (self._logs, self._unread, self._copies, self._sweep, self._ownerless):
            held.clear()
        for times in (self._gone, self._wills, self._will_due):
            times.clear()

    def role_changed(self, name: bytes) -> None:
        """This node may be the master of a log from now on, or may not be: what is known of it is read again."""
        if not is_session_log(name):
            return
        found = self._logs.get(name)
        if found is not None and found.epoch and found.epoch == self._owner.roles.open_epoch(name):
            return
        self._copies.pop(name, None)
        if found is not None:
            del self._logs[name]
            self._sweep = deque(each for each in self._sweep if each[0] is not found)
            for client_id in found.client_ids():
                self._gone.pop(client_id, None)
                self._will_due.pop(client_id, None)
            self._ownerless = deque(each for each in self._ownerless if each[0] is not found)
        if name in self._owner.catalog.names and name not in self._unread:
            self._unread.append(name)

    def _master_elsewhere(self, name: bytes) -> str | None:
        """The address of the node that this one copies a log from, "" if that is not known; None if it is its own."""
        meta = self._owner.roles.meta(name)
        if meta.role is Role.MASTER:
            return None
        return "" if meta.upstream is None else join_address(meta.upstream.host, meta.upstream.port)

    def _log_for(self, client_id: bytes) -> SessionLog:
        """Raises Refused, StorageError, OSError, ValueError."""
        name = log_of(client_id)
        if self._master_elsewhere(name) is not None:
            raise Refused(Code.DISABLED, ELSEWHERE_TEXT)
        return self._log(name)

    def _log(self, name: bytes) -> SessionLog:
        found = self._logs.get(name)
        if found is None:
            found = SessionLog(self._owner, name)
            found.read()
            self._logs[name] = found
            for client_id in found.client_ids():
                record = found.get(client_id)
                if record is not None:
                    self._schedule_will(client_id, record)
                    if self._is_ownerless(record):
                        self._ownerless.append((found, client_id, record.turn))
        return found

    def _is_ownerless(self, record: SessionRecord) -> bool:
        """Whether its user was removed. A user that gets this name later does not get the session."""
        return bool(record.user) and self._limits is not None and record.user not in self._limits

    def _put(self, found: SessionLog, client_id: bytes, record: SessionRecord | None) -> None:
        if self._replicas:
            self._owner.require_replicas(found.name, self._replicas)
        self._put_seq = found.put(client_id, record, self._clock())
        self._gone.pop(client_id, None)
        self._schedule_will(client_id, record)

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(self, verb: Callable[[CallArgs], Any], args: CallArgs, done: OnResult) -> None:
        """Do one of the verbs below; `done` gets its value or a Refused."""
        try:
            if not self._owner.catalog.owning:
                raise Refused(Code.UNAVAILABLE, "this worker does not own the sessions")
            value: Any = verb(args)
        except Refused as refused:
            value = refused
        except (StorageError, OSError, ValueError) as error:
            log.error("the sessions of this node cannot be read or written: %s", error)
            value = Refused(Code.UNAVAILABLE, f"the log of the session: {peer_text(error)}")
        done(value)

    def call_held(self, verb: Callable[[CallArgs], Any], args: CallArgs, done: OnResult) -> None:
        """As `call`; `done` gets the value once what was put is held by as many nodes as are configured."""
        replicas, answers = self._owner.settings.mqtt_replicas, list[Any]()
        self._put_seq, self._replicas = NOTHING_PUT, replicas
        self.call(verb, args, answers.append)
        self._replicas = 0
        seq, (value,) = self._put_seq, answers
        if seq == NOTHING_PUT or isinstance(value, Refused) or not replicas:
            done(value)
        else:
            answer = LoggedAnswer(partial(self._held_or_not, args[0], value, done), value)
            self._owner.replicas.wait_for(log_of(args[0]), seq + 1, replicas, answer)

    def _held_or_not(self, client_id: bytes, value: list[Any], done: OnResult, outcome: Any) -> None:
        """The client of a session that is opened is refused, if that may be lost: its will is never published."""
        if isinstance(outcome, Refused) and value:
            with contextlib.suppress(Refused, StorageError, OSError, ValueError):
                found, record = self._held(client_id, value[0])
                self._put(found, client_id, record._replace(left_us=self._clock_us(), will=None))
        done(outcome)

    def verbs(self) -> dict[str, Callable[[CallArgs, OnResult], None]]:
        """The calls of other workers, by name."""
        found = {"save": self.save, "leave": self.leave, "drop": self.drop, "rows": self.rows}
        return {
            **{f"session_{name}": partial(self.call, verb) for name, verb in found.items()},
            "session_open": partial(self.call_held, self.open),
            "session_step": partial(self.call_held, self.save),
        }

    def open(self, args: CallArgs) -> list[Any]:
        """[client, clean, expiry_s, user, holder, will or None, [turn, state] of the connection that it takes over or
        None] -> [turn, whether the session was there, whether its state is exact, state]; [address] if another node is
        the master of the session's log.

        An empty state is the stored one. Without an expiry the session ends with its connection: nothing is kept, and
        the turn is 0.
        """
        client_id, clean, expiry_s, user, holder, will, handed = args
        elsewhere = self._master_elsewhere(log_of(client_id))
        if elsewhere is not None:
            return [0, False, False, b""] if clean and not expiry_s else [elsewhere]
        found = self._log_for(client_id)
        record = found.get(client_id)
        if record is not None and record.user != user:
            if not (record.has_expired(self._clock_us()) or self._is_ownerless(record)):
                raise Refused(Code.DENIED, OTHERS_TEXT)
            self._end(found, client_id, record)
            record = None
        if record is not None and handed is not None and handed[0] == record.turn:
            state = self._kept_state(record, handed[1])
            record = record._replace(state=state or record.state, exactness=self._exactness_left(state))
        elif record is not None and not record.left_us:
            self._publish_will_of_dead(record)
        if record is not None and (clean or record.has_expired(self._clock_us())):
            self._end(found, client_id, record)
            record = None
        if not expiry_s:
            if record is not None:
                self._put(found, client_id, None)
            return [0, *_seen(record)]
        if record is None:
            self._require_room(user, 1, ENTRY_BYTES + len(client_id) + _bytes_of(will))
        else:
            self._require_room(user, 0, _bytes_of(will) - _bytes_of(record.will))
        turn = max(self._clock_us(), 0 if record is None else record.turn + 1)
        state = b"" if record is None else record.state
        exactness = Exactness.NO if record is None or not is_stepwise(state) else record.exactness
        made = SessionRecord(turn, user, expiry_s, HolderProcess(*holder), 0, exactness, _will_of(will), state)
        self._put(found, client_id, made)
        return [turn, *_seen(record)]

    def save(self, args: CallArgs) -> list[Any]:
        """[client, turn, holder, state] -> []: what a crash is to leave of a session that has a connection."""
        client_id, turn, holder, state = args
        found, record = self._held(client_id, turn)
        if len(state) > RECORD_BYTES_MAX:
            raise Refused(Code.OVERLOADED, LARGE_TEXT)
        self._require_room(record.user, 0, len(state) - len(record.state))
        exactness = self._exactness_left(state) if is_stepwise(state) else Exactness.NO
        kept = {"holder": HolderProcess(*holder), "exactness": exactness, "state": state}
        self._put(found, client_id, record._replace(left_us=0, **kept))
        return []

    def _exactness_left(self, state: bytes) -> Exactness:
        """How exact a state is that a connection leaves; an empty one is not known."""
        if not state:
            return Exactness.NO
        is_held = self._owner.settings.mqtt_replicas and is_stepwise(state)
        return Exactness.EVERYWHERE if is_held else Exactness.HERE

    def leave(self, args: CallArgs) -> list[Any]:
        """[client, turn, expiry_s, whether its will is to be published, state] -> []: the connection has ended. An
        empty state is the stored one, of some time before.
        """
        client_id, turn, expiry_s, has_will, state = args
        found, record = self._held(client_id, turn)
        if not expiry_s:
            self._put(found, client_id, None)
            return []
        state = self._kept_state(record, state)
        kept = {"expiry_s": expiry_s, "will": record.will if has_will else None, "state": state or record.state}
        left = record._replace(left_us=self._clock_us(), exactness=self._exactness_left(state), **kept)
        self._put(found, client_id, left)
        return []

    def drop(self, args: CallArgs) -> bool:
        """[client] -> whether it had a session, which is no more."""
        (client_id,) = args
        found = self._log_for(client_id)
        record = found.get(client_id)
        if record is None:
            return False
        self._end(found, client_id, record)
        return True

    def shares(self, packed_filter: bytes) -> bool:
        """Whether a session here may have this shared subscription, a filter in its packed form. It may if the logs are
        not read yet, or another worker's.
        """
        is_unsure = bool(self._unread) or not self._owner.catalog.owning
        return is_unsure or any(each.shares(packed_filter) for each in self._logs.values())

    def _held(self, client_id: bytes, turn: int) -> tuple[SessionLog, SessionRecord]:
        found = self._log_for(client_id)
        record = found.get(client_id)
        if record is None or record.turn != turn:
            raise Refused(Code.STALE, GONE_TEXT)
        return found, record

    def _require_room(self, user: str, sessions: int, nbytes: int) -> None:
        """For that number of further sessions of a user, and bytes of memory. Raises Refused."""
        if nbytes <= 0:
            return
        sessions_max, limits = self._owner.settings.max_sessions, self._limits
        total, total_bytes = sum(map(len, self._logs.values())) + sessions, self._nbytes + nbytes
        if (sessions and total > sessions_max) or total_bytes > MEMORY_BYTES_MAX:
            raise Refused(Code.OVERLOADED, FULL_TEXT)
        if limits is None:
            return
        held = [each.held.get(user, (0, 0)) for each in self._logs.values()]
        count, count_bytes = sum(each[0] for each in held) + sessions, sum(each[1] for each in held) + nbytes
        if (sessions and not may_hold(count, total, sessions_max, limits.get(user, 0))) or not may_hold(
            count_bytes, total_bytes, MEMORY_BYTES_MAX, 0
        ):
            self._metrics.mqtt_beyond_share.add("sessions")
            holder = f"user {user}" if user else "the clients without a login"
            raise Refused(Code.OVERLOADED, SHARE_TEXT.format(holder=holder))

    def _kept_state(self, record: SessionRecord, state: bytes) -> bytes:
        """What a connection leaves, if there is room for it; else nothing, and the stored state counts."""
        if len(state) > RECORD_BYTES_MAX:
            return b""
        try:
            self._require_room(record.user, 0, len(state) - len(record.state))
        except Refused:
            return b""
        return state

    @property
    def _nbytes(self) -> int:
        return sum(each.nbytes for each in self._logs.values())

    def _end(self, found: SessionLog, client_id: bytes, record: SessionRecord) -> None:
        """The session ends now, and so its will is published, unless its connection sees to that."""
        will = record.will
        self._put(found, client_id, None)
        if will is not None and (record.left_us or will.delay_s):
            self._publish_will(record.user, will)
        if record.state:
            self._ended(record.state)

    def _publish_will_of_dead(self, record: SessionRecord) -> None:
        """The worker that had its connection was killed: a will without a delay is due."""
        if record.will is not None and not record.will.delay_s and not self.is_alive(record.holder):
            self._publish_will(record.user, record.will)

    def is_alive(self, holder: HolderProcess) -> bool:
        """Whether this process of the node is still there."""
        return holder.run == self._holder.run and is_running(holder.pid)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _schedule_will(self, client_id: bytes, record: SessionRecord | None) -> None:
        due_us = None if record is None else record.will_due_us()
        if due_us is None:
            self._will_due.pop(client_id, None)
        elif self._will_due.get(client_id) != due_us:
            self._will_due[client_id] = due_us
            heapq.heappush(self._wills, (due_us, client_id))
            if len(self._wills) > 2 * len(self._will_due) + WILLS_A_TICK:
                self._wills = [(each_us, each) for each, each_us in self._will_due.items()]
                heapq.heapify(self._wills)

    def tick(self) -> None:
        """About once a second."""
        try:
            if self._unread:
                self._read_next()
            self._end_ownerless()
            self._publish_wills()
            self._look_around()
            for each in self._logs.values():
                each.tidy(self._clock())
            self._tidy_copies()
        except (Refused, StorageError, OSError, ValueError) as error:
            log.warning("the logs of sessions: %s", error)
        self._metrics.sessions = sum(map(len, self._logs.values()))
        self._metrics.session_bytes = self._nbytes

    def _read_next(self) -> None:
        name = self._unread.popleft()
        if self._master_elsewhere(name) is None:
            self._log(name)

    def _tidy_copies(self) -> None:
        """The copies of other nodes' logs."""
        for name in SESSION_LOGS:
            if name in self._owner.catalog.names and self._master_elsewhere(name) is not None:
                self._copy(name).tidy()

    def _copy(self, name: bytes) -> SessionCopy:
        found = self._copies.get(name)
        if found is None:
            found = self._copies[name] = SessionCopy(self._owner, name, self._clock)
        return found

    def _publish_wills(self) -> None:
        now_us = self._clock_us()
        for _ in range(WILLS_A_TICK):
            if not self._wills or self._wills[0][0] > now_us:
                break
            due_us, client_id = heapq.heappop(self._wills)
            if self._will_due.get(client_id) != due_us:
                continue
            del self._will_due[client_id]
            found = self._log_for(client_id)
            record = found.get(client_id)
            if record is not None and record.will is not None:
                self._publish_will(record.user, record.will)
                self._put(found, client_id, record._replace(will=None))

    def _end_ownerless(self) -> None:
        """End the sessions of removed users, that nobody has taken since their log was read."""
        end_s = self._clock() + TICK_S
        while self._ownerless and self._clock() < end_s:
            found, client_id, turn = self._ownerless.popleft()
            record = found.get(client_id)
            if record is not None and record.turn == turn and self._is_ownerless(record):
                self._end(found, client_id, record)

    def _look_around(self) -> None:
        """Sessions that have expired end; those whose connection's process is gone have been left."""
        end_s = self._clock() + TICK_S
        if not self._sweep:
            self._sweep.extend((found, client_id) for found in self._logs.values() for client_id in found.client_ids())
        while self._sweep and self._clock() < end_s:
            found, client_id = self._sweep.popleft()
            record = found.get(client_id)
            if record is None:
                continue
            if record.left_us:
                if record.has_expired(self._clock_us()):
                    self._end(found, client_id, record)
            elif self.is_alive(record.holder):
                self._gone.pop(client_id, None)
            elif self._gone.setdefault(client_id, self._clock()) <= self._clock() - GONE_S:
                self._put(found, client_id, record._replace(left_us=self._clock_us()))

    # --- listing ------------------------------------------------------------------------------------------------------

    def rows(self, args: CallArgs) -> list[Any]:
        """[client to begin behind] -> rows of [client, user, whether connected, seconds since it was left, expiry_s,
        bytes]: the first LIST_MAX of this worker, in the order of their identifiers.
        """
        (after,) = args
        while self._unread:
            self._read_next()
        now_us, rows = self._clock_us(), list[list[Any]]()
        behind = (each for found in self._logs.values() for each in found.client_ids() if each > after)
        for client_id in heapq.nsmallest(LIST_MAX, behind):
            record = self._log_for(client_id).get(client_id)
            if record is not None and not record.has_expired(now_us):
                away_s = max(now_us - record.left_us, 0) // MICROSECONDS if record.left_us else 0
                rows.append([client_id, record.user, not record.left_us, away_s, record.expiry_s, len(record.state)])
        return rows


def _seen(record: SessionRecord | None) -> list[Any]:
    return [False, False, b""] if record is None else [True, record.exactness > Exactness.NO, record.state]


def _bytes_of(will: Will | list[Any] | None) -> int:
    return 0 if will is None else len(will[2])


def _will_of(fields: list[Any] | None) -> Will | None:
    return None if fields is None else Will(*fields)
