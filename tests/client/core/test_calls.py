"""Requests that are asked again until they are answered."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tailrace.core.calls import RETRIED_ELSEWHERE, PendingCall, PendingCalls
from tailrace.errors import ClientClosed, NoSuchConsumer, OperationTimeout, StreamDisabled, StreamUnavailable


def make_calls(*calls: PendingCall, elsewhere: bool = False) -> PendingCalls:
    made = PendingCalls(lambda: 0.0, RETRIED_ELSEWHERE) if elsewhere else PendingCalls(lambda: 0.0)
    for call in calls:
        made.add(call, 10.0)
    return made


def make_call(**options: Any) -> PendingCall:
    return PendingCall("s", "a request", lambda number: number, **options)


def test_it_is_sent_once_and_answered() -> None:
    call, other = make_call(), make_call()
    calls = make_calls(call, other)
    assert calls.take_sendable(10.0) == [call, other]
    assert calls.take_sendable(10.0) == []
    assert calls.answered(call.number, "yes", 11.0) is call
    assert (call.done, call.outcome(), call.is_repeated) == (True, "yes", False)
    assert calls.answered(call.number, "again", 11.0) is None
    assert (len(calls), calls.holds(other), calls.holds(call), calls.holds(None)) == (1, True, False, False)


def test_after_a_lost_connection_it_is_sent_again() -> None:
    call, unsent = make_call(), make_call()
    calls = make_calls(call)
    calls.take_sendable(10.0)
    calls.add(unsent, 10.0)
    calls.connection_lost()
    assert calls.answered(call.number, "of the connection before", 10.0) is None
    assert calls.take_sendable(11.0) == [call, unsent]
    assert (call.is_repeated, unsent.is_repeated) == (True, False)


def test_what_may_go_well_later_is_asked_again_after_a_pause() -> None:
    call = make_call(timeout_s=30.0)
    calls = make_calls(call)
    for code in ("unavailable", "overloaded", "unreplicated"):
        calls.take_sendable(20.0)
        assert calls.failed(call.number, code, "not now", 20.0) is call
        assert not call.done
        assert 20.0 < calls.resume_s < 21.0
        assert calls.take_sendable(20.0) == []
    assert calls.take_sendable(calls.resume_s) == [call]
    assert calls.due_s == 40.0
    calls.expire(40.0)
    assert (str(call.error), call.error) == ("unreplicated: s: not now", call.refusal)


def test_another_node_may_be_the_master() -> None:
    here, there = make_call(), make_call()
    one, several = make_calls(here), make_calls(there, elsewhere=True)
    one.failed(here.number, "disabled", "a slave", 10.0)
    several.failed(there.number, "disabled", "a slave", 10.0)
    with pytest.raises(StreamDisabled):
        here.outcome()
    assert not there.done


def test_other_errors_are_its_outcome() -> None:
    call = make_call()
    calls = make_calls(call)
    calls.take_sendable(10.0)
    calls.failed(call.number, "consumer", "no such", 10.0)
    with pytest.raises(NoSuchConsumer):
        call.outcome()
    assert calls.failed(call.number, "consumer", "no such", 10.0) is None


def test_no_answer_in_time() -> None:
    call = make_call(timeout_s=5.0)
    calls = make_calls(call, make_call())
    assert calls.due_s == 15.0
    assert calls.expire(14.9) == []
    assert calls.expire(15.0) == [call]
    with pytest.raises(OperationTimeout, match="no answer to a request within 5 s"):
        call.outcome()
    assert calls.due_s == math.inf


def test_the_patience_begins_with_the_first_refusal() -> None:
    call = make_call(patience_s=7.0)
    calls = make_calls(call)
    assert calls.due_s == math.inf
    calls.failed(call.number, "unavailable", "not now", 100.0)
    calls.failed(call.number, "unavailable", "not now", 105.0)
    assert calls.due_s == 107.0
    calls.expire(107.0)
    assert isinstance(call.error, StreamUnavailable)


def test_a_connection_that_says_nothing() -> None:
    call = make_call(quiet_s=3.0)
    calls = make_calls(call)
    assert calls.is_too_quiet(1e9) is None
    calls.take_sendable(20.0)
    assert calls.due_s == 23.0
    assert (calls.is_too_quiet(22.9), calls.is_too_quiet(23.0)) == (None, call)
    calls.connection_lost()
    assert calls.is_too_quiet(1e9) is None


def test_who_made_it_hears_of_it_first() -> None:
    received: list[tuple[Any, float, bool]] = []
    calls = PendingCalls(lambda: 0.0)
    for _ in range(2):
        calls.add(make_call(on_result=lambda call, answer, now_s: received.append((answer, now_s, call.done))), 0.0)
    calls.take_sendable(0.0)
    calls.answered(1, "yes", 1.0)
    [failed] = calls.fail_all(ClientClosed("closed"), 2.0)
    assert received == [("yes", 1.0, False), (None, 2.0, False)]
    assert isinstance(failed.error, ClientClosed)


def test_a_step_that_was_left_in_its_middle() -> None:
    sent, done, failed = make_call(), make_call(), make_call()
    calls = make_calls(sent, done, failed)
    calls.take_sendable(10.0)
    done.done, failed.error = True, ClientClosed("closed")
    calls.recover()
    assert failed.done
    assert calls.take_sendable(10.0) == [sent]
