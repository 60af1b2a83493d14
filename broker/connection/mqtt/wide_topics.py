"""MQTT's side of a filter over more streams than a connection may have cursors in: see `broker.delivery.wide`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tailrace.broker.connection.mqtt.wildcards import WildcardFilter
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.wide import WideClient, WideReader
from tailrace.broker.delivery.wide_history import WidePlace
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import TopicRules
from tailrace.protocol.errors import Code
from tailrace.protocol.places import From


class TopicClient(WideClient, Protocol):
    """The side of an MQTT connection that is used here."""

    @property
    def subscriptions(self) -> Mapping[bytes, WildcardFilter]: ...

    def readable_topics(self, stream: bytes, topic_filter: bytes) -> bytes: ...

    def end_with(self, code: Code, text: str) -> None: ...


class WideTopics(WideReader):
    def __init__(
        self,
        client: TopicClient,
        subscription: WildcardFilter,
        rules: TopicRules,
        join: Callable[[list[bytes], From, Callable[[Sequence[Cursor], Sequence[Refused]], None]], None],
        start: Callable[[Sequence[Cursor]], None],
        end_cursor: Callable[[Cursor], None],
    ) -> None:
        """`join`, `start`, `end_cursor`: as those of `TopicSubscriptions`, of this subscription."""
        super().__init__(client)
        self._rules = rules
        self._client = client
        self._subscription = subscription
        self._join = join
        self._start = start
        self._end_cursor = end_cursor

    @property
    def is_open(self) -> bool:
        return self._client.subscriptions.get(self._subscription.filter) is self._subscription

    def is_wanted(self, name: bytes) -> bool:
        subscription = self._subscription
        if name in subscription.keys or name in subscription.passed_over:
            return False
        is_held = self._rules.may_hold(name, subscription.topics)
        return is_held and bool(self._client.readable_topics(name, subscription.topics))

    def place(self, name: bytes, place: WidePlace, placed: Callable[[Cursor | None], None]) -> None:
        def joined(cursors: Sequence[Cursor], _failed: Sequence[Refused]) -> None:
            placed(cursors[0] if cursors else None)
            self._start(cursors)

        self._join([name], place.start, joined)

    def drop(self, cursor: Cursor) -> None:
        self._subscription.keys.pop(cursor.feed.name, None)
        self._end_cursor(cursor)

    def fail(self, code: Code, text: str) -> None:
        self._client.end_with(code, f"{self._subscription.filter.decode()}: {text}")

    def history_ended(self) -> None:
        """Its client is not told: it sees the messages."""
