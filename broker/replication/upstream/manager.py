"""The uplinks of a worker: which of its streams follow which node, and the one connection to each of those.

Every change of a stream's role (a command, a claim, a start) ends in `reconcile`, which brings the stream's upstream in
line with its metadata. Nothing here is kept on the disk: it follows from the streams' .meta files and the node's rules.
"""

from __future__ import annotations

import logging
import select
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tailrace.broker.process.work import NOBODY, WorkQueue
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.roles.peers import NodeAddress, NodeAddresses
from tailrace.broker.replication.roles.rules import Rules
from tailrace.broker.replication.roles.start_check import StartCheck
from tailrace.broker.replication.upstream.connection import COMPLAINT_S, HostLookup, UpstreamConnection, UpstreamContext
from tailrace.broker.replication.upstream.fetchers import DROPPED, ReplicaFetcher
from tailrace.broker.replication.upstream.login import NodeLogins
from tailrace.broker.replication.upstream.on_demand import CopiesOnDemand, CopyPlace
from tailrace.broker.replication.upstream.prefix_watch import PrefixWatches
from tailrace.broker.replication.upstream.socket import ResolvedAddress
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.services import Services
from tailrace.broker.sharing.session import ShareSessions
from tailrace.broker.streams.owner import OpenStream, Owner, Refused
from tailrace.broker.streams.syncer import Syncer, SyncJob
from tailrace.protocol.address import join_address
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError
from tailrace.shard.names import base_of

log = logging.getLogger(__name__)

DEPOSED_TEXT = (
    "another node has become the master of this stream, and has not said yet where it is; an administrator can:"
    " slave HOST PORT STREAM 0"
)


LOOKS_A_TICK = 64  # at streams whose upstream had to wait for room

FENCED_TEXT = (
    "this node has learned of a later term of the stream than the node that it follows is in, so nothing goes there;"
    " nothing of this was logged"
)


CIRCLE_TEXT = "the node that this one follows is below it, so nothing goes there; nothing of this was logged"


class SetAsideJob:
    """The end of a stream is moved out of it, by the helper thread; or one without messages begins elsewhere; or all
    messages of a copy are dropped.

    cut_seq: from there on nothing is as it was.
    """

    __slots__ = ("_seq", "_stream", "cut_seq", "kept", "name", "wrong")

    def __init__(self, stream: OpenStream, seq: int) -> None:
        self.name = stream.log.name
        # A stream that is cut at 0 counts as deleted; nobody reads this one, and the same messages come back.
        self.cut_seq = max(stream.log.first_seq, 1) if seq == DROPPED else min(seq, stream.log.next_seq)
        self._stream = stream
        self._seq = seq
        self.wrong = ""
        self.kept = 0  # messages

    def sync(self) -> None:
        found = self._stream.log
        try:
            if self._seq == DROPPED:
                found.begin_at(0, drops=True)
            elif found.first_seq == found.next_seq:
                found.begin_at(self._seq)
            elif (tail := found.set_aside(self._seq)) is not None:
                self.kept = tail.tail.next_seq - tail.tail.first_seq
        except (StorageError, ValueError, OSError) as error:
            self.wrong = f"its end could not be set aside: {error}"


