"""The window of publishes. What becomes of them over connections is in test_session.py."""

from __future__ import annotations

import math

import pytest

from tailrace.core.message import Receipt
from tailrace.core.publications import REQUEST_MAX, RETRIED, RETRIED_ELSEWHERE, PendingPublication, Publications
from tailrace.errors import (
    BrokerFault,
    ClientClosed,
    ConnectionLost,
    Denied,
    NotReplicated,
    OperationTimeout,
    PartlyPublished,
    StreamDisabled,
    StreamUnavailable,
)
from tailrace.protocol.messages import Ack


def publications() -> Publications:
    return Publications(10, 1_000, lambda: 0.5)


def publication(
    *streams: str, ack: Ack = Ack.APPENDED, timeout_s: float = 30.0, retry: bool = True
) -> PendingPublication:
    return PendingPublication(streams or ("s",), bytes(40), 1, ack, timeout_s, retry=retry)


def in_flight(window: Publications, *streams: str) -> PendingPublication:
    found = publication(*streams)
    window.add(found, 0.0)
    assert window.take_sendable(0.0) == [found]
    window.sent(found)
    return found


@pytest.mark.parametrize(("text", "stream"), [("b: you may not", "b"), ("you may not", "")])
def test_an_error_of_all_streams_is_about_the_one_that_it_names(text: str, stream: str) -> None:
    window = publications()
    found = in_flight(window, "a", "b")
    window.failed(found.request, "denied", text, None, 0.0)
    with pytest.raises(Denied) as caught:
        found.outcome()
    assert (caught.value.stream, str(caught.value)) == (stream, f"denied: {text}")


def test_some_streams_took_it_and_some_did_not() -> None:
    window = publications()
    found = in_flight(window, "a", "b", "c")
    window.failed(found.request, "full", "", ((7, 1, 2, "", ""), (0, 0, 0, "full", "no space"), (1, 1, 0, "", "")), 0.0)
    with pytest.raises(PartlyPublished) as caught:
        found.outcome()
    outcomes = caught.value.outcomes
    assert outcomes[0] == Receipt("a", 7, 1, 2)
    assert str(outcomes[1]) == "full: b: no space"
    assert outcomes[2] == Receipt("c", 1, 1, 0)


def test_parts_that_failed_for_the_moment_are_not_sent_again() -> None:
    """Those that took it would have it twice."""
    window = publications()
    found = in_flight(window, "a", "b")
    window.failed(found.request, "unavailable", "", ((7, 1, 2, "", ""), (0, 0, 0, "unavailable", "")), 0.0)
    assert isinstance(found.error, PartlyPublished)


def test_what_is_logged_and_not_replicated_has_its_receipt() -> None:
    window = publications()
    found = in_flight(window)
    window.failed(found.request, "unreplicated", "s: 0 of 1", ((7, 1, 0, "unreplicated", "0 of 1"),), 0.0)
    assert isinstance(found.error, NotReplicated) and found.error.receipt == Receipt("s", 7, 1, 0)
    assert str(found.error) == "unreplicated: s: message 7: 0 of 1"
    some = in_flight(window, "a", "b")
    window.failed(some.request, "unreplicated", "", ((7, 1, 2, "", ""), (3, 1, 0, "unreplicated", "0 of 1")), 0.0)
    assert isinstance(some.error, PartlyPublished)
    outcome = some.error.outcomes[1]
    assert isinstance(outcome, NotReplicated) and outcome.receipt == Receipt("b", 3, 1, 0)
    bare = in_flight(window)
    window.failed(bare.request, "unreplicated", "s: somewhere", None, 0.0)
    assert isinstance(bare.error, NotReplicated) and bare.error.receipt is None


