"""The decision `may`, with and without users."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.broker.access.identity import LOCAL, REMOTE, Identity, Proof, unix_peer
from tailrace.broker.access.policy import AccessPolicy, policy_of
from tailrace.broker.access.renewal import PolicyTerms
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.process.settings import Settings
from tailrace.protocol.scram import ScramVerifier

SCRAM = ScramVerifier(4096, b"salt", b"stored-key", b"server-key")
ANN = User("ann", frozenset({"ops"}), SCRAM)
ALL = frozenset(Right)
DATA = frozenset({Right.PUBLISH, Right.SUBSCRIBE, Right.CONSUME, Right.CREATE})


def rights(policy: AccessPolicy, identity: Identity, stream: bytes = b"s") -> frozenset[Right]:
    return frozenset(right for right in Right if policy.may(identity, right, stream))


def test_without_users_this_machine_may_everything_and_others_what_is_not_administration() -> None:
    policy = AccessPolicy()
    assert rights(policy, LOCAL) == ALL and rights(policy, REMOTE) == DATA
    assert policy.is_free(LOCAL) and policy.is_free(REMOTE) and not policy.has_users


def test_a_token_keeps_others_out_until_they_show_it() -> None:
    policy = AccessPolicy(None, PolicyTerms(token="secret"))
    assert rights(policy, LOCAL) == ALL and rights(policy, REMOTE) == frozenset() and not policy.is_free(REMOTE)
    assert policy.greeted(REMOTE, "wrong") is REMOTE is policy.greeted(REMOTE, None)
    shown = policy.greeted(REMOTE, "secret")
    assert shown.proof is Proof.TOKEN and rights(policy, shown) == DATA


@pytest.mark.parametrize(("host", "token", "is_node"), [("10.0.0.2", None, True), ("10.0.0.3", None, False)])
def test_nodes_are_known_by_their_address(host: str, token: str | None, is_node: bool) -> None:
    policy = AccessPolicy(None, PolicyTerms(peers=("10.0.0.2:5050",)))
    identity = policy.greeted_by_node(REMOTE, host, token)
    assert policy.is_node(identity) is is_node is (Right.NODE in rights(policy, identity))
    assert Right.ADMIN not in rights(policy, identity)


def test_nodes_are_known_by_their_token() -> None:
    policy = AccessPolicy(None, PolicyTerms(replication_token="among nodes"))
    assert policy.greeted_by_node(REMOTE, "10.0.0.2", "among nodes").proof is Proof.PEER_TOKEN
    assert policy.greeted_by_node(REMOTE, "10.0.0.2", "wrong") is REMOTE
    assert not AccessPolicy().is_node(AccessPolicy().greeted_by_node(REMOTE, "10.0.0.2", ""))


def test_with_users_only_the_rules_count() -> None:
    rule = AccessRule(True, ("@ops",), frozenset({Right.PUBLISH, Right.NODE}), ("web*",))
    policy = AccessPolicy([ANN], PolicyTerms((rule,), "secret", "among nodes", ("127.0.0.1",)))
    known = policy.logged_in(LOCAL, "ann", Proof.SCRAM, b"stored-k")
    assert rights(policy, LOCAL, b"web") == frozenset() and not policy.admits(LOCAL)
    assert policy.greeted(REMOTE, "secret") is REMOTE
    assert policy.greeted_by_node(REMOTE, "127.0.0.1", "among nodes") is REMOTE
    assert rights(policy, known, b"web") == {Right.PUBLISH, Right.NODE} and rights(policy, known, b"s") == frozenset()
    assert policy.is_node(known) and policy.admits(known) and not policy.is_free(known)
    assert policy.may_all(known, Right.PUBLISH, b"web-") and not policy.may_all(known, Right.PUBLISH, b"w")


def test_a_secret_that_the_wire_shows_makes_nobody_a_node() -> None:
    policy = AccessPolicy([ANN], PolicyTerms((AccessRule(True, ("*",), ALL, ("*",)),)))
    known = policy.logged_in(REMOTE, "ann", Proof.BEARER, b"stored-k")
    assert rights(policy, known) == ALL - {Right.NODE}
    assert not policy.is_node(known) and not policy.may_all(known, Right.NODE, b"")


def test_companions_follow_their_stream() -> None:
    policy = AccessPolicy([ANN], PolicyTerms((AccessRule(True, ("ann",), ALL, ("web",)),)))
    known = policy.logged_in(REMOTE, "ann", Proof.SCRAM, b"stored-k")
    for name in (b"web", b"$cursor/web", b"web/$dead"):
        assert policy.may(known, Right.SUBSCRIBE, name)
    assert not policy.may(known, Right.SUBSCRIBE, b"$cursor/log")


@pytest.mark.parametrize("prefix", [b"$", b"$cursor/", b"$cursor/web", b"$cursor/web-a", b"$cursor/$cursor/w"])
def test_the_prefix_of_companions_is_that_of_their_streams(prefix: bytes) -> None:
    rules = AccessRule(False, ("*",), ALL, ("web*",)), AccessRule(True, ("ann",), ALL, ("*",))
    policy = AccessPolicy([ANN], PolicyTerms(rules))
    known = policy.logged_in(REMOTE, "ann", Proof.SCRAM, b"stored-k")
    assert not policy.may_all(known, Right.ADMIN, prefix)
    assert policy.may_all(known, Right.ADMIN, b"$cursor/log")


def test_what_concerns_no_stream_needs_the_right_to_all() -> None:
    """A command such as `shutdown`, or a promise for all streams, is more than what is denied of one."""
    every, secret = (AccessRule(allow, ("ann",), ALL, (streams,)) for allow, streams in ((True, "*"), (False, "x/*")))
    for rules, may in (((every,), True), ((secret, every), False), ((replace(every, streams=("a*", "?*")),), False)):
        policy = AccessPolicy([ANN], PolicyTerms(rules))
        known = policy.logged_in(REMOTE, "ann", Proof.SCRAM, b"stored-k")
        assert [policy.may(known, right, b"") for right in (Right.ADMIN, Right.NODE)] == [may, may]
        assert policy.may(known, Right.ADMIN, b"a") and policy.may(known, Right.NODE, b"a")


def test_anonymous_connections_have_what_the_rules_say() -> None:
    news = AccessRule(True, ("anonymous",), frozenset({Right.SUBSCRIBE}), ("news",))
    policy = AccessPolicy([ANN], PolicyTerms((news,), allow_anonymous=True))
    assert policy.admits(REMOTE) and rights(policy, REMOTE, b"news") == {Right.SUBSCRIBE}


@pytest.mark.parametrize("users", [None, [ANN]])
def test_the_unix_socket_is_for_administration(users: list[User] | None) -> None:
    policy = AccessPolicy(users)
    assert policy.may(unix_peer(0), Right.ADMIN, b"") and policy.may_all(unix_peer(0), Right.ADMIN, b"")
    assert policy.admits(unix_peer(0))
    assert not users or rights(policy, unix_peer(0)) == {Right.ADMIN}


def test_another_worker_knows_who_a_connection_is_and_whether_that_still_counts() -> None:
    policy = AccessPolicy([ANN])
    known = policy.logged_in(LOCAL, "ann", Proof.SCRAM, b"stored-k")
    assert policy.restore(known.export_state()) == known
    assert policy.restore(LOCAL.export_state()) is LOCAL and policy.restore(REMOTE.export_state()) is REMOTE
    assert policy.restore(unix_peer(7).export_state()) == unix_peer(7)
    changed = User("ann", frozenset(), ScramVerifier(4096, b"salt", b"another-key", b"k"))
    for other in (AccessPolicy([changed]), AccessPolicy([]), AccessPolicy()):
        assert other.restore(known.export_state()) is None
    moved = User("ann", frozenset({"dev"}), SCRAM)
    restored = AccessPolicy([moved]).restore(known.export_state())
    assert restored is not None and restored.groups == {"dev"}


def test_it_is_made_from_the_settings() -> None:
    policy = policy_of(Settings(users=(ANN,), token="t", allow_anonymous=True))
    assert policy.has_users and policy.admits(REMOTE) and policy.users == {"ann": ANN}


def test_a_user_without_a_connection_has_the_rights_of_its_groups() -> None:
    policy = AccessPolicy([ANN], PolicyTerms((AccessRule(True, ("@ops",), frozenset({Right.PUBLISH}), ("*",)),)))
    known = policy.named("ann")
    assert known is not None and known.groups == {"ops"} and rights(policy, known) == {Right.PUBLISH}