class UpstreamManager:
    """One per worker. `start` when it owns its shards, `stop` when it gives them up."""

    def __init__(
        self,
        owner: Owner,
        services: Services,
        work: WorkQueue,
        syncer: Syncer,
        worker: tuple[int, int],
        address: str,
        tls: ssl.SSLContext | None,
        logins: NodeLogins,
        shares: ShareSessions,
        answer: Callable[[], None],
        is_read: Callable[[bytes], bool],
        is_watched: Callable[[], bool],
    ) -> None:
        """worker: its slot, and the number of slots. tls: for connections to other nodes; None: they are plain.
        answer: sends publishers the answers that are known. `is_read`, `is_watched`: as `CopiesOnDemand` has them.
        """
        self._owner = owner
        self._work = work
        self._syncer = syncer
        self._services = services
        self._uplinks: dict[NodeAddresses, UpstreamConnection] = {}
        self._of: dict[bytes, UpstreamConnection] = {}  # the streams that follow
        self.touched: dict[UpstreamConnection, None] = {}
        self.publishing: dict[UpstreamConnection, None] = {}  # have got publishes in this turn
        self._asking: StartCheck | None = None
        self._complained_s = 0.0
        self._lookups: Syncer | None = None
        self._selves: set[NodeAddress] = set()  # addresses at which this very node has answered
        self._remade: dict[bytes, UpstreamConnection] = {}  # made again upstream, while they are still deleted here
        self._to_make: dict[bytes, UpstreamConnection] = {}  # streams that there are upstream, bounded by `max_streams`
        self._crowded_out: dict[bytes, None] = {}  # streams of this worker
        self._making = False  # one of them waits for its turn
        self._watched = PrefixWatches()
        about = self._place_of, self._places, is_read, is_watched
        self.on_demand = CopiesOnDemand(owner, *about, lambda: services.now_s)
        self._around = UpstreamContext(
            owner=owner,
            poller=services.poller,
            settings=owner.settings,
            address=address,
            worker=worker,
            tls=tls,
            logins=logins,
            clock=lambda: services.now_s,
            resolve=self.resolve,
            set_aside=self._set_aside,
            later=lambda name, step: work.do(name, (NOBODY,), step, lambda: None),
            found=self._found,
            touch=self._touch,
            answer=answer,
            shares=shares,
            on_ready=self.on_demand.note_ready,
        )

    def __iter__(self) -> Iterator[UpstreamConnection]:
        return iter(self._uplinks.values())

    def start(self, *, asks: bool = False) -> None:
        """`asks`: the node, or this worker, was away; a replaced worker's successor need not ask."""
        owner = self._owner
        if owner.roles.metas or owner.roles.rules != Rules():  # or else no stream follows, however many there are
            for name in owner.catalog.names:
                self.reconcile(name)
        self.watch()
        roles = owner.roles
        nodes = dict.fromkeys((*roles.followers, *roles.peers.nodes)) if asks and roles.was_followed else {}
        if nodes:
            asked = [self._to((node,)) for node in nodes if self._has_room(b"", (node,))]
            self._asking = StartCheck(owner, asked, self._services.now_s)

    def watch(self) -> None:
        """Watch at the upstreams for streams that the rules are for, as they are made."""
        watched = self._watched
        watched.obey((*self._owner.roles.rules.commands, *self._owner.roles.rules.configured))
        for name, uplink in self._of.items():
            watched.join(name, uplink.addresses)
        self._review()
        for where in watched.ruled():
            if self._has_room(b"", where):
                self._to(where).watch_from_the_beginning()
        self._watch_anew()

    def _review(self) -> None:
        """See which streams are copied only for readers by the rules of now."""
        if not (self._owner.roles.copies.on_demand or self._owner.roles.rules.has_on_demand):
            return
        is_on_demand = self._owner.roles.rules.on_demand_test()
        for name, uplink in self._of.items():
            copy, wanted = uplink.copies.by_name[name], is_on_demand(name)
            if copy.for_readers != wanted:
                self._note_on_demand(name, wanted)
                uplink.copies.set_on_demand(copy, on_demand=wanted)

    def _note_on_demand(self, name: bytes, wanted: bool) -> bool:
        """Returns whether a copy is to be made at once."""
        if not wanted:
            self._owner.roles.copies.on_demand.discard(name)
            return False
        self._owner.roles.copies.on_demand.add(name)
        return self.on_demand.added(name)

    def _places(self) -> Iterator[CopyPlace]:
        return (
            place for name in list(self._owner.roles.copies.on_demand) if (place := self._place_of(name)) is not None
        )

    def _place_of(self, name: bytes) -> CopyPlace | None:
        uplink = self._of.get(name)
        return None if uplink is None else CopyPlace(uplink.copies, uplink.copies.by_name[name], uplink.address)

    def _watch_anew(self) -> None:
        """Renew the watches at those upstreams whose prefixes have changed."""
        stale, self._watched.stale = self._watched.stale, set()
        for where in stale & self._uplinks.keys():
            self._uplinks[where].watch(self._watched.prefixes(where))

    def stop(self, why: str) -> None:
        self.on_demand.stop()
        self._owner.roles.copies.clear()
        for uplink in self._uplinks.values():
            uplink.close(why)
        self._uplinks.clear()
        self._of.clear()
        self._owner.uproutes.clear()
        self.touched.clear()
        self.publishing.clear()
        self._to_make.clear()
        self._remade.clear()
        self._crowded_out.clear()
        self._making = False
        self._watched = PrefixWatches()
        self._asking = None
        self._end_lookups()

    def tick(self) -> None:
        for uplink in list(self._uplinks.values()):
            uplink.tick(self._services.now_s)
            if uplink.is_self and (uplink.claims or uplink.shares.needed):
                self._selves.add((uplink.host, uplink.port))
                uplink.claims.clear()
                uplink.shares.enabled = False
            if not uplink.needed:
                uplink.close("no stream follows it any more")
                del self._uplinks[uplink.addresses]
        self.share()
        self.on_demand.tick()
        self._reconcile_crowded_out()
        if self._asking is not None:
            self._asking.tick(self._services.now_s)
        if self._to_make and not self._making:
            self._making = True
            self._make_next()
        self._watch_anew()
        self.flush()

    def send_publishes(self) -> None:
        """Send at once what `send_up` has taken."""
        while self.publishing:
            uplink, _ = self.publishing.popitem()
            uplink.send_publishes()

    def flush(self) -> None:
        """Send this turn's queues to other nodes."""
        self.on_demand.work()
        if self._around.shares.changed:
            self.share()
        while self.touched:
            uplink, _ = self.touched.popitem()
            uplink.flush()

    def share(self) -> None:
        """Have a connection to each node that is to send messages of streams in memory."""
        shares = self._around.shares
        shares.changed = False
        if shares.wants.streams and self._owner.catalog.owning:
            for node in shares.addresses - self._selves:
                if self._has_room(b"", (node,)):
                    self._to((node,))

    # --- streams ----------------------------------------------------------------------------------------------------

    def reconcile(self, name: bytes) -> None:
        """A stream may have another role or upstream now."""
        if not self._owner.catalog.owning:
            return
        upstreams = self._owner.roles.upstreams(name)
        wanted = self._to(upstreams) if upstreams and self._has_room(name, upstreams) else None
        present = self._of.get(name)
        if present is not wanted:
            former = None if present is None else present.copies.by_name[name]
            if present is not None:
                self._leave(name, present)
            if wanted is not None:
                self._of[name] = wanted
                self._owner.uproutes[name] = wanted.route
                on_demand = self._owner.roles.rules.on_demand_test()(name)
                is_awake = self._note_on_demand(name, on_demand)
                wanted.copies.add(name, former, on_demand=on_demand, is_awake=is_awake)
                self._watched.join(name, wanted.addresses)
        elif wanted is not None:
            wanted.copies.reconcile_fence(name, self._services.now_s)
        if wanted is None:
            self._owner.roles.copies.filling.discard(name)
        self._claim(name)

    def _claim(self, name: bytes) -> None:
        """Claim the stream at the nodes that must know of its term, and at no others."""
        told = {contact[:2] for contact in stream_roles.to_be_told(self._owner, name)} - self._selves
        for node in told:
            if self._has_room(name, (node,)):
                self._to((node,)).claims.add(name)
        for addresses, uplink in self._uplinks.items():
            if not told.issuperset(addresses) and not (self._asking and self._asking.wants(name)):
                uplink.claims.drop(name)

    def _leave(self, name: bytes, uplink: UpstreamConnection) -> None:
        uplink.copies.remove(name)
        uplink.keep_back(name)
        del self._of[name]
        self._owner.roles.copies.on_demand.discard(name)
        self._watched.leave(name, uplink.addresses)
        self._owner.uproutes.pop(name, None)
        self._owner.events.on_path(name)

    def deleted(self, name: bytes) -> None:
        """A stream is no more: one of its name that is made later is looked at then."""
        present = self._of.get(name)
        if present is not None:
            self._leave(name, present)
        self._owner.roles.copies.quiet.pop(name, None)
        self._owner.roles.copies.filling.discard(name)
        self.on_demand.note_ready(name)  # calls that wait for it wait in vain
        for each in [each for each in self._remade if base_of(each) == name]:
            self._to_make[each] = self._remade.pop(each)

    def copy_of(self, name: bytes) -> tuple[UpstreamConnection, ReplicaFetcher] | None:
        """How a stream follows; None for one that does not."""
        uplink = self._of.get(name)
        return None if uplink is None else (uplink, uplink.copies.by_name[name])

    def path_above(self, name: bytes) -> tuple[str, ...]:
        """The ids of the nodes above this one for a stream; () if it is the master, or does not reach it."""
        uplink = self._of.get(name)
        return () if uplink is None else uplink.copies.by_name[name].path

    def note_held(self, name: bytes) -> None:
        uplink = self._of.get(name)
        if uplink is not None:
            uplink.copies.note_held(name)
            self.touched[uplink] = None

    def asks_first(self, name: bytes) -> bool:
        """Whether a stream that is being opened must wait for the answers of other nodes."""
        return self._asking is not None and self._asking.hold(name)

    def send_up(self, batch: StreamBatch) -> None:
        uplink = self._of.get(batch.name)
        if uplink is None:
            batch.refused(Code.DISABLED, DEPOSED_TEXT)
        elif uplink.copies.by_name[batch.name].fenced:
            batch.refused(Code.DISABLED, FENCED_TEXT)
        elif uplink.copies.by_name[batch.name].in_circle:
            batch.refused(Code.UNAVAILABLE, CIRCLE_TEXT)
        else:
            uplink.send_up(batch)
            self.publishing[uplink] = None

    def call_up(self, name: bytes, verb: str, args: list[Any], done: Callable[[Any | Refused], None]) -> None:
        """Ask the owner of the stream, which stands first in `args`, at its master; it may be unknown here as yet."""
        uplink = self._of.get(name) or self._would_follow(name)
        copy = None if uplink is None else uplink.copies.by_name.get(name)
        if uplink is None:
            done(Refused(Code.DISABLED, DEPOSED_TEXT))
        elif copy is not None and copy.fenced:
            done(Refused(Code.DISABLED, FENCED_TEXT))
        elif copy is not None and copy.in_circle:
            done(Refused(Code.UNAVAILABLE, CIRCLE_TEXT))
        else:
            uplink.calls.call(verb, args[1], self.on_demand.calls_master(name, done), self._services.now_s)

    def _would_follow(self, name: bytes) -> UpstreamConnection | None:
        """The upstream of a stream that the rules are for, and of which nothing is here."""
        return None if name in self._owner.catalog.names else self._uplinks.get(self._owner.roles.upstreams(name))

    def _to(self, addresses: NodeAddresses) -> UpstreamConnection:
        uplink = self._uplinks.get(addresses)
        if uplink is None:
            uplink = self._uplinks[addresses] = UpstreamConnection(self._around, *addresses)
            self._touch(uplink)
        return uplink

    def _has_room(self, name: bytes, addresses: NodeAddresses) -> bool:
        """Whether there may be a connection for these. If not, the stream is looked at again when there is room."""
        limit = self._owner.settings.max_upstreams
        if addresses in self._uplinks or len(self._uplinks) < limit:
            return True
        if name:
            self._crowded_out[name] = None
        if self._services.now_s - self._complained_s >= COMPLAINT_S:
            self._complained_s = self._services.now_s
            log.warning("no connection to %s: this worker has max_upstreams, %d", join_address(*addresses[0]), limit)
        return False

    def _reconcile_crowded_out(self) -> None:
        """Look at some of the streams whose upstream had to wait for room."""
        for _ in range(LOOKS_A_TICK):
            if not self._crowded_out or len(self._uplinks) >= self._owner.settings.max_upstreams:
                return
            self.reconcile(self._crowded_out.popitem()[0])

    def _touch(self, uplink: UpstreamConnection) -> None:
        self.touched[uplink] = None

    def _found(self, uplink: UpstreamConnection, names: Sequence[bytes]) -> None:
        """There are such streams upstream: those that belong to this worker and are new to it are to follow."""
        owner, services = self._owner, self._services
        for name in names:
            if len(self._to_make) >= owner.settings.max_streams:
                return
            if base_of(name) in owner.catalog.deleting:
                if name not in self._remade or self._follows_at(name, uplink):
                    self._remade[name] = uplink
            elif name not in owner.catalog.names and not services.is_remote(name) and self._follows_at(name, uplink):
                self._to_make[name] = uplink

    def _follows_at(self, name: bytes, uplink: UpstreamConnection) -> bool:
        """Whether a stream that is not here is to follow there: another upstream may have it, too."""
        return self._owner.roles.upstreams(name) == uplink.addresses

    def _make_next(self) -> None:
        """Have a stream made when its turn comes, and then the next one: there may be many."""
        if self._to_make:
            name, uplink = self._to_make.popitem()
            self._work.later(name, (NOBODY,), lambda: self._make(name, uplink), lambda: None)
        else:
            self._making = False

    def _make(self, name: bytes, uplink: UpstreamConnection) -> None:
        owner = self._owner
        if name not in owner.catalog.names and self._follows_at(name, uplink):
            try:
                owner.create(name, by_command=True)
            except Refused as refused:
                if self._services.now_s - self._complained_s >= COMPLAINT_S:
                    self._complained_s = self._services.now_s
                    log.warning("stream %r of the upstream cannot be followed: %s", name, refused.text)
        self._make_next()

    # --- what another thread does -----------------------------------------------------------------------------------

    def resolve(self, host: str, port: int, done: Callable[[ResolvedAddress | None, str], None]) -> None:
        """In a thread of its own: a name server may be slow, and publishes wait for the thread of the disk."""
        if self._lookups is None:
            self._lookups = lookups = Syncer()
            self._services.poller.register(lookups.fileno(), select.EPOLLIN, lambda _mask: _take_outcomes(lookups))
        lookup = HostLookup(host, port)
        self._lookups.request(lookup, SyncJob(lambda: done(lookup.address, lookup.wrong)))

    def _end_lookups(self) -> None:
        lookups, self._lookups = self._lookups, None
        if lookups is not None:
            self._services.poller.unregister(lookups.fileno())
            lookups.abandon()

    def _set_aside(self, stream: OpenStream, seq: int, done: Callable[[str], None]) -> None:
        stream.busy = True
        setting = SetAsideJob(stream, seq)

        def finished() -> None:
            stream.busy = False
            cut = self._owner.catalog.owning and (not setting.wrong or stream.log.closed)  # opening it anew finishes it
            if setting.wrong:
                log.error("stream %r: %s", stream.name, setting.wrong)
                self._owner.forget(stream)
            elif setting.kept:
                log.warning("stream %r: %d messages from %d on were set aside", stream.name, setting.kept, seq)
            self._services.metrics.diverged_messages += setting.kept
            if cut:
                self._owner.events.on_cut(stream.name, setting.cut_seq)
            done(setting.wrong)

        self._syncer.request(setting, SyncJob(finished))


def _take_outcomes(lookups: Syncer) -> None:
    for outcome in lookups.outcomes():
        if isinstance(outcome.token, SyncJob):
            outcome.token.done()
