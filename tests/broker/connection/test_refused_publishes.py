"""Very many refused requests in one read: they are answered all the same, and the others wait for few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.connection import client as client_module
from tailrace.broker.connection.binary import BinaryClient
from tailrace.broker.process import work as work_module
from tailrace.broker.process.work import WorkQueue
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import pack_frame
from tests.broker.binary import BinaryPeer
from tests.broker.connection.doors import ANN, TOKEN
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5

COUNT = 2_000
NO_RIGHT = AccessRule(True, ("*",), frozenset({Right.SUBSCRIBE}), ("*",))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(work_module, "TURN_WORK_S", 0.0)  # one step that has waited is done in a turn
    monkeypatch.setattr(client_module, "READ_BYTES_MIN", 1 << 20)
    with world(tmp_path, 1, users=(ANN,), rules=(NO_RIGHT,)) as made:
        yield made


def most_a_turn(node: World, send: Callable[[], object]) -> int:
    """How many requests are refused in the turn with most of them."""
    worker, counts, began = node.workers[0], list[int](), WorkQueue.begin_turn

    def begin_turn(work: WorkQueue) -> None:
        began(work)
        counts.append(sum(worker.metrics.refused.counts.values()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkQueue, "begin_turn", begin_turn)
        send()
        node.settle()
    counts.append(sum(worker.metrics.refused.counts.values()))
    return max(after - before for before, after in pairwise(counts))


def bounded(most: int) -> bool:
    """The read, and a step that has waited."""
    return 0 < most <= 2 * client_module.REFUSALS_A_ROUND


@pytest.mark.parametrize("version", [V4, V5])
def test_mqtt_publishes(node: World, version: int) -> None:
    peer = MqttPeer(node, version, user="ann", password=TOKEN.encode())
    packets = [wire.publish(version, f"t{number % 3}", b"x", 0, 0) for number in range(COUNT)]
    peer.client.read_bytes = 1 << 20
    assert bounded(most_a_turn(node, lambda: peer.send(*packets, wire.PINGREQ)))
    assert node.workers[0].metrics.refused.counts == {Code.DENIED: COUNT}
    assert peer.take()[-1].kind == 13, "PINGRESP"


def test_mqtt_acknowledgements_stay_in_order(node: World) -> None:
    peer = MqttPeer(node, V5, user="ann", password=TOKEN.encode())
    peer.client.read_bytes = 1 << 20
    packets = [wire.publish(V5, "t", b"x", 1, number) for number in range(1, 1_000)]
    assert bounded(most_a_turn(node, lambda: peer.send(*packets)))
    answers = peer.take()
    assert [int.from_bytes(each.body[:2], "big") for each in answers] == list(range(1, 1_000))
    assert {each.body[2] for each in answers} == {0x87}


def test_lines(node: World) -> None:
    peer = node.connect()
    node.ask(peer, f"auth ann {TOKEN}")
    node.client_of(peer).read_bytes = 1 << 20
    lines = [f"sub s{number} sideways" for number in range(COUNT)]
    assert bounded(most_a_turn(node, lambda: peer.send(*lines, "ping")))
    found = peer.take()
    assert len(found) == COUNT + 1 and found[-1] == "ok pong"


@pytest.mark.parametrize("handles", [1, 2], ids=["one stream", "several"])
def test_binary_publishes(node: World, handles: int) -> None:
    """To handles that nobody has opened. One reason is noted once; each request has its answer."""
    peer = BinaryPeer(node, hello=False)
    peer.ask(m.Hello(1, (), "test", mechanism=m.BEARER, user="ann", login=TOKEN.encode()))
    client = node.connection_of(peer.peer)
    assert isinstance(client, BinaryClient)
    client.read_bytes = 1 << 20
    frame, numbers = pack_frame(b"x"), list(range(handles))
    packets = [m.pack_publish(number, Ack.APPENDED, numbers, frame) + frame for number in range(COUNT)]
    most = most_a_turn(node, lambda: peer.peer.send_raw(b"".join(packets)))
    assert handles == 1 or bounded(most)
    answers = peer.take()
    assert [each.id for each in answers if isinstance(each, m.Failed)] == list(range(COUNT))
    assert not client.under_way


def test_a_line_that_is_denied_is_counted_and_logged(node: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tailrace.broker.process.event_log")
    peer = node.connect()
    node.ask(peer, f"auth ann {TOKEN}", "ack on")
    assert node.ask(peer, "pub s |x")[0].startswith("err denied")
    assert node.workers[0].metrics.refused.counts == {Code.DENIED: 1}
    assert any(line.startswith("event=refused") and "user=ann" in line for line in caplog.messages)
