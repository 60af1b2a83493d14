"""The subscriptions of a UDP client, without a socket."""

from __future__ import annotations

import pytest

from tailrace.core.datagram_state import MESSAGES_MAX, DatagramState
from tailrace.errors import BrokerError, Denied, InvalidTopic, ReservedName
from tailrace.protocol import datagrams
from tailrace.protocol.datagrams import DatagramMessage, DatagramVerb, parse_request


def asked(state: DatagramState) -> list[tuple[str, bytes, bytes]]:
    found = [parse_request(each) for each in state.outgoing]
    state.outgoing.clear()
    return [(str(each.verb), each.topic, each.body.strip()) for each in found if each is not None]


def test_a_cookie_is_shown_for_all_subscriptions_and_once() -> None:
    state = DatagramState()
    state.subscribe("a")
    state.take(b"OK SUB a 60\n")
    state.subscribe("b/+")
    assert asked(state) == [("SUB", b"a", b""), ("SUB", b"b/+", b"")]
    for _ in range(3):
        state.take(b"COOKIE 0123456789abcdef\n")  # to b/+: the broker has forgotten a
    assert asked(state) == [("SUB", b"a", b"0123456789abcdef"), ("SUB", b"b/+", b"0123456789abcdef")]
    for topic in (b"a", b"b/+"):
        state.take(b"OK SUB %s 60\n" % topic)
    assert state.lease_s == 60 and state.topics == {b"a": True, b"b/+": True}


def test_a_renewal_asks_for_all_again_and_takes_the_cookie_of_a_new_broker() -> None:
    state = DatagramState()
    for topic in ("a", "b"):
        state.subscribe(topic)
        state.take(b"OK SUB %s 60\n" % topic.encode())
    asked(state)
    state.renew()
    assert [topic for _verb, topic, _body in asked(state)] == [b"a", b"b"]
    state.take(b"COOKIE ffff\n")
    assert asked(state) == [("SUB", b"a", b"ffff"), ("SUB", b"b", b"ffff")]
    state.unsubscribe("a")
    assert asked(state) == [(DatagramVerb.UNSUB.value, b"a", b"")] and list(state.topics) == [b"b"]


def test_messages_and_answers() -> None:
    state = DatagramState()
    state.publish("a", "ü", asked=True)
    assert asked(state) == [("PUB?", b"a", "ü".encode())]
    state.take(b"MSG a\nb\nc")
    state.take(b"junk")
    assert list(state.messages) == [DatagramMessage(b"a", b"b\nc")] and state.refusal() is None
    state.take(b"ERR denied not for this address\n")
    refusal = state.refusal()
    assert isinstance(refusal, Denied) and refusal.text == "not for this address"
    state.take(b"ERR denied")
    assert isinstance(state.refusal(), Denied)


def test_each_request_takes_its_own_answer() -> None:
    state = DatagramState()

    def answered(*datagrams: bytes) -> list[bool]:
        found = []
        for datagram in datagrams:
            state.take(datagram)
            found.append(state.answer is not None)
        return found

    state.subscribe("a")
    assert answered(b"PONG\n", b"OK SUB a 60\n") == [False, True]
    state.publish("a", "", asked=True)
    others = (b"OK SUB a 60\n", b"OK b 7\n", b"OK UNSUB a\n", b"PONG\n")
    assert answered(*others, b"OK a 7\n") == [False] * 4 + [True]
    state.unsubscribe("a")
    assert answered(b"OK a 7\n", b"OK UNSUB a\n") == [False, True]
    state.publish("UNSUB", "", asked=True)
    state.publish("b", "")  # which has no answer
    assert answered(b"OK UNSUB 9\n") == [True]
    state.publish(b"a", "", asked=True)
    state.give_up()
    assert answered(b"OK a 7\n") == [False]


def test_a_ping_asks_for_a_subscription_in_turn_unless_an_answer_is_waited_for() -> None:
    state = DatagramState()
    state.ping()
    assert asked(state) == [("PING", b"", b"")]
    for topic in ("a", "b"):
        state.subscribe(topic)
        state.take(b"OK SUB %s 60\n" % topic.encode())
    asked(state)
    for _ in range(3):
        state.ping()
    assert [topic for _verb, topic, _body in asked(state)] == [b"a", b"b", b"a"]
    state.publish("c", "", asked=True)
    state.ping()
    assert [verb for verb, _topic, _body in asked(state)] == ["PUB?", "PING"]


