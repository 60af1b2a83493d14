"""`$SYS/…`: the figures of the node as messages, soon after SUBSCRIBE and every ten seconds. Nobody publishes there.

They are the values of the metrics page, summed over all workers. No stream has them, and `#` does not match them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from tailrace.broker.process.metric_cells import sum_up
from tailrace.broker.process.metrics import TABLE, MetricKind
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.timers import now_us
from tailrace.broker.process.version import program_version
from tailrace.protocol.mqtt.metadata import pack_metadata
from tailrace.protocol.mqtt.publishes import ALL_RETAINED, NOT_RETAINED, PublishForm, PublishRendering, render_publishes
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load

SYSTEM_PREFIX: Final = b"$SYS/"
EVERY_S: Final = 10.0
VALUES_MAX: Final = 2_048
"""Of one page; the rest is on the metrics page only."""
UNSENT_MAX_BYTES: Final = 256 << 10
"""Of a client that is left out until it has read more."""
_BROKER: Final = {
    "tailrace_connections": b"clients/connected",
    "tailrace_received_messages": b"messages/received",
    "tailrace_sent_messages": b"messages/sent",
    "tailrace_received_bytes": b"bytes/received",
    "tailrace_sent_bytes": b"bytes/sent",
}
"""Those that other brokers have too, as sums over their labels."""

_matches = load("tailrace.broker.topics.pick_cy").matches
Page = list[tuple[bytes, bytes]]


class SystemFilter(Protocol):
    """The side of a subscription that is used here: see `TopicSubscription`."""

    topics: bytes
    form: PublishForm

    @property
    def is_system(self) -> bool: ...


class SystemReader(Protocol):
    """The side of a client that is used here: see `MqttClient`."""

    closed: bool
    lingering_since_s: float

    @property
    def subscriptions(self) -> Mapping[bytes, SystemFilter]: ...

    @property
    def unsent_bytes(self) -> int: ...

    def send_retained(self, stream: bytes, form: PublishForm, rendering: PublishRendering) -> None: ...


class SystemTopics:
    """One per worker."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._readers: dict[SystemReader, None] = {}
        self._new: dict[SystemFilter, SystemReader] = {}
        self._due_s = 0.0

    def reconcile(self, client: SystemReader) -> None:
        """Its subscriptions have changed."""
        if any(each.is_system for each in client.subscriptions.values()):
            self._readers[client] = None
        else:
            self._readers.pop(client, None)

    def begin(self, client: SystemReader, subscription: SystemFilter) -> None:
        """A subscription is sent the figures at the next tick."""
        self._new[subscription] = client

    def release(self, client: SystemReader) -> None:
        self._readers.pop(client, None)

    def tick(self, now_s: float) -> None:
        """Several times a second."""
        new, self._new = self._new, {}
        is_due = bool(self._readers) and now_s >= self._due_s
        if not (new or is_due):
            return
        page = self._page()
        for subscription, client in new.items():
            if subscription in client.subscriptions.values():
                _send(client, subscription, page, ALL_RETAINED)
        if is_due:
            self._due_s = now_s + EVERY_S
            for client in list(self._readers):
                for subscription in list(client.subscriptions.values()):
                    if subscription.is_system and subscription not in new:
                        _send(client, subscription, page, NOT_RETAINED)

    def _page(self) -> Page:
        found: Page = [(SYSTEM_PREFIX + b"broker/version", program_version().encode())]
        for family in TABLE:
            if family.kind is MetricKind.HISTOGRAM:
                continue
            values = sum_up(self._board.metric_rows, family)
            if family.name in _BROKER:
                found.append((SYSTEM_PREFIX + b"broker/" + _BROKER[family.name], b"%.15g" % sum(values.values())))
            for label, number in values.items():
                topic = b"%smetrics/%s" % (SYSTEM_PREFIX, family.name.encode())
                found.append((topic + (b"/" + label.encode() if label else b""), b"%.15g" % number))
        return [each for each in found[:VALUES_MAX] if not any(sign in each[0] for sign in (b"+", b"#", b"\0"))]


def _send(client: SystemReader, subscription: SystemFilter, page: Iterable[tuple[bytes, bytes]], retain: int) -> None:
    """Those that the filter matches, with QoS 0."""
    if client.closed or client.lingering_since_s or client.unsent_bytes > UNSENT_MAX_BYTES:
        return
    frames = [
        pack_frame(value, metadata=pack_metadata(topic, 0))
        for topic, value in page
        if _matches(subscription.topics, topic)
    ]
    form = subscription.form._replace(qos=0, retain=retain)
    rendering = render_publishes(b"".join(frames), SYSTEM_PREFIX, form, now_us())
    if rendering.data:
        client.send_retained(b"", form, rendering)
