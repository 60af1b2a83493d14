"""Which peers may act as nodes, and to which addresses a claim may lead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.access.renewal import change_between
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.connection import login
from tailrace.broker.process import drain
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.messages import Op
from tailrace.protocol.scram import MECHANISM, ScramClient
from tailrace.shard.epochs import EpochStart
from tests.broker.binary import BinaryPeer
from tests.broker.connection.doors import PASSWORD, VERIFIER
from tests.broker.replication.downstream.test_session import B, C, copy, followed, new, refused
from tests.broker.world import World, world

PEER_SETTINGS: dict[str, Any] = {
    "replication_peers": ("192.0.2.0/24", "10.0.0.9:5050"),
    "replication_token": "among us",
    "token": "ours",
}


def stranger(node: World, host: str, address: str = ":5050", peer_token: str | None = None) -> BinaryPeer:
    """A node at this address, which shows the clients' token."""
    peer = BinaryPeer(node, local=host == "127.0.0.1", hello=False)
    node.connection_of(peer.peer).peer = f"{host}:40000"
    peer.codec = ClientCodec(features=frozenset({r.FEATURE}))
    (welcome,) = peer.ask(m.Hello(1, (r.FEATURE,), "test", "ours", B, address, peer_token))
    assert isinstance(welcome, m.Welcome)
    return peer


def claim(name: str) -> r.Claim:
    return r.Claim(3, name.encode(), (EpochStart(1, 0, B), EpochStart(9, 0, B)))


@pytest.mark.parametrize(("host", "peer_token"), [("203.0.113.1", "ours"), ("203.0.113.1", ""), ("10.0.0.8", "among")])
def test_a_wrong_token_is_a_failed_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, peer_token: str
) -> None:
    monkeypatch.setattr(login, "FAILED_S", 0.01)
    with world(tmp_path, **PEER_SETTINGS) as node:
        peer = BinaryPeer(node, local=False, hello=False)
        node.connection_of(peer.peer).peer = f"{host}:40000"
        hello = m.Hello(1, (r.FEATURE,), "test", "ours", B, ":5050", peer_token)
        peer.peer.send_raw(m.pack(hello) + m.pack(claim("s")))
        node.settle()
        (ended,) = peer.take()
        assert isinstance(ended, m.Failed) and (ended.code, ended.fatal) == ("denied", True)
        assert node.workers[0].metrics.login_failures.counts == {"secret": 1}


@pytest.mark.parametrize("host", ["203.0.113.1", "10.0.0.8"])
def test_a_stranger_does_nothing_that_nodes_do(tmp_path: Path, host: str) -> None:
    with world(tmp_path, **PEER_SETTINGS, max_handles=1) as node:
        node.fill("s", [b"a"])
        peer = stranger(node, host)
        assert isinstance(peer.ask(m.Open(1, b"s"))[0], m.Opened)
        assert refused(peer.ask(m.Open(2, b"t"))) == ("handles", Op.OPEN, 2), (
            "who says that it is a node has its bounds"
        )
        assert refused(peer.ask(copy(node, 1, "s", 1))) == ("denied", Op.FOLLOW, 1)
        assert refused(peer.ask(r.Watch(2, b""))) == ("denied", Op.WATCH, 2)
        assert refused(peer.ask(claim("s"))) == ("denied", Op.CLAIM, 3)
        (returned,) = peer.ask(r.Call(4, b"s", "get", msgpack.packb([])))
        assert isinstance(returned, r.Returned) and returned.code == "denied"
        assert isinstance(peer.ask(r.Ask(5))[0], r.Told), "that shows nothing but how things stand"
        (ended,) = peer.ask(r.Held(((0, "x", 1, 1),)))
        assert isinstance(ended, m.Failed) and (ended.code, ended.fatal) == ("denied", True)
        owner = node.workers[0].owner
        assert owner.roles.role(b"s") == "master" and owner.roles.epoch(b"s") == 1 and not owner.roles.was_followed


@pytest.mark.parametrize(
    ("host", "peer_token"), [("192.0.2.77", None), ("10.0.0.9", None), ("203.0.113.1", "among us"), ("127.0.0.1", None)]
)
def test_peers_are_known_by_address_or_by_token(tmp_path: Path, host: str, peer_token: str | None) -> None:
    with world(tmp_path, **PEER_SETTINGS) as node:
        node.fill("s", [b"a"])
        peer = stranger(node, host, peer_token=peer_token)
        assert followed(peer.ask(copy(node, 1, "s", 1))).state == "following"
        (claimed, *_) = peer.ask(claim("s"))
        assert isinstance(claimed, r.Claimed) and claimed.accepted


