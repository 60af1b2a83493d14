"""One upstream node, or one of several: the connection to it, kept for ever, and everything that goes over it.

    DOWN --time to dial--> RESOLVING --> CONNECTING --> GREETING --WELCOME--> UP
    any  --an error, the end, silence--> DOWN, and after a jittered pause again

Publishes to the streams that are followed wait in a `Route`, as those for a sibling do: while the node is down for a
bounded time, in bounded space. An invalid message of the other end ends the connection, with the reason in the log.
"""

from __future__ import annotations

import logging
import select
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tailrace.broker.process.poller import Poller
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.version import program_version
from tailrace.broker.replication.roles.peers import NodeAddress
from tailrace.broker.replication.upstream.choice import DIAL_MAX_S, UpstreamChoice
from tailrace.broker.replication.upstream.fetchers import ReplicaFetchers, ScheduleStep, SetAside
from tailrace.broker.replication.upstream.leadership_claims import LeadershipClaims
from tailrace.broker.replication.upstream.login import NodeLogin, NodeLoginFailed, NodeLogins
from tailrace.broker.replication.upstream.socket import (
    ChunkRun,
    PublishedRun,
    ResolvedAddress,
    UpstreamClosed,
    UpstreamSocket,
    look_up,
    numeric_address,
)
from tailrace.broker.replication.upstream.upstream_calls import UpstreamCalls
from tailrace.broker.replication.upstream.upstream_publish import UpstreamPublish
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.routing.route import Route
from tailrace.broker.sharing.session import ShareSessions
from tailrace.broker.streams.owner import Owner
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.address import join_address
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FILTERS, SHARING
from tailrace.protocol.messages import Op, pack
from tailrace.protocol.names import node_id, shown_text
from tailrace.shard.names import base_of

log = logging.getLogger(__name__)

SHARED_DIAL_MAX_S = 0.5  # to a node with streams in memory: messages are lost until it is back
STEADY_S = 5.0  # once it was up for this long, the next pause is a short one again
PINGS_A_TIMEOUT = 3  # sent to a silent upstream before it is given up
REQUESTS_MAX = (1 << 32) - 1
COMPLAINT_S = 1.0  # between two log lines about refusals of the upstream
PONGS_UNSENT_MAX_BYTES = 64 << 10  # an upstream with this much unread needs no other sign of life
UP_SLOT = -1  # of a route that leads to no sibling


class UpstreamPhase(StrEnum):
    DOWN = "down"
    RESOLVING = "resolving"
    CONNECTING = "connecting"
    GREETING = "greeting"
    UP = "up"


