"""`tailrace tree`: from the answers of nodes on loopback to the output."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main
from tailrace.cli.asking import ASK_ID
from tailrace.cli.ending import NO_CONNECTION, OK, USAGE
from tailrace.protocol.replication import NodeLink, Told
from tests.cli.asked_node import AskedNode, asked_node


def told(name: str, *links: NodeLink, masters: int = 0, slaves: int = 0) -> Told:
    return Told(ASK_ID, name, "", links, masters, slaves, 0)


def link_nodes(top: AskedNode, below: AskedNode) -> None:
    """`below` follows `top`, and something that nobody knows anything of follows it too."""
    gone = NodeLink("down", "GONE", "127.0.0.1:1", "up", 2, 5, 3_000_000, 1_500)
    top.answer = told("TOP", NodeLink("down", "BELOW", below.address, "up", 2, 0, 0, 0), gone, masters=2)
    below.answer = told("BELOW", NodeLink("up", "TOP", top.address, "up", 2, 0, 0, 0), slaves=2)


def test_a_tree_is_drawn_from_any_of_its_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    with asked_node(None) as top, asked_node(None) as below:
        link_nodes(top, below)
        for start in (top, below):
            assert main.run(["tree", start.address, "--token", "secret"]) == OK
            out, err = capfd.readouterr()
            lines = [line.rstrip() for line in out.splitlines()]
            assert lines[0] == f"{top.address}  TOP  master of 2 streams"
            below_line = f"{below.address}  BELOW  slave of 2 streams  up, 2 streams  caught up"
            gone_line = "127.0.0.1:1  GONE  Connection refused  up, 2 streams, as the node above reports"
            assert sorted(line[4:] for line in lines[1:]) == sorted(
                [below_line, f"{gone_line}  5 messages, 3.0 MB, 1.5 s behind"]
            )
            assert err == ""
    assert {hello.token for hello in top.hellos + below.hellos} == {"secret"}


def test_as_objects(capfd: pytest.CaptureFixture[str]) -> None:
    with asked_node(None) as top, asked_node(None) as below:
        link_nodes(top, below)
        assert main.run(["tree", top.address, "--json"]) == OK
        nodes = {each["node"]: each for each in map(json.loads, capfd.readouterr().out.splitlines())}
        assert nodes.keys() == {"TOP", "BELOW", "GONE"}
        assert nodes["TOP"]["masters"] == 2 and nodes["TOP"]["links"][0]["address"] == below.address
        assert nodes["GONE"] == {"node": "GONE", "address": "127.0.0.1:1", "problem": "Connection refused"}


def test_of_one_stream(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_TOKEN", "from the environment")
    with asked_node(told("N", masters=1)) as node:
        monkeypatch.setenv("TAILRACE_SERVER", node.address)
        assert main.run(["tree", "--stream", "orders"]) == OK
    assert capfd.readouterr().out.rstrip() == f"{node.address}  N  master"
    assert [ask.stream for ask in node.asked] == [b"orders"]
    assert node.hellos[0].token == "from the environment"


def test_the_first_node_cannot_be_asked(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tree", "127.0.0.1:1"]) == NO_CONNECTION
    assert capfd.readouterr() == ("", "tailrace: 127.0.0.1:1: Connection refused\n")


@pytest.mark.parametrize("arguments", [["127.0.0.1:x"], ["--stream", "a b"], ["--stream", "$own"], ["a", "b"]])
def test_wrong_arguments(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tree", *arguments]) == USAGE
    assert capfd.readouterr().out == ""
