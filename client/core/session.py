"""A client across all its connections, without sockets, threads and clocks: its interface to a shell.

A shell has one connection at a time, and goes by this:

- `dial` returns the address to connect to, when it is time; `dialled`, `dial_failed` and `lost` report the result.
- Received bytes are passed to `receive`; the bytes in `link.outgoing` are sent. When `link` differs from the
  shell's connection, that connection is of no use any more: close it.
- `tick` is called when `due_s` has come.
- After each of these calls `publications.settled` and `woken` show the changes for waiters.

The clock is any that never goes back, in seconds; each call that needs the time is given it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakMethod

from tailrace.core import calls
from tailrace.core.address import Address
from tailrace.core.calls import PendingCall, PendingCalls
from tailrace.core.connector import INTERRUPTED, ConnectionPhase, Connector
from tailrace.core.failover import Failover
from tailrace.core.held import HoldBuffer
from tailrace.core.link import FEATURES, BrokerLink
from tailrace.core.message import Message, bound_kind
from tailrace.core.options import ClientOptions
from tailrace.core.publications import RETRIED, RETRIED_ELSEWHERE, PendingPublication, Publications
from tailrace.core.subscribe_options import SubscribeOptions
from tailrace.core.subscription_state import (
    RESUMED,
    RESUMED_ELSEWHERE,
    Arrived,
    SubscriptionPhase,
    SubscriptionState,
)
from tailrace.errors import (
    ClientClosed,
    ConnectionLost,
    MessageTooLarge,
    TailraceError,
    Unsupported,
    broker_error,
)
from tailrace.protocol import messages as m
from tailrace.protocol.binary import PublishedRow
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.shard.frame import RUN_METADATA_BYTES

if TYPE_CHECKING:
    from tailrace.core.collection import Collection
    from tailrace.core.consumer_state import ConsumerOptions, ConsumerState
    from tailrace.protocol.collecting import Added, Collected

log = logging.getLogger("tailrace")

BESIDE_MAX_BYTES: Final = HEAD_BYTES + m.PUBLISH_HEAD.size + m.HANDLE_BYTES * m.PUBLISH_STREAMS_MAX + RUN_METADATA_BYTES
"""Of a request that publishes: all that may stand beside its frames."""
_READY: Final = ConnectionPhase.READY
_NONE: Final = m.Ack.NONE


class Session(Connector):
    """The session of one client."""

    def __init__(
        self, addresses: Sequence[Address], options: ClientOptions, random: Callable[[], float], now_s: float
    ) -> None:
        super().__init__(addresses, options, random, now_s)
        self.has_choice = len(addresses) > 1
        retried = RETRIED_ELSEWHERE if self.has_choice else RETRIED
        self.publications = Publications(options.max_in_flight, options.max_in_flight_bytes, random, retried)
        self.held = HoldBuffer()
        self.failover = Failover(self.has_choice)
        self.calls = PendingCalls(random, calls.RETRIED_ELSEWHERE if self.has_choice else calls.RETRIED)
        self.consumers: list[ConsumerState] = []  # that are not over
        self.subscriptions: dict[int, SubscriptionState] = {}
        self.collections: list[Collection] = []  # that are not over
        self.woken: list[SubscriptionState | PendingCall | Collection] = []  # that have news
        self._unanswered: dict[int, SubscriptionState] = {}  # readings that are to be asked for, or wait for the answer
        self._subscription_numbers = 0
        self._publish_of: WeakMethod[Callable[..., Any]] | None = None
        self._message_kind = Message
        self._random = random

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """When to call `tick` or `dial`; infinity for never."""
        publications, link = self.publications, self.link
        is_ready = self.phase is _READY
        due_s = super().due_s if link is None or not is_ready else link.heartbeat.due_s
        if is_ready:
            if publications.resume_s < due_s:
                due_s = publications.resume_s
            if not self.failover.is_quiet:
                due_s = min(due_s, self.failover.due_s(in_flight=bool(publications.in_flight)))
        for subscription in self._unanswered.values():
            due_s = min(due_s, subscription.deadline_s)
            if is_ready and subscription.phase is SubscriptionPhase.WANTED:
                due_s = min(due_s, subscription.not_before_s)
        for collection in self.collections:
            due_s = min(due_s, collection.deadline_s, collection.due_s if is_ready else math.inf)
        if self.calls.undone:
            due_s = min(due_s, self.calls.due_s, self.calls.resume_s if is_ready else math.inf)
        if self.consumers and self.is_asking:
            due_s = min(due_s, *(consumer.due_s for consumer in self.consumers))
        return due_s if due_s < publications.due_s else publications.due_s

    def tick(self, now_s: float) -> None:
        """Handles everything that is due."""
        super().tick(now_s)
        self.publications.expire(now_s)
        for subscription in [each for each in self._unanswered.values() if each.deadline_s <= now_s]:
            subscription.expire(now_s)
            self._follow_up(subscription)
        for collection in list(self.collections):
            collection.expire(now_s)
            self._follow_collection(collection)
        self._tick_calls(now_s)
        self._move(now_s)
        if self.phase is ConnectionPhase.READY:
            self._ask_and_send(now_s)
        self._update_owed(now_s)

    def recover(self, now_s: float) -> None:
        """See `Connector.recover`."""
        self.publications.recover(ConnectionLost(INTERRUPTED))
        for subscription in list(self.subscriptions.values()):
            subscription.recover()
            self._follow_up(subscription)
        for collection in self.collections:
            collection.connection_lost(now_s)
        self.calls.recover()
        for consumer in self.consumers:
            consumer.recover(self.calls.holds)
        super().recover(now_s)

    # --- what a program wants -----------------------------------------------------------------------------------------

    @property
    def random(self) -> Callable[[], float]:
        return self._random

    @property
    def is_open(self) -> bool:
        """Whether there is room for a publish now."""
        link, held = self.link, self.held
        if link is not None and link.outgoing.nbytes >= self.options.max_in_flight_bytes:
            return False
        if not (self.publications.count or held.waiting):
            return True
        return self.publications.has_room(held.waiting, held.nbytes)

    def publish(self, publication: PendingPublication, now_s: float) -> None:
        """Take it, and send it as soon as may be. Raises ClientClosed, ConnectionLost, MessageTooLarge."""
        if self.phase is not _READY or self.is_severed:
            self.check_alive()
        if self.held.nbytes:
            self.flush_held(now_s)
        size = len(publication.frames)
        if size > self.limits["max_envelope_bytes"] - BESIDE_MAX_BYTES and size > (room := self._room(publication)):
            text = f"{len(publication.frames):,} bytes of messages in one request; the broker's limit is {room:,}"
            raise MessageTooLarge(f"{text}: publish them in several requests, or use a batcher", publication.streams[0])
        link, publications = self.link, self.publications
        if self.phase is not _READY or link is None:
            publications.add(publication, now_s)
        elif publications.add(publication, now_s, at_once=self.failover.is_quiet, numbered=link.numbered):
            link.publish(publication)
            if publication.ack is _NONE:
                publications.sent(publication)
            elif not link.heartbeat.owed:
                link.heartbeat.owe(True, now_s)
        else:
            self._send_publications(now_s)
            self._update_owed(now_s)

    def flush_held(self, now_s: float) -> None:
        """Publishes the messages that were held back to be sent together."""
        for publication in self.held.take(self.options.timeout_s, now_s):
            try:
                self.publish(publication, now_s)
            except TailraceError as error:
                if publication.waiters is None:
                    self.publications.refuse(error)
                else:
                    publication.fail(error)
                    self.publications.settled.append(publication)

    @property
    def is_flushed(self) -> bool:
        """Whether nothing that was published waits to be sent, or it never will be."""
        nothing = not (self.held.nbytes or self.publications.queue)
        return self.is_over or (nothing and self.link is not None and not self.link.outgoing.nbytes)

    def bind(self, publish: Callable[..., Any]) -> None:
        """Messages that come from now on are replied to by `publish`, a method of the shell's client."""
        self._publish_of = WeakMethod(publish)
        self._message_kind = bound_kind(Message, self._publish_of)

    def subscribe(self, options: SubscribeOptions, now_s: float) -> SubscriptionState:
        """Subscribe, as soon as may be. Raises ClientClosed, ConnectionLost."""
        self.check_alive()
        self.flush_held(now_s)
        self._subscription_numbers += 1
        subscription = SubscriptionState(self._subscription_numbers, options, self._random, now_s)
        subscription.message_kind = self._message_kind
        self.subscriptions[subscription.id] = self._unanswered[subscription.id] = subscription
        if self.phase is ConnectionPhase.READY:
            self._ask(now_s)
            self._update_owed(now_s)
        return subscription

    def next_arrived(self, subscription: SubscriptionState, before: Arrived | None) -> Arrived | None:
        """Returns the item that arrived after `before`, which the program has; None for nothing now. Raises as
        `SubscriptionState.first`."""
        while True:
            self.done_with(subscription, before)
            before = subscription.first()
            if before is None or before.messages or before.trimmed is not None:
                return before

    def done_with(self, subscription: SubscriptionState, before: Arrived | None) -> None:
        """The program has this item: its bytes are credited."""
        subscription.done_with(before)
        self._grant(subscription)

    def skip_to(self, subscription: SubscriptionState, seq: int, last: tuple[int, int, int]) -> None:
        """See `SubscriptionState.skip_to`: the skipped bytes are credited."""
        subscription.skip_to(seq, last)
        self._grant(subscription)

    def cancel(self, subscription: SubscriptionState) -> None:
        """End a subscription; its iteration ends too."""
        if subscription.phase is SubscriptionPhase.OVER:
            subscription.cancel()
            return
        self._end(subscription, subscription.cancel)

    def leave(self, subscription: SubscriptionState) -> None:
        """End a subscription; its held messages are still read."""
        if subscription.phase is not SubscriptionPhase.OVER:
            self._end(subscription, subscription.leave)

    def _end(self, subscription: SubscriptionState, end: Callable[[], None]) -> None:
        was_asked = subscription.phase in (SubscriptionPhase.ASKED, SubscriptionPhase.LIVE)
        end()
        self._follow_up(subscription)
        if was_asked and self.phase is ConnectionPhase.READY and self.link is not None:
            self.link.send(m.Unsubscribe(subscription.id))

    def collect(self, collection: Collection, now_s: float) -> None:
        """Subscribe to all streams of a pattern that grow. Raises ClientClosed, ConnectionLost."""
        self.check_alive()
        from tailrace.protocol.collecting import Added, Collected

        self.flush_held(now_s)
        _HANDLERS.update({Collected: Session._on_collected, Added: Session._on_added})  # others need not load them
        collection.begin(now_s)
        self.collections.append(collection)
        if self.phase is ConnectionPhase.READY:
            self._ask(now_s)
            self._update_owed(now_s)

    def stop_collecting(self, collection: Collection) -> None:
        if collection in self.collections:
            self.collections.remove(collection)
            number = collection.id if collection.is_asked else collection.take_former()
            if number and self.phase is _READY and self.link is not None:
                self.link.send(m.Unsubscribe(number))

    # --- durable consumers --------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether all publishes are answered, and the broker has all acknowledgements."""
        return not (self.publications or self.held.nbytes) and all(each.is_settled for each in self.consumers)

    def call(self, call: PendingCall, now_s: float) -> None:
        """Ask, and ask again until it is answered. Raises ClientClosed, ConnectionLost."""
        self.check_alive()
        self.flush_held(now_s)
        self.calls.add(call, now_s)
        if self.phase is ConnectionPhase.READY:
            self._send_calls(now_s)
            self._update_owed(now_s)

    def consume(self, options: ConsumerOptions, now_s: float) -> ConsumerState:
        """Adds a member of a durable consumer. Raises ClientClosed, ConnectionLost."""
        from tailrace.core.consumed_message import ConsumedMessage
        from tailrace.core.consumer_state import ConsumerState

        self.check_alive()
        consumer = ConsumerState(options, self.call, self._random, now_s)
        consumer.message_kind = bound_kind(ConsumedMessage, self._publish_of)
        self.consumers = [each for each in self.consumers if not (each.is_over and each.is_settled)]
        self.consumers.append(consumer)
        return consumer

    def flush_consumers(self, now_s: float) -> None:
        """Sends the pending verdicts of all members."""
        for consumer in self.consumers if self.is_asking else ():
            consumer.flush(now_s)

    @property
    def is_asking(self) -> bool:
        """Whether calls are accepted."""
        return self.phase not in (ConnectionPhase.CLOSING, ConnectionPhase.CLOSED)

    def _tick_calls(self, now_s: float) -> None:
        if self.calls:
            self.woken += self.calls.expire(now_s)
            call = self.calls.is_too_quiet(now_s)
            if call is not None:
                text = f"no answer to {call.name} within {call.quiet_s:g} s"
                self._disconnect(ConnectionLost(text), now_s, move_on=True)
        for consumer in self.consumers if self.is_asking else ():
            consumer.tick(now_s)

    def _send_calls(self, now_s: float) -> None:
        link = self.link
        if link is None or not self.calls:
            return
        if link.welcome is not None and not FEATURES.issubset(link.welcome.features):
            self.woken += self.calls.fail_unknown(link.welcome.features, now_s)
        for call in self.calls.take_sendable(now_s):
            link.send(call.make(call.number))

    def _fail_calls(self, error: TailraceError, now_s: float) -> None:
        self.woken += self.calls.fail_all(error, now_s)

    def _received(self, now_s: float) -> None:
        self._update_owed(now_s)

    def _update_owed(self, now_s: float) -> None:
        """Silence means more while an answer is owed: to a publish, to a call, to a subscription that was asked for."""
        if self.link is not None and self.phase is _READY:
            owed = bool(self.publications.in_flight) or (bool(self.calls.undone) and self.calls.in_flight)
            if not owed and self.collections:
                owed = any(each.waits_for_answer for each in self.collections)
            if not owed and self._unanswered:
                owed = any(each.phase is SubscriptionPhase.ASKED for each in self._unanswered.values())
            if not owed:
                self.link.heartbeat.owed = False
            elif not self.link.heartbeat.owed:
                self.link.heartbeat.owe(True, now_s)

    # --- sending ----------------------------------------------------------------------------------------------------

    def _room(self, publication: PendingPublication) -> int:
        """The bytes of frames that one request to this number of streams may have."""
        head_bytes = HEAD_BYTES + m.PUBLISH_HEAD.size + m.HANDLE_BYTES * len(publication.streams)
        to_number = self.options.idempotent and publication.marked is None
        return self.limits["max_envelope_bytes"] - head_bytes - (RUN_METADATA_BYTES if to_number else 0)

    def _ask_and_send(self, now_s: float) -> None:
        self._ask(now_s)
        self._send_calls(now_s)
        self._send_publications(now_s)

    def _ask(self, now_s: float) -> None:
        for subscription in list(self._unanswered.values()):
            if (
                subscription.phase is SubscriptionPhase.WANTED
                and now_s >= subscription.not_before_s
                and self.link is not None
            ):
                if subscription.has_filter and not self.link.knows_topics:
                    subscription.fail(Unsupported("the present broker has no filters of topics"))
                    self._follow_up(subscription)
                else:
                    self.link.send(subscription.request())
        for collection in [each for each in self.collections if each.is_due(now_s)]:
            if self.link is None:
                return
            if not self.link.knows_patterns or (collection.has_filter and not self.link.knows_topics):
                collection.fail(Unsupported("the present broker cannot subscribe to all streams of a pattern"))
            else:
                former = collection.take_former()
                if former:
                    self.link.send(m.Unsubscribe(former))
                self._subscription_numbers += 1
                self.link.send(collection.request(self._subscription_numbers))
            self._follow_collection(collection)

    def _send_publications(self, now_s: float) -> None:
        link = self.link
        if not self.failover.is_quiet and self.failover.holds_back(now_s):
            self.publications.resume_s = math.inf  # they go out on the next connection
        elif link is not None:
            for publication in self.publications.take_sendable(now_s, numbered=link.numbered):
                link.publish(publication)
                if publication.ack is _NONE:
                    self.publications.sent(publication)

    def _send_held(self, now_s: float) -> None:
        """Send what an answer to something else has set free."""
        if not self.failover.is_quiet:
            self._move(now_s)
        if self.publications.queue and self.phase is _READY:
            self._send_publications(now_s)

    def _grant(self, subscription: SubscriptionState) -> None:
        nbytes = subscription.take_grant()
        if nbytes and self.link is not None:
            self.link.send(m.Credit(subscription.id, nbytes))

    def _follow_up(self, subscription: SubscriptionState) -> None:
        """Follows up on an event of a subscription."""
        if subscription.has_news or subscription.ready:
            self.woken.append(subscription)
        if subscription.phase in (SubscriptionPhase.WANTED, SubscriptionPhase.ASKED):
            self._unanswered[subscription.id] = subscription
        else:
            self._unanswered.pop(subscription.id, None)
        if subscription.phase is SubscriptionPhase.OVER:
            self.subscriptions.pop(subscription.id, None)

    def _follow_collection(self, collection: Collection) -> None:
        self.woken.append(collection)
        if collection.is_over and collection in self.collections:
            self.collections.remove(collection)

    def _drop(self, subscription: SubscriptionState) -> None:
        """Ends a subscription at the broker that failed at this end."""
        if subscription.phase is SubscriptionPhase.OVER and self.link is not None:
            self.link.send(m.Unsubscribe(subscription.id))

    # --- what becomes of the connection -----------------------------------------------------------------------------

    def _move(self, now_s: float) -> None:
        """Leave this node for the next address, when that is due."""
        in_flight = bool(self.publications.in_flight)
        if self.phase is _READY and self.failover.is_due(now_s, in_flight=in_flight):
            self.failover.moved(now_s)
            self._disconnect(ConnectionLost(self.failover.reason), now_s, move_on=True)

    def _connected(self, now_s: float) -> None:
        self.failover.connected()
        limits = self.limits
        self.held.limit(limits["max_envelope_bytes"] - BESIDE_MAX_BYTES, limits["max_message_bytes"])
        self.publications.refuse_larger(self._room)
        if self.link is not None and not self.link.numbered:
            self.publications.refuse_numbered()
        if self.link is not None and self.link.welcome is not None:
            self.publications.use_prefix(self.link.welcome.producer_prefix or b"")
        self._ask_and_send(now_s)

    def _disconnected(self, error: TailraceError, now_s: float) -> None:
        self.publications.connection_lost(error)
        self.calls.connection_lost()
        for consumer in self.consumers:
            consumer.connection_lost()
        for subscription in list(self.subscriptions.values()):
            subscription.connection_lost()
            self._follow_up(subscription)
        for collection in self.collections:
            collection.connection_lost(now_s)
            self._follow_collection(collection)

    def _closed(self, failure: TailraceError | None) -> None:
        if failure is None:
            self.publications.fail_all(lambda fate: ClientClosed(f"the client was closed; {fate}"))
            over: TailraceError = ClientClosed("the client was closed")
        else:
            self.publications.fail_all(lambda fate: ConnectionLost(f"{failure}; {fate}"))
            over = ConnectionLost(str(failure))
        self._fail_calls(over, -math.inf)
        for consumer in self.consumers:
            consumer.closed(None if failure is None else over)
        self.consumers = []
        collections, self.collections = self.collections, []
        for collection in collections:
            collection.fail(over)
            self.woken.append(collection)
        for subscription in list(self.subscriptions.values()):
            if failure is None:
                subscription.cancel()
            else:
                subscription.fail(ConnectionLost(str(failure)))
            self._follow_up(subscription)

    # --- messages of the broker --------------------------------------------------------------------------------------

    def _on_message(self, link: BrokerLink, message: Any, now_s: float) -> None:
        _HANDLERS.get(type(message), Session._on_answer)(self, link, message, now_s)

    def _on_published(self, link: BrokerLink, message: m.Published, now_s: float) -> None:
        streams = self.publications.streams_of(message.request)
        if self.publications.published(message.request, message.results):
            link.useful = True
            self.failover.published(streams)
        self._send_held(now_s)

    def _on_published_rows(self, link: BrokerLink, rows: list[PublishedRow], now_s: float) -> None:
        if not self.failover.is_quiet:
            for row in rows:
                self.failover.published(self.publications.streams_of(row[2]))
        publications = self.publications
        if publications.settle(rows):
            link.useful = True
        if publications.queue or not self.failover.is_quiet:
            self._send_held(now_s)
        if not (publications.in_flight or self.calls.undone or self._unanswered):
            link.heartbeat.owed = False

    def _on_chunk(self, link: BrokerLink, message: m.Chunk, _now_s: float) -> None:
        subscription = self.subscriptions.get(message.id)
        if subscription is not None:
            link.useful = True
            subscription.chunk(message)
            self._drop(subscription)
            self._grant(subscription)
            self._follow_up(subscription)

    def _on_subscribed(self, link: BrokerLink, message: m.Subscribed, now_s: float) -> None:
        subscription = self.subscriptions.get(message.id)
        if subscription is not None:
            subscription.subscribed(message, now_s, self.options.reconnect_s if self.has_choice else 0.0)
            if subscription.phase is SubscriptionPhase.WANTED:  # later: this node is behind
                link.send(m.Unsubscribe(subscription.id))
            self._drop(subscription)
            self._grant(subscription)  # messages may have been read meanwhile
            self._follow_up(subscription)

    def _on_ended(self, _link: BrokerLink, message: m.Ended, now_s: float) -> None:
        subscription = self.subscriptions.get(message.id)
        if subscription is not None:
            subscription.ended(message, now_s, self.options.reconnect_s)
            self._follow_up(subscription)
        elif self.collections and (collection := self._collection(message.id)) is not None:
            collection.refused(message.code or "unavailable", message.text, now_s)
            self._follow_collection(collection)

    def _on_failed(self, link: BrokerLink, message: m.Failed, now_s: float) -> None:
        if message.fatal or self.phase is ConnectionPhase.GREETING:
            error = broker_error(message.code, message.text)
            self._disconnect(error, now_s, move_on=message.code == "closing")
        elif message.op == m.Op.PUBLISH:
            self._publish_failed(link, message, now_s)
        elif message.op == m.Op.SUBSCRIBE:
            self._subscribe_failed(message, now_s)
        elif message.op == m.Op.OPEN:
            link.handle_refused(message)
        elif message.op == m.Op.COLLECT:
            self._collect_failed(message, now_s)
        elif message.op in (m.Op.CONSUME, m.Op.GET, m.Op.LIST, m.Op.RECALL):
            self._call_failed(message, now_s)
        elif message.op != m.Op.UNSUBSCRIBE:  # one that has ended meanwhile is nobody's concern
            log.warning("error from the broker: %s: %s", message.code, message.text)

    def _publish_failed(self, link: BrokerLink, message: m.Failed, now_s: float) -> None:
        publications = self.publications
        streams = publications.streams_of(message.id)
        error = link.refusal_of(streams) or message
        results = message.results
        if results is None:
            codes = [message.code] * len(streams)
        else:
            results = link.explained(streams, results)
            codes = [row[3] for row in results]
        for stream, code in zip(streams, codes, strict=False):  # as many as there are, or else it fails below
            self.failover.refused(stream, code, now_s)
        publications.failed(message.id, error.code, error.text, results, now_s)
        self._send_held(now_s)

    def _on_answer(self, link: BrokerLink, message: Any, now_s: float) -> None:
        """CONSUMED, GOT, LISTED, RECALLED."""
        call = self.calls.answered(message.id, message, now_s)
        if call is not None:
            link.useful = True
            self.failover.published((call.stream,))
            self.woken.append(call)

    def _call_failed(self, message: m.Failed, now_s: float) -> None:
        call = self.calls.failed(message.id, message.code, message.text, now_s)
        if call is not None:
            self.woken.append(call)
            self.failover.refused(call.stream, message.code, now_s)
            self._move(now_s)

    def _subscribe_failed(self, message: m.Failed, now_s: float) -> None:
        subscription = self.subscriptions.get(message.id)
        if subscription is None:
            return
        if message.code == "trimmed":
            subscription.trimmed()
        else:
            resumed = RESUMED_ELSEWHERE if self.has_choice and subscription.resumes else RESUMED
            subscription.refused(message.code, message.text, now_s, self.options.reconnect_s, resumed)
            self._follow_up(subscription)

    def _collection(self, number: int) -> Collection | None:
        return next((each for each in self.collections if each.id == number and each.is_asked), None)

    def _on_collected(self, link: BrokerLink, message: Collected, now_s: float) -> None:
        collection = self._collection(message.id)
        if collection is not None:
            link.useful = True
            collection.collected(message, now_s)
            self._follow_collection(collection)

    def _on_added(self, link: BrokerLink, message: Added, now_s: float) -> None:
        collection = self._collection(message.id)
        if collection is not None:
            link.useful = True
            member = collection.added(message, now_s)
            member.message_kind = self._message_kind
            self.subscriptions[member.id] = member
            collection.collector.on_added(member, now_s)

    def _collect_failed(self, message: m.Failed, now_s: float) -> None:
        collection = self._collection(message.id)
        if collection is not None:
            collection.refused(message.code, message.text, now_s)
            self._follow_collection(collection)

    def _on_ping(self, link: BrokerLink, _message: m.Ping, _now_s: float) -> None:
        link.send(m.Pong())

    def _ignore(self, _link: BrokerLink, _message: object, _now_s: float) -> None:
        """PONG and OPENED carry nothing else."""


_HANDLERS: Final[dict[type, Callable[[Session, BrokerLink, Any, float], None]]] = {
    m.Welcome: Session._greeted,
    m.Challenge: Session._challenged,
    m.Opened: Session._ignore,
    m.Published: Session._on_published,
    m.Subscribed: Session._on_subscribed,
    m.Chunk: Session._on_chunk,
    m.Ended: Session._on_ended,
    m.Failed: Session._on_failed,
    m.Ping: Session._on_ping,
    m.Pong: Session._ignore,
}
