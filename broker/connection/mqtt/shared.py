"""Shared subscriptions, `$share/GROUP/FILTER`: each message goes to one client of the group.

A group is a durable consumer (`broker.consumers`) of each stream in which its filter can match, and its clients are the
members: the owner of the stream gives a message to one of them, on whichever worker, and to another one if that leaves
without having acknowledged it. A member asks for as many as its client's window takes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

import msgpack

from tailrace.broker.access.rules import Right
from tailrace.broker.connection.last import each_value
from tailrace.broker.connection.mqtt.session_state import unpack_state
from tailrace.broker.connection.mqtt.window import IDS, SendWindow
from tailrace.broker.consumers.coordinator.shared_members import MEMBER_KIND, SHARED_PREFIX, member_name
from tailrace.broker.consumers.edge.session import ConsumerSession, FetchedGet
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.process.timers import now_us
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.services import Services
from tailrace.broker.sessions.record import HolderProcess
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.publishes import PublishForm, PublishRendering, render_publishes
from tailrace.protocol.places import FROM_NEW, From
from tailrace.protocol.topics import SHARE_PREFIX, split_shared
from tailrace.shard.frame import unpack_header
from tailrace.shard.names import name_bytes_valid

HELD: Final = "mqtt_shared"
"""The call by which a worker learns whether another one has sessions with a shared subscription."""
GROUP_BYTES_MAX: Final = 60
"""Of a group's name as a part of its consumer's."""
HASH_BYTES: Final = 8
STREAMS_MAX: Final = 250
"""Streams that one connection reads by shared subscriptions."""
BATCH: Final = 100
"""Messages that a member asks for at once."""
BATCH_BYTES: Final = 64 << 10
WAIT_MS: Final = 20_000
ACK_WAIT_S: Final = 3_600.0
"""How long a client on another node, of which nothing is heard any more, keeps a message."""
NUMBER_BITS: Final = 48
"""Of the number of the first member of a process, which no other one has."""
RETRY_S: Final = 0.5
EMPTY_S: Final = 0.1
"""From one get to the next, if the first is answered without a message."""

AllJoined = Callable[[Sequence[Cursor], Sequence[Refused]], None]
Joined = Callable[[Refused | None], None]


class SharedFilter(Protocol):
    """The side of a subscription that is used here: see `TopicSubscription`."""

    filter: bytes
    topics: bytes
    form: PublishForm
    keys: dict[bytes, int]


class SharedClient(Protocol):
    """The side of a client that is used here: see `MqttClient`."""

    closed: bool
    lingering_since_s: float
    window: SendWindow
    shared: SharedReading | None

    @property
    def consumers(self) -> ConsumerSession: ...

    @property
    def room(self) -> int: ...

    def readable_topics(self, stream: bytes, topic_filter: bytes) -> bytes: ...

    def denial(self, right: Right) -> Refused: ...

    def send_retained(self, stream: bytes, form: PublishForm, rendering: PublishRendering) -> None: ...


def consumer_of(topic_filter: bytes) -> bytes:
    """The name of the durable consumer of a shared subscription: the group's, as far as it can be a part of that."""
    group, _topics = split_shared(topic_filter)
    digest = hashlib.blake2b(topic_filter, digest_size=HASH_BYTES).hexdigest().encode()
    is_short = len(group) <= GROUP_BYTES_MAX and name_bytes_valid(group)
    return SHARED_PREFIX + (group if is_short else b"") + b"/" + digest


class GroupMember:
    """What a client has of one group in one stream. `finished`: acknowledged, and the owner does not know it yet."""

    __slots__ = ("asked_s", "consumer", "finished", "gets", "is_asking", "is_gone", "stream", "subscription")

    def __init__(self, stream: bytes, subscription: SharedFilter) -> None:
        self.stream = stream
        self.subscription = subscription
        self.consumer = consumer_of(subscription.filter)
        self.finished: list[c.FinishedRow] = []
        self.gets = 0  # so far; the last one has no answer if `is_asking`
        self.asked_s = 0.0
        self.is_asking = self.is_gone = False

    def finish(self, seq: int, epoch: int) -> None:
        rows = self.finished
        if rows and rows[-1][1] == seq - 1 and rows[-1][2] == epoch:
            rows[-1] = rows[-1][0], seq, epoch
        else:
            rows.append((seq, seq, epoch))


