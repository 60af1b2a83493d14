"""Through the client library: a stream's master changes, and a client that knows both nodes goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tailrace
from tailrace import Ack, NotReplicated, Receipt, StreamDiverged
from tests.system.node import Node, rows, running, wait_for

pytestmark = pytest.mark.system

CONFIG = """
[timing]
replication_timeout_s = "2 s"
"""
PATIENCE_S = 60.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """The second follows the first in all streams, and has found the one there is."""
    with running(tmp_path / "aa", config=CONFIG) as first, running(tmp_path / "bb", config=CONFIG) as second:
        tell(first, "master s")
        tell(second, f"slave 127.0.0.1 {first.port} * 0")
        wait_for(lambda: streams(second) == ["s"], "it finds the stream")
        yield first, second


def tell(node: Node, line: str) -> None:
    with node.client() as client:
        answer = client.ask(line)
    assert answer.startswith("ok "), answer


def address(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def streams(node: Node) -> list[str]:
    with node.client() as client:
        return [row["stream"] for row in rows(client.ask_table("streams"))]


def test_a_change_of_masters_is_an_error_to_nobody(pair: tuple[Node, Node]) -> None:
    first, second = pair
    with (
        tailrace.connect(address(first), address(second), timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor() as pool,
    ):
        reading = client.subscribe("s", wait=True)
        first_node = client.node
        for number in range(10):
            client.publish("s", b"%d" % number, ack=Ack.REPLICATED)
        tell(first, "unmaster s")
        waiting = pool.submit(client.publish, "s", b"10")
        wait_for(lambda: client.node != first_node, "it looks for the master elsewhere")
        tell(second, "promote s")
        assert waiting.result(PATIENCE_S).seq == 10
        received = [reading.receive(PATIENCE_S) for _ in range(11)]
        assert [message.epoch for message in received if message is not None] == [1] * 10 + [2], "each says its master"
    with tailrace.connect(address(second)) as client:
        assert [message.payload for message in client.subscribe("s", end=tailrace.NOW, wait=True)] == [
            b"%d" % n for n in range(11)
        ]


def test_too_few_nodes_hold_it_whichever_was_asked(pair: tuple[Node, Node]) -> None:
    for node, seq in zip(pair, (1, 3), strict=True):
        with tailrace.connect(address(node)) as client:
            client.publish("s", b"held", ack=Ack.REPLICATED, replicas=1)
            with pytest.raises(NotReplicated, match="logged, but 1 of 2 nodes hold it") as caught:
                client.publish_many("s", [b"a"], ack=Ack.REPLICATED, replicas=2)
            assert caught.value.receipt == Receipt("s", seq, 1, 0)


def test_what_was_read_and_lost_with_its_master_is_told(pair: tuple[Node, Node]) -> None:
    first, second = pair
    with tailrace.connect(address(first), address(second)) as client:
        reading = client.subscribe("s", wait=True)
        client.publish("s", b"both", ack=Ack.REPLICATED)
        tell(second, "unslave s")
        client.publish_many("s", [b"alone", b"alone"])
        assert [message.seq for message in (reading.receive(PATIENCE_S) for _ in range(3)) if message] == [0, 1, 2]
        first.kill()
        tell(second, "promote s")
        with tailrace.connect(address(second)) as other:
            other.publish_many("s", [b"1", b"2", b"3"])
        with pytest.raises(StreamDiverged) as caught:
            reading.receive(PATIENCE_S)
        assert caught.value.next_seq == 2
        again = client.subscribe("s", tailrace.Seq(0), tailrace.NOW, wait=True)
        assert [message.payload for message in again] == [b"both", b"1", b"2", b"3"]
    first.start()  # nobody's concern, but it must be able to
