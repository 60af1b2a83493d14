"""SUBSCRIBE and UNSUBSCRIBE: from topic filters to cursors over streams.

Each filter has a cursor for each stream in which it can match, with the filter as that of its topics. The rules of
topics (`broker.topics.rules`) name those streams; if they cannot, `wildcards` searches for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.broker.access.rules import Right
from tailrace.broker.connection.mqtt.in_flight import QOS_STEPWISE
from tailrace.broker.connection.mqtt.system_topics import SYSTEM_PREFIX, SystemTopics
from tailrace.broker.connection.mqtt.wide_topics import WideTopics
from tailrace.broker.connection.patterns import START
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.delivery.wide import WideSubscription
from tailrace.broker.delivery.wide_history import WidePlace
from tailrace.broker.process.timers import now_us
from tailrace.broker.services import Services
from tailrace.broker.sessions.record import SUBSCRIBED_BYTES_MAX
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import TopicRules
from tailrace.broker.topics.trie import TooManyFilters
from tailrace.protocol.consuming import CONSUMER_FILTER_BYTES_MAX
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt import packets as p
from tailrace.protocol.mqtt.properties import PropertyId
from tailrace.protocol.mqtt.publishes import AS_PUBLISHED, NOT_RETAINED, PublishForm
from tailrace.protocol.mqtt.reasons import FAILURE, Reason, reason_of
from tailrace.protocol.mqtt.replay import SplitFilter, Wishes, read_place, split_filter, wishes_of
from tailrace.protocol.mqtt.responses import pack_suback, pack_unsuback
from tailrace.protocol.places import FROM_NEW, From
from tailrace.protocol.topics import SHARE_PREFIX, filter_fault, group_fault
from tailrace.shard.errors import StorageError, peer_text
from tailrace.shard.names import is_reserved, name_bytes_valid

if TYPE_CHECKING:
    from tailrace.broker.connection.mqtt.client import MqttClient
    from tailrace.broker.connection.mqtt.retained import RetainedMessages
    from tailrace.broker.connection.mqtt.session_state import KeptSubscription
    from tailrace.broker.connection.mqtt.shared import SharedGroups
    from tailrace.broker.connection.mqtt.wildcards import Wildcards

MARK_BYTES: Final = 6
"""Of the mark of a session that has a subscription with No Local."""
SHARED_QOS_MAX: Final = 1
"""Of shared subscriptions: a message with QoS 2 could not go to another client of the group [MQTT-4.8.2-5]."""
PASSED_OVER_MAX: Final = 1_024
"""Streams of a filter that are not subscribed to again: they cannot be read."""
SEND_ALWAYS, SEND_NEVER = 0, 2
"""Values of Retain Handling; 1 is for new subscriptions."""
_IN_SUBACK: Final = frozenset(
    {Reason.UNSPECIFIED, Reason.IMPLEMENTATION_SPECIFIC, Reason.NOT_AUTHORIZED, Reason.QUOTA_EXCEEDED}
)
"""Those of table 3-8 of MQTT 5 that an error can have."""
_GOES_ON: Final = frozenset({Code.DELETED, Code.DIVERGED})
"""Ends of a cursor after which the same filter goes on to be read."""


class StreamRequest(NamedTuple):
    """What a filter wants of one stream: as the Subscribe of the other protocols."""

    stream: bytes
    topics: bytes
    start: From = FROM_NEW
    skip: int = 0
    wait: bool = True


class TopicSubscription:
    """One filter of a client. `keys`: of its cursors, by stream. `is_wild`: over streams that must be searched for.

    `group`: of a shared subscription, else empty; `topics`: the filter without that. `is_ready`: SUBACK is sent.
    `passed_over`: streams of it that are not subscribed to again. `is_wide`: see `broker.delivery.wide`.
    """

    __slots__ = ("filter", "form", "group", "is_ready", "is_wide", "is_wild", "keys", "passed_over", "topics")

    def __init__(self, topic_filter: bytes, form: PublishForm, *, is_wild: bool) -> None:
        self.filter = topic_filter
        self.group, _place, _stream, self.topics = split_filter(topic_filter)
        self.form = form
        self.is_wild = is_wild
        self.is_ready = False
        self.is_wide = False
        self.keys: dict[bytes, int] = {}
        self.passed_over: dict[bytes, None] = {}

    @property
    def is_system(self) -> bool:
        """Whether it is for the figures of the node, which are in no stream."""
        return self.topics.startswith(SYSTEM_PREFIX)

    def export_state(self) -> list[Any]:
        return [self.filter, list(self.form), self.is_wild, list(self.keys.items()), list(self.passed_over)]


class _Step:
    """A SUBSCRIBE whose filters are being found; `reasons` are those of its SUBACK, by place, as `filters`.

    `made`: those that are new; `waiting`: of a filter that is being found, the places where it stands, each with its
    QoS.
    """

    def __init__(self, packet_id: int, filters: Sequence[bytes]) -> None:
        self.packet_id = packet_id
        self.filters = filters
        self.reasons: list[int] = [Reason.UNSPECIFIED] * len(filters)
        self.missing = len(filters)
        self.made: set[bytes] = set()
        self.cursors: list[Cursor] = []
        self.retained: list[TopicSubscription] = []  # that are sent the retained messages first
        self.known: set[bytes] = set()  # those of them that were there before
        self.waiting: dict[bytes, list[tuple[int, int]]] = {}


class TopicSubscriptions:
    """The subscriptions of one worker's MQTT connections."""

    def __init__(
        self,
        services: Services,
        subscribing: Subscriptions,
        rules: TopicRules,
        wildcards: Wildcards,
        retained: RetainedMessages,
        shared: SharedGroups,
        system: SystemTopics,
    ) -> None:
        self._services = services
        self._subscribing = subscribing
        self._rules = rules
        self._wildcards = wildcards
        self._retained = retained
        self._shared = shared
        self._system = system
        self._wide = wildcards.wide

    # --- the packets ------------------------------------------------------------------------------------------------

    def subscribe(self, client: MqttClient, packet: p.SubscribePacket) -> None:
        step = _Step(packet.packet_id, [request.filter for request in packet.requests])
        number = packet.properties.get(PropertyId.SUBSCRIPTION_ID, 0)
        wishes = wishes_of(packet.properties.get(PropertyId.USER_PROPERTY, ()))
        for place, request in enumerate(packet.requests):
            self._subscribe_one(client, step, place, request, number, wishes)

    def _subscribe_one(
        self, client: MqttClient, step: _Step, place: int, request: p.TopicRequest, number: int, wishes: Wishes
    ) -> None:
        parts = split_filter(request.filter)
        start = _start_of(parts, wishes)
        refusal = self._refusal(client, request.filter, parts, start)
        if refusal is Reason.NOT_AUTHORIZED:
            client.note_refused(Code.DENIED, f"the user {client.user} may not read all of {request.filter.decode()}")
        if refusal is not None or start is None:
            self._settle(client, step, place, Reason.TOPIC_FILTER_INVALID if refusal is None else refusal)
            return
        form = self._form(client, request, number, wishes.marks)
        known = client.subscriptions.get(request.filter)
        if known is not None and start is not FROM_NEW and request.filter not in step.waiting:
            del client.subscriptions[request.filter]
            self._end(client, known)  # it begins once more
            known = None
        if known is not None:
            self._replace(client, known, form)
            if request.retain_handling == SEND_ALWAYS and not known.group:
                step.retained.append(known)
                step.known.add(request.filter)
            if request.filter in step.waiting:
                step.waiting[request.filter].append((place, form.qos))
            else:
                self._settle(client, step, place, form.qos)
            return
        stream = parts.stream or self._rules.streams_of(parts.topics)
        subscription = TopicSubscription(request.filter, form, is_wild=stream is None or bool(parts.group))
        step.made.add(request.filter)
        if subscription.is_system:
            subscription.is_wild, subscription.is_ready = False, True
            client.subscriptions[request.filter] = subscription
            self._settle(client, step, place, 0)
            self._system.begin(client, subscription)
            return
        client.subscriptions[request.filter] = subscription
        if parts.group:
            self._shared.begin(request.filter)
        elif start is FROM_NEW and request.retain_handling != SEND_NEVER:
            step.retained.append(subscription)
        step.waiting[request.filter] = [(place, form.qos)]
        client.hold_up()  # it does not move meanwhile: its next worker would not know of this SUBSCRIBE
        if stream is None:
            found = partial(self._found_streams, client, step, subscription, start)
            self._wildcards.search(client, subscription, found)
        else:
            done = partial(self._found_one, client, step, subscription)
            self.join(client, subscription, [stream], start, done)

    def unsubscribe(self, client: MqttClient, packet: p.UnsubscribePacket) -> None:
        reasons = []
        left: list[tuple[bytes, list[bytes]]] = []
        for topic_filter in packet.filters:
            subscription = client.subscriptions.pop(topic_filter, None)
            reasons.append(Reason.NO_SUBSCRIPTION_EXISTED if subscription is None else Reason.SUCCESS)
            if subscription is not None and subscription.group:
                left.append((topic_filter, self._shared.leave(client, subscription)))
            elif subscription is not None:
                self._end(client, subscription)
        self.reconcile(client)
        answer = partial(client.send_fitting, pack_unsuback(client.version, packet.packet_id, reasons))
        self._keep(client, partial(self._end_groups, client, left, answer) if left else answer)

    def reconcile(self, client: MqttClient) -> None:
        """The subscriptions of a connection have changed."""
        self._wildcards.reconcile(client)
        self._system.reconcile(client)

    def _end_groups(
        self, client: MqttClient, left: list[tuple[bytes, list[bytes]]], answer: Callable[[], object]
    ) -> None:
        """End the groups that nobody else is in, then answer: a later SUBSCRIBE begins with new messages."""
        missing = len(left)

        def ended() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                if not (client.closed or client.lingering_since_s):
                    answer()
                client.go_on()

        client.hold_up()
        for topic_filter, streams in left:
            self._shared.end_unless_held(topic_filter, streams, ended)

    def end_shared(self, client: MqttClient) -> None:
        """The connection ends. A durable session keeps its groups."""
        for subscription in client.subscriptions.values():
            self._drop_shared(client, subscription)

    def _drop_shared(self, client: MqttClient, subscription: TopicSubscription) -> None:
        if subscription.group:
            streams = self._shared.leave(client, subscription)
            self._shared.end_unless_held(subscription.filter, streams, lambda: None)

    def _refusal(
        self, client: MqttClient, topic_filter: bytes, parts: SplitFilter, start: From | None
    ) -> Reason | None:
        """Why there can be no subscription with this filter."""
        group, _place, stream, topics = parts
        is_shared = topic_filter.startswith(SHARE_PREFIX)
        is_system = topic_filter.startswith(SYSTEM_PREFIX) and start is FROM_NEW
        if filter_fault(topics) or (is_reserved(topics) and not is_system) or (is_shared and group_fault(group)):
            return Reason.TOPIC_FILTER_INVALID
        if is_system and not may_read_figures(client, topics):
            return Reason.NOT_AUTHORIZED
        if stream and (not name_bytes_valid(stream) or is_reserved(stream)):
            return Reason.TOPIC_FILTER_INVALID
        is_for_one = bool(stream) or self._rules.streams_of(topics) is not None
        if start is not None and start.kind == "seq" and not is_for_one:
            return Reason.TOPIC_FILTER_INVALID
        if is_shared and start is not FROM_NEW:
            return Reason.IMPLEMENTATION_SPECIFIC
        if is_shared and len(topics) > CONSUMER_FILTER_BYTES_MAX:
            return Reason.QUOTA_EXCEEDED
        if is_shared and not client.may_read_all(topics):
            return Reason.NOT_AUTHORIZED
        limit = self._services.settings.max_subscriptions
        if not client.cursor_room or len(client.subscriptions) >= limit:
            self._services.metrics.refused.add(Code.SUBSCRIPTIONS)
            return Reason.QUOTA_EXCEEDED
        return None

    def _form(self, client: MqttClient, request: p.TopicRequest, number: int, marks: int) -> PublishForm:
        if request.no_local and not client.mark:
            client.mark = secrets.token_bytes(MARK_BYTES)
        origin = client.mark if request.no_local else b""
        retain = AS_PUBLISHED if request.retain_as_published else NOT_RETAINED
        is_shared = request.filter.startswith(SHARE_PREFIX)
        qos = min(request.qos, SHARED_QOS_MAX) if is_shared else request.qos
        qos = 0 if request.filter.startswith(SYSTEM_PREFIX) else qos
        if qos == QOS_STEPWISE and client.session is not None:
            client.session.is_stepwise = True
        return PublishForm(client.version, qos, number, origin, client.packet_bytes_max, retain | marks)

    # --- finding ----------------------------------------------------------------------------------------------------

    def _found_streams(
        self,
        client: MqttClient,
        step: _Step,
        subscription: TopicSubscription,
        start: From,
        names: list[bytes] | Refused,
    ) -> None:
        """All streams that a filter with wildcards can match in now."""
        has_room = isinstance(names, Refused) or len(names) <= client.cursor_room
        if not has_room and client.session is None and not subscription.group:
            self._begin_wide(client, step, subscription, start)
            return
        if not has_room:
            limit = self._services.settings.max_subscriptions
            names = Refused(Code.SUBSCRIPTIONS, f"this connection may read {limit} streams")
        if isinstance(names, Refused):
            client.subscriptions.pop(subscription.filter, None)
            self._drop_shared(client, subscription)
            self._services.metrics.refused.add(names.code)
            self._settle_filter(client, step, subscription.filter, _suback_reason(names.code))
            client.go_on()
            return

        def joined(cursors: Sequence[Cursor], _failed: Sequence[Refused]) -> None:
            step.cursors += cursors
            subscription.is_ready = True
            self._settle_filter(client, step, subscription.filter)
            client.go_on()

        self.join(client, subscription, names, start, joined)

    def _begin_wide(self, client: MqttClient, step: _Step, subscription: TopicSubscription, start: From) -> None:
        """There are more streams than it may have cursors: they get some in turn, and then those with new messages."""
        subscription.is_wild, subscription.is_wide = False, True
        history = None if start is FROM_NEW else self._wildcards.history(client, subscription, WidePlace(start))

        def begun(wide: WideSubscription | Refused) -> None:
            subscription.is_ready = True
            refusal = None
            if isinstance(wide, Refused):
                client.subscriptions.pop(subscription.filter, None)
                refusal = _suback_reason(wide.code)
            self._settle_filter(client, step, subscription.filter, refusal)
            if not isinstance(wide, Refused):
                self._wide.start(wide)
            client.go_on()

        self._wide.begin(self._wide_topics(client, subscription), begun, history)

    def _widen(self, client: MqttClient, subscription: TopicSubscription) -> None:
        """Its streams have become more than a connection may have cursors."""
        if client.session is not None or subscription.group:
            text = f"{subscription.filter.decode()} matches in more streams than a connection may read"
            client.end_with(Code.SUBSCRIPTIONS, text)
            return
        subscription.is_wild, subscription.is_wide = False, True
        cursors = [client.cursors[key] for key in subscription.keys.values() if key in client.cursors]
        history = self._wildcards.history(client, subscription, WidePlace(START))

        def begun(wide: WideSubscription | Refused) -> None:
            if not isinstance(wide, Refused):
                self._wide.start(wide)
            elif client.subscriptions.get(subscription.filter) is subscription:
                subscription.is_wild, subscription.is_wide = True, False
                self._wildcards.reconcile(client)  # it is tried again

        self._wide.begin(self._wide_topics(client, subscription), begun, history, cursors)

    def _wide_topics(self, client: MqttClient, subscription: TopicSubscription) -> WideTopics:
        join = partial(self.join, client, subscription)
        return WideTopics(
            client, subscription, self._rules, join, partial(self.start, client), partial(self.end_cursor, client)
        )

    def _found_one(
        self,
        client: MqttClient,
        step: _Step,
        subscription: TopicSubscription,
        cursors: Sequence[Cursor],
        failed: Sequence[Refused],
    ) -> None:
        """The only stream that a filter can match in."""
        step.cursors += cursors
        subscription.is_ready = True
        if failed and client.subscriptions.get(subscription.filter) is subscription:
            del client.subscriptions[subscription.filter]
            self._drop_shared(client, subscription)
        refusal = _suback_reason(failed[0].code) if failed else None
        self._settle_filter(client, step, subscription.filter, refusal)
        client.go_on()

    def _settle_filter(
        self, client: MqttClient, step: _Step, topic_filter: bytes, refusal: Reason | None = None
    ) -> None:
        """A filter is found, or refused, wherever it stands in the packet."""
        for place, qos in step.waiting.pop(topic_filter):
            self._settle(client, step, place, qos if refusal is None else refusal)

    def _settle(self, client: MqttClient, step: _Step, place: int, reason: int) -> None:
        """One filter has its outcome; after the last one the client gets them all, and then messages."""
        step.reasons[place] = reason
        step.missing -= 1
        if step.missing or client.closed:
            return
        state = client.mqtt.durable.state_of(client)
        if len(state) > SUBSCRIBED_BYTES_MAX and step.made:
            self._withdraw(client, step)
            state = b""
        self._keep(client, partial(self._answer, client, step), state)

    def _withdraw(self, client: MqttClient, step: _Step) -> None:
        """The session has no room for the filters that are new."""
        for topic_filter in step.made:
            subscription = client.subscriptions.pop(topic_filter, None)
            if subscription is not None:
                self._end(client, subscription)
                self._drop_shared(client, subscription)
        for place, topic_filter in enumerate(step.filters):
            if topic_filter in step.made and step.reasons[place] < FAILURE:
                step.reasons[place] = Reason.QUOTA_EXCEEDED
                self._services.metrics.refused.add(Code.SUBSCRIPTIONS)
        step.retained = [each for each in step.retained if each.filter not in step.made]

    def _keep(self, client: MqttClient, answer: Callable[[], object], state: bytes = b"") -> None:
        """The subscriptions have changed: a durable session has them before its client has the answer. `state`: see
        `DurableSessions.save`.
        """
        if client.session is None:
            answer()
            return

        def stored(refused: Refused | None) -> None:
            if not (client.closed or client.lingering_since_s):
                if refused is None:
                    answer()
                else:
                    client.end_with(Code.UNAVAILABLE, f"the session cannot be stored: {refused.text}")
            client.go_on()

        client.hold_up()
        client.mqtt.durable.save(client, stored, state)

    def _answer(self, client: MqttClient, step: _Step) -> None:
        if client.send_fitting(pack_suback(client.version, step.packet_id, step.reasons)):
            self.reconcile(client)
            self._retained.send(client, step.retained, step.known, partial(self.start_those, client, step.cursors))

    def start_those(self, client: MqttClient, cursors: Sequence[Cursor]) -> None:
        """The retained messages are on their way. Some cursors may have ended, or have others in their place."""
        self.start(client, [each for each in cursors if client.cursors.get(each.key) is each])

    def join(
        self,
        client: MqttClient,
        subscription: TopicSubscription,
        names: Sequence[bytes],
        start: From,
        done: Callable[[Sequence[Cursor], Sequence[Refused]], None],
    ) -> None:
        """Place a cursor in each of these streams; `done` gets those, which are not started, and the refusals. A shared
        subscription has a member of its group instead.
        """
        if subscription.group:
            self._shared.join(client, subscription, names, start, done)
            return
        cursors: list[Cursor] = []
        failed: list[Refused] = []
        missing = len(names)

        def found(request: StreamRequest, end_seq: int | Refused) -> None:
            nonlocal missing
            missing -= 1
            outcome = self._place(client, subscription, request, end_seq)
            if isinstance(outcome, Refused):
                failed.append(outcome)
                self._pass_over(subscription, request.stream)
                client.note_refused(outcome.code, f"{request.stream.decode()}: {outcome.text}")
            elif outcome is not None:
                cursors.append(outcome)
            if not missing:
                done(cursors, failed)

        if not names:
            done(cursors, failed)
        for name in names:
            request = StreamRequest(name, client.readable_topics(name, subscription.topics), start)
            if not request.topics:  # without a filter it would be the whole stream
                found(request, client.denial(Right.SUBSCRIBE))
                continue
            self._subscribing.find(client, request, partial(found, request), ask_end=start is FROM_NEW)

    def resume(
        self,
        client: MqttClient,
        kept: Sequence[KeptSubscription],
        done: Callable[[list[Cursor], list[Refused]], None],
    ) -> None:
        """Go on with the subscriptions of a session, where its last connection got to; those with QoS 0 from now on.

        `done` gets the cursors, which are not started, and the refusals.
        """
        placed: list[Cursor] = []
        refusals: list[Refused] = []
        waiting = 1 + sum(len(each.places) for each in kept)

        def joined(cursors: Sequence[Cursor], failed: Sequence[Refused]) -> None:
            nonlocal waiting
            placed.extend(cursors)
            refusals.extend(failed)
            waiting -= 1
            if not waiting:
                done(placed, refusals)

        for topic_filter, qos, number, retain, no_local, is_wild, places in kept:
            origin = client.mark if no_local else b""
            form = PublishForm(client.version, qos, number, origin, client.packet_bytes_max, retain)
            subscription = TopicSubscription(topic_filter, form, is_wild=is_wild)
            subscription.is_ready = True
            if subscription.is_system and not may_read_figures(client, subscription.topics):
                continue
            if subscription.group and not client.may_read_all(subscription.topics):
                continue
            client.subscriptions[topic_filter] = subscription
            if subscription.group:
                self._shared.begin(topic_filter)
            if subscription.is_system:
                self._system.begin(client, subscription)
            for name, seq, _term in places:
                self.join(client, subscription, [name], _start_again(subscription, seq), joined)
        joined((), ())

    def join_later(self, client: MqttClient, subscription: TopicSubscription, names: list[bytes]) -> None:
        """Read streams that were made after the subscription, from their beginning."""
        if len(names) > client.cursor_room:
            self._widen(client, subscription)
            return
        self.join(client, subscription, names, START, lambda cursors, _failed: self.start(client, cursors))

    def _pass_over(self, subscription: TopicSubscription, name: bytes) -> None:
        subscription.passed_over[name] = None
        if len(subscription.passed_over) > PASSED_OVER_MAX:
            del subscription.passed_over[next(iter(subscription.passed_over))]

    def _place(
        self, client: MqttClient, subscription: TopicSubscription, request: StreamRequest, end_seq: int | Refused
    ) -> Cursor | Refused | None:
        if isinstance(end_seq, Refused):
            return end_seq
        if client.closed or client.subscriptions.get(subscription.filter) is not subscription:
            return None  # closed, or unsubscribed, meanwhile
        if request.stream in subscription.keys:
            return None
        client.last_key += 1
        try:
            cursor = self._subscribing.place(client, request, client.last_key, end_seq)
        except Refused as refused:
            return refused
        if request.start.kind == "seq" and cursor.seq > request.start.value:
            client.send_trimmed(cursor, cursor.seq)
        self._add(client, subscription, cursor)
        return cursor

    def _add(self, client: MqttClient, subscription: TopicSubscription, cursor: Cursor) -> None:
        subscription.keys[cursor.feed.name] = cursor.key
        client.cursors[cursor.key] = cursor
        client.forms[cursor.key] = subscription.form
        if subscription.form.qos:
            cursor.credit_bytes = int(client.room > 0)

    def start(self, client: MqttClient, cursors: Sequence[Cursor]) -> None:
        """SUBACK is on its way: let the cursors move."""
        for cursor in cursors:
            if client.lingering_since_s:
                self._services.fanout.end(cursor)
            else:
                self._subscribing.start(client, cursor)

    # --- changing and ending ----------------------------------------------------------------------------------------

    def _replace(self, client: MqttClient, subscription: TopicSubscription, form: PublishForm) -> None:
        """The same filter again: the messages go on without a gap, in the new form."""
        subscription.form = form
        if subscription.is_system:
            self._system.begin(client, subscription)
        if subscription.group:
            return
        for name, key in list(subscription.keys.items()):
            old = client.cursors.pop(key)
            seq = old.settled_seq if old.cut is None else old.cut[0]
            self._services.fanout.end(old)
            if old is not client.current:
                client.forms.pop(key, None)
            self._go_on_at(client, subscription, name, seq)

    def _go_on_at(self, client: MqttClient, subscription: TopicSubscription, name: bytes, seq: int) -> None:
        """Read a stream from this place on, with a further cursor."""
        fanout, remote = self._services.fanout, self._services.is_remote(name)
        topics = client.readable_topics(name, subscription.topics)
        if not topics:  # without a filter it would be the whole stream
            client.end_with(Code.DENIED, client.denial(Right.SUBSCRIBE).text)
            return
        client.last_key += 1
        try:
            cursor = fanout.subscribe(
                client, name, seq, remote=remote, key=client.last_key, may_wait=not seq, topics=topics
            )
        except (StorageError, OSError, TooManyFilters) as error:
            client.end_with(Code.UNAVAILABLE, f"{name.decode()}: {peer_text(error)}")
            return
        self._add(client, subscription, cursor)
        fanout.start(cursor)

    def _end(self, client: MqttClient, subscription: TopicSubscription) -> None:
        for key in subscription.keys.values():
            cursor = client.cursors.get(key)
            if cursor is not None:
                self.end_cursor(client, cursor)

    def end_cursor(self, client: MqttClient, cursor: Cursor) -> None:
        del client.cursors[cursor.key]
        self._services.fanout.end(cursor)
        if cursor is not client.current:
            client.forms.pop(cursor.key, None)

    def ended(self, client: MqttClient, cursor: Cursor, code: Code | None, text: str) -> None:
        """Fan-out has ended a cursor. One of a stream that was deleted or cut goes on; else the client must connect
        again, since MQTT has no way to end a subscription.
        """
        name, seq = cursor.feed.name, 0 if code is Code.DELETED else cursor.seq
        client.forms.pop(cursor.key, None)
        having = (each for each in client.subscriptions.values() if each.keys.get(name) == cursor.key)
        subscription = next(having, None)
        if code is Code.DELETED and subscription is not None and subscription.is_wild:
            subscription.keys.pop(name, None)  # one of that name is found as any other
        elif code in _GOES_ON and subscription is not None:
            resume = partial(self._resume, client, subscription, name, cursor.key, seq)
            self._services.delays.at(self._services.now_s, resume)
        elif code is not None:
            client.end_with(code, f"{name.decode()}: {text}")

    def _resume(self, client: MqttClient, subscription: TopicSubscription, name: bytes, key: int, seq: int) -> None:
        is_same = client.subscriptions.get(subscription.filter) is subscription and subscription.keys.get(name) == key
        if is_same and not (client.closed or client.lingering_since_s):
            self._go_on_at(client, subscription, name, seq)

    # --- moving to another worker -----------------------------------------------------------------------------------

    def restore(self, client: MqttClient, states: list[list[Any]]) -> None:
        for topic_filter, form, is_wild, keys, passed_over in states:
            subscription = TopicSubscription(topic_filter, PublishForm(*form), is_wild=is_wild)
            subscription.is_ready = True
            subscription.keys = dict(keys)
            subscription.passed_over = dict.fromkeys(passed_over)
            client.subscriptions[topic_filter] = subscription


def may_read_figures(client: MqttClient, topics: bytes) -> bool:
    return client.is_free or client.may(Right.ADMIN, topics)


def _start_of(parts: SplitFilter, wishes: Wishes) -> From | None:
    """The place at which a subscription begins; None if its words for that mean nothing."""
    text = parts.place or wishes.place
    try:
        return read_place(text, now_us()) if text else FROM_NEW
    except (ValueError, OverflowError):
        return None


def _start_again(subscription: TopicSubscription, seq: int) -> From:
    """The place at which a session goes on with a stream: one without QoS, or of a group, has none but in a replay."""
    is_replay = subscription.topics != subscription.filter
    has_place = not subscription.group and (subscription.form.qos or is_replay)
    return From("seq", seq) if has_place else FROM_NEW


def _suback_reason(code: Code) -> Reason:
    """SUBACK has fewer reasons than there are."""
    reason = reason_of(code)
    if reason is Reason.TOPIC_NAME_INVALID:
        return Reason.TOPIC_FILTER_INVALID
    return reason if reason in _IN_SUBACK else Reason.IMPLEMENTATION_SPECIFIC
