"""Which address is tried, when, and when it is enough."""

from __future__ import annotations

import pytest

from tailrace.address import Address
from tailrace.dialling import FIRST_ROUNDS, Dialling
from tailrace.errors import BrokerError, ConnectFailed, ConnectionLost, Denied, TailraceError, TooManyConnections

A, B = Address("a", 1), Address("b", 2)
REFUSED = ConnectionLost("refused")


def dialling(*addresses: Address, reconnect_s: float = 60.0) -> Dialling:
    return Dialling(addresses, reconnect_s, lambda: 1.0, 0.0)


def fail_until_enough(
    subject: Dialling, error: TailraceError = REFUSED
) -> tuple[list[tuple[Address, float]], TailraceError]:
    tried = []
    while True:
        tried.append((subject.address, round(subject.due_s, 3)))
        enough = subject.failed(error, subject.due_s)
        if enough is not None:
            return tried, enough


def test_the_first_rounds() -> None:
    tried, enough = fail_until_enough(dialling(A, B))
    assert tried == [(A, 0.0), (B, 0.0), (A, 0.05), (B, 0.05), (A, 0.15), (B, 0.15)]
    assert len(tried) == 2 * FIRST_ROUNDS
    assert isinstance(enough, ConnectFailed)
    assert str(enough) == "cannot connect to a:1: refused; b:2: refused"


def test_what_is_final_is_told_at_once_and_as_it_is() -> None:
    tried, enough = fail_until_enough(dialling(A), Denied("wrong token"))
    assert len(tried) == 1
    assert isinstance(enough, Denied)


def test_what_may_pass_is_tried_again() -> None:
    tried, enough = fail_until_enough(dialling(A), TooManyConnections("full"))
    assert len(tried) == FIRST_ROUNDS
    assert isinstance(enough, BrokerError)


def test_a_lost_connection_is_sought_for_its_time() -> None:
    subject = dialling(A, B)
    subject.greeted(0.0)
    subject.lost(REFUSED, 100.0, was_useful=False, move_on=False)
    tried, enough = fail_until_enough(subject)
    assert tried[:3] == [(A, 100.0), (B, 100.0), (A, 100.05)]
    assert 160.0 <= tried[-1][1] < 165.0
    assert isinstance(enough, ConnectionLost)
    pauses_s = [later - earlier for (_, earlier), (_, later) in zip(tried[1::2], tried[2::2], strict=False)]
    assert max(pauses_s) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("lived_s", "was_useful", "pause_s"), [(1.0, False, 0.0), (0.1, True, 0.0), (0.1, False, 0.05)]
)
def test_how_soon_the_next_one(lived_s: float, was_useful: bool, pause_s: float) -> None:
    subject = dialling(A, B)
    subject.greeted(10.0)
    subject.lost(REFUSED, 10.0 + lived_s, was_useful=was_useful, move_on=False)
    assert subject.address == A
    assert subject.due_s == pytest.approx(10.0 + lived_s + pause_s)


def test_a_broker_that_wants_us_no_more_is_left_for_the_next() -> None:
    subject = dialling(A, B)
    subject.greeted(0.0)
    subject.lost(REFUSED, 50.0, was_useful=True, move_on=True)
    assert subject.address == B
