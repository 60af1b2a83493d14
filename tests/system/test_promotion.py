"""What a promotion depends on: who is known to hold what, which node is ahead, and who still acknowledges."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ack, Failed, Published, pack_publish
from tailrace.protocol.replication import Fence, Fenced, Held
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering
from tests.system.binary_peer import BinaryPeer, peer
from tests.system.node import Node, rows, running, wait_for
from tests.system.scripted import EVIL, Slave, id_of

pytestmark = pytest.mark.system

QUICK = """
[timing]
replication_timeout_s = "0.4 s"
"""
_mark_run = load("tailrace.shard.run_cy").mark_run


def send_run(
    publisher: BinaryPeer, request: int, stream: str, number: int, payloads: Sequence[bytes], *, replicas: int = 0
) -> Published | Failed:
    """Publish a run of the producer `P`, whose first message has this number, and wait for the answer."""
    frames = _mark_run(bytearray(b"".join(map(pack_frame, payloads))), write_numbering(b"", b"P", number))
    ack = Ack.REPLICATED if replicas else Ack.APPENDED
    publisher.send_raw(pack_publish(request, ack, [publisher.handle(stream)], frames, replicas) + frames)
    return publisher.answer_to(request)


def test_a_repeat_is_not_acknowledged_as_replicated_before_its_last_message_is_held(tmp_path: Path) -> None:
    """Messages 0, 1 of a producer are at seqs 0, 1 and its 2, 3 at 12, 13; the slave has reported 12 messages."""
    data = tmp_path / "data"
    with running(data, workers=1, config=QUICK) as node, peer(node) as publisher, Slave(node.port) as slave:
        send_run(publisher, 1, "s", 0, [b"a", b"b"])
        publisher.publish("s", [b"other"] * 10)
        slave.follow(1, "s")
        slave.say(Held(((1, EVIL, 12, 12),)))
        assert isinstance(send_run(publisher, 2, "s", 0, [b"a", b"b"], replicas=1), Published)
        assert send_run(publisher, 3, "s", 2, [b"c", b"d"]) == Published(3, ((12, 2, 1),))
        refused = send_run(publisher, 4, "s", 0, [b"a", b"b", b"c", b"d"], replicas=1)
        assert isinstance(refused, Failed) and refused.code == Code.UNREPLICATED
        slave.say(Held(((1, EVIL, 14, 14),)))
        repeated = send_run(publisher, 5, "s", 0, [b"a", b"b", b"c", b"d"], replicas=1)
        assert isinstance(repeated, Published) and repeated.results[0][:2] == (0, 4)


# --- who is ahead -----------------------------------------------------------------------------------------------------


class Three:
    """A master and two slaves of it, which list each other as peers."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [Node(folder / name, workers=1, config=QUICK) for name in ("one", "two", "three")]
        peers = ", ".join(f'"127.0.0.1:{node.port}"' for node in self.nodes)
        for node in self.nodes:
            config = node.data.parent / f"{node.data.name}.toml"
            config.write_text(f"{QUICK}\n[replication]\npeers = [{peers}]\n")
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_ready()
        self.one, self.two, self.three = self.nodes

    def follow(self, *patterns: str) -> None:
        for node in (self.two, self.three):
            for pattern in patterns:
                assert ask(node, f"slave 127.0.0.1 {self.one.port} {pattern} 0").startswith("ok slave")

    def wait_copied(self, node: Node, stream: str, next_seq: int) -> None:
        wait_for(lambda: stat(node, stream).get("next_seq") == str(next_seq), f"a copy with {next_seq} messages")


@contextlib.contextmanager
def three(folder: Path) -> Iterator[Three]:
    made = Three(folder)
    try:
        yield made
        for node in made.nodes:
            assert node.exited() or node.stop() == 0
            assert "Traceback" not in node.log()
    except BaseException:
        for node in made.nodes:
            print(node.data.name, node.log())
        raise
    finally:
        for node in made.nodes:
            node.kill()


def ask(node: Node, line: str) -> str:
    with node.client() as client:
        return client.ask(line)


