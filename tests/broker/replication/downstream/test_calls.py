"""What nodes may ask each other: within bounds, and what an answer can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.replication.downstream import calls
from tailrace.broker.replication.downstream.calls import (
    MemberRequest,
    pack_request,
    pack_value,
    read_request,
    read_value,
)
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol.errors import Code
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX
from tailrace.protocol.messages import CONTROL_BODY_MAX_BYTES, pack
from tailrace.protocol.places import FROM_NEW, From
from tailrace.protocol.replication import Call
from tests.protocol.test_fields import ANY

LONG = b"n" * 100
STANDING: dict[str, Any] = {
    "name": LONG, "next_seq": NUMBER_MAX, "lag_messages": NUMBER_MAX, "lag_us": NUMBER_MAX, "in_flight": 65_536,
    "members": 1_000, "redelivered": NUMBER_MAX, "dead": NUMBER_MAX, "idle_us": NUMBER_MAX, "ack_wait_s": 0.5,
    "retry_s": 0, "retry_max_s": 1.5, "deliveries_max": 65_535,
}  # fmt: skip
S = b"s" * 200
GET = c.Get(1, S, LONG, LONG, max_messages=c.MESSAGES_MAX, max_bytes=c.GET_BYTES_MAX, wait_ms=c.WAIT_MAX_MS, session=7)
CREATE = c.Consume(1, "create", S, LONG, From("time", NUMBER_MAX), 1.5, 3, c.ACK_SYNCED)
RESET, DELETE = c.Consume(1, "reset", S, LONG, FROM_NEW), c.Consume(1, "delete", S, LONG, ack=3, replicas=2)
LIST, LEAVE = c.Consume(1, "list", S), c.Consume(1, "leave", S, LONG, member=LONG)
AWAY, WAKE = c.MemberNotice("away", S, LONG, LONG, 7, NUMBER_MAX), c.MemberNotice("wake", S, LONG, LONG)
GIVEN: dict[str, Any] = {"runs": [[0, 2, 1, 9]], "stale": [[3, 4]], "trimmed": 5}
RIGHT: list[tuple[MemberRequest, Any]] = [
    (GET, GIVEN),
    (GET, {"runs": [], "stale": [], "trimmed": 0}),
    (CREATE, {"next_seq": 7, "created": True}),
    (RESET, {"next_seq": NUMBER_MAX}),
    (DELETE, {"existed": False}),
    (LIST, {"consumers": []}),
    (LIST, {"consumers": [STANDING, {k: v for k, v in STANDING.items() if k != "lag_us"}]}),
    (LEAVE, {}),
    (AWAY, {}),
    (WAKE, {}),
]
WRONG: list[tuple[MemberRequest, Any]] = [
    (GET, None),
    (GET, []),
    (GET, {}),
    (GET, GIVEN | {"more": 1}),
    (GET, GIVEN | {"trimmed": -1}),
    (GET, GIVEN | {"trimmed": True}),
    (GET, GIVEN | {"runs": [[0, 2, 1]]}),
    (GET, GIVEN | {"runs": [[0, U32_MAX + 1, 0, 1]]}),
    (GET, GIVEN | {"runs": [[0, 2, "1", 1]]}),
    (GET, GIVEN | {"runs": [[0, 2, 1, U32_MAX + 1]]}),
    (GET, GIVEN | {"runs": {"0": 1}}),
    (GET, GIVEN | {"runs": [[0, 0, 1, 9]]}),
    (GET, GIVEN | {"runs": [[NUMBER_MAX, 1, 1, 9]]}),
    (GET, GIVEN | {"runs": [[0, c.MESSAGES_MAX, 1, 9], [c.MESSAGES_MAX, 1, 1, 9]]}),
    (replace(GET, max_messages=1), GIVEN),
    (replace(GET, max_messages=0), GIVEN | {"runs": [[0, 1, 1, 9]]}),
    (GET, GIVEN | {"stale": [[NUMBER_MAX + 1, 1]]}),
    (GET, GIVEN | {"stale": [[4, 3]]}),
    (GET, GIVEN | {"stale": [7]}),
    (CREATE, {"next_seq": 7}),
    (CREATE, {"next_seq": 7, "created": 1}),
    (RESET, {"next_seq": "7"}),
    (DELETE, {"next_seq": 7}),
    (LIST, {"consumers": [STANDING | {"name": "a text"}]}),
    (LIST, {"consumers": [STANDING | {"name": b"a b"}]}),
    (LIST, {"consumers": [STANDING | {"ack_wait_s": 0}]}),
    (LIST, {"consumers": [STANDING | {"lag_us": None}]}),
    (LIST, {"consumers": [STANDING | {"more": 1}]}),
    (LIST, {"consumers": [{}]}),
    (LEAVE, {"existed": True}),
    (AWAY, {"next_seq": 1}),
]


def verb_of(request: MemberRequest) -> str:
    return "get" if isinstance(request, c.Get) else "consume"


@pytest.mark.parametrize(("request_", "value"), RIGHT)
def test_what_is_asked_and_given_comes_through(request_: MemberRequest, value: Any) -> None:
    assert read_request(S, verb_of(request_), pack_request(request_)) == request_
    assert read_value(request_, pack_value(request_, value)) == value


@pytest.mark.parametrize(("request_", "value"), WRONG)
def test_a_value_that_cannot_be_one(request_: MemberRequest, value: Any) -> None:
    with pytest.raises(ValueError, match=f"bytes that are no answer to {type(request_).__name__}"):
        read_value(request_, msgpack.packb(value))


def test_the_rows_are_tuples_here_and_arrays_on_the_way() -> None:
    value = {"runs": ((0, 2, 1, 9),), "stale": ((3, 4),), "trimmed": 5}
    assert read_value(GET, pack_value(GET, value)) == GIVEN


def refusal(function: Any, *args: Any) -> Code:
    with pytest.raises(Refused) as refused:
        function(*args)
    return refused.value.code


def test_arguments_that_are_none() -> None:
    for packed in (b"", b"\x80", b"\xc0", b"\x91", b"\x91\x91\x91\xff\x00", msgpack.packb({"finished": [0] * 1_025})):
        assert refusal(read_request, S, "get", packed) is Code.USAGE, packed
        assert refusal(read_request, S, "consume", packed) is Code.USAGE, packed
    for verb in ("", "promote", "await", "conns"):
        assert refusal(read_request, S, verb, b"\x80") is Code.UNSUPPORTED
    assert refusal(read_request, b"another", "get", pack_request(GET)) is Code.USAGE


def test_the_longest_get_fits_in_a_call() -> None:
    finished = ((NUMBER_MAX, NUMBER_MAX, U32_MAX),) * c.FINISHED_MAX
    failed = ((NUMBER_MAX, U32_MAX, "r" * c.REASON_BYTES_MAX),) * c.FAILED_MAX
    longest = replace(GET, finished=finished, failed=failed)
    assert len(pack(Call(U32_MAX, S, "get", pack_request(longest)))) < CONTROL_BODY_MAX_BYTES
    assert read_request(S, "get", pack_request(longest)) == longest


def test_arguments_that_are_too_long_do_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ARGS_BYTES_MAX", len(pack_request(GET)))
    pack_request(GET)
    assert refusal(pack_request, replace(GET, finished=((0, 1, 1),))) is Code.SIZE


def test_the_longest_answers_come_through() -> None:
    rows = {"consumers": [STANDING] * c.CONSUMERS_MAX}
    assert len(read_value(LIST, pack_value(LIST, rows))["consumers"]) == c.CONSUMERS_MAX
    runs = [[NUMBER_MAX - 1, 1, U32_MAX, U32_MAX]] * c.MESSAGES_MAX
    given = {"runs": runs, "stale": [[NUMBER_MAX, NUMBER_MAX]] * calls.RANGES_MAX, "trimmed": NUMBER_MAX}
    assert read_value(GET, pack_value(GET, given)) == given


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        (GET, calls.GIVEN_BYTES_MAX),
        (LIST, calls.LIST_BYTES_MAX),
        (AWAY, calls.SHORT_BYTES_MAX),
    ],
)
def test_longer_ones_do_not_go_and_are_not_unpacked(request_: MemberRequest, limit: int) -> None:
    value = b"x" * limit
    assert refusal(pack_value, request_, value) is Code.SIZE
    with pytest.raises(ValueError, match="no answer"):
        read_value(request_, msgpack.packb(value))


@given(st.sampled_from(RIGHT), ANY | st.binary(max_size=100))
def test_whatever_comes_is_a_value_or_none(asked: tuple[MemberRequest, Any], garbage: Any) -> None:
    request_, _value = asked
    packed = garbage if isinstance(garbage, bytes) else msgpack.packb(garbage)
    try:
        value = read_value(request_, packed)
    except ValueError:
        return
    assert type(value) is dict
