"""A connection whose protocol is known, whichever it is: its requests, its cursors, its moving to another worker.

Reading: one `recv_into` the worker's shared buffer a turn; what the bytes ask for is its protocol's business
(`LineClient`, `BinaryClient`). Writing: answers, and between answers whole chunks.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from tailrace.broker.access.identity import Identity
from tailrace.broker.access.rules import Right, denied_text
from tailrace.broker.connection.accounts import Account
from tailrace.broker.connection.base import Connection, Pause
from tailrace.broker.connection.deadlines import Awaited
from tailrace.broker.connection.token_bucket import TokenBucket
from tailrace.broker.connection.transport import AnySocket, Layer
from tailrace.broker.connection.unfinished import holders_to_end
from tailrace.broker.delivery.cursor import Cursor, Delivery
from tailrace.broker.routing.route import Route
from tailrace.broker.services import RECEIVE_BUFFER_BYTES, Services
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rights import may_publish, may_read_all, readable
from tailrace.broker.topics.rules import Placed
from tailrace.protocol.errors import Code
from tailrace.shard.names import base_of

if TYPE_CHECKING:
    from tailrace.broker.consumers.edge.session import ConsumerSession

ANSWERS_PENDING_MAX = 4_096  # answers not known yet; reading pauses above it
# A read is small after anything but a publish, so that little input cannot ask for much output before it is noticed;
# it doubles with each full read of publishes.
READ_BYTES_MIN, READ_BYTES_MAX = 16 << 10, 1 << 20
# Smaller still if the peer's requests are expensive: handling one read takes about READ_WORK_S then. The same after one
# of its steps had to wait (`broker.process.work`): even queueing a full read of such requests would make the turn long.
READ_BYTES_LEAST = 2 << 10
READ_WORK_S = 0.001
REFUSALS_A_ROUND = 64
# More of publishes to many streams without answers: they are appended stream by stream, and an append costs as much as
# a hundred messages.
READ_BYTES_SCATTERED_MAX = RECEIVE_BUFFER_BYTES
FREED_SHARE = 1 / 8  # of the bytes of unfinished requests, when there are too many
NODE_HELD_UP_MAX = 512  # steps of another node that wait; more than it has FOLLOWs under way
_BEFORE_A_MOVE = Pause.MOVE | Pause.LEAVING  # the connection is handed over as soon as it is answered
TOPIC_STREAMS_MAX = 1_024  # whose right to be made is remembered, of a connection
STREAM_BYTES = 8 << 10  # a read that holds less for each of its streams is scattered


def _rates_of(accounts: tuple[Account, ...]) -> tuple[TokenBucket, ...]:
    """The token buckets that its bytes are charged to; empty for nearly all."""
    return tuple([account.received for account in accounts if account.received is not None])


class ClientConnection(Connection):
    """`protocol` names it in a handover."""

    protocol: str
    in_row = False  # whether publishes under way have a place in a row of answers

    __slots__ = (
        "_commanded",
        "_recv_into",
        "_refusals",
        "_serving",
        "barred",
        "created",
        "current",
        "cursors",
        "delivery",
        "held_up",
        "is_free",
        "joining",
        "life_s",
        "moved_s",
        "queued",
        "rates",
        "read_bytes",
        "ready",
        "topic_streams",
        "window_away",
        "window_messages",
        "window_slot",
    )

    def __init__(self, services: Services, sock: AnySocket, peer: str, identity: Identity) -> None:
        super().__init__(services, sock, peer, identity)
        self.delivery: Delivery
        self.cursors: dict[Any, Cursor] = {}  # by what the peer knows them by
        self.joining = 0  # see `broker.delivery.wide`
        self.ready: list[Cursor] = []
        self.current: Cursor | None = None
        self.created = 0
        self.queued = False
        self.held_up = 0  # steps that it asked for and that wait
        self.barred = False  # its login has failed: nothing more that it sends is looked at
        self.topic_streams: frozenset[bytes] = (
            frozenset()
        )  # that it may make, since it may make the name of a topic there
        self.is_free = services.access.is_free(identity)  # no right has to be asked for before it uses a stream
        self.life_s = services.now_s
        self.moved_s = float("-inf")
        self.window_slot = -1  # the sibling most published to, see `broker.connection.migration`
        self.window_messages = self.window_away = 0
        self.read_bytes = READ_BYTES_MIN  # at most, of the next read
        self._commanded = False  # whether the last read asked for anything but publishes
        self._recv_into = sock.recv_into
        self._refusals = 0  # since it has rested
        self._serving: ConsumerSession | None = None  # once it has asked for durable consumers
        self.rates = _rates_of(self.accounts)

    @property
    def cursor_room(self) -> int:
        """How many more cursors it may have."""
        return max(self.services.settings.max_subscriptions - len(self.cursors) - self.joining, 0)

    # --- properties of a protocol -------------------------------------------------------------------------------------

    @abstractmethod
    def take(self, count: int) -> None:
        """Do what the first `count` bytes of the worker's buffer ask for."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """The bytes held of an unfinished request."""

    @abstractmethod
    def end_of_input(self) -> None:
        """The peer sends no more: its unfinished request is lost, and it gets an error for it."""

    @abstractmethod
    def forget_input(self) -> None:
        """Drop the unfinished request."""

    @abstractmethod
    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None: ...

    @abstractmethod
    def send_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        """A subscription has ended: at its end (no code) or since it cannot go on."""

    @abstractmethod
    def send_chunk(self, cursor: Cursor, chunk: Any) -> int: ...

    @abstractmethod
    def lose(self, key: Any, name: bytes, next_seq: int, why: str) -> None:
        """A subscription that cannot go on in this worker."""

    @abstractmethod
    def export_state(self) -> dict[str, Any]:
        """What only this protocol knows of a connection that moves on, for msgpack."""

    @abstractmethod
    def restore_state(self, state: dict[str, Any]) -> None: ...

    @property
    @abstractmethod
    def must_log_in(self) -> bool:
        """Whether nothing can be asked before a login, which must come in time."""

    def overdue(self, what: Awaited, timeout_s: float) -> bool:
        return (what is Awaited.LOGIN and not self.must_log_in) or super().overdue(what, timeout_s)

    def admitted(self) -> bool:
        """Whether this peer may speak this protocol here; if not, it has been refused."""
        return True

    # --- reading ----------------------------------------------------------------------------------------------------

    def readable(self) -> None:
        """One read, and its requests. With 1,000 connections that send a message each this is most of the loop."""
        services = self.services
        try:
            count = self._recv_into(services.receive_buffer, self.read_bytes)
        except BlockingIOError:
            if self.layer is not None:
                self._after_layer(self.layer)
            return
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")
            return
        self.received(count)

    def received(self, count: int) -> None:
        """The worker's buffer begins with this many bytes of its input; without any, that was the end."""
        services = self.services
        if not count or self.lingering_since_s:
            self._read_after_the_end(count)
            return
        self.life_s = services.now_s
        self.traffic.bytes_in += count
        if self.rates:
            self._charge(count)
        if count >= READ_BYTES_LEAST and (count <= READ_BYTES_MIN or self.read_bytes <= READ_BYTES_MIN):
            self._take_timed(count)
        else:
            self.take(count)
        if self.layer is not None and not self.closed:
            self._after_layer(self.layer)

    def _after_layer(self, layer: Layer) -> None:
        """Once per read of TLS or WebSocket."""
        if layer.unsent_bytes:  # what it answers by itself, such as the pong to a ping
            self.block()
        if self.rates and (bare_bytes := layer.take_bare_bytes()):
            self._charge(bare_bytes)
        if layer.ended:  # its close follows these bytes, and it sends no more
            self._read_after_the_end(0)
        else:
            self._hold_half_record(layer)

    def _hold_half_record(self, layer: Layer) -> None:
        """The bytes that TLS holds of an unfinished record count as an unfinished request."""
        held = self.pending_bytes + layer.half_record_bytes
        if held != self.held_bytes and not self.lingering_since_s:
            self.hold(held)

    def _charge(self, count: int) -> None:
        """Read no more before the bytes that its address or its user has sent too early would have been in time."""
        services = self.services
        wait_s = max(rate.take(count, services.now_s) for rate in self.rates)
        if wait_s:
            services.metrics.throttled += 1
            self.pause(Pause.RATE)
            services.delays.at(services.now_s + wait_s, self._resume_from_rate)

    def _resume_from_rate(self) -> None:
        self.resume(Pause.RATE)

    def _take_timed(self, count: int) -> None:
        """Execute the bytes that were read; if they were more than publishes, let the next read be as long as the
        processor time of this one suggests.
        """
        self._commanded = False
        began_s = time.thread_time()
        self.take(count)
        took_s = time.thread_time() - began_s
        if not self._commanded:
            return
        if took_s > READ_WORK_S:
            self.read_bytes = max(int(count * READ_WORK_S / took_s), READ_BYTES_LEAST)
        elif count >= self.read_bytes and not self.held_up:
            self.read_bytes = min(2 * count, READ_BYTES_MIN)

    def _read_after_the_end(self, count: int) -> None:
        if not count and not self.lingering_since_s:
            self.eof = True
            self.end_of_input()
            self.hold(0)
        super()._read_after_the_end(count)

    def read_more(self, count: int, streams: int) -> None:
        """After a read of `count` bytes: read more at once from a peer that fills a read with publishes, to `streams`
        of them (0 if it ended in anything else).
        """
        pending = self.pending_bytes
        if count >= self.read_bytes and (streams or pending >= count) and not self.services.router.makes_streams:
            bytes_max = READ_BYTES_SCATTERED_MAX if count < streams * STREAM_BYTES else READ_BYTES_MAX
            self.read_bytes = min(2 * count, bytes_max)
        if pending != self.held_bytes:
            self.hold(pending, begun=pending <= count)

    def read_less(self) -> None:
        """Something else than a publish was asked for."""
        self._commanded = True
        if self.read_bytes > READ_BYTES_MIN:
            self.read_bytes = READ_BYTES_MIN

    def hold(self, pending_bytes: int, *, begun: bool = False) -> None:
        """Account for the bytes held of an unfinished request, over all connections of the worker. `begun`: it is
        another one than before.
        """
        services = self.services
        services.partial_bytes += pending_bytes - self.held_bytes
        self.held_bytes = pending_bytes
        if not pending_bytes:
            services.deadlines.request.stop(self)
        elif begun or self not in services.deadlines.request.peers:
            services.deadlines.request.start(self, services.now_s)
        if services.partial_bytes > services.settings.max_partial_bytes and pending_bytes:
            free_unfinished(services)

    def pause_for(self, route: Route) -> None:
        route.feeders.add(self.resume_from_link)
        self.pause(Pause.LINK)

    def resume_from_link(self) -> None:
        self.resume(Pause.LINK)

    def hold_up(self) -> None:
        """A step that this peer asked for has to wait (`broker.process.work`): read no more from it.

        But publishes wait for the reports of other nodes that they hold messages: a node is read on for longer.
        """
        self.held_up += 1
        self.read_bytes = READ_BYTES_LEAST
        if self.held_up > (NODE_HELD_UP_MAX if self.bound else 0) and not self.closed:
            self.pause(Pause.WORK)

    def go_on(self) -> None:
        self.held_up -= 1
        if self.held_up <= (NODE_HELD_UP_MAX // 2 if self.bound else 0) and not self.closed:
            self.resume(Pause.WORK)
            self.services.note_answered(self)

    def note_awaited(self) -> None:
        """One answer more is not known yet."""
        if self.awaited > ANSWERS_PENDING_MAX:
            self.pause(Pause.ANSWERS)

    # --- answers ----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def awaited(self) -> int: ...

    @property
    def used_s(self) -> float:
        return max(self.life_s, self.progress_s)

    def refuse(self, code: Code, text: str) -> None:
        self.note_refused(code, text)
        self.send_error(code, text)

    def note_refused(self, code: Code, text: str, count: int = 1) -> None:
        """Count it; a right that is missing is in the log of events too. After some the connection waits for its turn:
        a read has room for very many requests that are refused.
        """
        self.services.metrics.refused.add(code, count)
        if code is Code.DENIED:
            self.log_refusal(code, text)
        self._refusals += 1
        if self._refusals >= REFUSALS_A_ROUND and not (self.closed or self.lingering_since_s):
            self._refusals = 0
            self.rest()

    def rest(self) -> None:
        """Execute the rest of this read when the turn of this connection comes (`broker.process.work`)."""
        self.services.work.later(b"", (self,), _nothing)

    def may_create(self, name: bytes) -> bool:
        """Whether it may make this stream. Companions are the broker's to make."""
        if base_of(name) != name or not (self.is_free or self._has_right_to_create(name)):
            return False
        return self.created < self.services.settings.max_streams_connection and not self._hourly_refusal()

    def _has_right_to_create(self, name: bytes) -> bool:
        """Or to create the name of a topic that it publishes, which lies in this stream."""
        return self.may(Right.CREATE, name) or name in self.topic_streams

    def publish_refusal(self, placed: Placed) -> Refused | None:
        """Why it may not publish to a name; None if it may."""
        if self.is_free:
            return None
        if not may_publish(self.services.access, self.identity, placed):
            return self.denial(Right.PUBLISH)
        if placed.topic and placed.stream not in self.topic_streams and self.may(Right.CREATE, placed.topic):
            before = self.topic_streams if len(self.topic_streams) < TOPIC_STREAMS_MAX else frozenset()
            self.topic_streams = before | {placed.stream}
        return None

    def readable_topics(self, stream: bytes, topic_filter: bytes) -> bytes:
        """As `broker.topics.rights.readable`."""
        if self.is_free:
            return topic_filter
        services = self.services
        return readable(services.access, services.topic_rules, self.identity, stream, topic_filter)

    def may_read_all(self, topic_filter: bytes) -> bool:
        """As `broker.topics.rights.may_read_all`."""
        services = self.services
        return self.is_free or may_read_all(services.access, services.topic_rules, self.identity, topic_filter)

    def may_read_on(self, cursor: Cursor) -> bool:
        """Whether it has the right to what a subscription sends."""
        stream, topics = cursor.feed.name, cursor.topics
        if self.may(Right.SUBSCRIBE, stream):
            return True
        return bool(topics) and self.readable_topics(stream, topics) == topics

    def _hourly_refusal(self) -> str:
        """Why its address or its user makes no stream now; empty if it may."""
        now_s = self.services.now_s
        for account in self.accounts:
            if text := account.streams_refusal(now_s):
                return text
        return ""

    def creation_refusal(self, name: bytes) -> Refused:
        """The reason why `may_create` gives False."""
        if base_of(name) != name:
            return Refused(Code.UNKNOWN, "no such stream here; the broker makes it when it is needed")
        if not (self.is_free or self._has_right_to_create(name)):
            return self.denial(Right.CREATE)
        limit = self.services.settings.max_streams_connection
        text = self._hourly_refusal() or f"this connection has made {limit} streams, which is its limit"
        return Refused(Code.STREAMS, text)

    def denial(self, right: Right) -> Refused:
        """The refusal of a request that needs this right."""
        return Refused(Code.DENIED, denied_text(self.identity, right))

    def become_user(self, identity: Identity) -> None:
        """It has logged in."""
        self.identity = identity
        self.is_free = self.services.access.is_free(identity)
        self.topic_streams = frozenset()
        services, before = self.services, self.accounts
        self.accounts = services.accounts.all_of(self.account, identity, services.now_s)
        services.accounts.moved(before, self.accounts, services.now_s)
        self.rates = _rates_of(self.accounts)

    def drop_what_is_denied(self) -> None:
        """The rights have changed: end its subscriptions and requests that are not allowed any more."""
        if self._serving is not None:
            self._serving.end_denied()
        for cursor in list(self.cursors.values()):
            if not self.may_read_on(cursor):
                self.services.fanout.end(cursor)
                refused = self.denial(Right.SUBSCRIBE)
                self.subscription_ended(cursor, refused.code, refused.text)
                if self.closed:
                    return

    def count_created(self) -> None:
        self.created += 1
        for account in self.accounts:
            if account.streams is not None:
                account.streams.take(1, self.services.now_s)

    # --- writing ----------------------------------------------------------------------------------------------------

    def after_turn(self) -> None:
        if self.closed:
            return
        done = self.current is None and self.flush_answers()
        self._account()
        if not done:
            return
        if self.paused:
            self._read_on()
        self._close_when_done()

    def _read_on(self) -> None:
        """Its answers are sent: read it again, if it was paused for them."""
        if self.paused & Pause.ANSWERS and self.awaited <= ANSWERS_PENDING_MAX // 2:
            self.resume(Pause.ANSWERS)

    def _writable(self) -> None:
        super()._writable()
        self.services.fanout.blocked.pop(self, None)
        if self.current is not None or self.ready:
            self.services.fanout.make_runnable(self)

    def block(self) -> None:
        super().block()
        self.services.fanout.blocked[self] = None

    def keep(self, text: bytes) -> None:
        """Hold the rest of a chunk that is half out, before any answer."""
        self.out[:0] = text
        self.services.note_answered(self)

    # --- subscriptions ----------------------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        """Whether messages may come without being asked for."""
        return bool(self.cursors)

    def chunk_ended(self) -> None:
        """The last chunk of a subscription that was ended in the middle of it is out: what waited for that may go."""
        self.services.note_answered(self)

    def subscription_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        """Fan-out has ended a subscription; where half a chunk is out, nothing sensible can follow it."""
        self.cursors.pop(cursor.key, None)
        if cursor.skip:
            self.close("damaged")
        else:
            self.send_ended(cursor, code, text)

    def _end_subscriptions(self) -> None:
        for cursor in self.cursors.values():
            self.services.fanout.end(cursor)
        self.cursors.clear()
        self.ready.clear()

    # --- durable consumers ------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def consumers(self) -> ConsumerSession:
        """The requests of this connection about durable consumers; made for the first of them."""

    @property
    def ending(self) -> bool:
        """Whether this connection is to move or to end, as soon as it is answered."""
        return bool(self.lingering_since_s or self.paused & _BEFORE_A_MOVE)

    def pause(self, reason: Pause) -> None:
        super().pause(reason)
        if self.ending and self._serving is not None:
            self._serving.end_waits()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        if not self.closed and self._serving is not None:
            self._serving.close()
        super().close(reason)

    def finish(self) -> None:
        if self.lingering_since_s or self.closed:
            return
        super().finish()
        if self._serving is not None:
            self._serving.end_waits()
        self._end_subscriptions()
        self.forget_input()
        self.hold(0)

    @property
    def owed(self) -> bool:
        """Answers, or the rest of a chunk."""
        encrypted = self.layer is not None and self.layer.unsent_bytes
        return bool(self.out or self.awaited or encrypted) or self.current is not None

    def _close_when_done(self) -> None:
        if self.lingering_since_s:
            super()._close_when_done()
        elif self.eof and not self.is_reading and not self.owed:
            self.close("ended")

    def _release(self) -> None:
        super()._release()
        self._end_subscriptions()
        self.services.fanout.blocked.pop(self, None)
        self.services.partial_bytes -= self.held_bytes
        self.held_bytes = 0
        # These know this connection, and are to be freed with it now, not by a search for cycles.
        self._serving = None
        self.current = None

    # --- moving to another worker (see `broker.connection.handover`) --------------------------------------------------

    def take_over(self, *, eof: bool) -> None:
        """Continue from the last worker's state: send the answers that are ready, read on."""
        self.eof = eof
        self.hold(self.pending_bytes)
        self._update_interest()
        if self.current is not None:
            self.services.fanout.make_runnable(self)
        self.services.note_answered(self)


def _nothing() -> None:
    """The step of a connection that only waits for its turn."""


def free_unfinished(services: Services) -> None:
    """End some of the requests and handshakes that are held here, down to FREED_SHARE below the bound: it is then done
    rarely.
    """
    deadlines = services.deadlines
    owing = (deadlines.request.peers, deadlines.handshake.peers, deadlines.first_byte.peers)
    holders = [peer for peers in owing for peer in peers if isinstance(peer, Connection) and peer.held_bytes]
    bytes_max = int(services.settings.max_partial_bytes * (1 - FREED_SHARE))
    for holder in holders_to_end(holders, services.partial_bytes - bytes_max):
        holder.end_with(Code.OVERLOADED, "too many unfinished requests are held here; send this one again later")
