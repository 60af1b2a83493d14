"""Which streams a worker watches at each upstream."""

from __future__ import annotations

import pytest

from tailrace.broker.replication.roles.peers import NodeAddresses
from tailrace.broker.replication.roles.rules import Rule
from tailrace.broker.replication.upstream.prefix_watch import ALONE_MAX, PrefixWatches
from tailrace.shard.meta import Upstream

A, B = (("a", 1),), (("b", 2), ("a", 1))


def rule(pattern: bytes, where: NodeAddresses | None) -> Rule:
    return Rule(pattern, None) if where is None else Rule(pattern, Upstream(*where[0]), where[1:])


@pytest.fixture
def watched() -> PrefixWatches:
    watched = PrefixWatches()
    watched.obey([rule(b"log.*", A), rule(b"one", A), rule(b"own", None), rule(b"*", B)])
    assert watched.stale == {A, B} == set(watched.ruled())
    watched.stale.clear()
    return watched


def test_rules_are_watched_by_prefix(watched: PrefixWatches) -> None:
    assert (watched.prefixes(A), watched.prefixes(B)) == ({b"log.", b"one"}, {b""})
    watched.obey([rule(b"log.*", B)])
    assert watched.stale == {A, B}
    assert (watched.prefixes(A), watched.prefixes(B)) == (set(), {b"log."})


def test_a_stream_that_follows_alone_is_watched_by_name(watched: PrefixWatches) -> None:
    watched.join(b"s", A)
    assert watched.stale == {A} and watched.prefixes(A) == {b"log.", b"one", b"s"}
    watched.stale.clear()
    watched.leave(b"s", B)
    assert not watched.stale
    watched.leave(b"s", A)
    assert watched.stale == {A} and watched.prefixes(A) == {b"log.", b"one"}


@pytest.mark.parametrize(("name", "where"), [(b"log.a", A), (b"one", A), (b"s", B), (b"$cursor/s", A), (b"s/$dead", A)])
def test_what_is_heard_of_anyhow_changes_nothing(watched: PrefixWatches, name: bytes, where: NodeAddresses) -> None:
    watched.join(name, where)
    watched.leave(name, where)
    assert not watched.stale


def test_of_many_that_follow_alone_all_names_are_heard(watched: PrefixWatches) -> None:
    names = [b"s%d" % number for number in range(ALONE_MAX + 1)]
    for name in names[1:]:
        watched.join(name, A)
    assert watched.prefixes(A) == {b"log.", b"one", *names[1:]}
    watched.join(names[0], A)
    assert watched.prefixes(A) == {b"log.", b"one", b""}
    watched.leave(names[0], A)
    assert watched.prefixes(A) == {b"log.", b"one", *names[1:]}


def test_other_rules_make_other_streams_follow_alone(watched: PrefixWatches) -> None:
    watched.join(b"log.a", A)
    watched.obey([])
    watched.join(b"log.a", A)
    assert watched.prefixes(A) == {b"log.a"}
    watched.obey([rule(b"log.*", A)])
    watched.join(b"log.a", A)
    assert watched.prefixes(A) == {b"log."}
