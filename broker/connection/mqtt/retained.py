"""Retained messages: that a stream keeps them, and that a new subscription is sent them before anything else.

They are the last values of the messages with the flag RETAIN (`broker.last`). A subscription has its cursors, which
wait, when they are read: what was published before the place of a cursor comes as a retained message, and what comes
behind it from the cursor.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from tailrace.broker.connection.last import (
    START,
    VALUE_BYTES_MAX,
    VALUES_MAX,
    GatheredPage,
    LastFilter,
    LastReader,
    Position,
    each_value,
)
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.process.timers import now_us
from tailrace.broker.process.work import Asker
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import TopicRules
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.publishes import ALL_RETAINED, RETAIN_BITS, PublishForm, PublishRendering, render_publishes
from tailrace.shard.epochs import NEVER_SEQ
from tailrace.shard.frame import unpack_header

KEPT_S: Final = 1.0
"""For which it is remembered that a stream keeps them, or why not."""
KEPT_MAX: Final = 16_384
"""Streams of which that is remembered."""
AHEAD_BYTES: Final = 64 << 10
"""Unsent, from which on no more retained messages are read."""

KeptOutcome = Callable[[Refused | None], None]


class RetainedFilter(Protocol):
    """The side of a subscription that is used here: see `TopicSubscription`."""

    filter: bytes
    form: PublishForm
    is_wild: bool
    keys: dict[bytes, int]


class RetainedReader(Asker, Protocol):
    """The side of a client that is used here: see `MqttClient`."""

    cursors: dict[Any, Cursor]
    lingering_since_s: float
    sendings: list[Any]

    @property
    def subscriptions(self) -> Mapping[bytes, RetainedFilter]: ...

    @property
    def room(self) -> int: ...

    @property
    def unsent_bytes(self) -> int: ...

    def readable_topics(self, stream: bytes, topic_filter: bytes) -> bytes: ...

    def send_retained(self, stream: bytes, form: PublishForm, rendering: PublishRendering) -> None: ...

    def end_with(self, code: Code, text: str) -> None: ...


class RetainedMessages:
    """One per worker."""

    def __init__(
        self,
        services: Services,
        reader: LastReader,
        rules: TopicRules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self.reader = reader
        self.rules = rules
        self._clock = clock
        self._kept: dict[bytes, tuple[float, Refused | None]] = {}

    def keep(self, stream: bytes, done: KeptOutcome | None = None) -> None:
        """Let a stream keep the messages that are published to it behind this; `done` gets None, or why it does not."""
        known = self._kept.get(stream)
        if known is not None and known[0] > self._clock():
            if done is not None:
                done(known[1])
            return

        def answered(value: object) -> None:
            refused = value if isinstance(value, Refused) else None
            self._kept.pop(stream, None)
            if refused is None or refused.code is not Code.OVERLOADED:  # there may be room in the next moment
                self._kept[stream] = self._clock() + KEPT_S, refused
            if len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            if done is not None:
                done(refused)

        self._services.router.call(stream, "keep_last", [stream], answered)

    def missed(
        self, stream: bytes, messages: list[tuple[bytes, int]], done: Callable[[list[int] | Refused], None]
    ) -> None:
        """Which of these messages of a stream, each with its topic and its seq, found no room: their places."""
        self._services.router.call(stream, "missed_last", [stream, messages], done)

    def send(
        self,
        client: RetainedReader,
        subscriptions: Iterable[RetainedFilter],
        known: set[bytes],
        done: Callable[[], None],
    ) -> None:
        """Send the retained messages of these subscriptions, then call `done`. `known`: the filters of those that get
        messages already.
        """
        sending = RetainedSending(self, client, subscriptions, known, done)
        client.sendings.append(sending)
        if client.sendings[0] is sending:
            sending.go_on()


class RetainedSending:
    """The messages still to be sent on account of one SUBSCRIBE, as the client takes it."""

    def __init__(
        self,
        retained: RetainedMessages,
        client: RetainedReader,
        subscriptions: Iterable[RetainedFilter],
        known: set[bytes],
        done: Callable[[], None],
    ) -> None:
        self._retained = retained
        self._client = client
        self._left = deque(subscriptions)
        self._ends = {each.filter: _ends_of(client, each) for each in self._left if each.filter not in known}
        self._after = START
        self._done = done
        self._reading = self._looping = False

    def go_on(self) -> None:
        """Read and send as much as the client takes."""
        if self._looping:
            return
        self._looping = True
        while not self._reading and self._may_send():
            self._read(self._left[0])
        self._looping = False

    def _may_send(self) -> bool:
        client = self._client
        if client.lingering_since_s:
            self._left.clear()
        while self._left and client.subscriptions.get(self._left[0].filter) is not self._left[0]:
            self._next()
        if not self._left:
            self._end()
            return False
        return client.unsent_bytes <= AHEAD_BYTES and (client.room > 0 or not self._left[0].form.qos)

    def _next(self) -> None:
        self._left.popleft()
        self._after = START

    def _end(self) -> None:
        sendings = self._client.sendings
        if sendings and sendings[0] is self:
            sendings.pop(0)
            self._done()
            if sendings:
                sendings[0].go_on()

    def _read(self, subscription: RetainedFilter) -> None:
        client, topic_filter = self._client, subscription.filter

        def topics(stream: bytes) -> bytes | None:
            return client.readable_topics(stream, topic_filter) or None

        stream = b"" if subscription.is_wild else next(iter(subscription.keys), b"")
        if not stream and not subscription.is_wild:
            self._next()
            return
        wanted = LastFilter(stream, subscription.keys.__contains__, topics)
        most = min(client.room, VALUES_MAX) if subscription.form.qos else VALUES_MAX
        self._reading = True
        found = partial(self._found, subscription)
        self._retained.reader.read(client, wanted, self._after, most, VALUE_BYTES_MAX, found, retained=True)

    def _found(self, subscription: RetainedFilter, page: GatheredPage | Refused) -> None:
        self._reading = False
        client = self._client
        if client.subscriptions.get(subscription.filter) is not subscription or client.lingering_since_s:
            self.go_on()
            return
        if isinstance(page, Refused):
            client.end_with(page.code, f"the retained messages cannot be read: {page.text}")
            return
        marks = subscription.form.retain & ~RETAIN_BITS
        form = subscription.form._replace(retain=ALL_RETAINED | marks)
        for stream, frames in page.values:
            wanted = self._before_the_cursor(subscription, stream, frames)
            client.send_retained(stream, form, render_publishes(wanted, stream, form, now_us()))
        if page.after is None:
            self._next()
        else:
            self._after = Position(*page.after)
        self.go_on()

    def _before_the_cursor(self, subscription: RetainedFilter, stream: bytes, frames: bytes) -> bytes:
        """Without messages that the subscription's cursor is going to find."""
        end_seq = self._ends.get(subscription.filter, {}).get(stream, NEVER_SEQ)
        return b"".join(frame for frame in each_value(frames) if unpack_header(frame).seq < end_seq)


def _ends_of(client: RetainedReader, subscription: RetainedFilter) -> dict[bytes, int]:
    """Where the cursors of a new subscription wait, by stream."""
    return {name: client.cursors[key].seq for name, key in subscription.keys.items() if key in client.cursors}
