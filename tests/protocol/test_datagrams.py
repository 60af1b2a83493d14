"""The grammar of datagrams, which is the seed's: verb, white space, topic, white space, body."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import datagrams
from tailrace.protocol.datagrams import (
    DatagramAnswer,
    DatagramMessage,
    DatagramRequest,
    DatagramVerb,
    parse_answer,
    parse_request,
)
from tailrace.protocol.errors import Code


@pytest.mark.parametrize(
    ("data", "request_"),
    [
        (
            b"PUB topic1\n41.8874314503 12.4886930452",
            DatagramRequest(DatagramVerb.PUB, b"topic1", b"41.8874314503 12.4886930452"),
        ),
        (b"SUB topic1\n\n", DatagramRequest(DatagramVerb.SUB, b"topic1", b"\n")),
        (b"SUB topic1\n", DatagramRequest(DatagramVerb.SUB, b"topic1", b"")),
        (b"SUB topic1", DatagramRequest(DatagramVerb.SUB, b"topic1", b"")),
        (b"PUB \t\r\n topic1 body", DatagramRequest(DatagramVerb.PUB, b"topic1", b"body")),
        (b"PUB a\r\nb", DatagramRequest(DatagramVerb.PUB, b"a", b"b")),
        (b"PUB a\n\n b", DatagramRequest(DatagramVerb.PUB, b"a", b"\n b")),
        (b"PUB a\n\xff\x00", DatagramRequest(DatagramVerb.PUB, b"a", b"\xff\x00")),
        (b"PUB? a\nb", DatagramRequest(DatagramVerb.PUB_ASKED, b"a", b"b")),
        (b"UNSUB a/+\n", DatagramRequest(DatagramVerb.UNSUB, b"a/+", b"")),
        (b"PING\n", DatagramRequest(DatagramVerb.PING, b"", b"")),
        (b"PING", DatagramRequest(DatagramVerb.PING, b"", b"")),
        (b"PUB", None),
        (b"PUB ", None),
        (b"PUBtopic body", None),
        (b"pub topic1\nbody", None),
        (b"MSG topic1\nbody", None),
        (b" PUB topic1\nbody", None),
        (b"PING now", None),
        (b"", None),
    ],
)
def test_requests(data: bytes, request_: DatagramRequest | None) -> None:
    assert parse_request(data) == request_


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"MSG topic1\n41.8874314503 12.4886930452", DatagramMessage(b"topic1", b"41.8874314503 12.4886930452")),
        (b"OK SUB a 120\n", DatagramAnswer("OK", ("OK", "SUB", "a", "120"))),
        ("OK UNSUB a\u00a0b\u2028\x1f\n".encode(), DatagramAnswer("OK", ("OK", "UNSUB", "a\u00a0b\u2028\x1f"))),
        (b"ERR denied not for you\n", DatagramAnswer("ERR", ("ERR", "denied", "not for you"))),
        (b"COOKIE 0123456789abcdef", DatagramAnswer("COOKIE", ("COOKIE", "0123456789abcdef"))),
        (b"PONG\n", DatagramAnswer("PONG", ("PONG",))),
        (b"PUB a\nb", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_answers(data: bytes, answer: DatagramMessage | DatagramAnswer | None) -> None:
    assert parse_answer(data) == answer


WORDS = st.binary(min_size=1, max_size=40).filter(lambda word: not datagrams.has_white_space(word))


@given(WORDS, st.binary(max_size=100), st.booleans())
def test_what_is_made_is_read(topic: bytes, body: bytes, asked: bool) -> None:
    verb = DatagramVerb.PUB_ASKED if asked else DatagramVerb.PUB
    assert parse_request(datagrams.publish(topic, body, asked=asked)) == DatagramRequest(verb, topic, body)
    assert parse_answer(datagrams.message(topic, body)) == DatagramMessage(topic, body)


def test_white_space_is_that_of_the_regular_expression() -> None:
    for octet in range(256):
        assert datagrams.has_white_space(bytes([octet])) == bool(re.match(rb"\s", bytes([octet])))


def test_a_request_for_a_cookie_has_room_for_it() -> None:
    asked = datagrams.subscribe(b"a")
    assert len(datagrams.cookie("0" * datagrams.COOKIE_CHARACTERS)) <= len(asked)
    assert datagrams.subscribe(b"a", "12ab") == b"SUB a\n12ab\n"


@given(st.binary(max_size=60), st.integers(0, 60))
def test_a_fitted_answer_is_never_longer(text: bytes, size: int) -> None:
    for answer in (text, b"ERR " + text, datagrams.refused(Code.TOPIC, "because"), datagrams.PONG):
        assert len(datagrams.fitted(answer, size)) <= size


def test_a_refusal_loses_its_text_first() -> None:
    refusal = datagrams.refused(Code.DENIED, "a long text")
    assert datagrams.fitted(refusal, 12) == b"ERR denied"
    assert datagrams.fitted(refusal, 9) == b""
    assert datagrams.fitted(datagrams.PONG, 4) == b"PONG"
