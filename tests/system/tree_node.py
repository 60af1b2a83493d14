"""Nodes on machines of their own, and a tree of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.system.node import LineClient, Node, wait_for
from tests.system.tree_net import Machine, Net, network

PORT = 5050
METRICS_PORT = 5051
ANSWER_S = 1.0  # a node that answers nothing for this time does not serve
LOG_LINES = 60  # of each node, shown when a test fails

PEERS_SECTION = """
[replication]
peers = ["198.18.0.0/15"]
"""
"""All machines of `tree_net`, and the test's own address."""
SLAVE_SECTION = """
[[slave]]
streams = "*"
upstream = "{address}"
"""

Parents = Mapping[str, str | None]
"""Who follows whom, from the top on; the top follows nobody."""

THREE_LEVELS: Parents = {
    "top": None,
    "left": "top",
    "right": "top",
    "left-a": "left",
    "left-b": "left",
    "right-a": "right",
    "right-b": "right",
}


class MachineNode(Node):
    """A node on a machine. `client` is on that machine, and may administer; `from_outside` comes through its link."""

    def __init__(
        self,
        machine: Machine,
        data: Path,
        *flags: str,
        workers: int = 1,
        config: str = "",
        environment: dict[str, str] | None = None,
    ) -> None:
        config += "" if "[replication]" in config else PEERS_SECTION
        listen = ["--host", "0.0.0.0", *([] if "[access]" in config else ["--allow-anonymous"])]
        super().__init__(
            data, *listen, *flags, workers=workers, config=config, environment=environment
        )  # its metrics stay on its loopback
        self.port, self.metrics_port = PORT, METRICS_PORT
        self.machine = machine
        self.host = machine.address
        self.address = f"{machine.address}:{PORT}"

    def start(self, *, wait: bool = True) -> MachineNode:
        self.machine.within(lambda: super(MachineNode, self).start(wait=False))
        if wait:
            self.wait_ready()
        return self

    def get(self, path: str) -> tuple[int, str]:
        return self.machine.within(lambda: super(MachineNode, self).get(path))

    def client(self) -> LineClient:
        return self.machine.within(lambda: LineClient(self.port))

    def from_outside(self) -> LineClient:
        return LineClient(self.port, self.host)

    def ask(self, line: str) -> str:
        """The answer to one command, which may be an administrator's."""
        with self.client() as client:
            return client.ask(line)

    def signal_all(self, number: int) -> None:
        """To every process of the node."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def pause(self) -> None:
        self.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal_all(signal.SIGCONT)


class Tree:
    """Nodes by their names, each on a machine of the same name, and the upstream of each.

    They follow on the command of `follow`, or of themselves with `configured`: then it is in their configuration.
    """

    def __init__(
        self,
        net: Net,
        folder: Path,
        parents: Parents,
        *,
        config: str = "",
        workers: int = 1,
        configured: bool = False,
    ) -> None:
        self.net = net
        self.parents = parents
        self.configured = configured
        self.nodes: dict[str, MachineNode] = {}
        for name, parent in parents.items():
            section = SLAVE_SECTION.format(address=f"{net.machines[parent].address}:{PORT}") if parent else ""
            own = config + section if configured else config
            self.nodes[name] = MachineNode(net.machines[name], folder / name, config=own, workers=workers)
        (self.top,) = (name for name, parent in parents.items() if parent is None)

    def start(self) -> None:
        for node in self.nodes.values():
            node.start(wait=False)
        for node in self.nodes.values():
            node.wait_ready()

    def data(self) -> dict[str, Path]:
        return {name: node.data for name, node in self.nodes.items()}

    def addresses(self) -> dict[str, list[str]]:
        """For publishers that enter at every node."""
        return {name: [node.address] for name, node in self.nodes.items()}

    def slaves(self) -> list[str]:
        return [name for name, parent in self.parents.items() if parent is not None]

    def follow(self, name: str) -> None:
        """Make a node follow its parent, in all streams and from their beginning, if it does not by itself."""
        if self.configured:
            return
        parent = self.parents[name]
        assert parent is not None
        answer = self.nodes[name].ask(f"slave {self.nodes[parent].host} {PORT} * 0")
        assert answer.startswith("ok slave"), f"{name}: {answer}"

    def rebuild(self, name: str) -> None:
        """Start a node that does not run with nothing, as a new one."""
        shutil.rmtree(self.nodes[name].data)
        self.nodes[name].start()
        self.follow(name)

    def stop(self) -> None:
        """All of them at once; each must stop cleanly, and have no traceback in its log."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            codes = dict(zip(self.nodes, pool.map(lambda node: node.stop(), self.nodes.values()), strict=True))
        for name, node in self.nodes.items():
            assert codes[name] == 0, f"{name}: exit code {codes[name]}\n{node.log()}"
            assert "Traceback" not in node.log(), f"{name}:\n{node.log()}"

    def kill(self) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.kill()

    def logs(self) -> str:
        """The end of each node's log."""
        tails = {
            name: node.log().splitlines()[-LOG_LINES:] for name, node in self.nodes.items() if node.log_path.exists()
        }
        return "\n".join(line for name, tail in tails.items() for line in [f"--- {name}", *tail])


@contextlib.contextmanager
def growing(
    folder: Path,
    parents: Parents = THREE_LEVELS,
    *,
    config: str = "",
    workers: int = 1,
    configured: bool = False,
    kind: type[Tree] = Tree,
) -> Iterator[Tree]:
    """A tree of running nodes for the length of a block. Those that were not configured to follow get the command
    later.
    """
    with network(*parents) as net:
        tree = kind(net, folder, parents, config=config, workers=workers, configured=configured)
        try:
            tree.start()
            yield tree
            tree.stop()
        except BaseException:
            print(tree.logs())
            raise
        finally:
            tree.kill()


def serves(node: MachineNode) -> bool:
    """Whether the node is reached through its link, and answers soon."""
    try:
        with socket.create_connection((node.host, node.port), ANSWER_S) as sock:
            sock.sendall(b"ping\r\n")
            return sock.recv(100).startswith(b"ok pong")
    except OSError:
        return False


def wait_served(node: MachineNode) -> None:
    wait_for(lambda: serves(node), f"{node.machine.name} answers through its link")
