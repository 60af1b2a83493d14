"""The publishers, nodes and faults of the tests of replication, on nodes that do not know each other.

Each node has publishers of its own, so that every promise of a single node is held against the answers they got.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.fault_schedule import Fault, Kind, chosen_length_s, chosen_seed, schedule
from tests.system.node import running, wait_for
from tests.system.tree_check import assert_sound, differences, names_in, streams_of, wait_equal
from tests.system.tree_faults import play
from tests.system.tree_ledger import Fate, Sent, faults
from tests.system.tree_load import Load
from tests.system.tree_node import MachineNode, Parents, Tree, growing, serves

pytestmark = pytest.mark.system

STREAMS = ["s0", "s1", "s2"]
FEW: Parents = {"top": None, "left": "top", "right": "top"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with growing(tmp_path_factory.mktemp("tree"), FEW) as tree:
        yield tree


@pytest.fixture
def left(tree: Tree) -> MachineNode:
    return tree.nodes["left"]


def test_publishers_of_both_kinds_are_told_the_truth(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        addresses = {name: [f"127.0.0.1:{node.port}"] for name in ("one", "two")}
        with Load(addresses, STREAMS, tmp_path / "load") as load:
            load.wait_for_progress(100)
            sent = load.finish()
    assert {message.publisher for message in sent} == {"one-lines", "two-binary"}
    assert {message.fate for message in sent} == {Fate.ACKNOWLEDGED}
    assert faults(sent, names_in(tmp_path / "data")) == []
    assert sum(load.acknowledged().values()) == len(sent), "what is counted is what is read in the end"
    assert_sound({"data": tmp_path / "data"})


def test_a_publisher_that_finds_nobody_tries_on_and_ends_well(tmp_path: Path) -> None:
    with Load({"gone": ["127.0.0.1:1"]}, STREAMS, tmp_path / "load", kinds=["binary"]) as load:
        wait_for(lambda: "ConnectFailed" in load.errors("gone-binary"), "it was refused")
        assert load.finish() == []


def test_a_publisher_that_breaks_is_told(tmp_path: Path) -> None:
    load = Load({"odd": ["nowhere"]}, STREAMS, tmp_path / "load", kinds=["lines"])
    with load, pytest.raises(AssertionError, match=r"odd-lines has ended:(?s:.)*ValueError"):
        load.wait_for_progress()


def test_a_node_is_administered_on_its_machine_and_reached_from_outside(left: MachineNode) -> None:
    assert left.ask("master m") == "ok master m 1"
    with left.from_outside() as client:
        assert client.ask("master m").startswith("err denied")
        client.send("ack on", "pub m |hello")
        assert client.read_answers(3)[-1] == "ok pub m 0"
    assert left.get("/readyz")[0] == 200
    assert len(left.workers()) == 1


def test_a_node_that_is_paused_or_cut_off_is_silent(tree: Tree, left: MachineNode) -> None:
    assert serves(left)
    left.pause()
    assert not serves(left)
    left.resume()
    assert serves(left)
    tree.net.cut("left")
    assert not serves(left) and left.ask("ping") == "ok pong", "its own machine still reaches it"
    tree.net.restore("left")
    wait_for(lambda: serves(left), "it is back")


def test_copies_are_compared_while_their_node_writes(tmp_path: Path, tree: Tree, left: MachineNode) -> None:
    """Files copied while they are written are the beginning of what stands there in the end."""
    with Load({"left": [left.address]}, ["live"], tmp_path / "load") as load:
        load.wait_for_progress(50)
        copy = tmp_path / "copy"
        for suffix in ("indx", "content"):  # what the index knows of is in the content
            for path in left.data.glob(f"shard-*/live.{suffix}"):
                (copy / path.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy / path.parent.name)
        for path in left.data.glob("shard-*"):
            (copy / path.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(left.data / "node.json", copy)
        load.wait_for_progress(50)
        both = {"left": left.data, "copy": copy}
        found = [line for line in differences(both, "left", ends=False) if "stream live" in line]
        assert found == []
        assert any("stream live: copy has messages" in line for line in differences(both, "left"))
        load.finish()


class Strangers(Tree):
    """Nodes that follow nobody. One that is rebuilt begins again with nothing."""

    def follow(self, name: str) -> None:
        pass


@pytest.mark.thorough
@pytest.mark.slow
def test_faults_over_nodes_that_do_not_know_each_other(tmp_path: Path) -> None:
    seed, length_s = chosen_seed(), chosen_length_s(8.0)
    plan = [fault for fault in schedule(seed, list(FEW), "top", length_s) if fault.kind is not Kind.REBUILD]
    with growing(tmp_path, FEW, kind=Strangers) as tree:
        sent = load_under(tree, plan, tmp_path)
        for name, node in tree.nodes.items():
            told = [message for message in sent if message.publisher.startswith(f"{name}-")]
            assert faults(told, names_in(node.data)) == [], name
    assert_sound(tree.data())


def load_under(tree: Tree, plan: list[Fault], folder: Path) -> list[Sent]:
    """What publishers that enter at every node have sent while these faults came over it, and after them."""
    with Load(tree.addresses(), STREAMS, folder / "load") as load:
        load.wait_for_progress()
        play(tree, plan)
        load.wait_for_progress()
        return load.finish()


def test_a_node_that_is_rebuilt_has_nothing(tmp_path: Path) -> None:
    with growing(tmp_path, {"top": None}, kind=Strangers) as tree:
        assert tree.nodes["top"].ask("master m") == "ok master m 1"
        wait_equal(tree.data(), "top")
        assert streams_of(tree.nodes["top"].data) == {"m": (0, 0)}
        play(tree, [Fault(0.0, 0.1, Kind.REBUILD, "top")])
        assert streams_of(tree.nodes["top"].data) == {}
