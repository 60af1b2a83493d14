"""Publishers that retry until they are answered: each message is in the log once, with any process dying in between."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tailrace
from tailrace import NOW, START
from tailrace.protocol.messages import Ack
from tailrace.shard.names import shard_of
from tests.system.node import Node, running, wait_for
from tests.system.processes import worker_pid
from tests.system.test_client_survival import seed
from tests.system.test_tree_failover import CHAIN, CONFIG, PUBLISHERS, STREAMS, check, follow_all, let_follow, promote
from tests.system.tree_check import assert_sound
from tests.system.tree_ledger import Fate
from tests.system.tree_load import Load
from tests.system.tree_node import growing

pytestmark = pytest.mark.system

WORKERS = 2
KILLS = 6
SHARDS = 8
PATIENCE_S = 60.0


def publish_singly(client: tailrace.Client, stream: str, payload: Callable[[], bytes]) -> None:
    client.publish(stream, payload(), timeout_s=PATIENCE_S)


def publish_some(client: tailrace.Client, stream: str, payload: Callable[[], bytes]) -> None:
    client.publish_many(stream, [payload() for _ in range(30)], timeout_s=PATIENCE_S, ack=Ack.SYNCED)


def publish_many_at_once(client: tailrace.Client, stream: str, payload: Callable[[], bytes]) -> None:
    with client.batcher(stream, max_messages=3, timeout_s=PATIENCE_S) as batcher:
        for _ in range(300):
            batcher.add(payload())


WAYS = {"singly": publish_singly, "some": publish_some, "many": publish_many_at_once}


class Publisher(threading.Thread):
    """Numbers its publishes; `sent` counts the acknowledged ones."""

    def __init__(self, node: Node, stream: str, way: str) -> None:
        super().__init__(daemon=True)
        self.sent = self.made = 0
        self.failure: BaseException | None = None
        self.ending = threading.Event()
        self.name = way
        self._node, self._stream = node, stream

    def run(self) -> None:
        try:
            with tailrace.connect(f"127.0.0.1:{self._node.port}") as client:
                while not self.ending.is_set():
                    WAYS[self.name](client, self._stream, self._payload)
                    self.sent = self.made
        except BaseException as failure:
            self.failure = failure
            raise

    def _payload(self) -> bytes:
        self.made += 1
        return f"{self.name}/{self.made - 1}".encode()


@contextmanager
def publishing(node: Node, stream: str) -> Iterator[list[Publisher]]:
    """Several publishers of a stream; at the end of the block the log has each of their messages once, in order."""
    publishers = [Publisher(node, stream, way) for way in WAYS]
    for publisher in publishers:
        publisher.start()
    try:
        yield publishers
    finally:
        for publisher in publishers:
            publisher.ending.set()
    for publisher in publishers:
        publisher.join(PATIENCE_S)
        assert not publisher.is_alive(), f"{publisher.name} hangs"
        assert publisher.failure is None, f"{publisher.name}: {publisher.failure!r}"
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        log = [message.payload.decode() for message in client.subscribe(stream, START, NOW, wait=True)]
    for publisher in publishers:
        mine = [payload for payload in log if payload.startswith(f"{publisher.name}/")]
        assert mine == [f"{publisher.name}/{number}" for number in range(publisher.sent)]


def progress(publishers: list[Publisher]) -> None:
    """Until each has had something acknowledged."""
    before = [publisher.sent for publisher in publishers]
    wait_for(
        lambda: all(each.sent > sent or each.failure for each, sent in zip(publishers, before, strict=True)),
        "publishes are acknowledged",
        PATIENCE_S,
    )


@pytest.mark.thorough
def test_the_owner_is_killed_at_random_points(tmp_path: Path) -> None:
    """Between a request and its append, between that and the answer, and anywhere else."""
    chance = random.Random(seed())
    with running(tmp_path / "data", "--shards", str(SHARDS), workers=WORKERS) as node:
        owner = shard_of(b"s", SHARDS) % WORKERS
        with publishing(node, "s") as publishers:
            for _ in range(KILLS):
                progress(publishers)
                threading.Event().wait(chance.random() / 20)  # no condition: any moment will do
                os.kill(worker_pid(node, owner), signal.SIGKILL)
            progress(publishers)


@pytest.mark.thorough
def test_the_owner_is_replaced_and_the_node_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node, publishing(node, "s") as publishers:
        progress(publishers)
        node.signal(signal.SIGHUP)
        progress(publishers)
        node.kill()
        node.start()
        progress(publishers)
        node.stop()
        node.start()
        progress(publishers)


@pytest.mark.slow
def test_the_master_dies_and_a_slave_is_promoted(tmp_path: Path) -> None:
    """Messages acknowledged as replicated are there once, unanswered ones at most once."""
    options = {"ack": Ack.REPLICATED, "replicas": 1, "retry": True, "timeout_s": PATIENCE_S}
    with growing(tmp_path, CHAIN, config=CONFIG) as tree:
        follow_all(tree)
        known = [tree.nodes["old"].address, tree.nodes["heir"].address]
        addresses = dict.fromkeys(PUBLISHERS, known)
        with Load(addresses, STREAMS, tmp_path / "load", kinds=["binary"], options=options) as load:
            load.wait_for_progress(50)
            tree.nodes["old"].kill()
            promote(tree.nodes["heir"])
            load.wait_for_progress(50)
            tree.nodes["old"].start()
            let_follow(tree.nodes["old"], tree.nodes["heir"])
            load.wait_for_progress(50)
            sent = load.finish()
        check(tree, sent, repeated=True)
        unanswered = [message for message in sent if message.fate is not Fate.ACKNOWLEDGED]
        print(f"{len(unanswered)} of {len(sent)} messages were not acknowledged")
    assert_sound(tree.data())
