"""Python's values as payloads."""

from __future__ import annotations

import pytest

from tailrace import InvalidArgument
from tailrace.core.message import Message
from tailrace.core.values import json_payload, msgpack_payload

VALUE = {"id": 7, "names": ["é", None, True], "price": 1.5}


def message(payload: bytes) -> Message:
    return Message("s", 3, 0, payload)


def test_json() -> None:
    payload = json_payload(VALUE)
    assert payload == '{"id":7,"names":["é",null,true],"price":1.5}'.encode()
    assert message(payload).json() == VALUE
    with pytest.raises(ValueError):
        message(b"{").json()


def test_msgpack() -> None:
    assert message(msgpack_payload(VALUE)).msgpack() == VALUE
    for broken in (b"", b"\xc1", b"\x92\x01"):
        with pytest.raises(ValueError):
            message(broken).msgpack()


@pytest.mark.parametrize("value", [object(), float("nan"), {1: {2, 3}}])
def test_no_json(value: object) -> None:
    with pytest.raises(InvalidArgument, match="no JSON form"):
        json_payload(value)


@pytest.mark.parametrize("value", [object(), 1 << 70, {1: {2, 3}}])
def test_no_msgpack(value: object) -> None:
    with pytest.raises(InvalidArgument, match="no msgpack form"):
        msgpack_payload(value)
