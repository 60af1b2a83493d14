"""Streams that filters with wildcards match in, those made later included.

As for the patterns of the line protocol, the owners of all streams are asked for their names; several times a second
each worker with such filters looks whether the node has another number of streams, and if so searches again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from tailrace.broker.connection.patterns import RELIST_S, NameSearch, PatternSubscriptions
from tailrace.broker.connection.search_turns import SearchTurns
from tailrace.broker.delivery.wide_history import WideHistory, WidePlace
from tailrace.broker.process.work import NOBODY, Asker
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import OTHER_STREAM, TopicRules
from tailrace.protocol.names import WILDCARD
from tailrace.protocol.topics import SEPARATOR
from tailrace.shard.names import base_of

FoundStreams = Callable[[list[bytes] | Refused], None]


class WildcardFilter(Protocol):
    """The side of a subscription that is used here: see `TopicSubscription`."""

    filter: bytes
    topics: bytes
    is_wild: bool
    is_ready: bool
    keys: dict[bytes, int]
    passed_over: dict[bytes, None]


class WildcardReader(Asker, Protocol):
    """The side of a client that is used here."""

    closed: bool
    lingering_since_s: float

    @property
    def cursor_room(self) -> int: ...

    @property
    def subscriptions(self) -> Mapping[bytes, WildcardFilter]: ...

    def readable_topics(self, stream: bytes, topic_filter: bytes) -> bytes: ...

    def join_streams(self, topic_filter: bytes, names: list[bytes]) -> None:
        """Read these streams, which were made after the subscription, from their beginning; as many as there is room
        for and one more mean that there may be others."""


class Wildcards:
    """The filters with wildcards of one worker's connections."""

    def __init__(self, services: Services, names: PatternSubscriptions, rules: TopicRules) -> None:
        self._services = services
        self._names = names
        self.wide = names.wide
        self._rules = rules
        self._clients: dict[WildcardReader, None] = {}
        self._searches = SearchTurns(self._search_again)  # of filters
        self._version = -1
        self._relist_s = 0.0

    def search(self, client: WildcardReader, subscription: WildcardFilter, found: FoundStreams) -> None:
        """All streams in which the filter can match, as far as the client may read them and has no cursor in them."""
        self._search(client, subscription, client, found, _nothing)

    def _search(
        self,
        client: WildcardReader,
        subscription: WildcardFilter,
        asker: Asker,
        found: FoundStreams,
        pauses: Callable[[], None],
    ) -> None:
        prefix = self._rules.search_prefix(subscription.topics)
        is_wanted = partial(self._is_wanted, client, subscription)
        only = self._rules.streams_of(subscription.topics)
        if only is not None:  # a shared subscription waits here for the stream to be made
            found([only] if is_wanted(only) else [])
            return
        others = _others(prefix)

        def done(names: list[bytes] | Refused) -> None:
            if isinstance(names, list):
                names += [name for name in others if name not in names and is_wanted(name)]
            found(names)

        most = client.cursor_room + 1
        NameSearch(self._names, prefix + WILDCARD, most, is_wanted, asker, done, pauses).turn_page()

    def history(self, client: WildcardReader, subscription: WildcardFilter, place: WidePlace) -> WideHistory:
        """All streams in which the filter can match, for one of more streams than a connection may have cursors in."""
        prefix, known = self._rules.search_prefix(subscription.topics), subscription.keys
        first = filter(partial(self._is_wanted, client, subscription), _others(prefix))
        return WideHistory(prefix, place, first, known=known)

    def _is_wanted(self, client: WildcardReader, subscription: WildcardFilter, name: bytes) -> bool:
        if name in subscription.keys or name in subscription.passed_over or base_of(name) != name:
            return False
        is_held = self._rules.may_hold(name, subscription.topics)
        return is_held and bool(client.readable_topics(name, subscription.topics))

    # --- streams made later -----------------------------------------------------------------------------------------

    def reconcile(self, client: WildcardReader) -> None:
        """Its filters have changed. A stream may have been made since their search."""
        if any(each.is_wild for each in client.subscriptions.values()):
            self._clients[client] = None
            self._version = -1
        else:
            self._clients.pop(client, None)

    def release(self, client: WildcardReader) -> None:
        self._clients.pop(client, None)

    def tick(self) -> None:
        """Several times a second: look whether there are more streams."""
        if not self._clients or not self._searches.is_idle:
            return
        version, now_s = self._names.board.names_version(), self._services.now_s
        if version != self._version or now_s >= self._relist_s or self._searches.take_passed_over():
            self._version, self._relist_s = version, now_s + RELIST_S
            self._searches.begin(
                (client, each.filter)
                for client in self._clients
                for each in client.subscriptions.values()
                if each.is_wild and each.is_ready
            )

    def _search_again(
        self, key: tuple[WildcardReader, bytes], pauses: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        client, topic_filter = key
        subscription = client.subscriptions.get(topic_filter)
        if subscription is None or client.closed:
            ended()
            return

        def found(names: list[bytes] | Refused) -> None:
            is_here = client.subscriptions.get(topic_filter) is subscription
            if isinstance(names, list) and names and is_here and not (client.closed or client.lingering_since_s):
                client.join_streams(topic_filter, names)
            ended()

        self._search(client, subscription, NOBODY, found, pauses)


def _nothing() -> None:
    """The client waits for the search."""


def _others(prefix: bytes) -> list[bytes]:
    """The streams with what a filter matches whose names do not begin so; they are read even before they are made."""
    return [name for name in (OTHER_STREAM, prefix.removesuffix(SEPARATOR)) if name] if prefix else []
