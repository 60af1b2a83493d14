"""Waits for other nodes that go from a worker to its successor."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.replication.downstream import ack_handover
from tailrace.broker.replication.downstream.ack_handover import LOST_TEXT
from tailrace.broker.replication.downstream.replica_acks import ReplicaPosition
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.owner_calls import call
from tailrace.broker.streams.refused import OnResult
from tailrace.protocol.errors import Code
from tests.broker.owning import Clock, Sink, batch, make_owner, publish

S = b"s"
VIA = (0, 1, 1)


class Successor:
    """The owner that comes after another, and the calls to it."""

    def __init__(self, owner: Owner, clock: Clock) -> None:
        self.owner = owner
        self.owner.replicas._clock = clock.seconds
        self.calls: list[list[Any]] = []

    def call(self, name: bytes, verb: str, args: list[Any], done: OnResult) -> None:
        assert (name, verb) == (args[0], "await")
        self.calls.append(args)
        ack_handover.wait_on(self.owner, args, done)

    def holds(self, next_seq: int) -> None:
        line = self.owner.replicas.holders(S).line
        self.owner.replicas.held(*VIA[:2], [(S, line, VIA[2], "node-b", next_seq, 0)])


def replaced(path: Path, clock: Clock) -> tuple[Sink, Successor]:
    """A publish of two messages that waits for a node while its owner is replaced."""
    first = make_owner(path, clock)
    publish(first, S)
    sink = Sink()
    waiting = batch(S, b"a", b"b", sink=sink)
    waiting.replicas = 1
    first.append(waiting, 0.0)
    asked: list[Successor] = []
    ask = ack_handover.hand_over(first, lambda *args: asked[0].call(*args))
    first.release()
    assert not sink.refusals
    asked.append(Successor(make_owner(path, clock), clock))
    ask()
    return sink, asked[0]


def test_the_successor_waits_on(tmp_path: Path) -> None:
    sink, successor = replaced(tmp_path, Clock())
    assert successor.calls == [[S, 1, 2, 1, 1]] and not sink.published_at
    successor.holds(2)
    assert not sink.published_at
    successor.holds(3)
    assert sink.published_at == {0: 1}


def test_it_waits_a_little_only(tmp_path: Path) -> None:
    clock = Clock()
    sink, successor = replaced(tmp_path, clock)
    clock.now_s += ack_handover.PATIENCE_S
    successor.owner.replicas.expire()
    assert sink.refusals == {0: (Code.UNREPLICATED, "logged, but 0 of 1 nodes hold it after 2 s")}
    assert sink.logged_at == {0: 1}


@pytest.mark.parametrize("change", ["disabled", "another term", "another message", "unknown"])
def test_messages_that_are_not_there_any_more_are_not_waited_for(tmp_path: Path, change: str) -> None:
    owner = make_owner(tmp_path)
    publish(owner, S)
    owner.replicas.holders(S).record("node-b", ReplicaPosition(9, 9, VIA))
    args = {
        "disabled": [S, 0, 1, 1, 1],
        "another term": [S, 0, 1, 2, 1],
        "another message": [S, 0, 2, 1, 1],
        "unknown": [b"unknown", 0, 1, 1, 1],
    }[change]
    if change == "disabled":
        call(owner, "unmaster", [S])
    answers: list[Any] = []
    ack_handover.wait_on(owner, args, answers.append)
    (answer,) = answers
    assert isinstance(answer, Refused) and (answer.code, answer.text) == (Code.UNREPLICATED, LOST_TEXT)


def test_a_successor_that_cannot_be_asked_is_told_as_what_it_is(tmp_path: Path) -> None:
    first = make_owner(tmp_path)
    sink = Sink()
    waiting = batch(S, b"a", sink=sink)
    waiting.replicas = 1
    first.append(waiting, 0.0)
    ack_handover.hand_over(first, lambda _name, _verb, _args, done: done(Refused(Code.UNAVAILABLE, "it is down")))()
    assert sink.refusals == {0: (Code.UNREPLICATED, LOST_TEXT)} and sink.logged_at == {0: 0}


def test_messages_that_are_to_be_sent_wait_for_other_nodes(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    publish(owner, S)
    answers: list[Any] = []
    ack_handover.held(owner, [S, 1, 1], answers.append)
    assert answers == []
    owner.replicas.held(*VIA[:2], [(S, owner.replicas.holders(S).line, VIA[2], "node-b", 1, 0)])
    assert answers == [None]
    ack_handover.held(owner, [S, 2, 1], answers.append)
    assert isinstance(answers[1], Refused) and answers[1].code is Code.UNREPLICATED, "they were set aside"
    ack_handover.held(owner, [b"unknown", 1, 1], answers.append)
    assert answers[2] is None, "it was deleted"


def test_a_stream_that_cannot_be_read_is_told_without_the_path_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = make_owner(tmp_path)
    publish(owner, S)

    def fails(_name: bytes) -> Any:
        raise OSError(errno.EIO, "Input/output error", "/data/shard-1/s.index")

    monkeypatch.setattr(owner, "stream", fails)
    answers: list[Any] = []
    ack_handover.held(owner, [S, 1, 1], answers.append)
    assert isinstance(answers[0], Refused) and answers[0].text == "Input/output error"
