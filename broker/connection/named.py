"""What a name to be read stands for: a stream, a topic in one, or what a filter matches in one stream or in several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from tailrace.broker.access.rules import Right
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import TopicRules, is_filter
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.names import is_pattern, matcher, prefix_of, shown

SEPARATES: Final = b"\0"
"""A filter and a stream, in the key of a subscription: no name has this byte."""


class NamedReading(NamedTuple):
    """A stream, and the filter for its topics, empty for all messages. Without a stream: all that `topics` selects."""

    stream: bytes
    topics: bytes


def reading_of(client: ClientConnection, name: bytes, topics: bytes) -> NamedReading | Refused:
    """What a request to read `name`, perhaps with a filter of its own, stands for, or why it is refused."""
    rules = client.services.topic_rules
    placed = rules.place(name)
    if topics and is_filter(name):
        text = f"{shown(name)} is a filter itself: give a stream and the filter, or one of them"
        return Refused(Code.USAGE, text)
    if topics:  # the name is that of a stream then, such as one from before the rules
        stream = name
    elif is_pattern(name):
        return NamedReading(b"", name)
    elif is_filter(name):
        found, topics = rules.streams_of(name), name
        if found is None:
            return NamedReading(b"", name)
        stream = found
    else:
        stream, topics = placed
    if not topics:
        return NamedReading(stream, b"") if client.is_free or client.may(Right.SUBSCRIBE, stream) else _denied(client)
    topics = client.readable_topics(stream, topics)
    return NamedReading(stream, topics) if topics else _denied(client)


def subscribe_by_name(client: ClientConnection, message: m.Subscribe, *, has_topics: bool) -> m.Subscribe | Refused:
    """A SUBSCRIBE of the stream that its name stands for.

    `has_topics`: whether the client can expect that seqs have holes.
    """
    name = message.stream
    if is_pattern(name) or (message.exact and not message.topics):  # means a stream of this name here
        return message if client.may(Right.SUBSCRIBE, name) else _denied(client)
    found = reading_of(client, name, message.topics)
    if isinstance(found, Refused):
        return found
    if not found.stream:
        text = "this filter may be for several streams: name them by a pattern, and give the filter as topics"
        return Refused(Code.UNSUPPORTED, text)
    if found.topics and not has_topics:
        return Refused(Code.UNSUPPORTED, "this name is that of a topic: ask for the feature topics in HELLO")
    return replace(message, stream=found.stream, topics=found.topics)


def consumed_by_name(client: ClientConnection, name: bytes, topics: bytes = b"") -> NamedReading | Refused:
    """The stream of durable consumers that a name stands for, and the filter of one that is made by it: that of a name
    that is a topic or a filter, if the request has none of its own.

    Refused for a name that stands for several streams, and without the right to consume.
    """
    rules, stream = client.services.topic_rules, name
    if is_filter(name) and topics:
        return Refused(Code.USAGE, f"{shown(name)} is a filter itself: give a stream and the filter, or one of them")
    if is_filter(name):
        found = rules.streams_of(name)
        if found is None:
            text = "this filter may be for several streams, and a consumer is of one: name it, and give the filter"
            return Refused(Code.UNSUPPORTED, f"{text} as its topics")
        stream, topics = found, name
    elif not topics:
        stream, topics = rules.place(name)
    return NamedReading(stream, topics) if client.may(Right.CONSUME, stream) else client.denial(Right.CONSUME)


def _denied(client: ClientConnection) -> Refused:
    return client.denial(Right.SUBSCRIBE)


def _may_hold(rules: TopicRules, topic_filter: bytes, stream: bytes) -> bool:
    return rules.may_hold(stream, topic_filter)


class StreamSelection:
    """The streams that a pattern of names or a topic filter selects. `prefix`: how their names begin."""

    def __init__(self, rules: TopicRules, pattern: bytes) -> None:
        self._pattern = pattern
        self._has_topics = not is_pattern(pattern)
        self.selects: Callable[[bytes], bool]
        if self._has_topics:
            self.prefix = rules.search_prefix(pattern)
            self.selects = partial(_may_hold, rules, pattern)
        else:
            self.prefix, self.selects = prefix_of(pattern), matcher(pattern)

    def key(self, stream: bytes) -> bytes:
        """What a connection knows its subscription of one of these streams by."""
        return self._pattern + SEPARATES + stream if self._has_topics else stream

    def topics(self, client: ClientConnection, stream: bytes) -> bytes | None:
        """The filter for what a connection may read of a stream; None if it may not read it."""
        if self._has_topics:
            return client.readable_topics(stream, self._pattern) or None
        return b"" if client.may(Right.SUBSCRIBE, stream) else None
