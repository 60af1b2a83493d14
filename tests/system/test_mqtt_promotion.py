"""Durable MQTT sessions over the loss of their node: another one, which copied them with all streams, is promoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.protocol.mqtt.reasons import Reason
from tailrace.shard.catalog import all_streams
from tailrace.shard.directory import open_data_dir
from tailrace.shard.errors import StorageError
from tailrace.shard.reader import StreamReader
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import PUBACK, PUBREC, PUBREL, V5, VERSIONS
from tests.system.mqtt_kills import REPLICATED, Site
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import Node, running, wait_for

pytestmark = pytest.mark.system

both = pytest.mark.parametrize("version", VERSIONS)
CONFIG = '[[topics]]\nfilter = "#"\nstream = "{1}"\n'
UNAVAILABLE = 3
"""The return code of MQTT 3.1.1."""


def tell(node: Node, line: str) -> None:
    with node.client() as client:
        answer = client.ask(line)
    assert answer.startswith("ok"), answer


def connect_packet(version: int, client_id: str) -> bytes:
    return wire.connect(version, client_id, clean=False, raw=b"\x11\0\0\x0e\x10" if version == V5 else b"")


def lasting(node: Node, version: int, client_id: str = "lasting") -> MqttSocket:
    """Connects again while a role is being written down, as the answer asks for."""

    def connected() -> MqttSocket | None:
        peer = MqttSocket(node.port, version, opened=False)
        peer.connack = peer.ask(connect_packet(version, client_id))
        if peer.connack.body[1] in (Reason.SERVER_UNAVAILABLE, 3):  # 3 in version 3.1.1
            peer.close()
            return None
        return peer

    peer = wait_for(connected, "the node takes the session")
    assert peer.connack.kind == 2 and not peer.connack.body[1], peer.connack
    return peer


def ends(node: Node) -> dict[str, int]:
    """The next seq of each stream, the logs of sessions included."""
    found = {}
    data = open_data_dir(node.data)
    for _shard, name in all_streams(data):
        with StreamReader.open(data.stream_directory(name), name) as reader:
            found[name] = reader.next_seq()
    return found


def catch_up(slave: Node, master: Node) -> None:
    def is_there() -> bool:
        try:
            return ends(slave) == ends(master)
        except (StorageError, OSError):  # a file is just being made
            return False

    wait_for(is_there, "the slave has all that the master has")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A master, and a node that follows it for all streams."""
    with running(tmp_path / "top", config=CONFIG) as top, running(tmp_path / "bottom", config=CONFIG) as bottom:
        tell(bottom, f"slave 127.0.0.1 {top.port} * 0")
        yield top, bottom
        if top.exited():
            top.start()


def refused(node: Node, version: int, client_id: str, elsewhere: Node) -> None:
    """A durable session is another node's, which MQTT 5 names."""
    with MqttSocket(node.port, version, opened=False) as peer:
        answer = peer.ask(connect_packet(version, client_id))
        assert peer.rest() == [] and answer.kind == 2
    if version == V5:
        assert answer.body[1] == Reason.USE_ANOTHER_SERVER
        assert b"\x1c" + wire.text(f"127.0.0.1:{elsewhere.port}") in answer.body
    else:
        assert answer.body == bytes((0, UNAVAILABLE))


@pytest.mark.few(1)
@both
def test_a_session_goes_on_at_the_promoted_node(pair: tuple[Node, Node], version: int) -> None:
    top, bottom = pair
    with lasting(top, version) as reader, MqttSocket(top.port, version) as writer:
        reader.subscribe(("k/+", 1), ("plain", 1))
        for number in range(4):
            writer.publish("k/a", b"%d" % number)
        first, *others = reader.messages(4)
        assert reader.ask(wire.ack(PUBACK, first.packet_id), wire.packet(0xC0)).kind == 13  # it has been taken
        assert [each.payload for each in others] == [b"1", b"2", b"3"]
    with lasting(top, version) as reader:  # its acknowledgements are stored now
        assert reader.present and [each.payload for each in reader.messages(3)] == [b"1", b"2", b"3"]
    refused(bottom, version, "lasting", top)
    with MqttSocket(bottom.port, version, "lasting") as clean:  # has none, and needs none
        assert clean.subscribe(("k/+", 1)) == [1]
    catch_up(bottom, top)
    top.kill()
    tell(bottom, "promote * force")
    with MqttSocket(bottom.port, version) as writer:
        writer.publish("plain", b"new")
    with lasting(bottom, version) as reader:
        assert reader.present
        found = reader.messages(3)
        assert [(each.payload, each.dup) for each in found] == [(b"1", True), (b"2", True), (b"3", True)]
        reader.send(*(wire.ack(PUBACK, each.packet_id) for each in found))  # others have identifiers far from these
        assert reader.message().payload == b"new"
        assert reader.subscribe(("later", 1)) == [1]
    top.start()
    tell(top, f"slave 127.0.0.1 {bottom.port} * 0")
    refused(top, version, "lasting", bottom)
    refused(top, version, "another", bottom)