@pytest.mark.parametrize(
    ("host", "address", "peer_token", "accepted"),
    [
        ("192.0.2.77", "192.0.2.1:5050", None, True),
        ("192.0.2.77", "203.0.113.1:5050", None, False),
        ("192.0.2.77", "evil.example:5050", None, False),
        ("192.0.2.77", "127.0.0.1:5050", None, False),
        ("127.0.0.1", "127.0.0.2:5050", None, True),
        ("127.0.0.1", "203.0.113.1:5050", None, False),
        ("203.0.113.1", "evil.example:5050", "among us", True),
    ],
)
def test_a_claim_leads_to_no_stranger(
    tmp_path: Path, host: str, address: str, peer_token: str | None, accepted: bool
) -> None:
    with world(tmp_path, **PEER_SETTINGS) as node:
        node.fill("s", [b"a"])
        (answer, *_) = stranger(node, host, address, peer_token).ask(claim("s"))
        if accepted:
            assert isinstance(answer, r.Claimed) and answer.accepted
        else:
            assert refused([answer]) == ("denied", Op.CLAIM, 3)
            assert node.workers[0].owner.roles.role(b"s") == "master"


def as_node(node: World, user: str, node_id: str = B) -> BinaryPeer:
    """A node that has logged in with its password."""
    peer = BinaryPeer(node, hello=False)
    peer.codec = ClientCodec(features=frozenset({r.FEATURE}))
    scram = ScramClient(user, PASSWORD)
    base: dict[str, Any] = {"node": node_id, "address": ":5050", "mechanism": MECHANISM, "user": user}
    (challenge,) = peer.ask(m.Hello(1, (r.FEATURE,), "test", login=scram.first(), **base))
    assert isinstance(challenge, m.Challenge)
    (welcome,) = peer.ask(m.Prove(scram.answer(challenge.data)))
    assert isinstance(welcome, m.Welcome)
    return peer


def node_rule(who: str, *streams: str, allow: bool = True) -> AccessRule:
    return AccessRule(allow, (who,), frozenset({Right.NODE}), streams)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_node_sees_of_the_others_what_it_has_a_right_to(tmp_path: Path, workers: int) -> None:
    """The number of other streams and the nodes that have only those are hidden from it."""
    users = tuple(User(name, scram=VERIFIER) for name in ("part", "rest", "all"))
    rules = (node_rule("part", "a*"), node_rule("rest", "*"), node_rule("all", "*"))
    with world(tmp_path, workers, users=users, rules=rules, affinity=False) as node:
        for name in (b"a1", b"a2", b"b1", b"b2", b"b3"):
            node.workers[node.owner_of(name.decode())].owner.create(name)
        other = as_node(node, "rest", C)
        assert followed(other.ask(new(1, "b1"))).state == "following"

        def status(peer: BinaryPeer, stream: bytes | None = None) -> tuple[int, set[str]] | str:
            (answer,) = peer.ask(r.Ask(5, stream))
            if isinstance(answer, m.Failed):
                return answer.code
            assert isinstance(answer, r.Told)
            return answer.masters, {link.node for link in answer.links}

        part = as_node(node, "part")
        assert status(part) == (2, set())
        assert (status(part, b"a1"), status(part, b"b1")) == ((1, set()), "denied")
        assert followed(other.ask(new(2, "a1"))).state == "following"
        assert status(part) == (2, {C}), "it has a stream in common with that one"
        assert status(as_node(node, "all"))[0] == 5


@pytest.mark.parametrize("streams", [("a*",), ("b*",), ()])
def test_a_node_that_loses_the_right_to_a_stream_that_it_follows_is_left(tmp_path: Path, streams: tuple[str]) -> None:
    rules = (node_rule("part", "*"),)
    with world(tmp_path, users=(User("part", scram=VERIFIER),), rules=rules) as node:
        node.workers[0].owner.create(b"a1")
        part = as_node(node, "part")
        assert followed(part.ask(new(1, "a1"))).state == "following"
        fresh = replace(node.settings, rules=(node_rule("part", *streams),))
        change = change_between(node.settings, fresh)
        assert change is not None
        drain.renew_rights(node.workers[0].services, change)
        node.settle()
        assert part.peer.ended is (streams != ("a*",))
