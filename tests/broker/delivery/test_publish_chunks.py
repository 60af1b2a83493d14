"""Chunks of PUBLISH packets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.delivery import publish_chunks
from tailrace.protocol.mqtt.publishes import render_plain
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
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


class Copies:
    """Counts the clients of each call that sends a chunk to several."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clients: list[int] = []
        self._send = publish_chunks._send_copies
        monkeypatch.setattr(publish_chunks, "_send_copies", self)

    def __call__(self, fds: list[int], *rest: Any) -> list[int]:
        self.clients.append(len(fds))
        sent: list[int] = self._send(fds, *rest)
        return sent


def readers_of(node: World, count: int, **connect: Any) -> list[MqttPeer]:
    """With QoS 1, each with an identifier of its own as its next one."""
    readers = [MqttPeer(node, client_id=f"c{number}", **connect) for number in range(count)]
    for number, reader in enumerate(readers):
        reader.subscribe(("s", 1))
        reader.client.window.restore_state([1_000, 1 + number, 0, []])
    return readers


def test_clients_at_the_same_place_are_sent_a_chunk_by_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as node:
        copies, readers = Copies(monkeypatch), readers_of(node, 10)
        before = node.workers[0].metrics.mqtt.messages_out
        for payload in (b"first", b"second"):
            node.fill("s", [payload])
        assert copies.clients == [9, 9], "the first one is sent its chunk alone"
        for number, reader in enumerate(readers):
            reader.take()
            assert [(each.payload, each.packet_id) for each in reader.got] == [
                (b"first", 1 + number),
                (b"second", 2 + number),
            ]
            assert reader.client.window.next_id == 3 + number
            reader.send(wire.ack(wire.PUBACK, 1 + number), wire.ack(wire.PUBACK, 2 + number))
            reader.take()
            assert reader.client.window.room == 1_000
        assert node.workers[0].metrics.mqtt.messages_out - before == 20


def test_a_call_for_several_clients_counts_as_work_what_was_searched_for_them(tmp_path: Path) -> None:
    """Clients that have waited at the end since they came know no offset of theirs."""
    with world(tmp_path) as node:
        node.fill("s", [b"x" * 10_000] * 10)
        readers = readers_of(node, 4)
        skips = node.workers[0].fanout.skips
        before = skips.looked_bytes
        node.fill("s", [b"a"])
        assert [reader.payloads() for reader in readers] == [[b"a"]] * 4
        assert skips.looked_bytes - before < 1_000


def test_clients_that_cannot_be_sent_the_same_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has no room, one reads nothing, one has another form."""
    with world(tmp_path) as node:
        copies = Copies(monkeypatch)
        readers = [*readers_of(node, 6), deaf := MqttPeer(node, client_id="deaf", small=True)]
        deaf.subscribe(("s", 1))
        full, other = readers[2], readers[4]
        full.client.window.restore_state([1, 1, 0, []])
        other.subscribe(("s", 0))
        deaf.peer.deaf = True
        payloads = [b"%d" % number * 20_000 for number in range(1, 5)]
        for payload in payloads:
            node.fill("s", [payload])
        assert max(copies.clients) < 6
        assert full.payloads() == payloads[:1]
        full.send(wire.ack(wire.PUBACK, 1))
        assert full.payloads() == payloads[1:2]
        assert deaf.client.current is not None, "a chunk is half out"
        deaf.peer.deaf = False
        for reader in readers:
            if reader is not full:
                reader.take()
                assert [each.payload for each in reader.got] == payloads
                first_id = reader.got[0].packet_id
                assert (first_id == 0) == (reader is other)
                assert [each.packet_id for each in reader.got] == [first_id and first_id + n for n in range(4)]


def test_a_durable_session_knows_what_it_was_sent_together_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as node:
        copies = Copies(monkeypatch)
        readers = readers_of(node, 4, clean=False, raw=b"\x11\0\0\0\x64")
        node.fill("s", [b"a", b"b"])
        assert sum(copies.clients) == 3
        for number, reader in enumerate(readers):
            session = reader.client.session
            assert session is not None
            assert [(run.first_id, list(run.seqs)) for run in session.in_flight.runs] == [(1 + number, [0, 1])]


def test_a_client_that_is_gone_in_the_middle_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as node:
        readers = readers_of(node, 4)
        gone = readers[2].client
        send = publish_chunks._send_copies
        monkeypatch.setattr(
            publish_chunks,
            "_send_copies",
            lambda fds, *rest: [
                publish_chunks.FAILED if fd == gone.fd else send([fd], *rest[:-1], [first_id])[0]
                for fd, first_id in zip(fds, rest[-1], strict=True)
            ],
        )
        node.fill("s", [b"a"])
        assert gone.closed
        node.fill("s", [b"b"])
        assert [reader.payloads() for reader in readers if reader is not readers[2]] == [[b"a", b"b"]] * 3
