"""A user loses its rights to some streams with a reload: no request that was open or waited gives it any of them."""

from __future__ import annotations

from pathlib import Path

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.protocol import collecting as g
from tailrace.protocol import consuming as c
from tailrace.protocol import listing as l
from tailrace.protocol import messages as m
from tailrace.protocol.places import FROM_NEW
from tailrace.protocol.recalling import FEATURE as LAST
from tests.broker.connection.doors import ANN, TOKEN
from tests.broker.connection.mqtt.test_lost_rights import ALL, BOB, reload
from tests.broker.world import Peer, World, world

FEATURES = (c.FEATURE, g.FEATURE, l.FEATURE, m.TOPICS_FEATURE, LAST)
LINES = {
    "a stream": ["sub s new"],
    "a stream that is made later": ["sub later new wait"],
    "a pattern": ["sub s* new"],
    "a filter": ["sub # new"],
    "a get that waits": ["consume s c new", "get s c 60000"],
}
MESSAGES: dict[str, list[m.AnyMessage]] = {
    "a subscription": [m.Subscribe(1, b"s", FROM_NEW)],
    "a collection": [g.Collect(1, b"s*", FROM_NEW)],
    "a get": [c.Consume(1, "create", b"s", b"d", FROM_NEW), c.Get(2, b"s", b"d", b"m", max_messages=5, wait_ms=60_000)],
    "a list": [l.List(1, what="grown", wait_ms=1_000)],
    "a handle": [m.Open(1, b"s")],
}


def line(node: World, user: str, *lines: str) -> Peer:
    peer = node.connect()
    answers = node.ask(peer, f"auth {user} {TOKEN}", *lines)
    assert all(answer.startswith("ok ") for answer in answers), answers
    return peer


def binary(node: World, *messages: m.AnyMessage) -> Peer:
    peer = node.connect()
    hello = m.Hello(1, FEATURES, "test", mechanism=m.BEARER, user="ann", login=TOKEN.encode())
    peer.send_raw(b"".join(map(m.pack, (hello, *messages))))
    node.settle()
    return peer


def test_nothing_more_comes_of_a_stream_that_is_denied(tmp_path: Path) -> None:
    with world(tmp_path, users=(ANN, BOB), rules=(ALL,)) as node:
        line(node, "bob", "pub s |old", "pub s2 |old", "pub t |old").close()
        peers = {what: line(node, "ann", *lines) for what, lines in LINES.items()}
        peers |= {what: binary(node, *messages) for what, messages in MESSAGES.items()}
        reload(node, rules=(AccessRule(False, ("ann",), frozenset(Right), ("s*", "later")), ALL))
        line(node, "bob", *(f"pub {name} |secret" for name in ("s", "s2", "s3", "later")))
        for worker in node.workers:
            worker._seldom()
        node.settle()
        for what, peer in peers.items():
            assert b"usage" not in peer.received and b"protocol" not in peer.received, "it is right but for the right"
            assert b"secret" not in peer.received and b"s3" not in peer.received, what
            assert not peer.ended, "it may go on with other streams"
