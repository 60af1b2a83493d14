"""A receiver's verdict on a message."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.core.consumed_message import ConsumedMessage, reason_of
from tailrace.core.headers import pack_headers
from tailrace.core.message import Message


def make_message(metadata: bytes = b"") -> tuple[ConsumedMessage, list[str | None]]:
    said: list[str | None] = []
    message = tuple.__new__(ConsumedMessage, ("s", 7, 1, b"payload", metadata))
    message._settle = lambda _message, reason, _delay_s: said.append(reason)
    return message, said


def test_it_is_a_message() -> None:
    message, _ = make_message(pack_headers({"shop": "1"}, "customer-7"))
    assert isinstance(message, Message)
    assert (message.seq, message.payload, message.headers["shop"], message.key) == (7, b"payload", "1", "customer-7")
    assert make_message()[0].key is None


def test_what_a_block_says() -> None:
    message, said = make_message()
    with message as same:
        assert same is message
    with pytest.raises(ValueError), message:
        raise ValueError("no such customer")
    assert said == [None, "ValueError: no such customer"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_what_is_not_the_messages_fault(kind: type[BaseException]) -> None:
    message, said = make_message()
    with pytest.raises(kind), message:
        raise kind
    assert said == []


def test_what_is_said_without_a_block() -> None:
    message, said = make_message()
    message.ack()
    message.nack()
    message.nack("why")
    assert said == [None, "", "why"]


def test_reasons() -> None:
    assert reason_of(KeyError("x")) == "KeyError: 'x'"
    assert reason_of(ValueError()) == "ValueError"
