"""A tree of nodes on machines of their own: publishes enter everywhere, and every node has what the master has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.node import rows
from tests.system.tree_check import assert_equal, assert_sound, names_in, streams_of, wait_equal
from tests.system.tree_ledger import Fate, faults
from tests.system.tree_load import Load
from tests.system.tree_node import THREE_LEVELS, Tree, growing

pytestmark = [pytest.mark.system, pytest.mark.slow]

STREAMS = [f"s{number}" for number in range(6)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """1 + 2 + 4 nodes, each made to follow its parent in everything. In the end their files are compared once more."""
    with growing(tmp_path_factory.mktemp("tree"), THREE_LEVELS) as tree:
        for name in tree.slaves():
            tree.follow(name)
        yield tree
    assert_equal(tree.data(), tree.top)
    assert_sound(tree.data())


@pytest.mark.thorough
def test_publishes_enter_at_every_node_at_once(tmp_path: Path, tree: Tree) -> None:
    """Each is acknowledged with its seq, and every node's streams become the master's, frame for frame."""
    with Load(tree.addresses(), STREAMS, tmp_path / "load") as load:
        load.wait_for_progress(200)
        sent = load.finish()
    wait_equal(tree.data(), tree.top)
    names = names_in(tree.nodes[tree.top].data)
    ours = {stream: names[stream] for stream in STREAMS}
    assert faults(sent, ours) == []
    assert {message.fate for message in sent} == {Fate.ACKNOWLEDGED}, "nothing went wrong, so nobody was told so"
    assert sum(map(len, ours.values())) == len(sent)


def test_what_enters_anywhere_is_heard_everywhere(tree: Tree) -> None:
    """Through the links, in the same order, with the same seqs and timestamps."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(node.from_outside()) for name, node in tree.nodes.items()}
        for client in clients.values():
            assert client.ask("sub heard 0 wait") == "ok sub heard 0"
        for name, client in clients.items():
            assert client.ask("ack on") == "ok ack on"
            assert client.ask(f"pub heard |from {name}").startswith("ok pub heard ")
        heard = [client.read_messages(len(clients)) for client in clients.values()]
    assert [message.payload.decode() for message in heard[0]] == [f"from {name}" for name in clients]
    assert all(messages == heard[0] for messages in heard)


def test_every_node_but_the_top_is_a_slave_of_every_stream(tree: Tree) -> None:
    with tree.nodes["right-b"].from_outside() as client:
        client.send("ack on", "pub roles |one")
        client.read_answers(2)
    wait_equal(tree.data(), tree.top)
    for name, node in tree.nodes.items():
        with node.client() as client:
            roles = {row["stream"]: row["role"] for row in rows(client.ask_table("streams"))}
        assert set(roles.values()) == {"master" if name == tree.top else "slave"}, f"{name}: {roles}"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["left-a", "right"])
def test_a_node_is_rebuilt_from_nothing(tree: Tree, name: str) -> None:
    """A leaf, and one that others follow, which then have more than it for a while."""
    with tree.nodes[tree.top].from_outside() as client:
        client.send("ack on", *(f"pub rebuilt |{number}" for number in range(100)))
        client.read_answers(101)
    wait_equal(tree.data(), tree.top)
    before = streams_of(tree.nodes[name].data)
    tree.nodes[name].kill()
    tree.rebuild(name)
    wait_equal(tree.data(), tree.top)
    assert streams_of(tree.nodes[name].data) == before
