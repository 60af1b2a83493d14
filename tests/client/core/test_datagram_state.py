"""The subscriptions of a UDP client, without a socket."""

from __future__ import annotations

import pytest

from tailrace.core.datagram_state import MESSAGES_MAX, DatagramState
from tailrace.errors import Denied, InvalidTopic
from tailrace.protocol.datagrams import DatagramMessage, DatagramVerb, parse_request


def asked(state: DatagramState) -> list[tuple[str, bytes, bytes]]:
    found = [parse_request(each) for each in state.outgoing]
    state.outgoing.clear()
    return [(str(each.verb), each.topic, each.body.strip()) for each in found if each is not None]


def test_a_cookie_is_shown_for_all_that_is_not_answered_and_once() -> None:
    state = DatagramState()
    state.subscribe("a")
    state.take(b"OK SUB a 60\n")
    state.subscribe("b/+")
    assert asked(state) == [("SUB", b"a", b""), ("SUB", b"b/+", b"")]
    for _ in range(3):
        state.take(b"COOKIE 0123456789abcdef\n")
    assert asked(state) == [("SUB", b"b/+", b"0123456789abcdef")]
    state.take(b"OK SUB b/+ 60\n")
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


def test_messages_that_nobody_takes_are_bounded() -> None:
    state = DatagramState()
    for number in range(MESSAGES_MAX + 5):
        state.take(b"MSG a\n%d" % number)
    assert len(state.messages) == MESSAGES_MAX and state.messages[0].body == b"5"


@pytest.mark.parametrize("topic", ["", "a b", "a\n", "a+", "\0"])
def test_wrong_topics(topic: str) -> None:
    with pytest.raises(InvalidTopic):
        DatagramState().publish(topic, b"")
    with pytest.raises(InvalidTopic):
        DatagramState().subscribe(topic)


def test_too_long() -> None:
    with pytest.raises(InvalidTopic, match="at most 65507 bytes"):
        DatagramState().publish("a", bytes(65_507))
