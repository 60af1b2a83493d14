"""A message of an old term that its publisher repeats to a new master is acknowledged as safely as a new one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tailrace.broker.replication.roles.stream_roles import BUSY_TEXT
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Failed, Published
from tests.system.binary_peer import peer
from tests.system.node import Node, wait_for
from tests.system.test_promotion import QUICK, send_run

pytestmark = pytest.mark.system

NAMES = ("a", "b", "c")


class Trio:
    """Three nodes that are killed and started one by one; `b` and `c` follow `a` at first."""

    def __init__(self, folder: Path) -> None:
        self.nodes = {name: Node(folder / name, workers=1, config=QUICK) for name in NAMES}

    def run(self, *names: str) -> None:
        """Those run, and no others."""
        for name, node in self.nodes.items():
            runs = node.process is not None and not node.exited()
            if name in names and not runs:
                node.start(wait=False)
            elif name not in names and runs:
                node.kill()
        for name in names:
            self.nodes[name].wait_ready()

    def ask(self, name: str, line: str) -> str:
        """The answer; asked again while a node that has just turned to another master sets its own end aside."""

        def settled() -> str:
            with self.nodes[name].client() as client:
                answer = client.ask(line)
            return "" if BUSY_TEXT in answer else answer

        answer = wait_for(settled, f"{name} can do {line}")
        assert answer.startswith("ok "), f"{name}: {line}: {answer}"
        return answer

    def rank(self, name: str) -> tuple[int, int]:
        """The facts that decide which node to promote."""
        with self.nodes[name].client() as client:
            found = dict(line.split(maxsplit=1) for line in client.ask_table("stat s")[1:-1])
        return int(found["last_epoch"]), int(found["next_seq"])

    def follow(self, name: str, upstream: str) -> None:
        self.ask(name, f"slave 127.0.0.1 {self.nodes[upstream].port} s 0")

    def fail_over(self, epoch: int, *names: str, others_follow: bool = True) -> str:
        """By the documents: fence the reachable ones, promote the best of them, let the others follow it."""
        for name in names:
            self.ask(name, f"fence s {epoch}")
        heir = max(names, key=self.rank)
        self.ask(heir, f"promote s {epoch + 1}")
        for name in names:
            if name != heir and others_follow:
                self.follow(name, heir)
        return heir

    def publish(self, name: str, number: int, payload: bytes, *, replicas: int = 0) -> Published | Failed:
        with peer(self.nodes[name]) as publisher:
            return send_run(publisher, 1, "s", number, [payload], replicas=replicas)

    def payloads(self, name: str) -> list[bytes]:
        next_seq = self.rank(name)[1]
        with self.nodes[name].client() as client:
            client.send("sub s 0 wait")
            return [message.payload for message in client.read_messages(next_seq)]

    def kill(self) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.kill()


def test_a_repeat_that_was_acknowledged_survives_a_later_term_without_it(tmp_path: Path) -> None:
    """`m` of the first term is on `a` alone, `x` of the next one on another node alone; then `m` is repeated to `a`."""
    with contextlib.ExitStack() as stack:
        trio = Trio(tmp_path)
        stack.callback(trio.kill)
        trio.run("a", "b", "c")
        for name in ("b", "c"):
            trio.follow(name, "a")
        assert isinstance(trio.publish("a", 0, b"first", replicas=2), Published)

        trio.run("a")
        alone = trio.publish("a", 1, b"m", replicas=1)
        assert isinstance(alone, Failed) and alone.code == Code.UNREPLICATED

        trio.run("b", "c")
        heir = trio.fail_over(2, "b", "c", others_follow=False)  # one that did would be of its term, and ahead of `a`
        (other,) = {"b", "c"} - {heir}
        trio.run(heir)
        with trio.nodes[heir].client() as client:
            client.ask("ack on")
            assert client.ask("pub s |x").startswith("ok pub s 1")

        trio.run("a", other)
        assert trio.fail_over(4, "a", other) == "a", "it has m, and the other has not"
        assert isinstance(wait_for(lambda: acknowledged(trio), "m is acknowledged as replicated"), Published)

        trio.run("b", "c")
        heir = trio.fail_over(6, "b", "c")
        assert trio.payloads(heir)[:2] == [b"first", b"m"], "what was acknowledged as replicated is lost"


def acknowledged(trio: Trio) -> Published | None:
    """The answer to the repeat, when it was replicated in time."""
    answer = trio.publish("a", 1, b"m", replicas=1)
    return answer if isinstance(answer, Published) else None
