"""The copies of streams that one uplink keeps up to date, each in one of the states of `FetchState`.

    DOWN      --the uplink is up-->      QUEUED, then ASKED by a FOLLOW
    ASKED     --FOLLOWED-->              FOLLOWING, or CUTTING, or WAITING (`broker.replication.upstream.decide`)
    FOLLOWING --ENDED, an error-->       WAITING
    CUTTING   --the end is set aside-->  QUEUED
    WAITING   --the time has come-->     QUEUED
    any       --the uplink is down-->    DOWN
    QUEUED    --on demand, and empty-->  IDLE, until it is woken (`broker.replication.upstream.on_demand`)
    FOLLOWING --dropped-->               CUTTING, and IDLE then

In all cases a copy goes on by asking again from its own end. Frames are appended as they come, and the messages held
are reported once a turn, or seldomer while a copy is behind.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial

from tailrace.broker.replication.downstream import replica_state
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.roles.internal_streams import is_companion
from tailrace.broker.replication.roles.peers import NodeAddress, may_lead
from tailrace.broker.replication.upstream.decide import (
    BEHIND,
    PARTED,
    FollowDecision,
    LocalCopy,
    UpstreamCopy,
    after_followed,
    fence_text,
)
from tailrace.broker.replication.upstream.socket import UpstreamClosed
from tailrace.broker.streams.owner import OpenStream, Owner, Refused
from tailrace.protocol.address import split_address
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ended, Failed, Op, Unsubscribe, pack
from tailrace.protocol.names import shown_text
from tailrace.protocol.places import From
from tailrace.protocol.replication import Follow, Followed, pack_held
from tailrace.shard.epochs import last_epoch
from tailrace.shard.errors import FramesRefused, FramesTooNew, StorageError
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Contact, Role
from tailrace.shard.names import base_of

log = logging.getLogger(__name__)

FOLLOWS_AT_ONCE = 256  # asked and not answered yet: each makes both ends open the stream
RETRY_S, RETRY_MAX_S = 0.25, 5.0  # until a copy asks again that could not go on
# Taken between two reports, but for those at each tick: of a copy that is behind, and of one that nobody waits for.
REPORT_BYTES, UNAWAITED_REPORT_BYTES = 4 << 20, 64 << 10
NEWS = "news"
ROLE_CHANGES_TEXT = "another role of the stream is being written to the disk"


class FetchState(StrEnum):
    DOWN = "down"
    QUEUED = "queued"
    ASKED = "asked"
    FOLLOWING = "following"
    CUTTING = "setting aside"
    WAITING = "waiting"
    IDLE = "idle"


class ReplicaFetcher:
    """A slaved stream. `path`: the ids of the nodes above this one, up to the master; `why`: the reason why it
    waits; `end_seq`: the end of the stream upstream, by its latest news; `taken_bytes`: since the last report;
    `awaited`: publishes may wait upstream for the reports;
    `upstream_epoch`: the term that the upstream is in, 0 before its first answer; `fenced`: that is an earlier one than
    this node has learned of; `leads`: the upstream is a master, or follows another node; `in_circle`: it
    was said to be below this node when it was asked last.
    `for_readers`: it is made only for them; `is_awake`: there are some; `is_woken`: the stream was there before they
    were; `is_sound`: it begins where its stream does; `target_seq`: the end of the stream when the copy was begun;
    `is_ready`: it has got to the end since.
    """

    __slots__ = (
        "awaited",
        "end_seq",
        "fenced",
        "for_readers",
        "id",
        "in_circle",
        "is_awake",
        "is_ready",
        "is_sound",
        "is_woken",
        "leads",
        "name",
        "next_seq",
        "path",
        "reported",
        "retries",
        "retry_s",
        "state",
        "synced",
        "taken_bytes",
        "target_seq",
        "upstream_epoch",
        "why",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.id = 0  # of the FOLLOW that is under way or answered, 0 without one
        self.state = FetchState.DOWN
        self.why = ""
        self.path: tuple[str, ...] = ()
        self.end_seq = 0
        self.upstream_epoch = 0
        self.fenced = self.leads = self.in_circle = False
        self.next_seq = self.synced = 0  # as it was when this was looked at last
        self.reported: dict[str, tuple[int, int]] = {}  # by node, its position as the upstream knows it
        self.taken_bytes = 0
        self.awaited = True
        self.for_readers = self.is_awake = self.is_woken = self.is_ready = self.is_sound = False
        self.target_seq = UNKNOWN_SEQ
        self.retries = 0
        self.retry_s = 0.0

    @property
    def is_begun(self) -> bool:
        """Whether the upstream has answered since the copy was begun: new messages are known from then on."""
        return self.target_seq != UNKNOWN_SEQ


_LEFT_ALONE = frozenset({FetchState.CUTTING, FetchState.IDLE})
"""In these states a copy needs no upstream."""

UNKNOWN_SEQ = -1
DROPPED = -1
"""In place of a seq: the stream is to have no messages, and to begin at 0 again."""


def _leads(copy: ReplicaFetcher) -> bool:
    return copy.leads and copy.state is FetchState.FOLLOWING


SetAside = Callable[[OpenStream, int, Callable[[str], None]], None]
"""Let a stream end before a seq, or begin there if it has no messages, in another thread; then calls with "" or with
what was wrong. DROPPED: let it have no messages."""
ScheduleStep = Callable[[bytes, Callable[[], object]], object]
"""Do what may have to open a stream when the turn has time for it (`broker.process.work`)."""


class ReplicaFetchers:
    """`send_envelope` queues bytes for the upstream. `set_aside` and `later` are the worker's."""

    def __init__(
        self,
        owner: Owner,
        upstreams: Sequence[NodeAddress],
        send_envelope: Callable[[bytes], None],
        set_aside: SetAside,
        later: ScheduleStep,
        on_ready: Callable[[bytes], None],
    ) -> None:
        """upstreams: hosts and ports, the first as the streams' roles have it; they come from one of them. `on_ready`:
        called when a copy has come to where the stream ended when it was begun.
        """
        self._owner = owner
        self._upstreams = upstreams
        self._later_step = later
        self._on_ready = on_ready
        self._to_open = 0  # copies whose streams are to be opened before they are asked for
        self._node_id = owner.catalog.directory.node_id
        self._send_envelope = send_envelope
        self._set_aside = set_aside
        self.by_name: dict[bytes, ReplicaFetcher] = {}
        self._by_id: dict[int, ReplicaFetcher] = {}
        self._last_id = 0
        self._queued: deque[ReplicaFetcher] = deque()
        self._asked = 0
        self._leader: ReplicaFetcher | None = None  # one of the streams that are on the way to their master
        self._waiting: dict[ReplicaFetcher, None] = {}
        self._changed: dict[ReplicaFetcher, None] = {}  # hold more than was reported
        self._later: dict[ReplicaFetcher, None] = {}  # so do these, of which more is about to come
        self.up = False

    def __len__(self) -> int:
        return len(self.by_name)

    def add(
        self, name: bytes, former: ReplicaFetcher | None = None, *, on_demand: bool = False, is_awake: bool = False
    ) -> ReplicaFetcher:
        """`former`: the copy from another upstream that this one goes on with."""
        copy = self.by_name[name] = ReplicaFetcher(name)
        if former is not None:
            copy.is_woken, copy.target_seq = former.is_woken, former.target_seq
        copy.for_readers, copy.is_awake, copy.is_sound = on_demand, is_awake, is_awake
        self._note_unready(copy)
        if self.up:
            self._queue(copy)
        return copy

    def wake(self, copy: ReplicaFetcher) -> None:
        """Somebody reads the stream, which may have messages already."""
        copy.is_woken = not copy.is_awake or copy.is_woken
        copy.is_awake = True
        self._leave_idle(copy)

    def set_on_demand(self, copy: ReplicaFetcher, *, on_demand: bool) -> None:
        """A copy that is not made on demand is always kept up to date."""
        copy.for_readers = on_demand
        self._note_unready(copy)
        if not on_demand and not copy.is_ready:
            self._owner.roles.copies.filling.add(copy.name)
        if not on_demand:
            self._leave_idle(copy)
        self._changed[copy] = None

    def _leave_idle(self, copy: ReplicaFetcher) -> None:
        if copy.state is FetchState.IDLE:
            copy.state = FetchState.DOWN
            if self.up:
                self._queue(copy)

    def _note_unready(self, copy: ReplicaFetcher) -> None:
        owner, name = self._owner, copy.name
        if copy.for_readers and not copy.is_ready:
            owner.roles.copies.unready.add(name)
        else:
            owner.roles.copies.unready.discard(name)
        if copy.for_readers or copy.is_ready:
            owner.roles.copies.filling.discard(name)

    def drop(self, copy: ReplicaFetcher, now_s: float) -> None:
        """Give the messages of a copy up, all of which the upstream has: this one follows it. Raises Refused."""
        if copy.state is not FetchState.FOLLOWING:
            return
        stream = self._owner.stream(copy.name)
        if stream.busy:
            raise Refused(Code.UNAVAILABLE, stream_roles.BUSY_TEXT)
        self._leave(copy)
        copy.is_ready = copy.is_awake = copy.is_woken = False
        copy.is_sound = False
        copy.end_seq = copy.next_seq = copy.synced = 0
        copy.target_seq = UNKNOWN_SEQ
        self._note_unready(copy)
        self._owner.roles.copies.quiet.pop(copy.name, None)
        self._set_path(copy, ())
        self._cut(copy, stream, DROPPED, now_s)

    def remove(self, name: bytes) -> None:
        """The stream follows somebody else now, or nobody."""
        copy = self.by_name.pop(name, None)
        if copy is not None:
            self._leave(copy)
            copy.state = FetchState.DOWN
            self._owner.roles.copies.unready.discard(name)
            self._waiting.pop(copy, None)
            self._changed.pop(copy, None)
            self._later.pop(copy, None)

    @property
    def lead_to_master(self) -> bool:
        """Whether the upstream leads to a master, as one of the streams shows; True without streams."""
        if self._leader is None or not _leads(self._leader):
            self._leader = next(filter(_leads, self.by_name.values()), None)
        return self._leader is not None or all(copy.state is FetchState.IDLE for copy in self.by_name.values())

    # --- the uplink -------------------------------------------------------------------------------------------------

    def went_up(self) -> None:
        self.up = True
        self._last_id = 0
        for copy in self.by_name.values():
            if copy.state not in _LEFT_ALONE:
                self._queue(copy)

    def went_down(self, why: str) -> None:
        self.up = False
        self._by_id.clear()
        self._queued.clear()
        self._waiting.clear()
        self._changed.clear()
        self._later.clear()
        self._asked = 0
        for copy in self.by_name.values():
            if copy.state not in _LEFT_ALONE:
                copy.state, copy.why = FetchState.DOWN, why
            copy.id = 0
            copy.reported = {}
            self._set_path(copy, ())

    def tick(self, now_s: float) -> None:
        self._changed |= self._later
        self._later.clear()
        for copy in [copy for copy in self._waiting if copy.retry_s <= now_s]:
            del self._waiting[copy]
            self._queue(copy)
        self.ask(now_s)

    def ask(self, now_s: float) -> None:
        """Send FOLLOW for some of those that wait for that."""
        while self._queued and self._asked + self._to_open < FOLLOWS_AT_ONCE:
            copy = self._queued.popleft()
            if copy.name in self._owner.catalog.open:
                self._try_to_ask(copy, now_s)
            else:
                self._to_open += 1
                self._later_step(copy.name, partial(self._open_and_ask, copy, now_s))

    def _open_and_ask(self, copy: ReplicaFetcher, now_s: float) -> None:
        self._to_open -= 1
        self._try_to_ask(copy, now_s)

    def _try_to_ask(self, copy: ReplicaFetcher, now_s: float) -> None:
        if not self.up or copy.state is not FetchState.QUEUED or self.by_name.get(copy.name) is not copy:
            return
        try:
            self._require_role(copy)
            self._ask(copy, now_s)
        except Refused as refused:
            self._wait(copy, refused.text, now_s)
        except (StorageError, OSError) as error:
            self._wait(copy, str(error), now_s)

    def _rests(self, copy: ReplicaFetcher, stream: OpenStream, now_s: float) -> bool:
        """Whether a copy without messages is not to be asked for now. One that is to begin later than at 0 may not have
        been dropped to the end when the node went down.
        """
        if stream.log.next_seq and not copy.is_sound:
            self._cut(copy, stream, DROPPED, now_s)
            return True
        if copy.is_awake or stream.log.next_seq:
            return False
        copy.state, copy.why = FetchState.IDLE, ""
        return True

    def _ask(self, copy: ReplicaFetcher, now_s: float) -> None:
        owner = self._owner
        stream = owner.stream(copy.name)
        if stream.busy:
            raise Refused(Code.UNAVAILABLE, stream_roles.BUSY_TEXT)
        meta, found = owner.roles.meta(copy.name), stream.log
        if copy.for_readers and found.first_seq == found.next_seq and self._rests(copy, stream, now_s):
            return
        term = stream_roles.term(meta, stream_roles.history_of(owner, stream))
        last, start = None, None
        if found.first_seq < found.next_seq:
            last = found.last_epoch, found.frame_crc(found.next_seq - 1)
        elif found.next_seq or meta.upstream is None:
            start = From("seq", found.next_seq)
        else:
            start = From(meta.upstream.kind, meta.upstream.value)  # type: ignore[arg-type]  # one of PLACE_KINDS
        self._last_id += 1
        copy.id, copy.state = self._last_id, FetchState.ASKED
        self._by_id[copy.id] = copy
        self._asked += 1
        self._send_envelope(pack(Follow(copy.id, copy.name, found.next_seq, *term, last, start)))

    def _queue(self, copy: ReplicaFetcher) -> None:
        copy.state = FetchState.QUEUED
        self._queued.append(copy)

    def _wait(self, copy: ReplicaFetcher, why: str, now_s: float, code: str | None = None) -> None:
        """Ask again a while later, and later from time to time. `code`: of the upstream's refusal."""
        self._leave(copy)
        if why != copy.why and not (copy.retries and self._owner.space.is_met):
            log.warning("stream %r does not follow its upstream now: %s", copy.name, why)
        copy.state, copy.why, copy.in_circle = FetchState.WAITING, why, code == Code.CYCLE
        copy.retry_s = now_s + min(RETRY_S * 2.0**copy.retries, RETRY_MAX_S)
        copy.retries = min(copy.retries + 1, 16)
        self._waiting[copy] = None

    def _leave(self, copy: ReplicaFetcher) -> None:
        """What still comes of this FOLLOW is passed over."""
        if copy.id:
            self._send_envelope(pack(Unsubscribe(copy.id)))
            self._settle(copy)

    def _settle(self, copy: ReplicaFetcher) -> None:
        """There is nothing under this id upstream any more, or nothing that is still wanted."""
        del self._by_id[copy.id]
        if copy.state is FetchState.ASKED:
            self._asked -= 1
        copy.id = 0  # the next connection counts from the beginning again: this may be another's then
        copy.reported = {}

    # --- messages of the upstream -------------------------------------------------------------------------------------

    def followed(self, message: Followed, now_s: float) -> None:
        """Raises UpstreamClosed for an invalid answer."""
        copy = self._by_id.get(message.id)
        if copy is None:
            return
        copy.end_seq = message.next_seq
        copy.upstream_epoch = last_epoch(message.history)
        self._note_awaited(copy, awaited=message.awaited)
        if copy.state is FetchState.ASKED and message.state in (PARTED, BEHIND):
            self._settle(copy)
        circle = replica_state.circle(self._node_id, message.path)
        if circle:
            self._wait(copy, f"the nodes follow each other in a circle: {circle}", now_s, Code.CYCLE)
            return
        try:
            self._require_role(copy)
            stream = self._owner.stream(copy.name)
            if copy.state is FetchState.FOLLOWING:
                self._learn(stream, message)
                self.reconcile_fence(copy.name, now_s)
            elif message.state != NEWS:
                stream_roles.require_possible(self._owner, stream, message.history)
                if copy.id:
                    self._asked -= 1
                copy.state = FetchState.FOLLOWING
                self._after_followed(copy, stream, message, now_s)
        except Refused as refused:
            self._wait(copy, refused.text, now_s)
            return
        except (StorageError, OSError) as error:
            self._wait(copy, str(error), now_s)
            return
        if copy.state is FetchState.FOLLOWING:
            copy.leads = message.role != Role.SLAVE or len(message.path) > 1
            self._set_path(copy, message.path)

    def _require_role(self, copy: ReplicaFetcher) -> None:
        """Raises Refused while another role is being written down: `remove` is called when that is on the disk. Until
        then messages of this upstream about its own term must not change this node's.
        """
        meta = self._owner.roles.meta(copy.name)
        if meta.role is not Role.SLAVE or meta.upstream is None or meta.upstream[:2] != self._upstreams[0]:
            raise Refused(Code.UNAVAILABLE, ROLE_CHANGES_TEXT)

    def _after_followed(self, copy: ReplicaFetcher, stream: OpenStream, message: Followed, now_s: float) -> None:
        found = stream.log
        fenced = self._fence(copy)
        mine = LocalCopy(
            stream_roles.history_of(self._owner, stream),
            found.first_seq,
            found.next_seq,
            found.last_epoch,
            fenced,
            by_itself=len(self._upstreams) > 1,
        )
        copy.fenced = copy.upstream_epoch < fenced
        theirs = UpstreamCopy(message.state, message.start_seq, message.first_seq, message.next_seq, message.history)
        step = after_followed(mine, theirs)
        match step.do:
            case FollowDecision.REFUSE:
                raise UpstreamClosed(f"stream {copy.name.decode()}: {step.why}")
            case FollowDecision.WAIT:
                self._wait(copy, step.why, now_s)
            case FollowDecision.SET_ASIDE:
                copy.why = f"setting aside its own messages from {step.seq} on"
                log.warning("stream %r has parted from its upstream: %s", copy.name, copy.why)
                self._cut(copy, stream, step.seq, now_s)
            case FollowDecision.BEGIN_AT:
                self._begin_at(copy, stream, step.seq, now_s)
            case FollowDecision.GO_ON:
                self._go_on(copy, stream, message)

    def _go_on(self, copy: ReplicaFetcher, stream: OpenStream, message: Followed) -> None:
        self._learn(stream, message)
        copy.is_sound, is_begun = True, copy.target_seq == UNKNOWN_SEQ
        copy.target_seq = message.next_seq if is_begun else min(copy.target_seq, message.next_seq)
        quiet = self._owner.roles.copies.quiet
        if copy.is_woken and (is_begun or copy.name in quiet):  # another upstream may end earlier
            quiet[copy.name] = copy.target_seq
        if not self._owner.space.is_met:  # else it is asked less and less often: its next frames are refused again
            if copy.why:
                log.info("stream %r follows its upstream from message %d on", copy.name, stream.log.next_seq)
            copy.retries = 0
        copy.why, copy.in_circle = "", False
        self._look(copy, stream.log)
        self._changed[copy] = None

    def _learn(self, stream: OpenStream, message: Followed) -> None:
        """Raises Refused."""
        owner, upstream = self._owner, self._owner.roles.meta(stream.name).upstream
        contacts = []
        if upstream is not None and not is_companion(stream.name):
            any_host = bool(owner.settings.replication_token)
            told = map(split_address, message.contacts)
            peers = owner.roles.peers
            contacts = [Contact(*node) for node in told if any_host or may_lead(peers, upstream.host, node[0])]
        stream_roles.learn(self._owner, stream, message.history, contacts)

    def _fence(self, copy: ReplicaFetcher) -> int:
        """The earliest term in which an upstream may be to be followed. A companion's upstream is in the stream's."""
        base = base_of(copy.name)
        if base == copy.name:
            return self._owner.roles.epoch(base)
        found = self.by_name.get(base)
        return copy.upstream_epoch + 1 if found is not None and found.fenced else 0

    def reconcile_fence(self, name: bytes, now_s: float) -> None:
        """This node may have learned of a later term than the upstream is in: then it leaves that, until it is too."""
        for each in (name, *self._owner.catalog.companions.of(name)):
            copy = self.by_name.get(each)
            if copy is None or not copy.upstream_epoch:
                continue
            fence = self._fence(copy)
            copy.fenced = copy.upstream_epoch < fence
            if copy.fenced and copy.state is FetchState.FOLLOWING:
                self._wait(copy, fence_text(copy.upstream_epoch, fence), now_s)

    def _begin_at(self, copy: ReplicaFetcher, stream: OpenStream, seq: int, now_s: float) -> None:
        """Without a message the stream begins at `seq`. That waits for the disk, and is asked for again after it."""
        found = stream.log
        if found.first_seq < found.next_seq:
            text = "stream %r: its upstream keeps nothing before %d; messages %d to %d are dropped, with a gap behind"
            log.warning(text, stream.name, seq, found.first_seq, found.next_seq - 1)
            self._owner.trim(stream, found.next_seq)
        self._leave(copy)
        copy.is_sound = True
        self._cut(copy, stream, seq, now_s)

    def _cut(self, copy: ReplicaFetcher, stream: OpenStream, seq: int, now_s: float) -> None:
        copy.state = FetchState.CUTTING

        def done(wrong: str) -> None:
            if copy.state is not FetchState.CUTTING:
                return
            copy.state = FetchState.DOWN
            if self.by_name.get(copy.name) is not copy or not self.up:
                return
            if wrong:
                self._wait(copy, wrong, now_s)
            else:
                self._queue(copy)

        self._set_aside(stream, seq, done)

    def chunks(self, number: int, pieces: Sequence[memoryview], now_s: float) -> None:
        """The frames of CHUNKs of one FOLLOW that have come one behind the other.

        Raises UpstreamClosed for frames that cannot come next, and for a stream that nobody asked for.
        """
        copy = self._by_id.get(number)
        if copy is None:
            if number > self._last_id:
                raise UpstreamClosed(f"it sent frames of {number}, which nobody asked for")
            return
        if copy.state is not FetchState.FOLLOWING:
            raise UpstreamClosed(f"it sent frames of {copy.name.decode()} before it answered FOLLOW")
        try:
            stream = self._owner.take_frames(copy.name, pieces, now_s)
        except FramesTooNew as refused:
            self._wait(copy, str(refused), now_s)
        except FramesRefused as refused:
            raise UpstreamClosed(str(refused)) from refused
        except Refused as refused:
            self._wait(copy, refused.text, now_s)
        except (StorageError, OSError) as error:
            self._wait(copy, str(error), now_s)
        else:
            self._look(copy, stream.log)
            self._note_taken(copy, sum(map(len, pieces)))

    def _note_taken(self, copy: ReplicaFetcher, taken_bytes: int) -> None:
        """A report wakes the upstream, which has better things to do while it sends gigabytes: so a copy that is not
        where the upstream's end was last is reported now and then, and one that no publish waits for.
        """
        copy.taken_bytes += taken_bytes
        report_bytes = REPORT_BYTES if copy.next_seq < copy.end_seq else 0 if copy.awaited else UNAWAITED_REPORT_BYTES
        (self._later if copy.taken_bytes < report_bytes else self._changed)[copy] = None

    def _note_awaited(self, copy: ReplicaFetcher, *, awaited: bool) -> None:
        begins, copy.awaited = awaited and not copy.awaited, awaited
        if begins and copy in self._later:
            del self._later[copy]
            self._changed[copy] = None

    def place_of(self, number: int) -> int:
        """The offset in its file at which the next frames of a FOLLOW will be written; 0 if that is not known."""
        copy = self._by_id.get(number)
        stream = None if copy is None else self._owner.catalog.open.get(copy.name)
        return 0 if stream is None else stream.log.end_offset

    def ended(self, message: Ended, now_s: float) -> None:
        copy = self._by_id.get(message.id)
        if copy is not None:
            self._settle(copy)
            self._wait(copy, shown_text(message.text) or "the upstream ended it", now_s, message.code)
            self._check_deletion(copy, message.code)

    def failed(self, message: Failed, now_s: float) -> None:
        """FOLLOW could not be done, or cannot go on without a gap."""
        copy = self._by_id.get(message.id)
        if copy is not None:
            if message.op == Op.FOLLOW:
                self._settle(copy)
            self._wait(copy, shown_text(f"{message.code}: {message.text}"), now_s, message.code)
            self._check_deletion(copy, message.code)

    def _check_deletion(self, copy: ReplicaFetcher, code: str | None) -> None:
        """The upstream has deleted the stream: so does this node. Its companions go with it."""
        if code != Code.DELETED or is_companion(copy.name):
            return

        def done(value: object) -> None:
            what = f"cannot be deleted: {value.text}" if isinstance(value, Refused) else "is deleted, as upstream"
            log.warning("stream %r %s", copy.name.decode(), what)

        self._owner.context.delete(copy.name, done, copy=True)

    def _set_path(self, copy: ReplicaFetcher, path: tuple[str, ...]) -> None:
        if copy.path != path:
            copy.path = path
            self._owner.events.on_path(copy.name)

    # --- messages held here ------------------------------------------------------------------------------------------

    def note_held(self, name: bytes) -> None:
        """More of the stream is held, or is on the disk, here or below."""
        copy = self.by_name.get(name)
        if copy is not None and copy.state is FetchState.FOLLOWING:
            stream = self._owner.catalog.open.get(name)
            if stream is not None:
                self._look(copy, stream.log)
            (self._changed if copy.awaited else self._later)[copy] = None

    def _look(self, copy: ReplicaFetcher, found: StreamLog) -> None:
        copy.next_seq, copy.synced = found.next_seq, found.synced_seq
        if not copy.is_ready and copy.state is FetchState.FOLLOWING and copy.next_seq >= copy.end_seq:
            copy.is_ready = True
            self._note_unready(copy)
            self._on_ready(copy.name)

    @property
    def unreported(self) -> bool:
        """Whether `reports` would return anything."""
        return bool(self._changed)

    def reports(self) -> Iterator[bytes]:
        """The reports for the upstream on the messages held, since the last time: only of nodes that hold more or less
        than then, or else each message would go up as often as the square of the nodes below. A copy on demand counts
        for nothing, so nothing is reported of it.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        rows: list[tuple[int, str, int, int]] = []
        gone: list[tuple[int, str]] = []
        for copy in changed:
            if copy.state is not FetchState.FOLLOWING:
                continue
            self._later.pop(copy, None)
            copy.taken_bytes = 0
            below = self._owner.replicas.held_below(copy.name)
            held = {} if copy.for_readers else {self._node_id: (copy.next_seq, copy.synced), **below}
            rows += [(copy.id, node, *held[node]) for node in held if copy.reported.get(node) != held[node]]
            gone += [(copy.id, node) for node in copy.reported.keys() - held.keys()]
            copy.reported = held
        yield from pack_held(rows, gone)
