"""Three nodes with an agent each, and etcd: a leader is killed, stopped or loses etcd, and publishes go on.

Many more of these, with three members of etcd: `python -m tests.system.cluster_kills`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bench.ports import free_port
from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED
from tailrace.cluster.etcd import Etcd, EtcdAway
from tailrace.cluster.view import ClusterTiming
from tailrace.protocol.mqtt.reasons import Reason
from tailrace.shard.names import group_key
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import wait_for
from tests.system.test_lease import CONFIG, STREAM, Publisher, ids, read_all
from tests.system.tree_net import HOST_NUMBER
from tests.system.tree_node import MachineNode, Tree, growing

pytestmark = pytest.mark.system

GROUPS = 3
PARENTS = {"a": None, "b": "a", "c": "a"}
TIMING = """upstream_timeout_s = "2 s"
unavailable_timeout_s = "3 s"
[mqtt]
replicas = 1
"""


@contextlib.contextmanager
def etcd_running(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A member of etcd alone; its port."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("needs etcd (etcd-server)")
    port, peers = free_port(), free_port()
    command = [program, "--data-dir", str(folder), "--listen-client-urls", f"http://0.0.0.0:{port}"]
    command += [
        "--advertise-client-urls",
        f"http://127.0.0.1:{port}",
        "--listen-peer-urls",
        f"http://127.0.0.1:{peers}",
    ]
    with (folder.parent / "etcd.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            etcd = Etcd([f"127.0.0.1:{port}"], 2)
            wait_for(lambda: answers(etcd), "etcd answers")
            etcd.close()
            yield port, process
        finally:
            process.kill()
            process.wait()


def answers(etcd: Etcd) -> bool:
    try:
        etcd.read("/")
    except EtcdAway:
        return False
    return True


class Cluster:
    """The nodes, and their agents."""

    def __init__(self, tree: Tree, folder: Path, port: int, etcd: subprocess.Popen[bytes]) -> None:
        self.tree = tree
        self.etcd_process = etcd
        self._folder = folder
        self.port = port
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self.etcd = Etcd([f"127.0.0.1:{port}"], 2)

    def start_agent(self, name: str, *flags: str) -> None:
        node = self.tree.nodes[name]
        host = f"{node.host.rsplit('.', 1)[0]}.{HOST_NUMBER}"
        command = [
            sys.executable,
            "-m",
            "tailrace.cli.main",
            "agent",
            "--cluster",
            "test",
            "--etcd",
            f"{host}:{self.port}",
        ]
        command += ["--address", node.address, "--data", str(node.data), *flags]
        with (self._folder / f"agent-{name}.log").open("ab") as output:
            self._agents[name] = node.machine.within(
                lambda: subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            )

    def leader(self) -> str:
        """The name of the node that leads by etcd."""
        found = [json.loads(each.value)["node"] for each in self.etcd.read("/tailrace/test/leader")]
        return next((name for name in self.tree.nodes if found == [ids(self.tree, name)]), "")

    def in_sync(self) -> int:
        return sum(len(json.loads(each.value)["isr"]) for each in self.etcd.read("/tailrace/test/state"))

    def replicas(self) -> list[tuple[set[str], set[str]]]:
        """By group: its replicas, and those of them that are in sync."""
        found = {each.key: json.loads(each.value) for each in self.etcd.read("/tailrace/test/g/")}
        states = [value for key, value in sorted(found.items()) if key.endswith("/state")]
        names = {ids(self.tree, name): name for name in self.tree.nodes}
        return [
            ({names[each] for each in state["replicas"]}, {names[each] for each in state["isr"]}) for state in states
        ]

    def kill(self, name: str) -> None:
        """The agent too, as when the machine goes."""
        self._agents[name].kill()
        self._agents[name].wait()
        self.tree.nodes[name].kill()

    def pause(self, name: str) -> None:
        self.tree.nodes[name].pause()
        self._agents[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._agents[name].send_signal(signal.SIGCONT)
        self.tree.nodes[name].resume()

    def close(self) -> None:
        for agent in self._agents.values():
            agent.kill()
            agent.wait()
        self.etcd.close()

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self._folder.glob("agent-*.log")))


@contextlib.contextmanager
def three_nodes(folder: Path, config: str = CONFIG) -> Iterator[Cluster]:
    """Without agents."""
    with (
        etcd_running(folder / "etcd") as (port, process),
        growing(folder, PARENTS, config=config + TIMING) as tree,
    ):
        cluster = Cluster(tree, folder, port, process)
        try:
            yield cluster
        except BaseException:
            print(cluster.logs())
            raise
        finally:
            print(cluster.logs())
            cluster.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with three_nodes(tmp_path) as cluster:
        cluster.start_agent("a", "--found")
        wait_for(lambda: cluster.leader() == "a", "the first node leads", 15)
        cluster.start_agent("b")
        cluster.start_agent("c")
        wait_for(lambda: cluster.in_sync() == 3, "all are in sync", 20)
        yield cluster


def device(node: MachineNode) -> MqttSocket:
    """A client of MQTT 5 with a durable session, whose `connack` may be a refusal."""
    peer = MqttSocket(node.port, V5, opened=False, host=node.host)
    peer.connack = peer.ask(wire.connect(V5, "device", clean=False, raw=b"\x11\0\0\x0e\x10"))
    return peer


def device_at_the_leader(nodes: Iterable[MachineNode]) -> MqttSocket | None:
    """As a client does that tries one address after the other."""
    for node in nodes:
        with contextlib.suppress(OSError, AssertionError):
            peer = device(node)
            if not wire.reason(peer.connack):
                return peer
            peer.close()
    return None


def test_a_killed_leader_is_replaced_and_comes_back(cluster: Cluster) -> None:
    """With a device of MQTT, whose message under way comes again at the next leader."""
    publisher, nodes = Publisher(cluster.tree), cluster.tree.nodes
    publisher.wait_more()
    with device(nodes["b"]) as elsewhere:
        assert wire.reason(elsewhere.connack) == Reason.USE_ANOTHER_SERVER
        assert nodes["a"].address.encode() in elsewhere.connack.body
    with device(nodes["a"]) as before:
        assert before.subscribe(("k/+", 2)) == [2]
        assert before.publish("k/a", b"acknowledged", 2) == 0
        under_way = before.message()
        began_s = time.monotonic()
        cluster.kill("a")
    publisher.wait_more()
    print(f"resumed after {publisher.longest_gap_s(began_s):.2f} s")
    leader = cluster.leader()
    assert leader in ("b", "c")
    with wait_for(lambda: device_at_the_leader(nodes.values()), "the device at the next leader") as after:
        assert after.present
        again = after.message()
        assert (again.payload, again.packet_id, again.dup) == (b"acknowledged", under_way.packet_id, True)
        assert after.ask(wire.ack(wire.PUBREC, again.packet_id)).kind == 6
        after.send(wire.ack(wire.PUBCOMP, again.packet_id))
        assert after.publish("k/b", b"next") == 0 and after.message().payload == b"next"
    cluster.tree.nodes["a"].start()
    cluster.start_agent("a")
    wait_for(lambda: cluster.in_sync() == 3, "the former leader is in sync again")
    publisher.wait_more()
    acknowledged = publisher.finish()
    assert cluster.leader() == leader
    assert read_all(cluster.tree.nodes[leader]) == acknowledged
    wait_for(lambda: read_all(cluster.tree.nodes["a"]) == acknowledged, "the former leader has everything")


@pytest.mark.thorough
def test_a_leader_that_stands_still_is_replaced_and_follows(cluster: Cluster) -> None:
    publisher = Publisher(cluster.tree)
    publisher.wait_more()
    began_s = time.monotonic()
    cluster.pause("a")
    publisher.wait_more()
    print(f"resumed after {publisher.longest_gap_s(began_s):.2f} s")
    leader = cluster.leader()
    cluster.resume("a")
    wait_for(lambda: cluster.in_sync() == 3, "the former leader is in sync again")
    publisher.wait_more()
    acknowledged = publisher.finish()
    assert cluster.leader() == leader != "a"
    assert read_all(cluster.tree.nodes[leader]) == acknowledged
    wait_for(lambda: read_all(cluster.tree.nodes["a"]) == acknowledged, "the former leader has everything")


@pytest.mark.thorough
def test_a_leader_goes_on_without_etcd_while_the_others_promise_it(cluster: Cluster) -> None:
    """For longer than its lease."""
    publisher = Publisher(cluster.tree)
    publisher.wait_more()
    began_s = time.monotonic()
    cluster.etcd_process.send_signal(signal.SIGSTOP)
    time.sleep(2 * ClusterTiming().ttl_s)
    publisher.wait_more()
    assert publisher.longest_gap_s(began_s) < ClusterTiming().hold_s
    cluster.etcd_process.send_signal(signal.SIGCONT)
    wait_for(lambda: cluster.leader() == "a", "its key is there again")
    publisher.wait_more()
    everything = publisher.finish()
    assert read_all(cluster.tree.nodes["a"]) == everything


def operate(cluster: Cluster, *words: str) -> int:
    """`tailrace cluster`; its exit code."""
    return main.run(["cluster", *words, "--cluster", "test", "--etcd", f"127.0.0.1:{cluster.port}"])


@pytest.mark.thorough
def test_an_operator_hands_the_lead_over_and_lets_a_node_leave(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher = Publisher(cluster.tree)
    publisher.wait_more()
    nodes = cluster.tree.nodes
    assert operate(cluster, "switchover", nodes["b"].address) == OK
    publisher.wait_more()
    assert cluster.leader() == "b"
    assert operate(cluster, "leave", nodes["b"].address) == OK
    publisher.wait_more()
    assert cluster.leader() in ("a", "c") and cluster.in_sync() == 2
    assert operate(cluster, "switchover", nodes["b"].address) == REFUSED
    capsys.readouterr()
    assert operate(cluster, "status", "--json") == OK
    rows = {row["address"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows[nodes["b"].address]["role"] == "left" and not rows[nodes["b"].address]["in_sync"]
    assert sorted(row["role"] for row in rows.values()) == ["leader", "left", "replica"]
    assert operate(cluster, "join", nodes["b"].address) == OK
    wait_for(lambda: cluster.in_sync() == 3, "it is in sync again", 20)
    assert operate(cluster, "pause") == OK
    assert operate(cluster, "switchover", nodes["b"].address) == REFUSED
    assert operate(cluster, "status") == OK
    assert operate(cluster, "resume") == OK
    assert "paused" in capsys.readouterr().err
    acknowledged = publisher.finish()
    assert read_all(nodes[cluster.leader()]) == acknowledged
    wait_for(lambda: read_all(nodes["b"]) == acknowledged, "the node that came back has everything")


def is_settled(cluster: Cluster) -> bool:
    return all(len(held) == 2 and held == synced for held, synced in cluster.replicas())


def group_of(stream: str) -> int:
    return group_key(stream.encode()) % GROUPS


@pytest.mark.thorough
def test_replicas_move_to_a_node_that_joins_and_from_one_that_leaves_and_the_others_observe(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as cluster:
        cluster.start_agent("a", "--found", "--groups", str(GROUPS), "--replicas", "2")
        cluster.start_agent("b")
        wait_for(lambda: cluster.replicas() == [(set("ab"), set("ab"))] * GROUPS, "two nodes are in sync", 40)
        publisher, nodes = Publisher(cluster.tree), cluster.tree.nodes
        publisher.wait_more()
        cluster.start_agent("c")
        wait_for(
            lambda: is_settled(cluster) and sum("c" in held for held, _ in cluster.replicas()) == 2,
            "it has its share",
            60,
        )
        publisher.wait_more()
        before = cluster.replicas()
        observer = ({"a", "b", "c"} - before[group_of(STREAM)][0]).pop()
        assert operate(cluster, "leave", nodes["b"].address) == OK
        wait_for(lambda: is_settled(cluster), "two others are in sync", 30)
        assert cluster.replicas() == [(set("ac"), set("ac"))] * GROUPS
        publisher.wait_more()
        acknowledged = publisher.finish()
        for node in (nodes["a"], nodes["c"], nodes[observer]):
            wait_for(lambda node=node: read_all(node) == acknowledged, "each node has everything")  # type: ignore[misc]
