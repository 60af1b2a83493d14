"""Which of several nodes a UDP client uses."""

from __future__ import annotations

from math import inf

from tailrace.core.address import parse_addresses
from tailrace.core.datagram_nodes import SILENT_PINGS, DatagramNodes, NodeStep


def made(*addresses: str, ping_s: float = 2.0) -> DatagramNodes:
    nodes = DatagramNodes(parse_addresses(addresses), ping_s)
    nodes.begin(100.0)
    return nodes


def test_one_node_is_never_pinged_and_never_left() -> None:
    nodes = made("a")
    assert nodes.due_s == inf and nodes.step(1e9) is NodeStep.WAIT and not nodes.refused(1e9)


def test_a_node_that_is_silent_for_the_time_of_some_pings_is_left() -> None:
    nodes = made("a", "b", "c")
    assert [nodes.step(100.0 + second) for second in range(5)] == [
        NodeStep.PING,
        NodeStep.WAIT,
        NodeStep.PING,
        NodeStep.WAIT,
        NodeStep.PING,
    ]
    nodes.heard()
    assert [nodes.step(106.0 + 2 * number) for number in range(SILENT_PINGS + 1)] == [
        *[NodeStep.PING] * SILENT_PINGS,
        NodeStep.GO_ON,
    ]
    nodes.go_on()
    nodes.begin(112.0)
    answered = [nodes.has_answered]
    nodes.heard()
    assert nodes.current.host == "b" and [*answered, nodes.has_answered] == [False, True]
    assert nodes.step(112.0) is NodeStep.PING
    for _ in range(2):
        nodes.go_on()
    assert nodes.current.host == "a"


def test_a_client_that_is_seldom_used_leaves_a_node_with_its_second_call() -> None:
    nodes = made("a", "b")
    assert nodes.step(3_600.0) is NodeStep.PING
    assert nodes.step(7_200.0) is NodeStep.GO_ON


def test_nodes_at_which_nobody_listens_are_left_at_once_and_in_a_round_no_more_often_than_pings() -> None:
    nodes = made("a", "b", "c")
    for _ in range(2):
        assert nodes.refused(100.0)
        nodes.go_on()
        nodes.begin(100.0)
    assert nodes.current.host == "c" and not nodes.refused(101.9) and nodes.refused(102.0)
    nodes.go_on()
    nodes.begin(102.0)
    assert not nodes.refused(102.0)
    nodes.heard()
    assert nodes.refused(102.0)
