"""The lease of a node, and its in-sync replicas, in shared memory."""

from __future__ import annotations

import pytest

from tailrace.broker.process.lease import NODES_BYTES_MAX, Lease, LeasePage, boottime_ns
from tailrace.broker.process.scoreboard import Board
from tailrace.protocol.names import GROUPS_MAX, StreamGroup
from tailrace.shard.names import group_key

HOUR_NS = 3_600 * 10**9


def make() -> tuple[LeasePage, Lease]:
    page = Board(2).lease
    return page, Lease(page, "me")


def test_a_node_in_no_cluster_needs_no_lease() -> None:
    _page, lease = make()
    assert not lease.is_needed and not lease.is_over(0) and lease.others(0) is None


def test_a_fenced_node_needs_one() -> None:
    page, lease = make()
    page.fence()
    assert lease.is_needed and lease.is_over(0)
    assert lease.others(0) == frozenset()


def test_a_lease_ends_by_the_clock() -> None:
    page, lease = make()
    assert page.grant(3, boottime_ns() + HOUR_NS)
    assert not lease.is_over(0) and lease.term(0) == 3
    assert page.grant(3, boottime_ns())
    assert lease.is_over(0)
    assert page.grant(4, 0)
    assert lease.is_over(0), "0 ends it, and does not take the node out of the cluster"


def test_a_lease_of_an_earlier_term_is_not_taken() -> None:
    page, lease = make()
    page.grant(4, 0)
    assert not page.grant(3, boottime_ns() + HOUR_NS)
    assert lease.is_over(0) and lease.term(0) == 4


def test_in_sync_replicas_are_those_last_given() -> None:
    page, lease = make()
    page.fence()
    page.set_isr(("me", "b", "c"))
    version = lease.version
    assert lease.others(0) == frozenset("bc")
    page.set_isr(("me", "b"))
    assert lease.version != version and lease.others(0) == frozenset("b")


def test_a_list_that_was_not_written_to_its_end_is_none() -> None:
    page, lease = make()
    page.fence()
    page.set_isr(("me", "b"))
    page.cells[512] |= 1
    assert lease.others(0) == frozenset()
    page.set_isr(("me", "c"))
    assert lease.others(0) == frozenset("c"), "the next writer goes on"


def test_too_many_ids_are_refused() -> None:
    page, _lease = make()
    with pytest.raises(ValueError, match="at most"):
        page.set_isr(("a" * NODES_BYTES_MAX, "b"))


def test_a_promise_is_for_the_leader_of_the_term_that_is_followed() -> None:
    page, _lease = make()
    assert not page.promise(1, HOUR_NS), "a node in no cluster"
    page.fence()
    assert not page.promise(3, HOUR_NS), "it does not follow in this term"
    assert page.grant(3, 0)
    assert not page.promise(2, HOUR_NS) and not page.promise(4, HOUR_NS)
    assert page.promise(3, HOUR_NS) and page.promised_ns() > boottime_ns()
    assert page.promise(3, 1) and page.promised_ns() > boottime_ns() + 1, "the longest counts"
    assert page.grant(3, boottime_ns() + HOUR_NS)
    assert not page.promise(3, HOUR_NS), "it leads itself"


def test_a_node_that_has_promised_takes_no_lease_of_a_later_term() -> None:
    page, lease = make()
    page.grant(3, 0)
    assert page.promise(3, HOUR_NS)
    assert not page.grant(4, boottime_ns() + HOUR_NS)
    assert lease.term(0) == 3 and lease.is_over(0)
    assert page.grant(4, 0), "it may follow in it"
    page.cells[512 + 4] = boottime_ns()
    assert page.grant(5, boottime_ns() + HOUR_NS) and not lease.is_over(0)


def test_each_group_has_its_own_lease_and_nodes() -> None:
    page, lease = make()
    three, last = StreamGroup(3, GROUPS_MAX), StreamGroup(GROUPS_MAX - 1, GROUPS_MAX)
    assert page.grant(7, boottime_ns() + HOUR_NS, three) and page.set_isr(("me", "b"), three)
    assert page.grant(2, 0, last) and page.set_isr(("me", "c"), last)
    assert page.promise(2, HOUR_NS, last) and not page.promise(7, HOUR_NS, three)
    assert [lease.is_over(key) for key in (3, 3 + GROUPS_MAX, GROUPS_MAX - 1, 4)] == [False, False, True, True]
    assert [lease.term(key) for key in (3, GROUPS_MAX - 1, 4)] == [7, 2, 0]
    assert [lease.others(key) for key in (3, GROUPS_MAX - 1, 4)] == [frozenset("b"), frozenset("c"), frozenset()]
    assert page.promised_ns(GROUPS_MAX - 1) > boottime_ns() and page.promised_ns(3) == 0


def test_the_number_of_groups_is_that_of_the_first_command() -> None:
    page, lease = make()
    page.fence()
    assert lease.is_over(5) and not page.promise(0, HOUR_NS, StreamGroup(5, 16))
    assert page.set_isr(("me",), StreamGroup(5, 16))
    assert not page.grant(1, HOUR_NS) and not page.grant(1, HOUR_NS, StreamGroup(5, 8))
    assert not page.set_isr(("me",)) and page.groups == 16
    assert page.grant(1, boottime_ns() + HOUR_NS, StreamGroup(5, 16)) and not lease.is_over(5)


def test_companions_are_of_the_group_of_their_stream() -> None:
    assert (
        group_key(b"a") == group_key(b"$cursor/a") == group_key(b"a/$dead") == group_key(b"$last/a") != group_key(b"b")
    )
