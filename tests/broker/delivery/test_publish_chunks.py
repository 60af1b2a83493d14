"""Chunks of PUBLISH packets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.delivery import publish_chunks
from tailrace.protocol.mqtt.publishes import render_plain
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5


def test_subscribers_of_one_form_share_what_they_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*args: Any) -> Any:
        nonlocal made
        made += 1
        return render_plain(*args)

    monkeypatch.setattr(publish_chunks, "render_plain", counted)
    with world(tmp_path) as node:
        peers = [MqttPeer(node, client_id=f"c{n}") for n in range(10)]
        for place, peer in enumerate(peers):
            peer.subscribe(("s", int(place >= 5)))
        node.fill("s", [b"x", b"y"])
        assert all(peer.payloads() == [b"x", b"y"] for peer in peers)
        assert made == 2, "one for each QoS"
        assert {each.packet_id for peer in peers[5:] for each in peer.got} == set()


def test_a_chunk_that_expires_in_the_middle_of_being_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer gets whole packets: those of the time at which the chunk began."""
    with world(tmp_path) as node:
        chunks = node.workers[0].mqtt.chunks
        reader = MqttPeer(node, small=True)
        reader.subscribe(("s", 0))
        reader.peer.deaf = True
        writer = MqttPeer(node, client_id="writer")
        for number in range(1, 6):  # the answers show that all of each has been read
            (answer,) = writer.ask(wire.publish(V5, "s", bytes(12_000), 1, number, raw=b"\x02\0\0\0\5"))
            assert answer.kind == 4
        later_us = chunks._clock_us() + 60_000_000
        monkeypatch.setattr(chunks, "_clock_us", lambda: later_us)
        chunks.cache.clear()
        begun = reader.client.current
        assert begun is not None and begun.skip
        reader.peer.deaf = False
        reader.take()
        assert 0 < len(reader.got) < 5 and all(each.raw[0] == 2 and each.raw[4] in (4, 5) for each in reader.got)
        writer.ask(wire.publish(V5, "s", b"new", 0))
        assert reader.payloads()[-1] == b"new"


def test_what_was_not_begun_in_time_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[MQTT-3.3.2-5]."""
    with world(tmp_path) as node:
        chunks = node.workers[0].mqtt.chunks
        later_us = chunks._clock_us() + 60_000_000
        monkeypatch.setattr(chunks, "_clock_us", lambda: later_us)
        reader = MqttPeer(node)
        reader.subscribe(("s", 1))
        writer = MqttPeer(node, client_id="writer")
        writer.ask(wire.publish(V5, "s", b"old", 1, 1, raw=b"\x02\0\0\0\5"), wire.publish(V5, "s", b"new", 1, 2))
        assert reader.payloads() == [b"new"]


def test_a_reader_in_the_middle_of_trimmed_messages_gets_whole_packets(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        reader = MqttPeer(node, small=True)
        reader.subscribe(("s", 1))
        reader.peer.deaf = True
        node.fill("s", [b"%d " % n * 500 for n in range(40)])
        assert reader.client.current is not None
        assert node.ask(node.connect(), "trim s #39")[0].startswith("ok")
        node.workers[0].fanout.keep_cut_messages()
        reader.peer.deaf = False
        reader.take()
        numbers = [int(each.payload.split()[0]) for each in reader.got]
        assert numbers == sorted(numbers) and numbers[-1] == 39 and numbers[0] == 0
        reader.send(*(wire.ack(wire.PUBACK, each.packet_id) for each in reader.got))
        reader.take()
        assert reader.client.window.room == reader.client.window.size
