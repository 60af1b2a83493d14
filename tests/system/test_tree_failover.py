"""The master is lost, a slave is promoted, and the old master comes back: replicated messages are never lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tailrace.protocol.messages import Ack
from tests.system.node import rows, wait_for
from tests.system.tree_check import Logged, assert_equal, assert_sound, names_in, read_diverged, wait_equal
from tests.system.tree_ledger import Fate, Sent, faults, name_in
from tests.system.tree_load import Load
from tests.system.tree_node import PORT, MachineNode, Parents, Tree, growing

pytestmark = [pytest.mark.system, pytest.mark.slow]

CHAIN: Parents = {"old": None, "heir": "old", "leaf": "heir"}
STREAMS = ["s0", "s1", "s2"]
PUBLISHERS = ["one", "two", "three"]
REPLICATED = {"ack": Ack.REPLICATED, "replicas": 1}
CONFIG = """
[timing]
upstream_timeout_s = "2 s"
unavailable_timeout_s = "3 s"
replication_timeout_s = "2 s"
"""


def following(folder: Path) -> AbstractContextManager[Tree]:
    return growing(folder, CHAIN, config=CONFIG)


def load_of(tree: Tree, folder: Path) -> Load:
    """Publishers that know the master and the slave, and ask for one slave to have each message."""
    known = [tree.nodes["old"].address, tree.nodes["heir"].address]
    return Load(dict.fromkeys(PUBLISHERS, known), STREAMS, folder / "load", kinds=["binary"], options=REPLICATED)


def follow_all(tree: Tree) -> None:
    for name in tree.slaves():
        tree.follow(name)


def let_follow(node: MachineNode, upstream: MachineNode) -> None:
    """Asked again, as the answer demands, while the end of a stream is being set aside."""

    def answered() -> str:
        answer = node.ask(f"slave {upstream.host} {PORT} * 0")
        return "" if answer.startswith("err unavailable") else answer

    answer = wait_for(answered, f"{node.host} can be told whom to follow")
    assert answer.startswith("ok slave"), answer


def promote(node: MachineNode, command: str = "promote *") -> None:
    answer = node.ask(command)
    assert answer.startswith("ok promote"), answer


def roles(node: MachineNode) -> set[str]:
    with node.client() as client:
        return {row["role"] for row in rows(client.ask_table("streams"))}


def check(tree: Tree, sent: list[Sent], *, repeated: bool = False) -> None:
    """All nodes equal the new master; it has every acknowledged message, and none was set aside.

    `repeated`: publishers repeat messages that were not answered, so the new master may have them too, and acknowledge
    those.
    """
    wait_equal(tree.data(), "heir", starts=False)
    held = names_in(tree.nodes["heir"].data)
    assert faults(sent, held) == []
    acknowledged = {message.name for message in sent if message.fate is Fate.ACKNOWLEDGED}
    tails: list[Logged] = [message for tail in read_diverged(tree.nodes["old"].data).values() for message in tail]
    lost = acknowledged & {name_in(message.payload) for message in tails}
    if repeated:
        lost -= {name for names in held.values() for name in names.values()}
    assert not lost, f"acknowledged as replicated, and set aside: {sorted(lost)[:10]}"
    print(f"{len(acknowledged)} of {len(sent)} acknowledged, {len(tails)} messages set aside")


def fail_over(folder: Path, lose: Callable[[Tree], None], find: Callable[[Tree], None]) -> None:
    with following(folder) as tree:
        follow_all(tree)
        with load_of(tree, folder) as load:
            load.wait_for_progress(50)
            lose(tree)
            promote(tree.nodes["heir"])
            load.wait_for_progress(50)
            find(tree)
            load.wait_for_progress(50)
            sent = load.finish()
        check(tree, sent)
        assert roles(tree.nodes["heir"]) == {"master"}
        assert roles(tree.nodes["old"]) == roles(tree.nodes["leaf"]) == {"slave"}
    assert_equal(tree.data(), "heir", starts=False)
    assert_sound(tree.data())


def test_the_master_is_killed_and_comes_back(tmp_path: Path) -> None:
    def lose(tree: Tree) -> None:
        tree.nodes["old"].kill()

    def find(tree: Tree) -> None:
        tree.nodes["old"].start()
        let_follow(tree.nodes["old"], tree.nodes["heir"])

    fail_over(tmp_path, lose, find)


@pytest.mark.thorough
def test_two_masters_at_once(tmp_path: Path) -> None:
    """A partition: the publishers still reach both. The one of the lower epoch gives in as soon as it learns of the
    other.
    """

    def lose(tree: Tree) -> None:
        tree.net.partition(["old"], ["heir", "leaf"])

    def find(tree: Tree) -> None:
        with tree.nodes["old"].client() as client:  # what only the old master takes, and nobody else will ever have
            client.send("ack on", *(f"pub {stream} |alone/0/0" for stream in STREAMS))
            client.read_answers(1 + len(STREAMS))
            assert [answer.split()[:2] for answer in client.answers[1:]] == [["ok", "pub"]] * len(STREAMS)
        tree.net.heal()
        wait_for(lambda: roles(tree.nodes["old"]) != {"master"}, "the old master gives in")
        let_follow(tree.nodes["old"], tree.nodes["heir"])
        wait_for(lambda: len(set_aside(tree)) == len(STREAMS), "its own messages are set aside")

    fail_over(tmp_path, lose, find)


def set_aside(tree: Tree) -> list[Logged]:
    """What only the old master had taken, and has not lost."""
    tails = read_diverged(tree.nodes["old"].data).values()
    return [message for tail in tails for message in tail if message.payload == b"alone/0/0"]


@pytest.mark.thorough
def test_the_last_of_a_chain_is_promoted_and_all_turn_round(tmp_path: Path) -> None:
    """While the others live and take publishes: each gives in and passes it on, up to the old master."""
    with following(tmp_path) as tree:
        follow_all(tree)
        with load_of(tree, tmp_path) as load:
            load.wait_for_progress(20)
            wait_equal(tree.data(), "old", starts=False)
            promote(tree.nodes["leaf"], "promote * force")
            for name in ("heir", "old"):
                wait_for(lambda name=name: roles(tree.nodes[name]) == {"slave"}, f"{name} gives in")  # type: ignore[misc]
            load.wait_for_progress(20)
            load.finish()
        wait_equal(tree.data(), "leaf", starts=False)
        assert roles(tree.nodes["leaf"]) == {"master"}
    assert_equal(tree.data(), "leaf", starts=False)
    assert_sound(tree.data())