def test_a_refusal_does_not_deny_an_earlier_attempt_that_had_no_answer() -> None:
    """It was sent, the connection was lost, and every node that it is sent to afterwards refuses it."""
    window = Publications(10, 1_000, lambda: 0.5, RETRIED_ELSEWHERE)
    found = publication(timeout_s=3.0)
    window.add(found, 0.0)
    assert window.take_sendable(0.0) == [found]
    window.sent(found)
    window.connection_lost(ConnectionLost("cut"))
    assert window.take_sendable(0.0) == [found]
    window.sent(found)
    window.failed(found.request, "disabled", "not the master; nothing of this was logged", None, 0.0)
    window.expire(5.0)
    assert isinstance(found.error, StreamUnavailable) and "may or may not be logged" in str(found.error)
    assert "not the master" in str(found.error)


def test_a_refusal_of_the_only_attempt_is_raised_as_it_is() -> None:
    window = Publications(10, 1_000, lambda: 0.5, RETRIED_ELSEWHERE)
    found = publication(timeout_s=3.0)
    window.add(found, 0.0)
    assert window.take_sendable(0.0) == [found]
    window.sent(found)
    window.failed(found.request, "disabled", "nothing of this was logged", None, 0.0)
    window.expire(5.0)
    assert isinstance(found.error, StreamDisabled)


def test_disabled_is_tried_again_where_there_is_somewhere_else() -> None:
    for retried, is_done in ((RETRIED, True), (RETRIED_ELSEWHERE, False)):
        window = Publications(10, 1_000, lambda: 0.5, retried)
        found = in_flight(window)
        window.failed(found.request, "disabled", "no", None, 0.0)
        assert found.done is is_done


@pytest.mark.parametrize("answers", [0, 2])
def test_a_broker_that_cannot_count(answers: int) -> None:
    window = publications()
    one, other = in_flight(window), in_flight(window)
    assert window.published(one.request, ((0, 1, 1),) * answers)
    window.failed(other.request, "full", "", ((0, 1, 1, "", ""),) * answers, 0.0)
    assert isinstance(one.error, BrokerFault)
    assert isinstance(other.error, BrokerFault)
    assert "may or may not be logged" in str(one.error)


def test_an_answer_to_nothing() -> None:
    window = publications()
    assert not window.published(5, ((0, 1, 1),))
    window.failed(5, "full", "no space", None, 0.0)
    assert window.refused == 1
    assert str(window.last_refusal) == "full: no space"


def test_what_was_lost_goes_before_what_waits() -> None:
    window = publications()
    first, second = in_flight(window), in_flight(window)
    window.connection_lost(ConnectionLost("cut"))
    third = publication()
    window.add(third, 0.0)
    assert window.take_sendable(0.0) == [first, second, third]


def test_without_an_acknowledgement_waiting_too_long_is_counted() -> None:
    window = publications()
    found = publication(ack=Ack.NONE, timeout_s=1.0)
    window.add(found, 0.0)
    window.expire(1.0)
    assert isinstance(found.error, OperationTimeout)
    assert window.refused == 1


def test_when_there_is_something_to_do() -> None:
    window = publications()
    assert window.due_s == math.inf
    window.add(publication(timeout_s=9.0), 0.0)
    window.add(publication(timeout_s=5.0), 0.0)
    assert window.due_s == 5.0
    window.expire(4.0)
    window.expire(5.0)
    assert window.due_s == 9.0
    [found] = window.take_sendable(5.0)
    window.failed(found.request, "unavailable", "", None, 5.0)
    assert 5.0 < window.resume_s < 6.0
    assert window.take_sendable(window.resume_s) == [found]
    assert window.resume_s == math.inf


def test_numbers_come_round() -> None:
    window = publications()
    window._numbers = REQUEST_MAX - 2  # as after this many publishes
    assert [in_flight(window).request for _ in range(3)] == [REQUEST_MAX, 1, 2]


def test_failing_all() -> None:
    window = publications()
    flying = in_flight(window)
    waiting = publication()
    window.add(waiting, 0.0)
    window.fail_all(lambda fate: ClientClosed(fate))
    for each in (flying, waiting):
        assert str(each.error) == "it may or may not be logged"
    assert not window
    assert window.settled == [flying, waiting]
    assert window.nbytes == 0
