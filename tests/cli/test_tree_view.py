"""The tree as text."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

from rich.console import Console

from tailrace.cli.tree_view import DEPTH_MAX, candidates, draw
from tailrace.cli.tree_walk import Found, Node, Tie
from tailrace.protocol.replication import CopyEnd, NodeLink, Told


def told(node: str, masters: int = 0, slaves: int = 0, disabled: int = 0) -> Told:
    return Told(1, node, "", (), masters, slaves, disabled)


def node(name: str, answer: Told | None = None, problem: str = "") -> Node:
    return Node(name, f"{name.lower()}:5050", answer, problem)


def link(state: str = "up", streams: int = 12, lag: tuple[int, int, int] = (0, 0, 0)) -> NodeLink:
    return NodeLink("up", "", "", state, streams, *lag)


def drawn(found: Found, stream: str | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=1_000, highlight=False)
    for tree in draw(found, stream):
        console.print(tree)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_a_tree_with_every_kind_of_line() -> None:
    found = Found(start="B")
    found.nodes = {
        "A": node("A", told("A", masters=12)),
        "C": node("C", None, "Connection refused"),
        "B": node("B", told("B", masters=1, slaves=12, disabled=2)),
        "D": node("D", told("D", slaves=1)),
        "E": node("E", told("E")),
    }
    found.ties = {
        ("A", "C"): Tie(None, link(lag=(1_204, 3_100_000, 4_230))),
        ("A", "B"): Tie(link("up", 12, (9, 9, 9)), link()),
        ("B", "D"): Tie(link("connecting", 1, (7, 42, 0)), None),
        ("B", "E"): Tie(link("connecting", 0), None),
    }
    assert drawn(found) == [
        "a:5050  A  master of 12 streams",
        "├── b:5050  B  master of 1, slave of 12, disabled of 2 streams  up, 12 streams  caught up",
        "│   ├── d:5050  D  slave of 1 stream  1 stream, connecting  7 messages, 42 bytes, 0.0 s behind",
        "│   └── e:5050  E  no streams  connecting",
        "└── c:5050  C  Connection refused  up, 12 streams, as the node above reports  1,204 messages, 3.1 MB, 4.2 s behind",  # noqa: E501
    ]


def test_a_rival_and_a_node_that_makes_new_streams_of_its_own_are_named() -> None:
    found = Found(start="A")
    turned = replace(told("C", slaves=3), turned=3)
    found.nodes = {
        "A": node("A", told("A", masters=12)),
        "B": node("B", told("B", masters=12)),
        "C": node("C", turned),
        "D": node("D", None, "Connection refused"),
    }
    found.ties = {
        ("B", "A"): Tie(link("claims 7: Connection refused", 0), None),
        ("D", "A"): Tie(link("claims 2", 0), None),
        ("C", "A"): Tie(link("claims 1", 0), None),
        ("A", "C"): Tie(link("up", 3), link("up", 3)),
    }
    lines = drawn(found)
    assert lines[0] == "a:5050  A  master of 12 streams"
    assert lines[1].endswith("new streams made here are not replicated: make it follow a:5050 for * (`slave`)")
    assert "RIVAL" not in lines[1], "a slave is none"
    assert lines[2] == "b:5050  B  master of 12 streams  RIVAL: a:5050 claims 7 of its streams, not confirmed yet"
    assert "perhaps a RIVAL: a:5050 claims 2" in lines[3]


def test_two_masters_of_the_stream_that_was_asked_for_are_rivals() -> None:
    found = Found(start="A")
    for name, role in (("A", "master"), ("B", "master"), ("C", "slave")):
        ends = tuple(CopyEnd(stream, role, 2, 2, 7) for stream in ("g", "$cursor/g"))
        found.nodes[name] = node(name, replace(told(name), ends=ends))
    a, b, c = drawn(found)
    assert a.endswith("  RIVAL: b:5050 is a master of g too")
    assert b.endswith("  RIVAL: a:5050 is a master of g too")
    assert "RIVAL" not in c


def test_a_link_without_streams_is_no_branch() -> None:
    """A promoted node notifies its former upstream until that has answered; it is no longer below it."""
    found = Found(start="A")
    found.nodes = {
        "A": node("A", told("A", slaves=2)),
        "B": node("B", told("B", masters=2)),
        "C": node("C", None, "gone"),
    }
    found.ties = {
        ("A", "B"): Tie(link("up", 0), link("up", 0)),
        ("B", "A"): Tie(link("up", 2), link("up", 2)),
        ("C", "B"): Tie(link("down: gone", 0)),
    }
    assert drawn(found) == [
        "b:5050  B  master of 2 streams",
        "└── a:5050  A  slave of 2 streams  up, 2 streams  caught up",
        "c:5050  C  gone",
    ]


def test_the_tree_of_one_stream_names_roles() -> None:
    found = Found(start="A")
    found.nodes = {"A": node("A", told("A", masters=1)), "B": node("B", told("B", slaves=1)), "C": node("C", told("C"))}
    found.ties = {("A", "B"): Tie(link()), ("B", "C"): Tie(link())}
    assert drawn(found, "s") == [
        "a:5050  A  master",
        "└── b:5050  B  slave  up  caught up",
        "    └── c:5050  C  does not have it  up  caught up",
    ]


def ended(name: str, *ends: tuple[str, int, int, int]) -> Node:
    """A slave with these ends: stream, epoch, last_epoch, next_seq."""
    rows = tuple(CopyEnd(stream, "slave", epoch, last_epoch, seq) for stream, epoch, last_epoch, seq in ends)
    return node(name, Told(1, name, "", (), 0, 1, 0, rows))


def test_who_may_be_promoted() -> None:
    """The returned master A has the most messages, of an earlier term; B knows of the latest term."""
    found = Found(start="A")
    found.nodes = {
        "A": ended("A", ("s", 2, 1, 900)),
        "B": ended("B", ("s", 3, 2, 700)),
        "C": ended("C", ("s", 2, 2, 701)),
        "D": ended("D", ("s", 2, 2, 701)),
        "E": node("E", None, "gone"),
        "F": node("F", told("F")),
    }
    assert drawn(found, "s")[2] == "c:5050  C  slave, epoch 2, last_epoch 2, next_seq 701"
    expected = "may be promoted: c:5050 or d:5050, with the most of s, of nodes that answered"
    assert candidates(found, "s") == expected
    assert candidates(found, "t") == ""


def test_the_cursors_of_a_stream_count_too() -> None:
    found = Found(start="A")
    found.nodes = {
        "A": ended("A", ("s", 1, 1, 10), ("$cursor/s", 1, 1, 4)),
        "B": ended("B", ("s", 1, 1, 9), ("$cursor/s", 1, 1, 5)),
    }
    expected = "no node has most of $cursor/s and s; most of $cursor/s: b:5050; most of s: a:5050"
    assert candidates(found, "s") == expected
    found.nodes["A"] = ended("A", ("s", 1, 1, 10), ("$cursor/s", 1, 1, 5))
    assert candidates(found, "s").startswith("may be promoted: a:5050, with the most of $cursor/s and s")


def test_nodes_that_follow_each_other_are_drawn_once() -> None:
    found = Found(start="B")
    found.nodes = {name: node(name, told(name, 1, 1)) for name in "ABC"}
    found.ties = {("A", "B"): Tie(link()), ("B", "A"): Tie(link()), ("C", "A"): Tie(link())}
    assert drawn(found) == [
        "c:5050  C  master of 1, slave of 1 streams",
        "└── a:5050  A  master of 1, slave of 1 streams  up, 12 streams  caught up",
        "    └── b:5050  B  master of 1, slave of 1 streams  up, 12 streams  caught up",
        "        └── a:5050  A  master of 1, slave of 1 streams  up, 12 streams  caught up  (as above)",
    ]
    del found.ties["C", "A"], found.nodes["C"]
    assert drawn(found)[0] == "b:5050  B  master of 1, slave of 1 streams", "where all follow somebody, who was asked"


def test_a_node_of_which_only_the_address_is_known() -> None:
    found = Found(start="B")
    found.nodes = {
        "B": node("B", told("B")),
        "up:1": Node("up:1", "up:1", None, "Connection refused"),
        "X": Node("X", ""),
    }
    found.ties = {("up:1", "B"): Tie(link("connecting", 0)), ("B", "X"): Tie(None, link())}
    assert drawn(found) == [
        "up:1  Connection refused",
        "└── b:5050  B  no streams  connecting",
        "    └── address unknown  X    up, 12 streams, as the node above reports  caught up",
    ]


def test_what_nodes_say_of_themselves_is_no_markup() -> None:
    found = Found(start="[red]")
    found.nodes = {"[red]": Node("[red]", "a:1", told("[red]", masters=1))}
    assert drawn(found) == ["a:1  [red]  master of 1 stream"]


def test_a_chain_is_cut_where_it_gets_too_long() -> None:
    names = [f"N{number:04}" for number in range(DEPTH_MAX * 4)]
    found = Found(start=names[0])
    found.nodes = {name: node(name, told(name)) for name in names}
    found.ties = {(upper, lower): Tie(link()) for upper, lower in pairwise(names)}
    lines = drawn(found)
    assert lines[DEPTH_MAX].strip() == "└── goes on below" and lines[DEPTH_MAX + 1].startswith("n0100:5050")
    assert len(lines) == len(names) + 3
