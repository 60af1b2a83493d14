"""Rules: order, users and groups, patterns with `{user}`, prefixes."""

from __future__ import annotations

import pytest

from tailrace.broker.access.identity import LOCAL, Identity, Proof
from tailrace.broker.access.rules import AccessRule, Right, decide, decide_prefix

ANN = Identity("ann", frozenset({"sensors"}), Proof.SCRAM)
BOB = Identity("bob", frozenset(), Proof.BEARER)
ODD = Identity("a*b", frozenset(), Proof.BEARER)


def rule(allow: bool, who: str, rights: str, streams: str = "*") -> AccessRule:
    wanted = frozenset(Right(each) for each in rights.split())
    return AccessRule(allow, tuple(who.split()), wanted, tuple(streams.split()))


def test_the_first_rule_that_fits_decides_and_none_means_no() -> None:
    rules = [
        rule(False, "*", "publish", "secret/*"),
        rule(True, "@sensors", "publish create", "*"),
        rule(False, "ann", "publish", "late"),
        rule(True, "anonymous", "subscribe", "news"),
    ]
    assert decide(rules, ANN, Right.PUBLISH, "late") and not decide(rules, ANN, Right.PUBLISH, "secret/x")
    assert not decide(rules, BOB, Right.PUBLISH, "web") and not decide(rules, ANN, Right.SUBSCRIBE, "news")
    assert decide(rules, LOCAL, Right.SUBSCRIBE, "news") and not decide(rules, LOCAL, Right.PUBLISH, "news")


@pytest.mark.parametrize(
    ("pattern", "who", "name", "fits"),
    [
        ("in/{user}/*", ANN, "in/ann/1", True),
        ("in/{user}/*", ANN, "in/bob/1", False),
        ("in/{user}", ODD, "in/a*b", True),
        ("in/{user}", ODD, "in/axb", False),  # special characters of a name are literal in the pattern
        ("[ab]?", ANN, "a1", True),
        ("[ab]?", ANN, "A1", False),
        ("*", ANN, "", True),  # what concerns no stream
        ("web*", ANN, "", False),
    ],
)
def test_patterns(pattern: str, who: Identity, name: str, fits: bool) -> None:
    assert decide([rule(True, "*", "publish", pattern)], who, Right.PUBLISH, name) is fits


@pytest.mark.parametrize(
    ("rules", "prefix", "holds"),
    [
        ([rule(True, "*", "admin", "web-*")], "web-a", True),
        ([rule(True, "*", "admin", "web-*")], "we", False),
        ([rule(True, "*", "admin", "web-?")], "web-", False),
        ([rule(True, "*", "admin", "{user}/*")], "ann/", True),
        ([rule(False, "*", "admin", "web-secret*"), rule(True, "*", "admin")], "web-", False),
        ([rule(False, "*", "admin", "web-secret*"), rule(True, "*", "admin")], "web-secret-1", False),
        ([rule(False, "*", "admin", "web-secret*"), rule(True, "*", "admin")], "log", True),
        ([rule(False, "bob", "admin", "*"), rule(True, "*", "admin")], "", True),
        ([], "", False),
    ],
)
def test_a_prefix_is_allowed_only_as_a_whole(rules: list[AccessRule], prefix: str, holds: bool) -> None:
    assert decide_prefix(rules, ANN, Right.ADMIN, prefix) is holds
