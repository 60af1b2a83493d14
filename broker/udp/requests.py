"""Handles each datagram that the leaf has not staged with others."""

from __future__ import annotations

from typing import Any, Final, Protocol

from tailrace.broker.delivery.watches import Watches
from tailrace.broker.replication.roles.peers import is_loopback
from tailrace.broker.services import Services
from tailrace.broker.udp.addresses import PeerRights, RefusedAddresses, host_of, is_of_this_machine
from tailrace.broker.udp.cookies import Cookies
from tailrace.broker.udp.subscriptions import UdpSubscriptions
from tailrace.protocol import datagrams
from tailrace.protocol.datagrams import DatagramRequest, DatagramVerb
from tailrace.protocol.errors import Code
from tailrace.protocol.topics import filter_fault, has_wildcards, topic_fault, topic_metadata
from tailrace.shard.frame import HEADER, HEADER_BYTES

ASKED_MAX: Final = 8_192
"""Publishes whose clients wait for an answer."""

UNSUBSCRIBED_MAX: Final = 1_024
"""Subscriptions that were not here when they were to be ended; their records may still come from the predecessor."""

DENIED_TEXT: Final = "this address does not have the right to that; [[udp_peer]] sections give it"
WIDE_TEXT: Final = (
    "what this filter matches may lie in streams of any name, by the [[topics]] sections; use a narrower one"
)

DatagramGroups = dict[bytes, list[Any]]
Asked = tuple[bytes, bytes, int]
"""A client that waits for the answer to a publish: its address, the topic, the size of its datagram."""


class DatagramDoor(Protocol):
    """What handling a request needs of the door."""

    def answer(self, name: bytes, text: bytes) -> None: ...

    def publish(self, stream: bytes, frames: bytearray, count: int, asked: Asked | None) -> None: ...

    def publish_groups(self, groups: DatagramGroups) -> None: ...