class Resolver(Protocol):
    """Looks a host up in another thread; then calls with its address, or with an error text."""

    def __call__(self, host: str, port: int, done: Callable[[ResolvedAddress | None, str], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class UpstreamContext:
    """What an uplink needs of its worker."""

    owner: Owner
    poller: Poller
    settings: Settings
    address: str  # at which this node listens, as in its HELLO
    worker: tuple[int, int]  # its number, and the number of workers
    tls: ssl.SSLContext | None  # for connections to other nodes; None: they are plain
    logins: NodeLogins
    clock: Callable[[], float]
    resolve: Resolver
    set_aside: SetAside
    later: ScheduleStep
    found: Callable[[UpstreamConnection, Sequence[bytes]], None]  # names of streams that there are upstream
    touch: Callable[[UpstreamConnection], None]  # it has something to send: flush it in this turn
    answer: Callable[[], None]  # send publishers the answers that are known
    shares: ShareSessions
    on_ready: Callable[[bytes], None]  # a copy has come to the end of its stream


class UpstreamConnection:
    """`addresses`: the nodes of which one is connected to, in the order in which they are tried; `host`, `port` and
    `address` are the present one's.
    """

    def __init__(self, around: UpstreamContext, *addresses: NodeAddress) -> None:
        self.addresses = addresses
        self.host, self.port = addresses[0]
        self.choice = UpstreamChoice(len(addresses), around.settings.upstream_switch_s)
        self.phase, self.why = UpstreamPhase.DOWN, "not tried yet"
        self.node = ""  # the other end's id
        self.tried = False  # whether it was reached, or could not be
        self.is_self = False  # the address leads to this very node
        self._around = around
        self._owner = around.owner
        who = f"the node that this one follows, {' or '.join(join_address(*each) for each in addresses)},"
        self.route = Route(
            UP_SLOT, around.settings.link_window_bytes, around.clock, self._wake, who, on_switch=lambda _link: None
        )
        about = around.set_aside, around.later, around.on_ready
        self.copies = ReplicaFetchers(around.owner, addresses, self.queue, *about)
        self.prefixes: set[bytes] = set()  # of streams to be followed as they are made
        self.claims = LeadershipClaims(around.owner, self.queue, addresses[0])
        self.calls = UpstreamCalls(self.queue)
        self.shares = around.shares.begin(addresses, self.queue)
        self._watches = 0  # numbers given out on this connection
        self._shares_there = False  # whether the node shares streams in memory
        self._looking_up = False
        self._handles: dict[bytes, int] = {}
        self._last_handle = 0
        self._requests = 0
        self._wire: UpstreamSocket | None = None
        self._login: NodeLogin = around.logins.begin()
        self._mask = 0
        self.changed_s = self._heard_s = self._pinged_s = self._ticked_s = around.clock()
        self._complained_s = 0.0

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def needed(self) -> bool:
        return bool(self.copies or self.prefixes or self.claims or self.route.bytes_held or self.shares.needed)

    # --- the connection ---------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Dial when it is time, give up a silent upstream, ask again for the copies that wait."""
        timeout_s = self._around.settings.upstream_timeout_s
        if now_s - self._ticked_s > timeout_s / PINGS_A_TIMEOUT:
            self._heard_s = now_s  # this worker was busy, or stopped: there may be unread messages of the other end
        self._ticked_s = now_s
        self.route.expire(now_s - self._around.settings.unavailable_timeout_s)
        if self.phase is UpstreamPhase.DOWN:
            if now_s >= self.choice.dial_s:
                self._dial(now_s)
        elif self.phase is not UpstreamPhase.UP:
            if now_s - self.changed_s > min(timeout_s, self.choice.attempt_s):
                self.fail("it does not answer")
        elif now_s - self._heard_s > timeout_s:
            self.fail(f"it has said nothing for {timeout_s:g} s")
        elif len(self.addresses) == 1 or self.copies.lead_to_master:
            self._owner.metrics.upstream_moves += self.choice.leads(self._heard_s)
            self._tick_up(now_s, timeout_s / PINGS_A_TIMEOUT)
        elif self.choice.is_useless(self.changed_s, now_s):
            self.fail("it leads to no master of the streams; another one is tried")
        else:
            self._tick_up(now_s, timeout_s / PINGS_A_TIMEOUT)

    def _tick_up(self, now_s: float, silence_s: float) -> None:
        if now_s - self._heard_s > silence_s < now_s - self._pinged_s:
            self._pinged_s = now_s
            self.queue(pack(m.Ping()))
        self.copies.tick(now_s)
        if self.copies.unreported:
            self._around.touch(self)
        self.claims.tick(now_s)
        self.calls.tick(now_s)
        if self._shares_there:
            self.shares.went_up(self.node)

    def _dial(self, now_s: float) -> None:
        self._choose(now_s)
        self._enter(UpstreamPhase.RESOLVING, now_s)
        address = numeric_address(self.host, self.port)
        if address is not None:
            self._connect(address)
            return
        if self._looking_up:  # since an earlier attempt, for which it took too long
            return
        self._looking_up = True
        host = self.host

        def looked_up(found: ResolvedAddress | None, wrong: str) -> None:
            self._looking_up = False
            if self.phase is not UpstreamPhase.RESOLVING or self.host != host:
                return
            if found is None:
                self.fail(f"its host is not known: {wrong}")
            else:
                self._connect(found)

        self._around.resolve(self.host, self.port, looked_up)

    def _choose(self, now_s: float) -> None:
        former = self.address
        self.host, self.port = self.addresses[self.choice.dial(now_s)]
        if self.address != former:
            self.node, self.is_self = "", False
            log.warning("upstream %s is tried instead of %s: %s", self.address, former, self.why)

    def _connect(self, address: ResolvedAddress) -> None:
        try:
            self._wire = UpstreamSocket(address, self._around.tls, self.host)
        except UpstreamClosed as closed:
            self.fail(str(closed))
            return
        self._enter(UpstreamPhase.CONNECTING, self._around.clock())
        self._mask = select.EPOLLOUT
        self._around.poller.register(self._wire.fileno(), self._mask, self._on_event)

    def _enter(self, phase: UpstreamPhase, now_s: float) -> None:
        self.phase, self.changed_s = phase, now_s

    def _on_event(self, mask: int) -> None:
        wire = self._wire
        if wire is None:
            return
        try:
            if self.phase is UpstreamPhase.CONNECTING:
                if wire.connected():
                    self._greet(wire)
            elif mask & ~select.EPOLLOUT:
                self._read(wire)
            self._around.touch(self)
        except (UpstreamClosed, NodeLoginFailed) as closed:
            self.fail(str(closed))

    def _greet(self, wire: UpstreamSocket) -> None:
        self._enter(UpstreamPhase.GREETING, self._around.clock())
        settings, self._login = self._around.settings, self._around.logins.begin()
        hello = m.Hello(
            m.VERSION,
            (FILTERS, r.FEATURE, SHARING),
            f"tailrace/{program_version()}",
            settings.token or None,
            self._owner.catalog.directory.node_id,
            self._around.address,
            settings.replication_token or None,
            worker=self._around.worker,
        )
        wire.queue(pack(self._login.greet(hello)))

    def _read(self, wire: UpstreamSocket) -> None:
        now_s = self._heard_s = self._around.clock()
        for message in wire.receive(self.copies.place_of):
            handler = _HANDLERS.get(type(message))
            if handler is None or (self.phase is not UpstreamPhase.UP and type(message) not in _BEFORE_UP):
                name = _RUNS.get(type(message)) or type(message).__name__
                raise UpstreamClosed(f"it sent {name}, which nobody asked for")
            handler(self, message, now_s)
            if self._wire is not wire:
                return

    def send_publishes(self) -> None:
        """Send the messages queued so far in this turn, which has more to do before it comes to `flush`."""
        if self._wire is not None and self.phase is UpstreamPhase.UP:
            try:
                self._wire.flush()
            except UpstreamClosed as closed:
                self.fail(str(closed))

    def flush(self) -> None:
        """Send the queue of this turn, and reports of the messages held here. Dial at once for the first time."""
        if self.phase is UpstreamPhase.DOWN and not self.choice.dial_s and self.needed:
            self.tick(self._around.clock())
        wire = self._wire
        if wire is None:
            return
        try:
            if self.phase is UpstreamPhase.UP and wire.queued_bytes < self.route.window_bytes:
                for report in self.copies.reports():
                    wire.queue(report)
            wire.flush()
        except UpstreamClosed as closed:
            self.fail(str(closed))
            return
        if wire.interest != self._mask:
            self._mask = wire.interest
            self._around.poller.modify(wire.fileno(), self._mask)

    def fail(self, why: str) -> None:
        """The connection has ended: requests under way have an unknown outcome, waiting ones go on waiting."""
        now_s, self.tried = self._around.clock(), True
        was_steady = self.phase is UpstreamPhase.UP and now_s - self.changed_s > STEADY_S
        if why != self.why:
            log.warning("upstream %s is not followed now: %s", self.address, why)
        self.why = why
        self._close()
        self._enter(UpstreamPhase.DOWN, now_s)
        most_s = SHARED_DIAL_MAX_S if self.shares.needed and not self.is_self else DIAL_MAX_S
        self.choice.failed(now_s, was_steady=was_steady, most_s=most_s, for_good=self.is_self)
        self.copies.went_down(why)
        self.claims.went_down()
        self.calls.went_down()
        self.shares.went_down()
        self._watches = 0
        self._handles.clear()
        self._last_handle = 0
        self.route.link_closed(self)

    def close(self, why: str) -> None:
        """For good: nothing waits any longer."""
        self._close()
        self._enter(UpstreamPhase.DOWN, self._around.clock())
        self.copies.went_down(why)
        self.calls.went_down()
        self.shares.went_down()
        self.route.link_closed(self)
        self.route.expire(float("inf"))

    def _close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            self._around.poller.unregister(wire.fileno())
            wire.close()

    # --- what goes up -----------------------------------------------------------------------------------------------

    def queue(self, *buffers: m.Buffer) -> None:
        if self._wire is not None:
            self._wire.queue(*buffers)
            self._around.touch(self)

    def send_up(self, batch: StreamBatch) -> None:
        """Forward one turn's publishes to a followed stream."""
        self._requests = self._requests % REQUESTS_MAX + 1
        self.route.submit(UpstreamPublish(self._requests, batch))

    def keep_back(self, name: bytes) -> None:
        """Fail waiting publishes to a stream that follows no more: clients must send them to its new master."""
        text = "this stream has another master now; nothing of this was logged, send it again"
        self.route.give_up(lambda request: isinstance(request, UpstreamPublish) and request.name == name, text)

    def handle_of(self, name: bytes) -> int:
        """The handle that stands for the stream on this connection."""
        handle = self._handles.get(name)
        if handle is None:
            self._last_handle += 1
            handle = self._handles[name] = self._last_handle
            self.queue(pack(m.Open(handle, name)))
        return handle

    def watch(self, prefixes: set[bytes]) -> None:
        """Watch the streams with these prefixes, and no others."""
        new, self.prefixes = prefixes - self.prefixes, prefixes
        if self.phase is UpstreamPhase.UP:
            self._watch(new)

    def watch_from_the_beginning(self) -> None:
        """Ask for all names again, at the next `watch`: streams of some may not have been followed when they came."""
        self.prefixes = set()

    def _watch(self, prefixes: set[bytes]) -> None:
        for prefix in sorted(prefixes):
            self._watches += 1
            self.queue(pack(r.Watch(self._watches, prefix)))

    def _wake(self, _link: object) -> None:
        self._around.touch(self)

    # --- messages of the upstream -------------------------------------------------------------------------------------

    def on_challenge(self, message: m.Challenge, _now_s: float) -> None:
        wire = self._wire

        def if_open(act: Callable[[Any], None]) -> Callable[[Any], None]:
            return lambda value: act(value) if self._wire is wire else None

        self._login.answer(message.data, if_open(self.queue), if_open(self.fail))

    def on_welcome(self, message: m.Welcome, now_s: float) -> None:
        if self.phase is UpstreamPhase.UP:
            raise UpstreamClosed("it sent Welcome, which nobody asked for")
        self._login.check(message.login)
        if r.FEATURE not in message.features:
            raise UpstreamClosed("it does not replicate: it is another version")
        self.is_self = message.node == self._owner.catalog.directory.node_id
        if self.is_self:
            raise UpstreamClosed("it is this very node, or one whose data directory is a copy of this one's")
        try:
            self.node = node_id(message.node)
        except PeerError as error:
            raise UpstreamClosed(error.text) from None
        self._enter(UpstreamPhase.UP, now_s)
        log.info("upstream %s is up: node %s", self.address, self.node)
        self.why = ""
        self.route.switch(self)
        self.copies.went_up()
        self._watch(self.prefixes)
        self.claims.went_up()
        self.calls.went_up(has_filters=FILTERS in message.features)
        self._shares_there = SHARING in message.features
        self._tick_up(now_s, float("inf"))

    def on_chunks(self, message: ChunkRun, now_s: float) -> None:
        if self.shares.is_expected(message.id):
            try:
                self.shares.take(message.id, message.pieces)
            except ValueError as error:
                raise UpstreamClosed(str(error)) from None
            return
        self.copies.chunks(message.id, message.pieces, now_s)

    def on_followed(self, message: r.Followed, now_s: float) -> None:
        self.copies.followed(message, now_s)
        self.copies.ask(now_s)

    def on_ended(self, message: m.Ended, now_s: float) -> None:
        self.copies.ended(message, now_s)

    def on_published(self, message: m.Published, _now_s: float) -> None:
        first_seq, _count, subscribers = message.results[0]
        self._settle(message.request, first_seq, subscribers)

    def on_published_run(self, message: PublishedRun, _now_s: float) -> None:
        """Publishers get these answers before the messages behind them are copied, which takes longer."""
        for _opcode, _length, number, first_seq, _count, subscribers in message.rows:
            self._settle(number, first_seq, subscribers)
        self._around.answer()

    def _settle(self, number: int, first_seq: int, subscribers: int) -> None:
        request = self.route.settle(number)
        if isinstance(request, UpstreamPublish):
            request.published(first_seq, subscribers)

    def on_failed(self, message: m.Failed, now_s: float) -> None:
        if message.fatal:
            if message.code == Code.CLOSING:  # it has answered all that it had taken
                self.route.take_back()
            elif message.code == Code.DENIED:
                self._owner.metrics.upstream_denied += 1
            raise UpstreamClosed(f"it said {shown_text(f'{message.code}: {message.text}')}")
        if message.op == Op.PUBLISH and message.code == Code.CLOSING:
            self.route.moved(message.id)  # it has not taken this, and takes none after it
        elif message.op == Op.PUBLISH:
            request = self.route.settle(message.id)
            if isinstance(request, UpstreamPublish):
                request.failed(message)
        elif message.op in (Op.FOLLOW, Op.SUBSCRIBE):
            self.copies.failed(message, now_s)
        else:
            if message.op == Op.OPEN:  # tried again with the next publish; messages sent with this one are refused
                self._handles = {name: handle for name, handle in self._handles.items() if handle != message.id}
            elif message.op == Op.CLAIM:
                self.claims.failed(message.id, now_s)
            elif message.op == Op.CALL:
                self.calls.failed()
            elif message.op == Op.INTEREST:
                self.shares.refused(message.id)
            self._complain(message, now_s)

    def _complain(self, message: m.Failed, now_s: float) -> None:
        if now_s - self._complained_s >= COMPLAINT_S:
            self._complained_s = now_s
            log.warning("upstream %s said %s", self.address, shown_text(f"{message.code}: {message.text}"))

    def on_names(self, message: r.Names, _now_s: float) -> None:
        if not 1 <= message.id <= self._watches:
            raise UpstreamClosed("it sent Names, which nobody asked for")
        prefixes = tuple(self.prefixes)
        self._around.found(self, [name for name in message.names if base_of(name).startswith(prefixes)])

    def on_claimed(self, message: r.Claimed, now_s: float) -> None:
        self.claims.answered(message, now_s)
        self.claims.tick(now_s)

    def on_returned(self, message: r.Returned, _now_s: float) -> None:
        self.calls.returned(message)

    def on_ping(self, _message: m.Ping, _now_s: float) -> None:
        if self._wire is not None and self._wire.queued_bytes < PONGS_UNSENT_MAX_BYTES:
            self.queue(pack(m.Pong()))

    def pass_over(self, _message: Any, _now_s: float) -> None:
        """An answer without news."""


class HostLookup:
    """A look-up, for another thread (`broker.streams.syncer`)."""

    __slots__ = ("address", "name", "port", "wrong")

    def __init__(self, host: str, port: int) -> None:
        self.name, self.port = host, port
        self.address: ResolvedAddress | None = None
        self.wrong = ""

    def sync(self) -> None:
        try:
            self.address = look_up(self.name, self.port)
        except OSError as error:
            self.wrong = error.strerror or str(error)


_HANDLERS: Mapping[type, Callable[[UpstreamConnection, Any, float], None]] = {
    m.Challenge: UpstreamConnection.on_challenge,
    m.Welcome: UpstreamConnection.on_welcome,
    ChunkRun: UpstreamConnection.on_chunks,
    PublishedRun: UpstreamConnection.on_published_run,
    r.Followed: UpstreamConnection.on_followed,
    m.Ended: UpstreamConnection.on_ended,
    m.Published: UpstreamConnection.on_published,
    m.Failed: UpstreamConnection.on_failed,
    m.Opened: UpstreamConnection.pass_over,
    r.Names: UpstreamConnection.on_names,
    r.Claimed: UpstreamConnection.on_claimed,
    r.Returned: UpstreamConnection.on_returned,
    m.Ping: UpstreamConnection.on_ping,
    m.Pong: UpstreamConnection.pass_over,
}
_RUNS: Mapping[type, str] = {ChunkRun: "Chunk", PublishedRun: "Published"}  # the messages that they are of
_BEFORE_UP = frozenset({m.Challenge, m.Welcome, m.Failed, m.Ping, m.Pong})
