"""Since when in-sync replicas lack messages."""

from __future__ import annotations

from tailrace.broker.replication.downstream.in_sync import UNKNOWN, InSync

S, T = b"s", b"t"


def make() -> InSync:
    lags = InSync()
    lags.set_nodes(["b"], lambda _node: {S: 5, T: UNKNOWN}, 10.0)
    return lags


def test_a_new_node_is_settled_when_it_has_all_of_before() -> None:
    lags = make()
    assert lags.rows(12.0) == [("b", 2.0, 2, False)]
    lags.held("b", S, 4, 5, 12.0)
    assert lags.rows(12.0)[0].streams == 2, "one is missing"
    lags.held("b", S, 5, 6, 12.0)
    lags.held("b", T, 3, 4, 12.0)
    assert lags.rows(13.0) == [("b", 3.0, 2, False)], "the end of t was not known before"
    lags.held("b", T, 4, 4, 13.0)
    assert lags.rows(13.0) == [("b", 1.0, 1, True)]


def test_growth_counts_from_its_first_message() -> None:
    lags = InSync()
    lags.set_nodes(["b"], lambda _node: {}, 0.0)
    lags.grew(S, 1, 1.0)
    lags.grew(S, 2, 2.0)
    assert lags.rows(3.0) == [("b", 2.0, 1, True)]
    lags.held("b", S, 2, 2, 3.0)
    lags.held("b", T, 9, 9, 3.0)
    assert lags.rows(4.0) == [("b", 0.0, 0, True)]


def test_nodes_that_stay_keep_their_account() -> None:
    lags = make()
    lags.set_nodes(["b", "c"], lambda _node: {}, 20.0)
    assert lags.rows(20.0) == [("b", 10.0, 2, False), ("c", 0.0, 0, True)]
    lags.set_nodes(["c"], lambda _node: {S: 1}, 21.0)
    assert lags.rows(21.0) == [("c", 0.0, 0, True)]


def test_a_deleted_stream_is_lacked_by_nobody() -> None:
    lags = make()
    lags.dropped(S)
    lags.dropped(T)
    assert lags.rows(11.0) == [("b", 0.0, 0, True)]
