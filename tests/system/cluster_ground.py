"""Three nodes with an agent each and three members of etcd, each on a machine of its own, and their faults."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

from tailrace.cluster.etcd import Etcd, EtcdAway
from tailrace.shard.names import group_key
from tests.system.node import wait_for
from tests.system.test_lease import ids
from tests.system.tree_net import Machine, Net, network
from tests.system.tree_node import Tree

NODES: Final = ("a", "b", "c")
MEMBERS: Final = ("e1", "e2", "e3")
PARENTS: Final[dict[str, str | None]] = {"a": None, "b": "a", "c": "a"}
CLIENT_PORT, PEER_PORT = 2379, 2380
CONFIG = """
[cluster]
start_fenced = true

[timing]
replication_timeout_s = "30 s"
upstream_timeout_s = "2 s"
unavailable_timeout_s = "3 s"
"""
START_S = 30.0
PREFIX = "/tailrace/test/"


class Member:
    """A member of etcd."""

    def __init__(self, machine: Machine, folder: Path, peers: str) -> None:
        self.machine = machine
        self.address = f"{machine.address}:{CLIENT_PORT}"
        program = shutil.which("etcd")
        assert program is not None, "needs etcd (etcd-server)"
        client, peer = f"http://{self.address}", f"http://{machine.address}:{PEER_PORT}"
        self._command = [program, "--name", machine.name, "--data-dir", str(folder / machine.name)]
        self._command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self._command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._command += ["--initial-cluster", peers, "--initial-cluster-state", "new", "--logger", "zap"]
        self._log = folder / f"{machine.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self.process = self.machine.within(
                lambda: subprocess.Popen(self._command, stdout=output, stderr=output, start_new_session=True)
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)


class ClusterGround:
    """The cluster, and its faults."""

    def __init__(self, net: Net, folder: Path, workers: int, extra: Callable[[Net], str], groups: int) -> None:
        self.net = net
        self._groups = groups
        self._folder = folder
        self.tree = Tree(net, folder, PARENTS, config=CONFIG + extra(net), workers=workers)
        peers = ",".join(f"{name}=http://{net.machines[name].address}:{PEER_PORT}" for name in MEMBERS)
        self.members = {name: Member(net.machines[name], folder, peers) for name in MEMBERS}
        self.endpoints = [member.address for member in self.members.values()]
        self.etcd = Etcd(self.endpoints, 2)
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._names: dict[str, str] = {}

    def start(self) -> None:
        for member in self.members.values():
            member.start()
        self.tree.start()
        self._names = {ids(self.tree, name): name for name in NODES}
        wait_for(self._etcd_answers, "etcd answers", START_S)
        self.start_agent("a", "--found", "--groups", str(self._groups))
        wait_for(lambda: self.leaders() == {"a": self._groups}, "the first node leads", START_S)
        for name in NODES[1:]:
            self.start_agent(name)
        self.wait_in_sync()

    def close(self) -> None:
        for agent in self._agents.values():
            agent.kill()
            agent.wait()
        self.etcd.close()
        self.tree.kill()
        for member in self.members.values():
            member.kill()

    # --- the state ---------------------------------------------------------------------------------------------------

    def _etcd_answers(self) -> bool:
        try:
            self.etcd.read("/")
        except EtcdAway:
            return False
        return True

    def _values(self, key: str) -> dict[str, Any]:
        """Those of this key, of all groups."""
        try:
            found = self.etcd.read(PREFIX)
        except EtcdAway:
            return {}
        return {each.key: json.loads(each.value) for each in found if each.key.endswith(f"/{key}")}

    def leader(self, stream: str = "") -> str:
        """The leader of the group of this stream, by etcd; "" without one."""
        at = "" if self._groups == 1 else f"g/{group_key(stream.encode()) % self._groups}/"
        return self._names.get(self._values("leader").get(f"{PREFIX}{at}leader", {}).get("node", ""), "")

    def leaders(self) -> Counter[str]:
        """How many groups each node leads, by etcd."""
        return Counter(self._names[value["node"]] for value in self._values("leader").values())

    def in_sync(self) -> int:
        """The nodes that are in sync in the group with the fewest."""
        return min((len(value["isr"]) for value in self._values("state").values()), default=0)

    def wait_in_sync(self) -> None:
        wait_for(
            lambda: self.leaders().total() == self._groups and self.in_sync() == len(NODES), "all nodes are in sync", 60
        )

    def etcd_leader(self) -> str:
        """The member that leads the others."""
        for name, member in self.members.items():
            with contextlib.suppress(EtcdAway):
                status = Etcd([member.address], 2).status()
                if status.get("leader") == status["header"]["member_id"]:
                    return name
        return MEMBERS[0]

    # --- faults -------------------------------------------------------------------------------------------------------

    def start_agent(self, name: str, *flags: str) -> None:
        node = self.tree.nodes[name]
        command = [sys.executable, "-m", "tailrace.cli.main", "agent", "--cluster", "test", *flags]
        command += ["--etcd", ",".join(self.endpoints), "--address", node.address, "--data", str(node.data)]
        with (self._folder / f"agent-{name}.log").open("ab") as output:
            self._agents[name] = node.machine.within(
                lambda: subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            )

    def kill_agent(self, name: str) -> None:
        self._agents[name].kill()
        self._agents[name].wait()

    def pause_agent(self, name: str) -> None:
        self._agents[name].send_signal(signal.SIGSTOP)

    def resume_agent(self, name: str) -> None:
        self._agents[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """The node and its agent, as when the machine goes."""
        self._agents[name].kill()
        self.tree.nodes[name].kill()
        self._agents[name].wait()

    def restart(self, name: str) -> None:
        self.tree.nodes[name].start()
        self.start_agent(name)

    def pause(self, name: str) -> None:
        self.tree.nodes[name].pause()
        self.pause_agent(name)

    def resume(self, name: str) -> None:
        self.resume_agent(name)
        self.tree.nodes[name].resume()

    def block(self, some: list[str], others: list[str], *, both: bool) -> None:
        """Nothing goes from the first machines to the second ones, and with `both` back."""
        pairs = [pair for one, other in product(some, others) for pair in ((one, other), (other, one))[: 1 + both]]
        self.net.block(pairs)

    def others(self, name: str) -> list[str]:
        return [each for each in (*NODES, *MEMBERS) if each != name]

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self._folder.glob("agent-*.log")))


@contextlib.contextmanager
def cluster_ground(
    folder: Path, workers: int = 1, extra: Callable[[Net], str] = lambda _net: "", groups: int = 1
) -> Iterator[ClusterGround]:
    """A running cluster whose nodes are all in sync, for the length of a block. `extra`: of their configuration."""
    with network(*NODES, *MEMBERS) as net:
        ground = ClusterGround(net, folder, workers, extra, groups)
        try:
            ground.start()
            yield ground
        finally:
            ground.close()


def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether it comes true in time."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True
