"""Which addresses are tried, when, and when it is enough."""

from __future__ import annotations

import pytest

from tailrace.core.address import Address
from tailrace.core.address_selector import FIRST_ROUNDS, STAGGER_S, AddressSelector, ConnectAttempt
from tailrace.core.backoff import BRIEF_MOST_S, MOST_S
from tailrace.errors import BrokerError, ConnectFailed, ConnectionLost, Denied, TailraceError, TooManyConnections

A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)
REFUSED = ConnectionLost("refused")


def dialling(*addresses: Address, reconnect_s: float = 60.0, connect_timeout_s: float = 10.0) -> AddressSelector:
    return AddressSelector(addresses, reconnect_s, lambda: 1.0, 0.0, connect_timeout_s)


def begin(subject: AddressSelector, now_s: float) -> ConnectAttempt:
    attempt = subject.begin(now_s)
    assert attempt is not None
    return attempt


def up(subject: AddressSelector, now_s: float = 0.0) -> None:
    """There is a connection to the first address."""
    subject.connected(begin(subject, now_s))
    subject.greeted(now_s)


def fail_until_enough(
    subject: AddressSelector, error: TailraceError = REFUSED
) -> tuple[list[tuple[Address, float]], TailraceError]:
    """Every attempt fails at once."""
    tried = []
    while True:
        now_s = subject.due_s
        attempt = begin(subject, now_s)
        tried.append((attempt.address, round(now_s, 3)))
        enough = subject.failed(attempt, error, now_s)
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
    up(subject)
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
    up(subject, 10.0)
    subject.lost(REFUSED, 10.0 + lived_s, was_useful=was_useful, move_on=False)
    assert subject.due_s == pytest.approx(10.0 + lived_s + pause_s)
    assert begin(subject, subject.due_s).address == A


def test_pauses_stay_brief_where_brokers_greet_and_are_cut() -> None:
    """As those of a node whose workers are killed again and again. A broker's refusal is another matter."""
    subject = dialling(A)
    pauses_s, now_s = [], 0.0
    for error in [REFUSED] * 10 + [TooManyConnections("full")] * 10:
        subject.connected(begin(subject, now_s))
        subject.greeted(now_s)
        subject.lost(error, now_s + 0.1, was_useful=False, move_on=False)
        pauses_s.append(subject.due_s - now_s - 0.1)
        now_s = subject.due_s
    assert max(pauses_s[:10]) == pytest.approx(BRIEF_MOST_S) and max(pauses_s) == pytest.approx(MOST_S)


def test_a_broker_that_wants_us_no_more_is_left_for_the_next() -> None:
    subject = dialling(A, B)
    up(subject)
    subject.lost(REFUSED, 50.0, was_useful=True, move_on=True)
    assert begin(subject, 50.0).address == B


# --- several at once --------------------------------------------------------------------------------------------------


def test_an_address_that_says_nothing_is_joined_by_the_next_one_after_a_second() -> None:
    subject = dialling(A, B, C)
    silent = begin(subject, 0.0)
    assert subject.begin(STAGGER_S - 0.01) is None and subject.due_s == STAGGER_S
    other = begin(subject, STAGGER_S)
    assert (silent.address, other.address, subject.due_s) == (A, B, 2 * STAGGER_S)
    subject.connected(other)
    assert list(subject.under_way.values()) == [other] and subject.begin(100.0) is None
    subject.greeted(1.1)
    subject.lost(REFUSED, 50.0, was_useful=True, move_on=False)
    assert begin(subject, 50.0).address == B, "the one that was good comes first"


def test_one_that_fails_is_followed_at_once_beside_those_under_way() -> None:
    subject = dialling(A, B, C)
    begin(subject, 0.0)
    assert subject.failed(begin(subject, 1.0), REFUSED, 1.2) is None
    assert subject.due_s == 1.2 and begin(subject, 1.2).address == C


def test_the_others_are_tried_again_while_one_says_nothing() -> None:
    """No address twice at once, and not given up before the silent one has had its time."""
    subject = dialling(A, B)
    silent = begin(subject, 0.0)
    now_s, tries = 0.0, 0
    while subject.due_s < silent.until_s:
        now_s = subject.due_s
        attempt = begin(subject, now_s)
        assert attempt.address == B
        tries += 1
        assert subject.failed(attempt, REFUSED, now_s) is None
    assert 5 < tries < 12
    enough = subject.failed(silent, ConnectionLost("no connection within 10 s"), silent.until_s)
    assert str(enough) == "cannot connect to b:2: refused; a:1: no connection within 10 s"


def test_when_the_one_that_connected_does_not_greet_the_others_have_their_turn() -> None:
    subject = dialling(A, B, C)
    begin(subject, 0.0)
    second = begin(subject, 1.0)
    subject.connected(second)
    assert subject.failed(second, REFUSED, 3.0) is None
    assert [begin(subject, 3.0).address, begin(subject, 4.0).address] == [A, C]


def test_a_client_that_is_denied_everywhere_does_not_ask_for_longer() -> None:
    subject, denied = dialling(A, B), Denied("this user may not log in any more")
    up(subject)
    subject.lost(denied, 10.0, was_useful=True, move_on=False)
    tried, enough = fail_until_enough(subject, denied)
    assert tried == [(A, 10.0), (B, 10.0)] and enough is denied


def test_a_client_that_is_denied_by_some_asks_the_others_for_longer() -> None:
    subject = dialling(A, B)
    up(subject)
    subject.lost(Denied("no longer"), 10.0, was_useful=True, move_on=False)
    assert subject.failed(begin(subject, 10.0), Denied("the login failed"), 10.0) is None
    assert subject.failed(begin(subject, 10.0), REFUSED, 10.0) is None
