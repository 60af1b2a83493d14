"""An owner's account of who holds its streams, and the publishes that wait for that."""

from __future__ import annotations

import pytest

from tailrace.broker.process.lease import OVER_NS, Lease, boottime_ns
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.replication.downstream import replica_acks
from tailrace.broker.replication.downstream.replicas import AWAITED_S, Replicas
from tailrace.broker.routing.batch import StreamBatch
from tailrace.protocol.errors import Code
from tailrace.protocol.names import StreamGroup
from tailrace.shard.names import group_key
from tests.broker.owning import Clock, Sink, batch

S, T, U, MEMORY = b"s", b"t", b"u", b"m"


class Account:
    """Replicas on a clock that the test moves; `changed` are the streams whose replicas changed."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.changed: list[bytes] = []
        self.awaited: list[bytes] = []
        self.names = [S]
        self.page = Board(1).lease
        self.lease = Lease(self.page, "me")
        self.replicas = Replicas(
            *(10.0, lambda _name: 3, self.changed.append, self.awaited.append, self.lease),
            *(lambda: self.names, lambda name: name != MEMORY, self.clock.seconds),
        )

    def line(self, name: bytes = S) -> int:
        return self.replicas.holders(name).line

    def held(self, node: str, next_seq: int, name: bytes = S, *, line: int | None = None, connection: int = 7) -> None:
        said = self.line(name) if line is None else line
        self.replicas.held(1, 2, [(name, said, connection, node, next_seq, next_seq)])

    def wait(self, first_seq: int, replicas: int, *payloads: bytes, name: bytes = S) -> Sink:
        sink = Sink()
        logged: StreamBatch = batch(name, *(payloads or (b"x",)), sink=sink)
        logged.replicas = replicas
        self.replicas.wait(logged, first_seq)
        return sink


def test_a_publish_is_answered_when_enough_nodes_hold_it() -> None:
    account = Account()
    first, second = account.wait(0, 1, b"a", b"b"), account.wait(2, 2)
    account.held("b", 1)
    assert not first.published_at, "of two messages one"
    account.held("b", 3)
    assert (first.published_at, second.published_at) == ({0: 0}, {})
    account.held("c", 3)
    assert second.published_at == {0: 2}
    assert account.changed == [S, S, S]


def test_reports_are_awaited_while_publishes_wait_for_them_and_for_some_time_after() -> None:
    account = Account()
    account.held("b", 1)
    assert not account.replicas.is_awaited(S)
    account.wait(0, 1)
    account.wait(1, 1, name=T)
    assert account.awaited == [S, T] and account.replicas.is_awaited(S)
    account.clock.now_s += AWAITED_S - 1.0
    account.wait(1, 1)
    account.clock.now_s += 1.0
    account.replicas.expire()
    assert account.awaited == [S, T, T] and account.replicas.is_awaited(S) and not account.replicas.is_awaited(T)
    account.clock.now_s += AWAITED_S
    account.replicas.expire()
    assert account.awaited == [S, T, T, S] and not account.replicas.is_awaited(S)


def test_what_is_held_already_is_answered_at_once() -> None:
    account = Account()
    account.held("b", 5)
    assert account.wait(4, 1).published_at == {0: 4}


def test_one_that_waits_too_long_is_told_what_is_true() -> None:
    account = Account()
    account.held("b", 1)
    sink = account.wait(0, 2, b"a", b"b")
    account.clock.now_s += 9.9
    account.replicas.expire()
    assert not sink.refusals
    account.held("b", 2)
    account.clock.now_s += 0.1
    account.replicas.expire()
    text = "logged, but 1 of 2 nodes hold it after 10 s"
    assert sink.refusals == {0: (Code.UNREPLICATED, text)} and not sink.published_at
    assert sink.logged_at == {0: 0}
    account.held("c", 9)
    assert not sink.published_at, "a second answer"


def test_a_repeat_that_is_held_is_not_refused_with_what_it_waits_behind() -> None:
    account = Account()
    late, repeat = account.wait(9, 1), account.wait(0, 1)
    account.held("b", 5)
    account.clock.now_s += 10.0
    account.replicas.expire()
    assert late.refusals[0][0] is Code.UNREPLICATED
    assert (repeat.published_at, repeat.refusals) == ({0: 0}, {})


def test_rows_of_another_line_count_for_nothing() -> None:
    account = Account()
    before = account.line()
    account.held("b", 5)
    sink = account.wait(5, 1)
    account.replicas.cut(S)
    assert sink.refusals[0][0] is Code.UNREPLICATED and account.changed[-1] == S
    assert account.line() != before
    waiting = account.wait(3, 1)
    account.held("b", 9, line=before)
    assert not waiting.published_at
    account.held("b", 4)
    assert waiting.published_at == {0: 3}


def test_a_stream_that_nobody_follows_has_no_rows() -> None:
    account = Account()
    account.held("b", 5, line=1)
    account.replicas.held(1, 2, [(T, 1, 7, "b", 5, 5)])
    assert T not in account.replicas.streams and not account.replicas.holders(S).nodes


def test_what_a_connection_or_a_worker_told_goes_with_it() -> None:
    account = Account()
    for name in (S, T):
        account.held("b", 5, name)
        account.held("c", 5, name, connection=8)
    account.changed.clear()
    account.replicas.gone(1, 2, 7, [(S, "b"), (S, "nobody"), (b"unknown", "b")])
    assert list(account.replicas.holders(S).nodes) == ["c"] and account.changed == [S]
    account.replicas.gone(1, 2, 7, [])
    assert list(account.replicas.holders(T).nodes) == ["c"]
    account.replicas.worker_gone(1, 3)
    assert list(account.replicas.holders(T).nodes) == ["c"]
    account.replicas.worker_gone(1, 2)
    assert not account.replicas.holders(S).nodes and not account.replicas.holders(T).nodes
    assert account.changed == [S, T, S, T]


@pytest.mark.parametrize("is_clustered", [False, True])
def test_a_publish_is_answered_when_the_late_report_of_a_former_upstream_is_withdrawn(is_clustered: bool) -> None:
    account = clustered("b", "c") if is_clustered else Account()
    account.line()
    account.replicas.grew(S, 1)
    account.held("b", 0)
    sink = account.wait(0, 2)
    account.held("b", 1, connection=8)
    account.held("b", 0)
    account.held("c", 1, connection=8)
    assert not sink.published_at
    account.replicas.gone(1, 2, 7, [(S, "b")])
    assert sink.published_at == {0: 0}, "nobody reports b again, as nothing has changed there"
    assert [row.streams for _, row in account.replicas.in_sync_rows()] == [0, 0] * is_clustered


def test_who_waits_when_the_owner_leaves_is_told() -> None:
    account = Account()
    sinks = [account.wait(0, 1), account.wait(0, 1, name=T)]
    account.replicas.refuse_all()
    assert [each.refusals[0][0] for each in sinks] == [Code.UNREPLICATED] * 2
    account.clock.now_s += 100
    account.replicas.expire()
    assert not account.replicas.full(S)


# --- in a cluster ---------------------------------------------------------------------------------------------------


def clustered(*isr: str) -> Account:
    account = Account()
    account.page.grant(3, boottime_ns() + 10**12)
    account.page.set_isr(("me", *isr))
    return account


def test_an_in_sync_replica_is_counted_beside_as_many_others_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_acks, "NODES_MAX", 2)
    account = clustered("b")
    for node, next_seq in (("x", 5), ("y", 5), ("b", 1)):
        account.held(node, next_seq)
    assert "b" in account.replicas.held_below(S)


def test_all_in_sync_replicas_must_hold_a_message() -> None:
    account = clustered("b", "c")
    sink = account.wait(0, 1)
    account.held("b", 1)
    account.held("d", 1)
    assert not sink.published_at, "c lacks it"
    account.held("c", 1)
    assert sink.published_at == {0: 0}


def test_a_node_that_leaves_the_set_is_waited_for_no_more() -> None:
    account = clustered("b", "c")
    sink = account.wait(0, 1)
    account.held("b", 1)
    account.page.set_isr(("me", "b"))
    account.replicas.expire()
    assert sink.published_at == {0: 0}


def test_nothing_is_acknowledged_after_the_lease() -> None:
    account = clustered("b")
    sink = account.wait(0, 1)
    account.page.grant(3, OVER_NS)
    account.held("b", 1)
    assert not sink.published_at
    account.replicas.expire()
    assert sink.refusals[0][0] == Code.UNAVAILABLE and "lease" in sink.refusals[0][1]


def test_rows_show_how_far_in_sync_replicas_are_behind() -> None:
    account = clustered("b")
    account.line()
    account.replicas.grew(S, 5)
    account.replicas.grew(T, 5)
    assert [row[1:] for _, row in account.replicas.in_sync_rows()] == [(0.0, 1, False)], "S, since it was added"
    account.clock.now_s += 2
    account.replicas.grew(S, 9)
    assert account.replicas.in_sync_rows()[0][1].lag_s == 2
    account.held("b", 5)
    assert account.replicas.in_sync_rows()[0][1][1:] == (0.0, 1, True), "it has what was there, and lacks the rest"
    account.held("b", 9)
    assert account.replicas.in_sync_rows()[0][1][1:] == (0.0, 0, True)


def test_a_node_that_has_everything_lacks_nothing_when_it_is_added() -> None:
    account = Account()
    account.replicas.grew(S, 0)
    account.held("b", 7)
    account.page.grant(3, boottime_ns() + 10**12)
    account.page.set_isr(("me", "b"))
    assert account.replicas.in_sync_rows()[0][1][1:] == (0.0, 0, True)


def test_a_node_that_is_gone_lacks_what_it_had_though_nothing_grows() -> None:
    """A repeat of what was logged waits for it, and nothing else comes."""
    account = clustered("b", "c")
    account.line()
    account.replicas.grew(S, 5)
    for node, connection in (("b", 7), ("c", 8)):
        account.held(node, 5, connection=connection)
    account.replicas.gone(1, 2, 8, [])
    repeat = account.wait(4, 1)
    account.clock.now_s += 2
    assert [row[:2] for _, row in account.replicas.in_sync_rows()] == [("b", 0.0), ("c", 2.0)]
    account.page.set_isr(("me", "b"))
    account.replicas.expire()
    assert repeat.published_at == {0: 4}
    account.page.set_isr(("me", "b", "c"))
    account.held("c", 5, connection=9)
    assert [row[1:3] for _, row in account.replicas.in_sync_rows()] == [(0.0, 0)] * 2


def test_a_stream_that_nobody_copies_is_lacked_by_nobody() -> None:
    account = clustered("b")
    account.replicas.grew(S, 5)
    account.held("b", 5)
    account.replicas.grew(MEMORY, 5)
    assert account.replicas.in_sync_rows()[0][1][1:] == (0.0, 0, True)


def test_a_deleted_stream_is_lacked_by_nobody() -> None:
    account = clustered("b")
    assert account.replicas.in_sync_rows()[0][1].streams == 1
    account.held("b", 5)
    account.replicas.drop(S, "deleted")
    account.replicas.gone(1, 2, 7, [(S, "b")])
    assert account.replicas.in_sync_rows()[0][1].streams == 0


def test_what_nodes_had_of_a_deleted_stream_says_nothing_of_a_new_one() -> None:
    account = clustered("b")
    account.replicas.grew(S, 5)
    before = account.line()
    account.held("b", 5)
    account.replicas.drop(S, "deleted")
    account.replicas.grew(S, 1)
    sink = account.wait(0, 1)
    account.held("b", 5, line=before)
    assert not sink.published_at
    account.held("b", 1)
    assert sink.published_at == {0: 0}


def test_each_group_has_its_own_in_sync_replicas() -> None:
    """`u` is of group 1 of 2, `s` and `t` of group 0."""
    account = Account()
    groups = [StreamGroup(number, 2) for number in range(2)]
    account.names = [S, T, U]
    assert [group_key(name) % 2 for name in account.names] == [0, 0, 1]
    for group, node in zip(groups, "cb", strict=True):
        account.page.grant(3, boottime_ns() + 10**12, group)
        account.page.set_isr(("me", node), group)
    first, second = account.wait(0, 1, name=U), account.wait(0, 1, name=T)
    account.held("b", 1, T)
    account.held("c", 1, U)
    assert not first.published_at and not second.published_at
    account.held("b", 1, U)
    assert first.published_at and not second.published_at
    assert [(group, *row[::2]) for group, row in account.replicas.in_sync_rows()] == [(0, "c", 2), (1, "b", 0)]
    account.page.grant(3, OVER_NS, groups[0])
    account.held("c", 1, T)
    assert not second.published_at
    account.replicas.expire()
    assert second.refusals[0][0] == Code.UNAVAILABLE
    assert account.wait(1, 1, name=U).refusals == {}