class RequestHandler:
    """One per door.

    table: of the rules of topics, for the leaves. takes_runs: whether they may do all they can, since everybody may
    publish and subscribe and the table has all rules. trusts_all: whether no address has to show a cookie.
    """

    def __init__(
        self, services: Services, subscriptions: UdpSubscriptions, watches: Watches, door: DatagramDoor
    ) -> None:
        settings, access, rules = services.settings, services.access, services.topic_rules
        self._services = services
        self._subscriptions = subscriptions
        self._watches = watches
        self._door = door
        self._cookies = Cookies()
        self._rights = PeerRights(settings.udp_peers) if settings.udp_peers else None
        self._stream = settings.udp_stream.encode()
        self._asked = 0
        self._unsubscribed: set[tuple[bytes, bytes]] = set()
        self.senders = RefusedAddresses()
        self.trusts_all = not settings.udp_cookies
        self.table = rules.sections_table
        is_free = self._rights is None and access.is_free(access.arrived(local=False))
        self.takes_runs = is_free and (not rules.sections or bool(self.table))

    def take(self, name: bytes, data: bytes, groups: DatagramGroups) -> None:
        """One datagram. `groups`: what those before it publish."""
        request = datagrams.parse_request(data)
        if request is None:
            self.senders.add(name)
            self._services.metrics.udp_dropped.add("junk")
        elif request.verb is DatagramVerb.PING:
            self._answer(name, len(data), datagrams.PONG)
        elif (refusal := self._refusal(name, request)) is not None:
            self._refuse(name, len(data), request.verb, *refusal)
        elif request.verb is DatagramVerb.SUB:
            self._subscribe(name, request, len(data))
        elif request.verb is DatagramVerb.UNSUB:
            self._unsubscribe(name, request.topic, len(data))
        else:
            self._publish(name, request, len(data), groups)

    def answer_publish(self, asked: Asked, seq: int, refusal: tuple[Code, str] | None) -> None:
        """A publish that was asked about has an outcome."""
        name, topic, size = asked
        self._asked -= 1
        if refusal is None:
            self._answer(name, size, datagrams.published(topic, seq))
        else:
            self._answer_refused(name, size, DatagramVerb.PUB_ASKED, *refusal)  # that may be no fault of its sender

    def restore(self, topic: bytes, name: bytes, seen_s: int) -> None:
        """A subscription of the worker before this one. It ends if the settings have changed so that it would be
        refused.
        """
        if (name, topic) in self._unsubscribed or not self._may(name, topic, is_publish=False):
            return
        streams = self._streams_of(topic)
        if streams is not None and self._watches.has_room_for(streams):
            self._subscriptions.add(name, topic, streams, seen_s)

    def all_restored(self) -> None:
        self._unsubscribed.clear()

    # --- verbs ------------------------------------------------------------------------------------------------------

    def _refusal(self, name: bytes, request: DatagramRequest) -> tuple[Code, str] | None:
        """Why a request with a topic cannot be done; None if it can."""
        topic, is_publish = request.topic, request.verb in (DatagramVerb.PUB, DatagramVerb.PUB_ASKED)
        if fault := topic_fault(topic) if is_publish else filter_fault(topic):
            return Code.TOPIC, fault
        if fault := datagrams.reserved_fault(topic):
            return Code.RESERVED, fault
        if is_publish and len(request.body) > self._services.settings.max_message_bytes:
            return Code.SIZE, f"a message has at most {self._services.settings.max_message_bytes} bytes here"
        if request.verb is not DatagramVerb.UNSUB and not self._may(name, topic, is_publish=is_publish):
            return Code.DENIED, DENIED_TEXT
        if request.verb is DatagramVerb.PUB_ASKED and self._asked >= ASKED_MAX:
            return Code.OVERLOADED, f"{ASKED_MAX} publishes wait for their answers"
        return None

    def _publish(self, name: bytes, request: DatagramRequest, size: int, groups: DatagramGroups) -> None:
        stream, topic = self._services.topic_rules.place_or(request.topic, self._stream)
        metadata = topic_metadata(topic) if topic else b""
        length = HEADER_BYTES + len(metadata) + len(request.body)
        frame = HEADER.pack(length, 0, 0, 0, 0, 0, len(metadata)) + metadata + request.body
        if request.verb is DatagramVerb.PUB_ASKED:
            self._asked += 1
            self._door.publish_groups(groups)
            self._door.publish(stream, bytearray(frame), 1, (name, request.topic, size))
            return
        group = groups.setdefault(stream, [bytearray(), 0])
        group[0] += frame
        group[1] += 1

    def _subscribe(self, name: bytes, request: DatagramRequest, size: int) -> None:
        now_s, topic = self._services.now_s, request.topic
        if not self._is_verified(name) and not self._cookies.is_valid(name, request.body.strip(), now_s):
            self._answer(name, size, datagrams.cookie(self._cookies.make(name, now_s)))
            return
        streams = self._streams_of(topic)
        if streams is None:
            self._refuse(name, size, DatagramVerb.SUB, Code.TOPIC, WIDE_TEXT)
        elif not (self._watches.has_room_for(streams) and self._subscriptions.add(name, topic, streams, int(now_s))):
            text = "this worker has as many subscriptions by UDP as it may"
            self._refuse(name, size, DatagramVerb.SUB, Code.SUBSCRIPTIONS, text)
        else:
            answer = datagrams.subscribed(topic, self._services.settings.udp_lease_s)
            self._watches.answer_when_watched(streams, name, answer)

    def _unsubscribe(self, name: bytes, topic: bytes, size: int) -> None:
        if self._subscriptions.remove(name, topic):
            self._door.answer(name, datagrams.unsubscribed(topic))
        else:
            if len(self._unsubscribed) < UNSUBSCRIBED_MAX:
                self._unsubscribed.add((name, topic))
            self._refuse(name, size, DatagramVerb.UNSUB, Code.UNSUBSCRIBED, "this address has no such subscription")

    def _streams_of(self, topic: bytes) -> tuple[bytes, ...] | None:
        """The streams in which what a topic or a filter matches may lie; None if they may have any name."""
        rules = self._services.topic_rules
        if not has_wildcards(topic):
            return (rules.place_or(topic, self._stream).stream,)
        placed = rules.all_streams_of(topic)
        return None if placed is None else tuple(dict.fromkeys((*placed, self._stream)))

    # --- answers ----------------------------------------------------------------------------------------------------

    def _is_verified(self, name: bytes) -> bool:
        """Whether the address cannot be forged, or has shown that it is not; or that does not matter here."""
        return not self._services.settings.udp_cookies or self._subscriptions.is_known(name) or is_of_this_machine(name)

    def _answer(self, name: bytes, size: int, text: bytes) -> None:
        """An address that may be forged gets no more bytes than it has sent."""
        if not self._is_verified(name):
            text = datagrams.fitted(text, size)
        if text:
            self._door.answer(name, text)
        else:
            self._services.metrics.udp_dropped.add("unanswered")

    def _refuse(self, name: bytes, size: int, verb: DatagramVerb, code: Code, text: str) -> None:
        self.senders.add(name)
        self._answer_refused(name, size, verb, code, text)

    def _answer_refused(self, name: bytes, size: int, verb: DatagramVerb, code: Code, text: str) -> None:
        self._services.metrics.refused.add(code)
        if verb is DatagramVerb.PUB:
            self._services.metrics.udp_dropped.add("refused")
        else:
            self._answer(name, size, datagrams.refused(code, text))

    def _may(self, name: bytes, topic: bytes, *, is_publish: bool) -> bool:
        if self._rights is not None:
            return self._rights.may_publish(name, topic) if is_publish else self._rights.may_subscribe(name, topic)
        access = self._services.access
        return self.takes_runs or access.is_free(access.arrived(local=is_loopback(host_of(name))))
