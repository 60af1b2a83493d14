"""The wills of one worker's connections, and their bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User, UserLimits
from tailrace.broker.connection.accounts import UNBOUNDED, Account
from tailrace.broker.connection.mqtt.wills import FULL_TEXT, PAIR_BYTES, WILL_BYTES, Wills, memory_of
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.protocol.mqtt.packets import WillMessage
from tailrace.protocol.mqtt.properties import NO_PROPERTIES, Properties, PropertyId
from tests.broker.connection.doors import ANN, TOKEN
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

SIZE_BYTES = 10_000
BOUND_BYTES = 25_000

both = pytest.mark.parametrize("version", VERSIONS)


def held(node: World) -> int:
    return sum(worker.metrics.will_bytes for worker in node.workers)


def will(payload: bytes = b"", properties: Properties = NO_PROPERTIES) -> WillMessage:
    return WillMessage(b"gone", payload, 1, False, properties)


def test_user_properties_count_as_what_they_take() -> None:
    assert memory_of(will(b"12345")) == WILL_BYTES + 9
    pairs = will(properties={PropertyId.USER_PROPERTY: [(b"a", b"bc"), (b"", b"")], PropertyId.WILL_DELAY: 7})
    assert memory_of(pairs) == WILL_BYTES + 4 + 2 * PAIR_BYTES + 3
    assert memory_of(will(properties={PropertyId.CONTENT_TYPE: b"text"})) == WILL_BYTES + 8


def test_the_account() -> None:
    metrics = WorkerMetrics()
    wills, one = Wills(2 * memory_of(will(b"x")), metrics), will(b"x")
    ann, bob = (Account(f"user {name}", UNBOUNDED._replace(will_bytes=1_000_000), 0.0) for name in ("ann", "bob"))
    wills.exchange(ann, None, one)
    assert not wills.refusal(ann, one) and wills.refusal(ann, will(b"xx")) == FULL_TEXT
    wills.exchange(bob, None, will(b"beyond"))
    assert wills.refusal(ann, will()) == FULL_TEXT
    wills.exchange(ann, one, will())
    assert metrics.will_bytes == memory_of(will(b"beyond")) + memory_of(will())
    assert (ann.will_bytes, bob.will_bytes) == (memory_of(will()), memory_of(will(b"beyond")))
    wills.exchange(ann, will(), None)
    assert ann.will_bytes == 0 and not metrics.mqtt_beyond_share.counts


def wills_taken(node: World, user: str, count: int = 9) -> int:
    """How many of `count` connections of a user may have a will; the others are refused."""
    taken = 0
    for number in range(count):
        name, willed = f"{user}-{number}", ("gone", bytes(SIZE_BYTES), 1)
        peer = MqttPeer(node, V5, opened=False)
        (answer,) = peer.ask(wire.connect(V5, name, will=willed, user=user, password=TOKEN.encode()))
        assert wire.reason(answer) in (0, 0x97)
        taken += wire.reason(answer) == 0
    return taken


def test_one_user_leaves_memory_for_the_wills_of_others(tmp_path: Path) -> None:
    users = ANN, User("bob", token_hashes=ANN.token_hashes, limits=UserLimits(max_will_bytes=4 * SIZE_BYTES))
    everything = AccessRule(True, ("*",), frozenset(Right), ("*",))
    with world(tmp_path, 1, max_will_bytes=8 * SIZE_BYTES, users=users, rules=(everything,)) as node:
        assert wills_taken(node, "ann") == 3, "no more than are left for others"
        assert wills_taken(node, "bob") == 3, "it has a limit of its own"
        assert node.workers[0].metrics.mqtt_beyond_share.counts == {"wills": 12}
        assert MqttPeer(node, V5, "without", user="ann", password=TOKEN.encode()).client.greeted


@both
@pytest.mark.parametrize("ends", ["disconnect", "eof"])
def test_a_connect_beyond_the_bound_is_refused(tmp_path: Path, version: int, ends: str) -> None:
    with world(tmp_path, 1, max_will_bytes=BOUND_BYTES + 2 * SIZE_BYTES) as node:
        willed = ("gone", bytes(SIZE_BYTES), 1)
        peers = [MqttPeer(node, version, f"client-{number}", will=willed) for number in range(2)]
        beyond = MqttPeer(node, version, opened=False)
        answers = beyond.ask(wire.connect(version, "beyond", will=willed))
        assert [each.body for each in answers] == [b"\0\3"] if version == V4 else wire.reason(answers[0]) == 0x97
        assert beyond.ended and 2 * SIZE_BYTES < held(node) <= BOUND_BYTES
        assert MqttPeer(node, version, "without").client.greeted
        if ends == "disconnect":
            peers[0].ask(wire.packet(0xE0))
        else:
            peers[0].peer.close()
            node.settle()
        assert SIZE_BYTES < held(node) < 2 * SIZE_BYTES
        assert MqttPeer(node, version, "beyond", will=willed).client.will is not None
    assert held(node) == 0
