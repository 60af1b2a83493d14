"""Where the cells of the crash matrix play: one node, or a master and its slave; and how those fall and come back."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tailrace
from tailrace.shard.directory import open_data_dir
from tailrace.shard.errors import StreamMissing
from tailrace.shard.reader import StreamReader
from tests.system.consumer_cells import Victim
from tests.system.node import Node, running
from tests.system.processes import worker_pid
from tests.system.streams import names_of
from tests.system.test_client_failover import tell

WORKERS = 2
OWNER = 0
"""The slot that owns all the streams: when its worker falls, it falls for every cell."""
CALL_S = 20.0
CONFIG = """
[timing]
upstream_timeout_s = "2 s"
unavailable_timeout_s = "3 s"
replication_timeout_s = "10 s"
"""


class Ground:
    """The nodes, the master first. A second one is its slave, and takes over when the first falls."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)
        self.client = tailrace.connect([f"127.0.0.1:{port}" for port in self.ports], timeout_s=CALL_S)

    @property
    def ports(self) -> list[int]:
        """The master's first."""
        return [node.port for node in self.nodes]

    @property
    def master(self) -> Node:
        return self.nodes[0]

    @property
    def level(self) -> dict[str, Any]:
        """How every call is to be acknowledged, so that nothing of it is lost with a master."""
        return {"ack": tailrace.Ack.REPLICATED, "replicas": 1} if len(self.nodes) > 1 else {}

    def streams(self, prefix: str, count: int) -> list[str]:
        return names_of(OWNER, WORKERS, count, prefix)

    def next_seq(self, stream: str) -> int:
        """How many messages the master's log has, read from outside."""
        directory = open_data_dir(self.master.data).stream_directory(stream)
        try:
            with contextlib.closing(StreamReader.open(directory, stream)) as reader:
                return reader.next_seq()
        except StreamMissing:
            return 0

    def pause(self, victim: Victim) -> None:
        """Requests that arrive from now on are not looked at before the fall."""
        if victim is Victim.WORKER:
            os.kill(worker_pid(self.master, OWNER), signal.SIGSTOP)
        else:
            assert self.master.process is not None
            os.killpg(self.master.process.pid, signal.SIGSTOP)

    def fall(self, victim: Victim) -> None:
        """At once, without notice."""
        if victim is Victim.WORKER:
            os.kill(worker_pid(self.master, OWNER), signal.SIGKILL)
        else:
            self.master.kill()

    def mend(self, victim: Victim) -> None:
        """As an operator would: start it again, or promote the slave."""
        if victim is Victim.NODE:
            self.master.start()
        elif victim is Victim.MASTER:
            self.nodes.reverse()
            tell(self.master, "promote *")
            follow(self.nodes[1].start(), self.master)
        else:
            worker_pid(self.master, OWNER)

    def close(self) -> None:
        self.client.close()


def follow(slave: Node, master: Node) -> None:
    tell(slave, f"slave 127.0.0.1 {master.port} * 0")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[Ground]:
    with running(folder / "alone", workers=WORKERS, config=CONFIG) as node, contextlib.closing(Ground(node)) as ground:
        yield ground


@contextlib.contextmanager
def pair(folder: Path) -> Iterator[Ground]:
    with (
        running(folder / "one", workers=WORKERS, config=CONFIG) as one,
        running(folder / "two", workers=WORKERS, config=CONFIG) as two,
        contextlib.closing(Ground(one, two)) as ground,
    ):
        follow(two, one)
        yield ground
