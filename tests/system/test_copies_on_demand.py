"""A cluster of real nodes whose observers copy only streams that are read there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import Ack
from tailrace.cli.ending import OK
from tests.system.node import wait_for
from tests.system.test_agent import GROUPS, Cluster, group_of, is_settled, operate, three_nodes
from tests.system.test_lease import CONFIG, STREAM, Publisher, read_all
from tests.system.tree_node import MachineNode

pytestmark = [pytest.mark.system, pytest.mark.thorough]

IDLE = CONFIG.replace("start_fenced = true", 'start_fenced = true\ncopy_idle_s = "1 s"')
BIG = b"x" * 100_000
BIG_COUNT = 50


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with three_nodes(tmp_path, IDLE) as cluster:
        founding = "--found", "--groups", str(GROUPS), "--replicas", "2", "--on-demand"
        cluster.start_agent("a", *founding)
        for name in "bc":
            cluster.start_agent(name)
        wait_for(lambda: len(cluster.replicas()) == GROUPS and is_settled(cluster), "all groups are settled", 60)
        yield cluster


def observer_of(cluster: Cluster, stream: str) -> MachineNode:
    (name,) = {"a", "b", "c"} - cluster.replicas()[group_of(stream)][0]
    return cluster.tree.nodes[name]


def disk_bytes(node: MachineNode, stream: str) -> int:
    files = node.data.glob(f"shard-*/{stream}.*")
    return sum(file.stat().st_blocks * 512 for file in files)


def stat(node: MachineNode, stream: str) -> dict[str, str]:
    with node.client() as client:
        return {field: value for field, _, value in (row.partition(" ") for row in client.ask_table(f"stat {stream}"))}


def is_resting(node: MachineNode, stream: str) -> bool:
    return stat(node, stream).get("copy", "").startswith("idle")


def test_a_node_that_is_no_replica_serves_everything_and_keeps_nothing(cluster: Cluster) -> None:
    streams = [f"s{number}" for number in range(GROUPS * 2)]
    publisher, observer = Publisher(cluster.tree), observer_of(cluster, STREAM)
    with tailrace.connect(observer.address) as client:
        for _ in range(BIG_COUNT):
            client.publish("big", BIG, ack=Ack.REPLICATED, timeout_s=60)
        for stream in streams:
            client.publish(stream, b"old", ack=Ack.REPLICATED, timeout_s=60)
    publisher.wait_more()

    big = observer_of(cluster, "big")
    wait_for(lambda: is_resting(big, "big"), "nothing is copied without readers")
    assert disk_bytes(big, "big") < len(BIG)
    assert read_all(big, "big") == [BIG] * BIG_COUNT and disk_bytes(big, "big") > BIG_COUNT * len(BIG)

    live: list[bytes] = []
    with tailrace.connect(observer.address) as client:
        messages = client.subscribe(STREAM, start=0)
        reading = threading.Thread(target=lambda: live.extend(each.payload for each in messages), daemon=True)
        reading.start()
        publisher.wait_more()
        acknowledged = publisher.finish()
        wait_for(lambda: live == acknowledged, "a subscription from the beginning has all, and what came")
    reading.join(10)
    wait_for(lambda: is_resting(big, "big") and disk_bytes(big, "big") < len(BIG), "the copy is dropped", 30)
    wait_for(lambda: is_resting(observer, STREAM), "this one too", 30)
    assert read_all(observer) == acknowledged


def test_a_replica_is_elected_and_a_new_one_copies_everything(cluster: Cluster) -> None:
    publisher, nodes = Publisher(cluster.tree), cluster.tree.nodes
    publisher.wait_more()
    replicas = cluster.replicas()[group_of(STREAM)][0]
    (observer,) = nodes.keys() - replicas
    leaver = sorted(replicas)[0]
    assert operate(cluster, "leave", nodes[leaver].address) == OK
    wait_for(lambda: is_settled(cluster), "two others are in sync", 60)
    assert cluster.replicas() == [(nodes.keys() - {leaver}, nodes.keys() - {leaver})] * GROUPS
    publisher.wait_more()
    acknowledged = publisher.finish()
    wait_for(lambda: int(stat(nodes[observer], STREAM)["next_seq"]) == len(acknowledged), "it has a whole copy")
    wait_for(lambda: is_resting(nodes[leaver], STREAM), "the leaver has dropped its own", 30)
    assert read_all(nodes[leaver]) == acknowledged
