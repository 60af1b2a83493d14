"""Who reaches a node's port from another machine is not a node of its tree by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.protocol.messages import Failed
from tailrace.protocol.places import From
from tailrace.protocol.replication import Claim, Follow, NodeRequest, Watch
from tailrace.shard.epochs import EpochStart
from tests.system.node import rows, wait_for
from tests.system.scripted import EVIL, Slave
from tests.system.tree_net import network
from tests.system.tree_node import PORT, MachineNode

pytestmark = pytest.mark.system

TOKEN = '\n[replication]\ntoken = "among us"\n'
NO_PEERS = "\n[replication]\npeers = []\n"
HISTORY = (EpochStart(1, 0, EVIL), EpochStart(1_000, 0, EVIL))


def stat(node: MachineNode, stream: str) -> dict[str, str]:
    with node.client() as client:
        return {row["field"]: row["value"] for row in rows(client.ask_table(f"stat {stream}"))}


def test_only_nodes_of_the_tree_follow_and_claim(tmp_path: Path) -> None:
    with network("master", "slave", "other") as net:
        nodes = {
            name: MachineNode(net.machines[name], tmp_path / name, config=config)
            for name, config in {"master": TOKEN, "slave": TOKEN, "other": NO_PEERS}.items()
        }
        try:
            for node in nodes.values():
                node.start()
            master, slave, other = nodes.values()
            with master.client() as client:
                client.ask("ack on")
                assert client.ask("pub s |hello").startswith("ok pub")
            attacks: list[NodeRequest] = [
                Follow(1, b"s", 0, 1_000, EVIL, start=From("seq", 0)),
                Watch(2, b""),
                Claim(3, b"s", HISTORY),
            ]
            with Slave(PORT, EVIL, ":5050", host=master.host) as evil:
                for attack in attacks:
                    assert evil.ask(attack, Failed).code == "denied"
            assert (stat(master, "s")["role"], stat(master, "s")["epoch"]) == ("master", "1")

            for node in (slave, other):
                assert node.ask(f"slave {master.host} {PORT} s 0").startswith("ok slave")
            wait_for(lambda: stat(slave, "s").get("next_seq") == "1", "the one with the token follows")
            wait_for(lambda: "denied" in stat(other, "s")["copy"], "the other one is told why it may not")
        finally:
            for node in nodes.values():
                if node.process is not None:
                    node.kill()