@pytest.mark.few(1)
@both
def test_retained_and_released_messages(pair: tuple[Node, Node], version: int) -> None:
    """A retained message is retained there, and a message that the reader has acknowledged with PUBREC is only
    released.
    """
    top, bottom = pair
    with lasting(top, version) as reader, MqttSocket(top.port, version) as writer:
        reader.subscribe(("k/+", 2))
        writer.publish("kept", b"retained", retain=True)
        writer.publish("k/a", b"0", 2, 1)
        writer.publish("k/a", b"1", 2, 2)
        zero, one = reader.messages(2)
        assert reader.ask(wire.ack(PUBREC, zero.packet_id)).kind == 6
    with lasting(top, version) as reader:  # its acknowledgements are stored now
        assert reader.present
    catch_up(bottom, top)
    top.kill()
    tell(bottom, "promote * force")
    with lasting(bottom, version) as reader, MqttSocket(bottom.port, version) as writer:
        assert reader.present
        found = reader.message()
        assert (found.payload, found.packet_id, found.dup) == (b"1", one.packet_id, True)
        released = reader.answer()
        assert released is not None and released.kind == 6 and released.body[:2] == zero.packet_id.to_bytes(2, "big")
        assert writer.subscribe(("kept", 1)) == [1]
        assert writer.message().payload == b"retained"


@pytest.mark.thorough
def test_what_was_acknowledged_is_at_the_promoted_node(tmp_path: Path) -> None:
    """With `[mqtt] replicas`, though nobody waits for the copy: no message is lost, and none with QoS 2 comes or is
    logged twice.
    """
    config = CONFIG + REPLICATED
    with running(tmp_path / "top", config=config) as top, running(tmp_path / "bottom", config=config) as bottom:
        site = Site(top, bottom)
        with lasting(top, V5) as reader, lasting(top, V5, "writer") as writer:
            assert reader.subscribe(("k/+", 2)) == [2]
            assert writer.publish("k/a", b"0", 1, 1) == 0
            assert writer.ask(wire.publish(V5, "k/a", b"1", 2, 2)).body[:2] == b"\0\2"
            zero, one = reader.messages(2)
            assert reader.ask(wire.ack(PUBREC, one.packet_id)).kind == 6
            site.promote()
        with lasting(bottom, V5) as reader, lasting(bottom, V5, "writer") as writer:
            assert reader.present and writer.present
            assert writer.ask(wire.publish(V5, "k/a", b"1", 2, 2, dup=True)).body[:2] == b"\0\2"
            assert writer.ask(wire.ack(PUBREL, 2)).kind == 7
            assert writer.publish("k/a", b"2", 2, 3) == 0
            again, two = reader.messages(2)
            assert (again.payload, again.packet_id, again.dup, two.payload) == (b"0", zero.packet_id, True, b"2")
            released = reader.answer()
            assert released is not None and released.body[:2] == one.packet_id.to_bytes(2, "big")


def test_a_session_goes_on_whose_messages_under_way_are_gone(tmp_path: Path) -> None:
    """With `[mqtt] replicas`: it does not wait for other nodes to hold what the stream does not have any more."""
    config = CONFIG + REPLICATED
    with running(tmp_path / "top", config=config) as top, running(tmp_path / "bottom", config=config) as bottom:
        Site(top, bottom)
        with lasting(top, V5) as reader, MqttSocket(top.port, V5) as writer:
            assert reader.subscribe(("k/a", 2)) == [2]
            for number in range(1, 4):
                assert writer.publish("k/a", b"old", 1, number) == 0
            assert len(reader.messages(3)) == 3
            assert reader.ask(wire.unsubscribe(V5, 9, "k/a")).kind == 11
        tell(top, "delete k")
        with MqttSocket(top.port, V5) as writer:
            assert writer.publish("k/a", b"new", 1, 1) == 0
        with lasting(top, V5) as reader:
            assert reader.present and reader.subscribe(("k/a", 2)) == [2]
            with MqttSocket(top.port, V5) as writer:
                assert writer.publish("k/a", b"newer", 1, 1) == 0
            assert reader.until(b"newer")


def test_a_node_that_copies_only_some_streams_has_sessions_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path / "top", config=CONFIG) as top, running(tmp_path / "bottom", config=CONFIG) as bottom:
        tell(bottom, f"slave 127.0.0.1 {top.port} k* 0")
        with lasting(top, V5) as above:
            above.subscribe(("k/+", 1))
        for node in (top, bottom):
            with lasting(node, V5) as peer:
                assert peer.present == (node is top)
                peer.subscribe(("k/+", 1))
        with MqttSocket(top.port, V5) as writer:
            writer.publish("k/a", b"x")
        for node in (top, bottom):
            with lasting(node, V5) as peer:
                assert peer.present and peer.message().payload == b"x"