class SharedReading:
    """The shared subscriptions of one client. `name`: as a member of all its groups."""

    def __init__(
        self, services: Services, client: SharedClient, name: bytes, acknowledged: Callable[[SharedReading], None]
    ) -> None:
        """`acknowledged` is called with it when there is something for `report`."""
        self._note = acknowledged
        self._services = services
        self._client = client
        self._name = name
        self._members: dict[tuple[bytes, bytes], GroupMember] = {}
        self._under_way: dict[int, tuple[GroupMember, int, int]] = {}  # by packet identifier: seq, epoch
        self._given: deque[tuple[GroupMember, bytes]] = deque()  # frames that wait for room in the window
        self._looping = False

    @property
    def is_empty(self) -> bool:
        return not self._members

    # --- joining and leaving ------------------------------------------------------------------------------------------

    def join(self, subscription: SharedFilter, stream: bytes, start: From, done: Joined) -> None:
        """Become a member in this stream. The group begins at `start` if this is its first one there. A stream that
        does not exist is no failure: it is searched for again.
        """
        client = self._client
        if (subscription.filter, stream) in self._members:  # found again before the owner has answered
            done(None)
            return
        if client.readable_topics(stream, subscription.topics) != subscription.topics:
            done(client.denial(Right.SUBSCRIBE))
            return
        if len(self._members) >= STREAMS_MAX:
            done(Refused(Code.SUBSCRIPTIONS, f"a connection reads {STREAMS_MAX} streams by shared subscriptions"))
            return
        member = GroupMember(stream, subscription)
        self._members[subscription.filter, stream] = member

        def answered(value: Any) -> None:
            if member.is_gone:
                self._leave(member)
                done(None)
            elif isinstance(value, Refused):
                self._forget(member)
                done(None if value.code is Code.UNKNOWN else value)
            else:
                subscription.keys[stream] = 0
                done(None)
                self._ask(member)

        self._create(member, start, answered)

    def _create(self, member: GroupMember, start: From, answered: Callable[[Any], None]) -> None:
        wanted = c.Consume(
            0,
            "create",
            member.stream,
            member.consumer,
            start,
            ack_wait_s=ACK_WAIT_S,
            deliveries_max=0,
            retry_s=0.0,
            retry_max_s=0.0,
            topics=member.subscription.topics,
        )
        self._client.consumers.consume(wanted, answered)

    def leave(self, subscription: SharedFilter) -> list[bytes]:
        """Leave a group: others have its messages that this client has not acknowledged. Returns its streams."""
        left = [member for key, member in self._members.items() if key[0] == subscription.filter]
        for member in left:
            self._leave(member)
            self._forget(member)
        return [member.stream for member in left]

    def _leave(self, member: GroupMember) -> None:
        self._report(member)
        wanted = c.Consume(0, "leave", member.stream, member.consumer, member=self._name)
        self._services.router.call(member.stream, "consume", [member.stream, wanted], _ignore)

    def _forget(self, member: GroupMember) -> None:
        member.is_gone = True
        self._members.pop((member.subscription.filter, member.stream), None)
        member.subscription.keys.pop(member.stream, None)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _get(self, member: GroupMember, most: int) -> c.Get:
        rows, member.finished = member.finished[: c.FINISHED_MAX], member.finished[c.FINISHED_MAX :]
        return c.Get(
            0,
            member.stream,
            member.consumer,
            self._name,
            finished=tuple(rows),
            max_messages=most,
            max_bytes=BATCH_BYTES,
            wait_ms=WAIT_MS if most else 0,
            fresh=True,
        )

    def _report(self, member: GroupMember) -> None:
        """Store acknowledgements without asking for messages."""
        while member.finished:
            wanted = self._get(member, 0)
            self._services.router.call(member.stream, "get", [member.stream, wanted], _ignore)

    def _ask(self, member: GroupMember, *, anew: bool = False) -> None:
        """Ask for as many messages as the client takes now. `anew`: in the place of a get that waits."""
        client = self._client
        room = client.room
        if member.is_gone or (member.is_asking and not anew) or self._given or room <= 0 or client.lingering_since_s:
            return
        member.is_asking = True
        member.gets += 1
        member.asked_s = self._services.now_s
        wanted = self._get(member, min(max(room // len(self._members), 1), BATCH))
        client.consumers.get(wanted, partial(self._got, member, member.gets, wanted.finished))

    def _got(
        self,
        member: GroupMember,
        number: int,
        finished: Sequence[c.FinishedRow],
        outcome: FetchedGet | Refused,
    ) -> None:
        is_last = number == member.gets
        if isinstance(outcome, Refused) and outcome.code is not Code.CONSUMER:
            member.finished[:0] = finished  # reported once more, which does no harm
        if is_last:
            member.is_asking = False
        if member.is_gone or self._client.lingering_since_s:
            return
        if isinstance(outcome, Refused):
            if is_last:
                self._refused(member, outcome)
            return
        for frames in outcome.frames:
            self._given.extend((member, frame) for frame in each_value(frames))
        if outcome.frames:
            self.go_on()
        elif is_last:
            due_s = max(member.asked_s + EMPTY_S, self._services.now_s)
            self._services.delays.at(due_s, partial(self._ask, member))

    def _refused(self, member: GroupMember, refused: Refused) -> None:
        """Try again, or join once more if the stream or the consumer was deleted."""
        if refused.code is Code.CONSUMER:
            self._create(member, FROM_NEW, partial(self._created_again, member))
        elif refused.code is Code.UNKNOWN:
            self._forget(member)  # a stream of that name is found as any other
        else:
            self._services.metrics.refused.add(refused.code)
            self._services.delays.at(self._services.now_s + RETRY_S, partial(self._ask, member))

    def _created_again(self, member: GroupMember, value: Any) -> None:
        if isinstance(value, Refused):
            self._forget(member)
        else:
            self._ask(member)

    def go_on(self) -> None:
        """Send the given messages as far as the client has room, and ask for more."""
        if self._looping:
            return
        self._looping = True
        while self._given and self._client.room > 0 and not self._client.lingering_since_s:
            self._send_some()
        self._looping = False
        if not self._given:
            for member in list(self._members.values()):
                self._ask(member)

    def _send_some(self) -> None:
        """Frames of one member, up to the room that there is."""
        member = self._given[0][0]
        frames: list[bytes] = []
        while self._given and self._given[0][0] is member and len(frames) < self._client.room:
            frames.append(self._given.popleft()[1])
        if member.is_gone:
            return
        form = member.subscription.form
        rendering = render_publishes(b"".join(frames), member.stream, form, now_us())
        packet_id = self._client.window.next_id
        waits = set(rendering.id_seqs)
        headers = [unpack_header(frame) for frame in frames]
        for header in headers:
            if header.seq in waits:
                self._under_way[packet_id] = member, header.seq, header.epoch
                packet_id = packet_id % IDS + 1
            else:
                member.finish(header.seq, header.epoch)
        if rendering.data:
            self._client.send_retained(b"", form, rendering)

    def acknowledged(self, first_id: int, number: int) -> None:
        """The client has acknowledged these packet identifiers."""
        if not self._under_way:
            return
        for place in range(number):
            found = self._under_way.pop((first_id + place - 1) % IDS + 1, None)
            if found is not None:
                member, seq, epoch = found
                member.finish(seq, epoch)
                self._note(self)
        self.go_on()

    def report(self) -> None:
        """Store acknowledgements while a get waits."""
        for member in list(self._members.values()):
            if member.finished:
                self._ask(member, anew=True)
                self._report(member)


class SharedGroups:
    """One per worker. `stored`: whether a durable session of this worker has a shared subscription."""

    def __init__(
        self,
        services: Services,
        calls: WorkerCalls,
        slots: int,
        node_id: str,
        holder: HolderProcess,
        stored: Callable[[bytes], bool],
    ) -> None:
        self._services = services
        self._calls = calls
        self._slots = slots
        self._member_name = partial(member_name, node_id, holder)
        self._stored = stored
        self._numbers = count(secrets.randbits(NUMBER_BITS))
        self._connected: dict[bytes, int] = {}  # filters, and how many connections of this worker have them
        self._acknowledged: dict[SharedReading, None] = {}

    def join(
        self, client: SharedClient, subscription: SharedFilter, names: Sequence[bytes], start: From, done: AllJoined
    ) -> None:
        """Become a member in these streams; `done` gets no cursors, and the refusals."""
        reading = client.shared
        if reading is None:
            name = self._member_name(next(self._numbers))
            reading = client.shared = SharedReading(self._services, client, name, self._note)
        failed: list[Refused] = []
        missing = len(names)

        def joined(refused: Refused | None) -> None:
            nonlocal missing
            missing -= 1
            if refused is not None:
                failed.append(refused)
                self._services.metrics.refused.add(refused.code)
            if not missing:
                done([], failed)

        if not names:
            done([], failed)
        for name in names:
            reading.join(subscription, name, start, joined)

    def _note(self, reading: SharedReading) -> None:
        self._acknowledged[reading] = None

    def tick(self) -> None:
        """Several times a second."""
        acknowledged, self._acknowledged = self._acknowledged, {}
        for reading in acknowledged:
            reading.report()

    # --- the life of a group ------------------------------------------------------------------------------------------

    def begin(self, topic_filter: bytes) -> None:
        """A connection has subscribed."""
        self._connected[topic_filter] = self._connected.get(topic_filter, 0) + 1

    def leave(self, client: SharedClient, subscription: SharedFilter) -> list[bytes]:
        """A connection has no longer this subscription; its streams."""
        topic_filter = subscription.filter
        left = self._connected.pop(topic_filter, 1) - 1
        if left:
            self._connected[topic_filter] = left
        return [] if client.shared is None else client.shared.leave(subscription)

    def is_held(self, topic_filter: bytes) -> bool:
        """Whether a session of this worker has this subscription."""
        return topic_filter in self._connected or self._stored(topic_filter)

    def end_unless_held(self, topic_filter: bytes, streams: Sequence[bytes], done: Callable[[], None]) -> None:
        """End a group that has no session any more, on any worker: a later one begins with new messages."""
        answers = [self.is_held(topic_filter)]

        def answered(value: Any) -> None:
            answers.append(isinstance(value, Refused) or bool(value))  # a worker that is gone may have some
            if len(answers) <= self._slots:
                return
            for stream in [] if any(answers) else streams:
                notice = c.MemberNotice("quit", stream, consumer_of(topic_filter), MEMBER_KIND)
                self._services.router.call(stream, "consume", [stream, notice], _ignore)
            done()

        for slot in range(self._slots):
            self._calls.call_slot(slot, HELD, [topic_filter], answered)

    def session_ended(self, state: bytes) -> None:
        """A durable session is no more; its state is that of `pack_state`."""
        if SHARE_PREFIX not in state:
            return
        for kept in unpack_state(state).subscriptions:
            if kept.filter.startswith(SHARE_PREFIX):
                self.end_unless_held(kept.filter, [name for name, _seq, _term in kept.places], lambda: None)


def stored_filter(topic_filter: bytes) -> bytes:
    """A filter as the state of a session has it."""
    packed: bytes = msgpack.packb(topic_filter)
    return packed


def _ignore(_value: Any) -> None:
    """An owner that cannot do it finds out that the member is gone."""
