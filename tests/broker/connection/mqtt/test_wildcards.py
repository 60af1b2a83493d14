"""Filters with wildcards over streams, those that are made later included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.connection import patterns
from tailrace.broker.topics.rules import TopicRule
from tests.broker.mqtt import MqttPeer
from tests.broker.topics.naive import matches
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5

AN_HOUR = b"\x11\0\0\x0e\x10"  # Session Expiry Interval
FIRST_LEVEL = (TopicRule("#", "{1}"),)
OLD = ["a", "a/b", "a/b/c", "x/b", "/b", "x", "a b/c"]
NEW = ["a/new", "new/b", "new", "x/b", "a"]
FILTERS = ["#", "+", "+/b", "a/#", "a/+", "/#", "+/+/c", "x/b", "a b/#"]


def tick(node: World) -> None:
    for worker in node.workers:
        worker.mqtt.wildcards.tick()
    node.settle()


def publish(node: World, topics: list[str]) -> None:
    writer = MqttPeer(node, V5, "writer", 1)
    writer.ask(*(wire.publish(V5, topic, topic.encode(), 1, n + 1) for n, topic in enumerate(topics)))
    writer.ask(wire.DISCONNECT)


@pytest.mark.few(6)
@pytest.mark.parametrize("rules", [(), FIRST_LEVEL], ids=["streams", "topics"])
@pytest.mark.parametrize("topic_filter", FILTERS)
def test_a_filter_matches_in_all_streams(tmp_path: Path, topic_filter: str, rules: tuple[TopicRule, ...]) -> None:
    with world(tmp_path, 2, affinity=False, topics=rules) as node:
        publish(node, OLD)
        peer = MqttPeer(node)
        assert peer.subscribe((topic_filter, 1)) == [1]
        tick(node)
        publish(node, OLD + NEW)
        tick(node)
        publish(node, NEW)
        tick(node)
        expected = [topic for topic in OLD + NEW + NEW if matches(topic_filter, topic)]
        assert sorted(each.decode() for each in peer.payloads()) == sorted(expected)


def test_a_client_waits_for_no_pause_of_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NAMES_MAX", 2), ("PAGES_AT_ONCE", 2), ("PAUSE_S", 1e9)):
        monkeypatch.setattr(patterns, name, value)
    with world(tmp_path) as node:
        for n in range(20):
            node.workers[0].owner.create(b"a/%d" % n)
        assert MqttPeer(node).subscribe(("a/+/b", 1)) == [1]


def test_a_stream_in_which_nothing_can_match_is_not_read(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.fill("a/b", [b"x"])
        node.fill("a/b/c", [b"x"])
        peer = MqttPeer(node)
        peer.subscribe(("+/b", 0))
        assert {cursor.feed.name for cursor in peer.client.cursors.values()} == {b"a/b"}


def test_many_clients_search_one_after_the_other(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peers = [MqttPeer(node, opened=False) for n in range(300)]
        for number, peer in enumerate(peers):
            peer.send(wire.connect(V5, f"c{number}"), wire.subscribe(V5, 1, ("#", 0)))
        peers[0].take()
        for peer in peers:
            peer.collect()
            assert [(answer.kind, answer.body[3:]) for answer in peer.answers[1:]] == [(9, b"\0")]
        publish_to = MqttPeer(node, client_id="writer")
        publish_to.ask(wire.publish(V5, "s", b"x", 1))
        tick(node)
        for peer in peers:
            peer.collect()
        assert all([each.payload for each in peer.got] == [b"x"] for peer in peers)


def test_streams_made_later_may_be_more_than_a_connection_reads_at_a_time(tmp_path: Path) -> None:
    """Only a durable session cannot go on."""
    with world(tmp_path, max_subscriptions=3) as node:
        peer, durable = MqttPeer(node), MqttPeer(node, client_id="durable", raw=AN_HOUR)
        for each in (peer, durable):
            each.subscribe(("#", 1))
        writer = MqttPeer(node, client_id="writer")
        for times in range(2):
            writer.ask(*(wire.publish(V5, f"s{n}", b"%d" % times, 1, n + 1) for n in range(9)))
            tick(node)
            node.settle()
        peer.collect()
        assert sorted((each.topic, each.payload) for each in peer.got) == sorted(
            (f"s{n}", b"%d" % times) for n in range(9) for times in range(2)
        )
        assert len(peer.client.cursors) <= 3
        assert wire.reason(durable.take()[-1]) == 0x97 and durable.ended


def test_a_stream_that_two_searches_find_is_read_once(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node)
        peer.subscribe(("#", 0))
        node.fill("s", [b"x"])
        for _ in range(2):
            peer.client.join_streams(b"#", [b"s"])
        assert peer.payloads() == [b"x"] and len(peer.client.cursors) == 1


def test_without_such_filters_nothing_is_searched(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node)
        peer.subscribe(("#", 0))
        wildcards = node.workers[0].mqtt.wildcards
        assert wildcards._clients
        peer.ask(wire.unsubscribe(V5, 1, "#"))
        assert not wildcards._clients
        peer.subscribe(("+", 0))
        peer.peer.close()
        node.settle()
        assert not wildcards._clients
