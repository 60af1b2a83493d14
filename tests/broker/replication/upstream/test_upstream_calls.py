"""Calls over one uplink: each ends once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from tailrace.broker.replication.upstream import upstream_calls as module
from tailrace.broker.replication.upstream.socket import UpstreamClosed
from tailrace.broker.replication.upstream.upstream_calls import PATIENCE_S, UpstreamCalls
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import Consume, pack_body
from tailrace.protocol.errors import Code
from tailrace.protocol.replication import Call, Returned
from tests.broker.replication.upstream_node import Ears

S = b"s"
NOW_S = 1_000.0
DELETE = Consume(0, "delete", S, b"n")


class Line:
    """The calls of an uplink that is up, the messages at its other end, and the outcomes here."""

    def __init__(self) -> None:
        self._ears = Ears()
        self.heard: list[Call] = []
        self.outcomes: list[Any] = []
        self.calls = UpstreamCalls(self._hear)
        self.calls.went_up(has_filters=True)

    def _hear(self, data: bytes) -> None:
        for message in self._ears.hear(data):
            assert isinstance(message, Call)
            self.heard.append(message)

    def call(self, request: Consume = DELETE, now_s: float = NOW_S) -> None:
        self.calls.call("consume", request, self.outcomes.append, now_s)

    def refusals(self) -> list[tuple[Code, str]]:
        assert all(isinstance(each, Refused) for each in self.outcomes), self.outcomes
        return [(each.code, each.text) for each in self.outcomes]


@pytest.fixture
def line() -> Line:
    return Line()


def given(number: int, existed: bool = True) -> Returned:
    return Returned(number, msgpack.packb({"existed": existed}))


def test_answers_find_who_asked_in_any_order(line: Line) -> None:
    line.call()
    line.call()
    assert line.heard == [Call(number, S, "consume", pack_body(DELETE)) for number in (1, 2)]
    line.calls.returned(given(2, existed=False))
    line.calls.returned(given(1))
    assert line.outcomes == [{"existed": False}, {"existed": True}] and not line.calls
    line.calls.returned(given(1))
    assert len(line.outcomes) == 2, "once"


@pytest.mark.parametrize(("code", "expected"), [("consumer", Code.CONSUMER), ("of a later version", Code.UNAVAILABLE)])
def test_a_refusal_is_the_askers(line: Line, code: str, expected: Code) -> None:
    line.call()
    line.calls.returned(Returned(1, None, code, "why\n" + "x" * 1_000))
    ((found, text),) = line.refusals()
    assert found is expected and text.startswith("why\ufffdxx") and len(text) == 400


@pytest.mark.parametrize(
    "message",
    [given(2), given(7), Returned(1, b""), Returned(1, b"\x80"), Returned(1, msgpack.packb({"existed": 1}))],
)
def test_what_cannot_be_an_answer_closes(line: Line, message: Returned) -> None:
    line.call()
    with pytest.raises(UpstreamClosed, match=r"nobody made|no answer to Consume"):
        line.calls.returned(message)
    assert len(line.calls) == 1
    line.calls.went_down()
    assert line.refusals() == [(Code.UNAVAILABLE, module.LOST_TEXT)]


def test_who_waits_when_the_link_goes_hears_it_and_may_ask_again(line: Line) -> None:
    again: list[Any] = []

    def ask_again(value: Any) -> None:
        again.append(value)
        line.call()

    line.calls.call("consume", DELETE, ask_again, NOW_S)
    line.calls.went_down()
    assert [each.text for each in again] == [module.LOST_TEXT]
    assert line.refusals() == [(Code.UNAVAILABLE, module.DOWN_TEXT)], "at once, while it is down"
    line.calls.went_up(has_filters=True)
    line.call()
    assert [call.id for call in line.heard] == [1, 2]
    line.calls.returned(given(1))
    assert len(line.outcomes) == 1, "an answer of the connection before is nobody's"


def test_an_answer_that_is_far_too_late_is_waited_for_no_more(line: Line) -> None:
    line.call()
    line.call(now_s=NOW_S + 1.0)
    line.calls.tick(NOW_S + PATIENCE_S - 0.1)
    assert not line.outcomes
    line.calls.tick(NOW_S + PATIENCE_S)
    assert line.refusals() == [(Code.UNAVAILABLE, module.LATE_TEXT)] and len(line.calls) == 1
    line.calls.returned(given(1))
    assert len(line.outcomes) == 1


def test_calls_without_an_answer_are_bounded(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 2)
    for _ in range(3):
        line.call()
    assert line.refusals() == [(Code.OVERLOADED, module.FULL_TEXT)] and len(line.heard) == 2
    line.calls.returned(given(1))
    line.call()
    assert len(line.heard) == 3


def test_what_is_too_long_does_not_go(line: Line) -> None:
    line.call(replace(DELETE, name=b"x" * 70_000))
    assert [code for code, _text in line.refusals()] == [Code.SIZE] and not line.heard


def test_an_upstream_of_another_version_says_so_to_all(line: Line) -> None:
    line.call()
    line.call()
    line.calls.failed()
    assert line.refusals() == [(Code.UNSUPPORTED, module.OTHER_VERSION_TEXT)] * 2
