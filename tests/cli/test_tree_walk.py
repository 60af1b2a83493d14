"""Following the links: every node is found, none is asked twice, and each failure has its reason."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailrace.cli.tree_walk import NO_ADDRESS, NOT_ASKED, Tie, reached_at, walk
from tailrace.core.address import Address
from tailrace.protocol.replication import NodeLink, Told

Answers = dict[str, Told | str]


def up(node: str, address: str, state: str = "up", lag: int = 0) -> NodeLink:
    return NodeLink("up", node, address, state, 1, lag, 0, 0)


def down(node: str, address: str, state: str = "up", lag: int = 0) -> NodeLink:
    return NodeLink("down", node, address, state, 1, lag, 0, 0)


def told(node: str, *links: NodeLink, masters: int = 0, slaves: int = 0) -> Told:
    return Told(1, node, "", links, masters, slaves, 0)


class Nodes:
    """Answers by address; `asked` lists the addresses, round by round."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, addresses: Sequence[Address]) -> list[Told | str]:
        self.asked.append([str(address) for address in addresses])
        return [self.answers.get(str(address), "Connection refused") for address in addresses]


TREE: Answers = {
    "top:1": told("T", down("L", "left:1", lag=3), down("R", "right:1")),
    "left:1": told("L", up("T", "top:1", lag=5), down("A", "a:1")),
    "right:1": told("R", up("T", "top:1")),
    "a:1": told("A", up("L", "left:1")),
}


@pytest.mark.parametrize("start", TREE)
def test_the_whole_tree_is_found_from_any_of_its_nodes(start: str) -> None:
    nodes = Nodes(TREE)
    host, port = start.split(":")
    found = walk(Address(host, int(port)), nodes)
    answer = TREE[start]
    assert isinstance(answer, Told) and found.start == answer.node and not found.is_cut
    assert {name: (node.address, node.problem) for name, node in found.nodes.items()} == {
        "T": ("top:1", ""), "L": ("left:1", ""), "R": ("right:1", ""), "A": ("a:1", ""),
    }  # fmt: skip
    assert set(found.ties) == {("T", "L"), ("T", "R"), ("L", "A")}
    assert found.ties["T", "L"] == Tie(up("T", "top:1", lag=5), down("L", "left:1", lag=3))
    asked = [address for batch in nodes.asked for address in batch]
    assert sorted(asked) == sorted(TREE), "each once"


def test_one_that_cannot_be_asked_first() -> None:
    found = walk(Address("top", 1), Nodes({}))
    assert (found.start, found.problem, found.nodes) == (None, "Connection refused", {})


def test_one_that_is_gone_is_shown_with_what_its_neighbours_say() -> None:
    nodes = Nodes({**TREE, "left:1": "No route to host"})
    found = walk(Address("top", 1), nodes)
    assert (found.nodes["L"].told, found.nodes["L"].problem) == (None, "No route to host")
    assert found.ties["T", "L"] == Tie(None, down("L", "left:1", lag=3))
    assert "A" not in found.nodes, "nobody else knows of it"
    found = walk(Address("a", 1), nodes)
    assert set(found.nodes) == {"A", "L"} and found.ties["L", "A"] == Tie(up("L", "left:1"), None)


def test_an_upstream_that_was_never_reached_is_known_by_its_address() -> None:
    found = walk(Address("a", 1), Nodes({"a:1": told("A", up("", "left:1", "connecting"))}))
    assert (found.nodes["left:1"].address, found.nodes["left:1"].problem) == ("left:1", "Connection refused")
    assert set(found.ties) == {("left:1", "A")}


def test_an_upstream_whose_id_only_its_own_answer_tells() -> None:
    answers: Answers = {"a:1": told("A", up("", "left:1", "connecting")), "left:1": told("L")}
    found = walk(Address("a", 1), Nodes(answers))
    assert set(found.nodes) == {"A", "L"} and set(found.ties) == {("L", "A")}


def test_workers_that_are_not_all_connected() -> None:
    answers: Answers = {"a:1": told("A", up("T", "top:1"), up("", "top:1", "down: no answer"))}
    for links in (answers["a:1"].links, answers["a:1"].links[::-1]):  # type: ignore[union-attr]
        found = walk(Address("a", 1), Nodes({"a:1": told("A", *links)}))
        assert set(found.nodes) == {"A", "T"}
        assert found.ties == {("T", "A"): Tie(up("", "top:1", "down: no answer"), None)}


def test_another_node_at_the_address() -> None:
    answers: Answers = {"top:1": told("T", down("OLD", "left:1")), "left:1": told("NEW")}
    found = walk(Address("top", 1), Nodes(answers))
    assert found.nodes["OLD"].problem == "another node (NEW) answers at this address"
    assert found.nodes["NEW"].told is not None


def test_a_slave_that_has_not_told_its_address() -> None:
    found = walk(Address("top", 1), Nodes({"top:1": told("T", down("X", ""), down("Y", ":5050"))}))
    assert [found.nodes[name].problem for name in "XY"] == [NO_ADDRESS, NO_ADDRESS]


def test_nodes_that_follow_each_other_in_different_streams() -> None:
    answers: Answers = {
        "x:1": told("X", up("Y", "y:1"), down("Y", "y:1")),
        "y:1": told("Y", up("X", "x:1"), down("X", "x:1")),
    }
    found = walk(Address("x", 1), Nodes(answers))
    assert set(found.ties) == {("X", "Y"), ("Y", "X")}


def test_one_node_at_two_addresses() -> None:
    answers: Answers = {
        "other:1": told("T", down("L", "left:1")),
        "top:1": told("T", down("L", "left:1")),
        "left:1": told("L", up("T", "top:1")),
    }
    nodes = Nodes(answers)
    found = walk(Address("other", 1), nodes)
    assert found.nodes["T"].address == "other:1" and len(found.nodes) == 2
    assert nodes.asked == [["other:1"], ["left:1"]]


def test_the_bound() -> None:
    answers: Answers = {"top:1": told("T", *(down(f"S{number}", f"s{number}:1") for number in range(50)))}
    nodes = Nodes(answers)
    found = walk(Address("top", 1), nodes, nodes_max=10)
    assert sum(map(len, nodes.asked)) == 10 and found.is_cut
    problems = [node.problem for node in found.nodes.values() if node.told is None]
    assert problems.count("Connection refused") == 9 and problems.count(NOT_ASKED) == 41


@pytest.mark.parametrize(
    ("text", "asked_at", "address"),
    [
        ("10.0.0.2:5050", "10.0.0.1", Address("10.0.0.2", 5_050)),
        ("127.0.0.1:5060", "10.0.0.1", Address("10.0.0.1", 5_060)),
        ("localhost:5060", "broker", Address("broker", 5_060)),
        ("127.0.0.1:5060", "localhost", Address("127.0.0.1", 5_060)),
        ("[::1]:5060", "127.0.0.1", Address("::1", 5_060)),
        ("::1:5060", "10.0.0.1", Address("10.0.0.1", 5_060)),
        (":5060", "10.0.0.1", None),
        ("", "10.0.0.1", None),
        ("broker", "10.0.0.1", None),
    ],
)
def test_what_a_node_calls_an_address(text: str, asked_at: str, address: Address | None) -> None:
    assert reached_at(text, Address(asked_at, 5_050)) == address
