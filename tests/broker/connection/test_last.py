"""Last values for connections: several streams, pages, rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.connection import last as module
from tailrace.broker.process.settings import StreamPolicy
from tailrace.broker.topics.rules import TopicRule
from tailrace.core.last_values import messages_in
from tailrace.protocol import messages as m
from tailrace.protocol import recalling
from tailrace.protocol.binary import ClientCodec
from tests.broker.binary import BinaryPeer
from tests.broker.world import world

ROOMS: dict[str, Any] = {
    "topics": (TopicRule("rooms/#", "rooms-{2}"),),
    "streams": (StreamPolicy("*", last_values=True),),
}


def test_values_of_several_streams_come_in_order_and_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.connection.commands.VALUES_MAX", 3)
    monkeypatch.setattr(module, "STREAMS_A_TURN", 2)
    monkeypatch.setattr(module, "NAMES_MAX", 2)
    with world(tmp_path, 2, **ROOMS) as node:
        peer = node.connect(1)
        peer.send(*(f"pub rooms/{room}/{thing} |{room}{thing}" for room in "cab" for thing in "yx"), "pub other |x")
        node.settle()
        first = node.ask(peer, "last rooms/#")
        assert [line.rpartition("|")[2] for line in first[:-1]] == ["ax", "ay", "bx"]
        assert first[-1] == "ok last rooms/# 3 after rooms-b rooms/b/x"
        rest = node.ask(peer, "last rooms/# after rooms-b rooms/b/x")
        assert [line.rpartition("|")[2] for line in rest[:-1]] == ["by", "cx", "cy"]
        assert rest[-1] == "ok last rooms/# 3"
        whole = node.ask(peer, "last *", "last * after rooms-a rooms/a/y")
        assert [line.rpartition("|")[2] for line in whole if line.startswith("msg")] == [
            "x",
            "ax",
            "ay",
            "bx",
            "by",
            "cx",
        ]
        assert whole[3] == "ok last * 3 after rooms-a rooms/a/y"


def test_recall_gives_pages_of_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES_MAX", 2)
    with world(tmp_path, 2, **ROOMS) as node:
        peer = BinaryPeer(node, hello=False)
        peer.codec = ClientCodec(features=frozenset({recalling.FEATURE}))
        peer.ask(m.Hello(1, (recalling.FEATURE,), "t"))
        writer = node.connect(1)
        writer.send(*(f"pub rooms/{room}/{thing} |{room}{thing}" for room in "ba" for thing in "yx"), "pub other |x")
        node.settle()
        found, place = [], (b"", b"")
        for _ in range(3):
            [answer] = peer.ask(recalling.Recall(7, b"rooms/#", *place))
            assert isinstance(answer, recalling.Recalled) and answer.id == 7
            found += [each for stream, frames in answer.values for each in messages_in(stream, frames)]
            if not answer.stream:
                break
            place = answer.stream.encode(), answer.after.encode()
        assert [(each.topic, each.payload) for each in found] == [
            (f"rooms/{room}/{thing}", f"{room}{thing}".encode()) for room in "ab" for thing in "xy"
        ]
        monkeypatch.setattr(type(node.binary_client_of(peer.peer)), "may", lambda *_args: False)
        node.binary_client_of(peer.peer).is_free = False
        [refused] = peer.ask(recalling.Recall(8, b"other"))
        assert isinstance(refused, m.Failed) and (refused.code, refused.op, refused.id) == ("denied", 38, 8)


def test_what_stands_behind_waits_for_the_answer(tmp_path: Path) -> None:
    with world(tmp_path, 2, **ROOMS) as node:
        peer = node.connect(0)
        lines = node.ask(peer, "pub rooms/1/x |a", "last rooms/1/x", "pub rooms/1/x |b", "last rooms/1/x", "ping")
        assert [line.rpartition("|")[2] for line in lines] == [
            "a",
            "ok last rooms/1/x 1",
            "b",
            "ok last rooms/1/x 1",
            "ok pong",
        ]


def test_only_what_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path, 2, **ROOMS) as node:
        peer = node.connect(0)
        peer.send(*(f"pub rooms/{room}/x |{room}" for room in "abc"), "pub other |x")
        node.settle()
        client = node.client_of(peer)
        client.is_free = False
        monkeypatch.setattr(type(client), "may", lambda _self, _right, name=b"": name in (b"rooms-b", b"rooms-c"))
        narrowed = {b"rooms-a": b"", b"rooms-b": b"rooms/b/#", b"rooms-c": b"rooms/c/y"}
        monkeypatch.setattr(type(client), "readable_topics", lambda _self, stream, _filter: narrowed[stream])
        lines = node.ask(peer, "last rooms/#", "last *", "last other", "last rooms-a", "last rooms/a/x")
        assert [line.rpartition("|")[2] for line in lines[:-3]] == ["b", "ok last rooms/# 1", "b", "c", "ok last * 2"]
        assert [line[:10] for line in lines[-3:]] == ["err denied"] * 3
