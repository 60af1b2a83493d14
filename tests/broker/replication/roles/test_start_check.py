"""A node that starts as a master asks others first: which requests wait for that, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tailrace.broker.replication.roles import start_check as asking_module
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.roles.start_check import ASK_MAX_S, StartCheck
from tailrace.broker.replication.upstream.connection import UpstreamConnection, UpstreamPhase
from tailrace.broker.replication.upstream.leadership_claims import LeadershipClaims
from tailrace.broker.streams.owner import Owner
from tailrace.shard.meta import Role, Upstream
from tests.broker.owning import around, make_owner, publish

S, T = b"s", b"t"


@dataclass(eq=False)
class Node:
    """An uplink, as far as it is looked at."""

    claims: LeadershipClaims
    phase: UpstreamPhase = UpstreamPhase.CONNECTING
    tried: bool = False
    is_self: bool = False
    host: str = "10.0.0.2"
    port: int = 5050
    address: str = "10.0.0.2:5050"
    why: str = ""
    said: list[bytes] = field(default_factory=list)

    def fails(self) -> None:
        self.phase, self.tried, self.why = UpstreamPhase.DOWN, True, "Connection refused"


class Scene:
    """An owner that has been opened anew, and the questions it sends."""

    def __init__(self, path: Path) -> None:
        first = make_owner(path)
        for name in (S, T):
            publish(first, name)
        first.release()
        self.owner: Owner = make_owner(path)
        self.node = Node(LeadershipClaims(self.owner, lambda _data: None, ("10.0.0.2", 5050)))
        self.begun: list[bytes] = []
        around(self.owner).on_open = lambda stream: self.begun.append(stream.name)
        self.asking = self.ask()
        around(self.owner).asks_first = lambda name: self.asking.hold(name)

    def ask(self) -> StartCheck:
        return StartCheck(self.owner, cast("list[UpstreamConnection]", [self.node]), 0.0)

    def takes(self, name: bytes) -> bool:
        return self.owner.stream(name).epoch != 0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "data")
    yield made
    made.owner.release()


def test_a_stream_takes_no_messages_until_it_was_asked_for(scene: Scene) -> None:
    assert not scene.takes(S) and scene.begun == []
    scene.node.phase = UpstreamPhase.UP
    scene.asking.tick(0.1)
    assert not scene.takes(S) and set(scene.node.claims) == {S, T}
    scene.node.claims.drop(S)  # it was answered
    scene.asking.tick(0.2)
    assert scene.takes(S) and scene.begun == [S] and not scene.takes(T)


def test_one_that_gives_in_takes_none_afterwards_either(scene: Scene) -> None:
    scene.owner.stream(S)
    scene.node.phase = UpstreamPhase.UP
    scene.node.claims.drop(S)
    stream_roles.give_in(scene.owner, S, 2, "another", Upstream("10.0.0.2", 5050, "seq", 0))
    scene.asking.tick(0.2)
    assert not scene.takes(S) and scene.owner.roles.role(S) is Role.SLAVE


def test_a_node_that_cannot_be_reached_is_not_waited_for(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    assert not scene.takes(S)
    scene.node.fails()
    scene.asking.tick(0.1)
    assert scene.takes(S) and scene.takes(T) and scene.asking.over
    assert not scene.node.claims, "it is not called for ever"
    assert "serving without an answer from 10.0.0.2:5050 (Connection refused)" in caplog.text


def test_a_node_that_says_nothing_is_waited_for_for_a_while(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    assert not scene.takes(S)
    scene.asking.tick(ASK_MAX_S - 0.1)
    assert not scene.takes(S)
    scene.asking.tick(ASK_MAX_S)
    assert scene.takes(S) and scene.takes(T) and "serving without an answer" in caplog.text


def test_companions_wait_with_their_stream(scene: Scene) -> None:
    scene.owner.create(b"s/$dead", by_command=True)
    assert not scene.takes(b"s/$dead")
    scene.node.fails()
    scene.asking.tick(0.1)
    assert scene.takes(b"s/$dead")


def test_who_has_very_many_streams_asks_for_each_as_it_is_opened(scene: Scene, monkeypatch: Any) -> None:
    monkeypatch.setattr(asking_module, "ASKED_AT_ONCE_MAX", 1)
    scene.node.claims.clear()
    asking = scene.asking = scene.ask()
    assert not scene.takes(S) and set(scene.node.claims) == {S}
    scene.node.phase = UpstreamPhase.UP
    asking.tick(ASK_MAX_S)
    assert scene.takes(T) and T in scene.node.claims, "after the bound it is asked for all the same"


def test_slaves_and_new_streams_wait_for_nothing(scene: Scene) -> None:
    scene.owner.create(b"new")
    assert scene.takes(b"new")
    assert not scene.asking.hold(b"new")
