"""What nodes may ask each other: within bounds, and what an answer can be."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.replication.downstream import calls
from tailrace.broker.replication.downstream.calls import pack_args, pack_value, read_args, read_value
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol.errors import Code
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX
from tailrace.protocol.messages import CONTROL_BODY_MAX_BYTES, pack
from tailrace.protocol.replication import Call
from tests.protocol.test_fields import ANY

LONG = b"n" * 100
STANDING: dict[str, Any] = {
    "name": LONG, "next_seq": NUMBER_MAX, "lag_messages": NUMBER_MAX, "lag_us": NUMBER_MAX, "in_flight": 65_536,
    "members": 1_000, "redelivered": NUMBER_MAX, "dead": NUMBER_MAX, "idle_us": NUMBER_MAX, "ack_wait_s": 0.5,
    "deliveries_max": 65_535,
}  # fmt: skip
GET = [LONG, LONG, [], [], 0, c.GET_BYTES_MAX, c.WAIT_MAX_MS, False, False, 0, 7]
GIVEN: dict[str, Any] = {"runs": [[0, 2, 1, 9]], "stale": [[3, 4]], "trimmed": 5}
RIGHT: list[tuple[str, list[Any], Any]] = [
    ("get", GET, GIVEN),
    ("get", GET, {"runs": [], "stale": [], "trimmed": 0}),
    ("consume", [{"do": "create"}], {"next_seq": 7, "created": True}),
    ("consume", [{"do": "reset"}], {"next_seq": NUMBER_MAX}),
    ("consume", [{"do": "delete"}], {"existed": False}),
    ("consume", [{"do": "list"}], {"consumers": []}),
    ("consume", [{"do": "list"}], {"consumers": [STANDING, {k: v for k, v in STANDING.items() if k != "lag_us"}]}),
    ("consume", [{"do": "leave"}], {}),
    ("consume", [{"do": "away"}], {}),
    ("consume", [{"do": "wake"}], {}),
]
WRONG: list[tuple[str, list[Any], Any]] = [
    ("get", GET, None),
    ("get", GET, []),
    ("get", GET, {}),
    ("get", GET, GIVEN | {"more": 1}),
    ("get", GET, GIVEN | {"trimmed": -1}),
    ("get", GET, GIVEN | {"trimmed": True}),
    ("get", GET, GIVEN | {"runs": [[0, 2, 1]]}),
    ("get", GET, GIVEN | {"runs": [[0, U32_MAX + 1, 0, 1]]}),
    ("get", GET, GIVEN | {"runs": [[0, 2, "1", 1]]}),
    ("get", GET, GIVEN | {"runs": [[0, 2, 1, U32_MAX + 1]]}),
    ("get", GET, GIVEN | {"runs": {"0": 1}}),
    ("get", GET, GIVEN | {"stale": [[NUMBER_MAX + 1, 1]]}),
    ("get", GET, GIVEN | {"stale": [7]}),
    ("consume", [{"do": "create"}], {"next_seq": 7}),
    ("consume", [{"do": "create"}], {"next_seq": 7, "created": 1}),
    ("consume", [{"do": "reset"}], {"next_seq": "7"}),
    ("consume", [{"do": "delete"}], {"next_seq": 7}),
    ("consume", [{"do": "list"}], {"consumers": [STANDING | {"name": "a text"}]}),
    ("consume", [{"do": "list"}], {"consumers": [STANDING | {"name": b"a b"}]}),
    ("consume", [{"do": "list"}], {"consumers": [STANDING | {"ack_wait_s": 0}]}),
    ("consume", [{"do": "list"}], {"consumers": [STANDING | {"lag_us": None}]}),
    ("consume", [{"do": "list"}], {"consumers": [STANDING | {"more": 1}]}),
    ("consume", [{"do": "list"}], {"consumers": [{}]}),
    ("consume", [{"do": "leave"}], {"existed": True}),
    ("consume", [{"do": "away"}], {"next_seq": 1}),
    ("consume", [{"do": []}], {"next_seq": 1}),
    ("consume", [{}], {"next_seq": 1}),
    ("consume", [], {"next_seq": 1}),
]


@pytest.mark.parametrize(("verb", "args", "value"), RIGHT)
def test_what_is_asked_and_given_comes_through(verb: str, args: list[Any], value: Any) -> None:
    assert read_args(verb, pack_args(args)) == args
    assert read_value(verb, args, pack_value(verb, args, value)) == value


@pytest.mark.parametrize(("verb", "args", "value"), WRONG)
def test_a_value_that_cannot_be_one(verb: str, args: list[Any], value: Any) -> None:
    with pytest.raises(ValueError, match=f"bytes that are no answer to {verb}"):
        read_value(verb, args, msgpack.packb(value))


def test_the_rows_are_tuples_here_and_arrays_on_the_way() -> None:
    value = {"runs": ((0, 2, 1, 9),), "stale": ((3, 4),), "trimmed": 5}
    assert read_value("get", GET, pack_value("get", GET, value)) == GIVEN


def refusal(function: Any, *args: Any) -> Code:
    with pytest.raises(Refused) as refused:
        function(*args)
    return refused.value.code


def test_arguments_that_are_none() -> None:
    for packed in (b"", b"\x80", b"\xc0", b"\x91", b"\x91\x91\x91\xff\x00", msgpack.packb([[0] * 1_025])):
        assert refusal(read_args, "get", packed) is Code.USAGE, packed
    assert refusal(read_args, "get", msgpack.packb([{str(key): 0 for key in range(17)}])) is Code.USAGE
    for verb in ("", "promote", "await", "conns"):
        assert refusal(read_args, verb, b"\x90") is Code.UNSUPPORTED


def test_the_longest_get_fits_in_a_call() -> None:
    finished = [[NUMBER_MAX, NUMBER_MAX, U32_MAX]] * c.FINISHED_MAX
    failed = [[NUMBER_MAX, U32_MAX, "r" * c.REASON_BYTES_MAX]] * c.FAILED_MAX
    args = [LONG, LONG, finished, failed, *GET[4:]]
    assert len(pack(Call(U32_MAX, b"s" * 200, "get", pack_args(args)))) < CONTROL_BODY_MAX_BYTES
    assert read_args("get", pack_args(args)) == args


def test_arguments_that_are_too_long_do_not_go() -> None:
    longest = b"x" * (calls.ARGS_BYTES_MAX - 4)
    assert len(pack(Call(U32_MAX, b"s" * 200, "consume", pack_args([longest])))) <= CONTROL_BODY_MAX_BYTES + 5
    assert refusal(pack_args, [longest + b"x"]) is Code.SIZE


def test_the_longest_answers_come_through() -> None:
    rows = {"consumers": [STANDING] * c.CONSUMERS_MAX}
    args = [{"do": "list"}]
    assert len(read_value("consume", args, pack_value("consume", args, rows))["consumers"]) == c.CONSUMERS_MAX
    runs = [[NUMBER_MAX, U32_MAX, U32_MAX, U32_MAX]] * c.MESSAGES_MAX
    given = {"runs": runs, "stale": [[NUMBER_MAX, NUMBER_MAX]] * calls.RANGES_MAX, "trimmed": NUMBER_MAX}
    assert read_value("get", GET, pack_value("get", GET, given)) == given


@pytest.mark.parametrize(
    ("verb", "args", "limit"),
    [
        ("get", GET, calls.GIVEN_BYTES_MAX),
        ("consume", [{"do": "list"}], calls.LIST_BYTES_MAX),
        ("consume", [{"do": "away"}], calls.SHORT_BYTES_MAX),
    ],
)
def test_longer_ones_do_not_go_and_are_not_unpacked(verb: str, args: list[Any], limit: int) -> None:
    value = b"x" * limit
    assert refusal(pack_value, verb, args, value) is Code.SIZE
    with pytest.raises(ValueError, match="no answer"):
        read_value(verb, args, msgpack.packb(value))


@given(st.sampled_from(RIGHT), ANY | st.binary(max_size=100))
def test_whatever_comes_is_a_value_or_none(asked: tuple[str, list[Any], Any], garbage: Any) -> None:
    verb, args, _value = asked
    packed = garbage if isinstance(garbage, bytes) else msgpack.packb(garbage)
    try:
        value = read_value(verb, args, packed)
    except ValueError:
        return
    assert type(value) is dict
