"""What a connection may read and publish by the names of topics, which lie in streams that it may have no right to."""

from __future__ import annotations

from tailrace.broker.access.identity import Identity
from tailrace.broker.access.policy import AccessPolicy
from tailrace.broker.access.rules import Right
from tailrace.broker.topics.rules import Placed, TopicRules, literal_prefix
from tailrace.protocol.topics import ANY_LEVELS, SEPARATOR, has_wildcards

_REST = b"+/#"


def may_publish(access: AccessPolicy, identity: Identity, placed: Placed) -> bool:
    """Whether a connection may publish to a name. A right to a stream is a right to all of its topics."""
    by_name = placed.topic and access.may(identity, Right.PUBLISH, placed.topic)
    return bool(by_name) or access.may(identity, Right.PUBLISH, placed.stream)


def readable(access: AccessPolicy, rules: TopicRules, identity: Identity, stream: bytes, topic_filter: bytes) -> bytes:
    """The filter for what a connection may read of a stream by this filter; b"" if it may not.

    Without the right to the stream it needs the right to every name that the filter matches. `a/#` also matches `a`,
    which a right to `a/*` does not include: it becomes `a/+/#` then.
    """
    if access.may(identity, Right.SUBSCRIBE, stream):
        return topic_filter
    if not rules or not rules.may_hold(stream, topic_filter):
        return b""
    if not has_wildcards(topic_filter):
        return topic_filter if access.may(identity, Right.SUBSCRIBE, topic_filter) else b""
    prefix = literal_prefix(topic_filter)
    if not access.may_all(identity, Right.SUBSCRIBE, prefix):
        return b""
    if topic_filter == prefix + ANY_LEVELS and prefix:
        is_with_parent = access.may(identity, Right.SUBSCRIBE, prefix.removesuffix(SEPARATOR))
        return topic_filter if is_with_parent else prefix + _REST
    return topic_filter


def may_read_all(access: AccessPolicy, rules: TopicRules, identity: Identity, topic_filter: bytes) -> bool:
    """Whether a connection has the right to all that a filter matches, by the names or by the streams of these."""
    streams = rules.known_streams_of(topic_filter)
    if streams is not None:
        return all(readable(access, rules, identity, each, topic_filter) == topic_filter for each in streams)
    prefix = literal_prefix(topic_filter)
    has_parent = topic_filter == prefix + ANY_LEVELS and prefix
    if has_parent and not access.may(identity, Right.SUBSCRIBE, prefix.removesuffix(SEPARATOR)):
        return False
    return access.may_all(identity, Right.SUBSCRIBE, prefix)
