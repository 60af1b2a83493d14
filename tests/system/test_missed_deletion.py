"""A slave that was away when its stream was deleted, and is promoted: no term is given twice, one master is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.node import Node, running, wait_for
from tests.system.test_promotion import ask, publish, stat, three

pytestmark = pytest.mark.system


def role_of(node: Node, stream: str) -> tuple[str | None, str | None]:
    found = stat(node, stream)
    return found.get("role"), found.get("epoch")


@contextmanager
def missed(folder: Path) -> Iterator[tuple[Node, Node]]:
    """A master that has deleted its stream `g`, and stopped; a slave that has a copy and was away. The slave runs."""
    with running(folder / "master", workers=1) as master, running(folder / "slave", workers=1) as slave:
        assert ask(slave, f"slave 127.0.0.1 {master.port} g 0").startswith("ok slave")
        publish(master, "g", 1)
        wait_for(lambda: stat(slave, "g").get("next_seq") == "1", "it is copied")
        assert slave.stop() == 0
        assert ask(master, "delete g").startswith("ok ")
        assert master.stop() == 0
        slave.start()
        yield master, slave


def test_the_master_that_deleted_it_follows_the_slave_that_was_promoted(tmp_path: Path) -> None:
    with missed(tmp_path) as (master, slave):
        assert ask(slave, "promote g force").startswith("ok promote")
        publish(slave, "g", 1)
        master.start()
        wait_for(lambda: role_of(master, "g") == ("slave", "2"), "it learns of the promotion")
        with master.client() as client:
            client.ask("ack on")
            assert client.ask("pub g |at the former master") == "ok pub g 2"
        wait_for(lambda: stat(master, "g").get("next_seq") == "3", "its copy is whole")
        assert role_of(slave, "g") == ("master", "2")


@pytest.mark.thorough
def test_if_it_was_made_again_before_they_met_one_of_the_two_yields(tmp_path: Path) -> None:
    with missed(tmp_path) as (master, slave):
        assert ask(slave, "promote g force").startswith("ok promote")
        publish(slave, "g", 1)
        assert slave.stop() == 0
        master.start()
        publish(master, "g", 1)
        assert role_of(master, "g") == ("master", "2")
        slave.start()
        both = (master, slave)
        wait_for(lambda: sorted(role_of(node, "g")[0] or "" for node in both) == ["master", "slave"], "one yields")
        wait_for(lambda: len({stat(node, "g").get("next_seq") for node in both}) == 1, "they have the same")


def test_three_nodes_that_know_each_other_have_one_master(tmp_path: Path) -> None:
    with three(tmp_path) as made:
        made.follow("g")
        publish(made.one, "g", 1)
        for node in (made.two, made.three):
            made.wait_copied(node, "g", 1)
        assert made.three.stop() == 0
        assert ask(made.one, "delete g").startswith("ok ")
        wait_for(lambda: not stat(made.two, "g"), "its copy is deleted")
        assert made.one.stop() == 0 and made.two.stop() == 0
        made.three.start()
        assert ask(made.three, "promote g force").startswith("ok promote")
        publish(made.three, "g", 1)
        made.one.start()
        made.two.start()
        for node in (made.one, made.two):
            wait_for(lambda: role_of(node, "g") == ("slave", "2"), "it follows")  # noqa: B023
            made.wait_copied(node, "g", 2)
        assert role_of(made.three, "g") == ("master", "2")
