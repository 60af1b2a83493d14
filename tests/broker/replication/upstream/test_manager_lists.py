"""A slave that follows one node of a list: whole nodes in this process."""

from __future__ import annotations

import socket
import time

from tailrace.broker.process.settings import SlaveRule
from tailrace.broker.replication.roles.rules import Rules, configured
from tailrace.broker.replication.upstream.fetchers import FetchState
from tests.broker.replication.nodes import Node, Tree

SWITCH_S = 0.3
LONG_S = 3.0


def below(tree: Tree, *upstreams: Node | str, switch_s: float = SWITCH_S) -> Node:
    """A node whose streams follow one of these."""
    listed = tuple(each if isinstance(each, str) else f"127.0.0.1:{each.port}" for each in upstreams)
    rules = (SlaveRule("*", listed),)
    return tree.node(slaves=rules, upstream_switch_s=switch_s, upstream_timeout_s=5.0)


def test_a_slave_goes_on_at_the_next_node_of_its_list(tree: Tree) -> None:
    up = tree.node()
    up.fill(b"a")
    one, two = below(tree, up), below(tree, up)
    leaf = below(tree, one, two, switch_s=LONG_S)
    tree.until(lambda: leaf.next_seq() == 1 and two.next_seq() == 1)
    (uplink,) = leaf.uplinks
    assert (uplink.port, uplink.node) == (one.port, one.id)
    gone = one.port
    tree.end(one)
    up.fill(b"b")
    tree.until(lambda: leaf.next_seq() == 2)
    tree.until(lambda: leaf.world.workers[0].metrics.upstream_moves == 1)
    assert (uplink.port, uplink.node) == (two.port, two.id)
    assert leaf.messages() == [b"a", b"b"] and leaf.copy_state() is FetchState.FOLLOWING
    with socket.create_server(("127.0.0.1", gone)):
        until_s = time.monotonic() + SWITCH_S
        tree.until(lambda: time.monotonic() > until_s)
        assert uplink.port == two.port, "it is not left for one that is back"
    leaf.peer.take()
    leaf.peer.send("ack on", "pub s |c")
    tree.until(lambda: leaf.next_seq() == 3)
    assert up.messages() == [b"a", b"b", b"c"]


def test_an_orphan_is_left_for_a_node_that_leads_to_the_master(tree: Tree) -> None:
    up = tree.node()
    up.fill(b"a")
    one, two = below(tree, up), below(tree, up)
    leaf = below(tree, one, two, switch_s=1.0)
    tree.until(lambda: leaf.next_seq() == 1 and two.next_seq() == 1 and leaf.uplinks[0].node == one.id)
    assert one.say("slave 127.0.0.1 1 s 0").startswith("ok slave")
    tree.until(lambda: leaf.uplinks[0].node == two.id and leaf.copy_state() is FetchState.FOLLOWING)


def test_nobody_follows_a_node_below_itself(tree: Tree) -> None:
    up = tree.node()
    up.fill(b"a")
    one = below(tree, up)
    two = below(tree, one)
    tree.until(lambda: two.next_seq() == 1)
    other = below(tree, up)
    tree.until(lambda: other.next_seq() == 1)
    listed = (SlaveRule("*", tuple(f"127.0.0.1:{each.port}" for each in (two, other))),)
    one.owner.roles.rules = Rules(configured=configured(listed))
    one.owner.events.on_rules()
    one.world.workers[0].uplinks.reconcile(b"s")
    seen = set[str]()

    def settled() -> bool:
        copies = [(uplink, copy) for uplink in one.uplinks for copy in uplink.copies.by_name.values()]
        seen.update(copy.why for _, copy in copies)
        return [uplink.node for uplink, copy in copies if copy.state is FetchState.FOLLOWING] == [other.id]

    tree.until(settled)
    assert any("circle" in why for why in seen)
    up.fill(b"b")
    tree.until(lambda: two.next_seq() == 2)


def test_a_list_may_hold_the_node_itself(tree: Tree) -> None:
    up = tree.node()
    up.fill(b"a")
    node = below(tree, up)
    listed = (SlaveRule("*", (f"127.0.0.1:{node.port}", f"127.0.0.1:{up.port}")),)
    node.owner.roles.rules = Rules(configured=configured(listed))
    node.owner.events.on_rules()
    tree.until(lambda: node.next_seq() == 1 and any(each.node == up.id for each in node.uplinks))


def test_a_copy_is_not_cut_for_another_stream_of_the_name(tree: Tree) -> None:
    """The list may name a node of another tree by mistake."""
    up, foreign = tree.node(), tree.node()
    for node, payload in ((up, b"a"), (foreign, b"x")):
        node.fill(payload)
        assert node.say("unmaster s").startswith("ok") and node.say("promote s").startswith("ok")
    leaf = below(tree, up, foreign, switch_s=LONG_S)
    tree.until(lambda: leaf.next_seq() == 1)
    tree.end(up)
    tree.until(lambda: leaf.uplinks[0].node == foreign.id and leaf.copy_state() is FetchState.WAITING)
    (copy,) = leaf.uplinks[0].copies.by_name.values()
    assert "another stream of this name" in copy.why and leaf.messages() == [b"a"]


def test_a_promoted_slave_claims_the_stream_from_all_nodes_of_its_list(tree: Tree) -> None:
    up = tree.node()
    up.fill(b"a")
    one, two = below(tree, up), below(tree, up)
    leaf = below(tree, one, two)
    tree.until(lambda: leaf.next_seq() == 1 and two.next_seq() == 1)
    assert leaf.say("promote s force").startswith("ok promote")
    tree.until(lambda: {node.role() for node in (up, one, two)} == {"slave"} and leaf.role() == "master")
    leaf.fill(b"b")
    tree.until(lambda: {node.next_seq() for node in (up, one, two)} == {2})


def test_a_publish_goes_round_in_no_circle(tree: Tree) -> None:
    one, two = tree.node(), tree.node()
    one.fill(b"a")
    two.slave(one)
    tree.until(lambda: two.next_seq() == 1)
    one.slave(two)
    tree.until(lambda: any("circle" in each.why for up in one.uplinks for each in up.copies.by_name.values()))
    one.peer.take()
    one.peer.send("ack on", "pub s |b")
    tree.until(lambda: any(line.startswith("err") for line in one.peer.lines))
    assert [line.split()[1] for line in one.peer.lines if line.startswith("err")] == ["unavailable"]
    assert one.next_seq() == two.next_seq() == 1
