"""A slave that loses the node it follows goes on at the next one of its list; a reader there notices nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.binary_peer import peer
from tests.system.node import LineClient, Node, rows, wait_for

pytestmark = pytest.mark.system

TIMING = '[timing]\nupstream_switch_s = "0.5 s"\nupstream_timeout_s = "2 s"\n'
BATCH = [b"x" * 100] * 10


def slave_of(folder: Path, name: str, *upstreams: Node, workers: int = 1) -> Node:
    listed = ", ".join(f'"127.0.0.1:{each.port}"' for each in upstreams)
    config = f'{TIMING}[[slave]]\nstreams = "*"\nupstream = [{listed}]\n'
    return Node(folder / name, workers=workers, config=config)


class Diamond:
    """A master, two slaves of it, and a leaf that follows one of those two."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.master = Node(folder / "master", workers=workers, config=TIMING)
        self.one = slave_of(folder, "one", self.master, workers=workers)
        self.two = slave_of(folder, "two", self.master, workers=workers)
        self.leaf = slave_of(folder, "leaf", self.one, self.two, workers=workers)
        self.nodes = [self.master, self.one, self.two, self.leaf]


@contextlib.contextmanager
def diamond(folder: Path, workers: int = 1) -> Iterator[Diamond]:
    made = Diamond(folder, workers)
    try:
        for node in made.nodes:
            node.start(wait=False)
        for node in made.nodes:
            node.wait_ready()
        yield made
        for node in made.nodes:
            assert node.exited() or node.stop() == 0
            assert "Traceback" not in node.log()
    except BaseException:
        for node in made.nodes:
            print(node.data.name, node.log()[-5_000:])
        raise
    finally:
        for node in made.nodes:
            node.kill()


class Publisher:
    """Publishes to a node until it is ended; `count` messages are acknowledged."""

    def __init__(self, node: Node) -> None:
        self.count = 0
        self._ended = threading.Event()
        self._node = node
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def _run(self) -> None:
        with peer(self._node) as publisher:
            while not self._ended.wait(0.002):
                publisher.publish("s", BATCH)
                self.count += len(BATCH)

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


def stat(node: Node) -> dict[str, str]:
    with node.client() as client:
        answer = client.ask_table("stat s")
    return {} if answer[0].startswith("err") else {row["field"]: row["value"] for row in rows(answer)}


def follows(leaf: Node, upstream: Node) -> bool:
    found = stat(leaf)
    return found.get("upstream") == f"127.0.0.1:{upstream.port}" and found["copy"].startswith("following")


def read_in_order(reader: LineClient, count: int) -> None:
    """Until there are this many messages; no seq is missing and none comes twice."""
    reader.read_messages(count)
    assert [message.seq for message in reader.messages] == list(range(len(reader.messages)))


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_leaf_moves_when_its_upstream_dies_and_its_reader_misses_nothing(tmp_path: Path, workers: int) -> None:
    with diamond(tmp_path, workers) as tree, contextlib.ExitStack() as stack:
        with Publisher(tree.master) as publisher:
            wait_for(lambda: follows(tree.leaf, tree.one), "the leaf follows the first of its list")
            reader = stack.enter_context(tree.leaf.client())
            reader.send("sub s #0")
            read_in_order(reader, publisher.count)
            tree.one.kill()
            wait_for(lambda: follows(tree.leaf, tree.two), "the leaf follows the other one")
            read_in_order(reader, publisher.count)
            tree.one.start()
            wait_for(lambda: stat(tree.one).get("copy", "").startswith("following"), "the first is back")
            assert follows(tree.leaf, tree.two), "and nobody returns to it for that"
            tree.two.kill()
            wait_for(lambda: follows(tree.leaf, tree.one), "the leaf has returned")
        read_in_order(reader, publisher.count)
        wait_for(lambda: stat(tree.leaf)["next_seq"] == str(publisher.count), "the leaf has everything")
        wait_for(lambda: tree.leaf.metric("tailrace_upstream_moves_total") >= 2, "both moves are counted")
        wait_for(lambda: tree.leaf.metric("tailrace_upstream_links_up") >= 1, "the present connection is shown")


def test_a_leaf_moves_when_its_upstream_stands_still(tmp_path: Path) -> None:
    with diamond(tmp_path) as tree, Publisher(tree.master):
        wait_for(lambda: follows(tree.leaf, tree.one), "the leaf follows the first of its list")
        with standing_still(tree.one):
            wait_for(lambda: follows(tree.leaf, tree.two), "the leaf follows the other one")


@contextlib.contextmanager
def standing_still(node: Node) -> Iterator[None]:

    assert node.process is not None
    os.killpg(node.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(node.process.pid, signal.SIGCONT)