def stat(node: Node, stream: str) -> dict[str, str]:
    with node.client() as client:
        answer = client.ask_table(f"stat {stream}")
    return {} if answer[0].startswith("err") else {row["field"]: row["value"] for row in rows(answer)}


def publish(node: Node, stream: str, count: int) -> None:
    with peer(node) as publisher:
        publisher.publish(stream, [b"x"] * count)


def stop_reading(node: Node) -> None:
    assert node.process is not None
    os.killpg(node.process.pid, signal.SIGSTOP)


def go_on(node: Node) -> None:
    assert node.process is not None
    os.killpg(node.process.pid, signal.SIGCONT)


def test_a_slave_is_not_promoted_while_another_one_has_more(tmp_path: Path) -> None:
    with three(tmp_path) as tree:
        publish(tree.one, "s", 5)
        publish(tree.one, "t", 5)
        tree.follow("*")
        for node in (tree.two, tree.three):
            for stream in ("s", "t"):
                tree.wait_copied(node, stream, 5)
        tree.three.kill()
        publish(tree.one, "s", 3)
        tree.wait_copied(tree.two, "s", 8)
        tree.one.kill()
        tree.three.start()
        two = f"node {id_of(tree.two)} at 127.0.0.1:{tree.two.port}"
        for command in ("promote s", "promote *", "master s", "promote s 7"):
            refused = ask(tree.three, command)
            assert refused.startswith(f"err behind {two} has more of s: last_epoch 1, next_seq 8; here: "), refused
        assert {stat(tree.three, stream)["role"] for stream in ("s", "t")} == {"slave"}
        assert ask(tree.three, "promote t") == "ok promote t 2"
        assert ask(tree.two, "promote s 7") == "ok promote s 7"
        assert ask(tree.three, "promote s force").startswith("ok promote s "), "nobody is asked"


def test_a_fence_ends_what_is_acknowledged_in_an_earlier_term(tmp_path: Path) -> None:
    with three(tmp_path) as tree, peer(tree.one) as publisher:
        publish(tree.one, "s", 1)
        tree.follow("s")
        for node in (tree.two, tree.three):
            tree.wait_copied(node, "s", 1)
        assert isinstance(send_run(publisher, 1, "s", 0, [b"a"], replicas=2), Published)
        stop_reading(tree.three)
        with Slave(tree.two.port) as other:
            assert other.ask(Fence(1, b"s", 5), Fenced) == Fenced(1, "slave", 5)
        refused = send_run(publisher, 2, "s", 1, [b"b"], replicas=1)
        assert isinstance(refused, Failed) and refused.code in (Code.UNREPLICATED, Code.DISABLED)
        wait_for(lambda: stat(tree.one, "s")["role"] == "slave", "the master hears of the term from who follows it")
        assert (stat(tree.two, "s")["epoch"], stat(tree.two, "s")["last_epoch"]) == ("5", "1")
        wait_for(lambda: "this_node_has_learned_of_term_5" in stat(tree.two, "s")["copy"], "the slave waits")
        assert ask(tree.two, "pub s |x").startswith("err disabled")
        go_on(tree.three)
        assert ask(tree.three, "fence s 5") == "ok fence s slave 5"
        assert ask(tree.three, "promote s 5").startswith("err usage term 5 is not above")
        best = max((tree.two, tree.three, tree.one), key=lambda node: int(stat(node, "s")["next_seq"]))
        assert ask(best, "promote s") == "ok promote s 6"
        for node in {tree.two, tree.three, tree.one} - {best}:
            assert ask(node, f"slave 127.0.0.1 {best.port} s 0").startswith("ok slave")
        with peer(best) as again:
            wait_for(
                lambda: isinstance(again.answer_to(again.send_publish("s", [b"y"], Ack.APPENDED)), Published),
                "the new master takes messages",
            )
        for node in tree.nodes:
            wait_for(lambda node=node: stat(node, "s")["last_epoch"] == "6", "all are in the new term")  # type: ignore[misc]