def subscribed(*topics: str) -> DatagramState:
    state = DatagramState()
    for topic in topics:
        state.subscribe(topic)
        state.take(b"OK SUB %s 60\n" % topic.encode())
    return state


REFUSED = b"ERR subscriptions too many\n"


def test_a_refused_renewal_is_not_taken_for_the_refusal_of_a_request() -> None:
    for renew in (DatagramState.renew, DatagramState.ping):
        state = subscribed("a")
        renew(state)
        state.publish("q", "", asked=True)
        state.take(REFUSED)
        assert state.refusal() is None
        state.take(b"OK q 7\n")
        assert state.answer is not None and state.refusal() is None
        state.publish("q", "", asked=True)
        state.take(REFUSED)
        assert state.refusal() is not None


def test_a_refusal_is_the_requests_once_all_renewals_have_their_answers() -> None:
    state = subscribed("a", "b")
    state.publish("q", "", asked=True)
    state.renew()
    for datagram in (b"ERR denied not you\n", b"OK SUB b 60\n"):
        state.take(datagram)
        assert state.refusal() is None
    state.take(b"OK SUB a 60\n")
    assert isinstance(state.refusal(), Denied)


def test_a_refusal_that_nobody_waited_for_answers_a_renewal() -> None:
    state = subscribed("a", "b", "c")
    state.renew()
    for datagram in (REFUSED, b"OK SUB a 60\n", b"OK SUB c 60\n"):
        state.take(datagram)
    state.publish("q", "", asked=True)
    assert state.refusal() is None
    state.take(REFUSED)
    assert state.refusal() is not None


def test_a_lost_answer_to_a_renewal_delays_a_refusal_until_the_request_is_repeated() -> None:
    state = subscribed("a")
    state.renew()
    state.subscribe("b")
    state.take(REFUSED)
    assert state.refusal() is None
    state.ask_again(b"b")
    state.take(REFUSED)
    assert state.refusal() is not None
    del state.topics[b"b"]
    state.subscribe("a")
    state.take(REFUSED)
    assert state.refusal() is not None
    state.renew()
    state.unsubscribe("a")
    state.take(b"OK UNSUB a\n")
    state.publish("q", "", asked=True)
    state.take(REFUSED)
    assert state.refusal() is not None


def test_another_node_is_asked_for_all_and_has_other_cookies() -> None:
    state = DatagramState()
    for topic in ("a", "b", "c"):
        state.subscribe(topic)
        state.take(b"OK SUB %s 60\n" % topic.encode())
    state.take(b"COOKIE 0123\n")
    state.unsubscribe("c")
    asked(state)
    state.go_on()
    assert asked(state) == [("SUB", b"a", b""), ("SUB", b"b", b"")] and state.topics == {b"a": False, b"b": False}
    assert state.answer is not None and state.refusal() is None  # there is no subscription to c there


def test_messages_that_nobody_takes_are_bounded() -> None:
    state = DatagramState()
    for number in range(MESSAGES_MAX + 5):
        state.take(b"MSG a\n%d" % number)
    assert len(state.messages) == MESSAGES_MAX and state.messages[0].body == b"5"


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        *((each, InvalidTopic) for each in ("", "a b", "a\n", "a+", "\0", "\ud800", b"\xff", b"a ")),
        *((each, ReservedName) for each in ("$a", b"reply-to/a", "a/$dead")),
    ],
)
def test_wrong_topics(topic: str | bytes, error: type[BrokerError]) -> None:
    state = DatagramState()
    with pytest.raises(error):
        state.publish(topic, b"")
    with pytest.raises(error):
        state.subscribe(topic)
    with pytest.raises(error):
        state.unsubscribe(topic)
    assert not state.outgoing and not state.topics


@pytest.mark.parametrize("topic", ["a\u00a0b", "a\u2028", "\u3000", "\x1f"])
def test_blanks_that_are_no_white_space_here(topic: str) -> None:
    state, name = DatagramState(), topic.encode()
    state.subscribe(topic)
    state.take(datagrams.subscribed(name, 60))
    assert state.topics == {name: True}
    state.publish(name, b"", asked=True)
    state.take(datagrams.published(name, 7))
    assert state.answer is not None and state.answer.words[-1] == "7"


def test_too_long() -> None:
    with pytest.raises(InvalidTopic, match="at most 65507 bytes"):
        DatagramState().publish("a", bytes(65_507))
