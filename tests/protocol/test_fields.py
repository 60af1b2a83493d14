"""A control body's fields: right ones come out, wrong ones are named, a short body cannot ask for much memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import ELEMENTS_MAX, NUMBER_MAX, TEXT_CHARACTERS_MAX, U32_MAX, Fields

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats()
ANY = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def fields(body: Any) -> Fields:
    return Fields("THING", memoryview(msgpack.packb(body)))


def test_fields_come_out_as_they_are() -> None:
    body = fields({"n": 7, "f": True, "t": "é", "ts": ["a", "b"], "ns": {"a": 1}, "rs": [[1, "x"]], "p": ["seq", 4]})
    assert body.number("n") == 7
    assert body.flag("f") is True
    assert body.text("t") == "é"
    assert body.texts("ts") == ("a", "b")
    assert body.numbers("ns") == {"a": 1}
    assert body.rows("rs", (int, str)) == ((1, "x"),)
    assert body.place("p", ("seq", "new")) == ("seq", 4)


def test_numbers_of_seconds_are_whole_or_not() -> None:
    body = fields({"whole": 5, "part": 0.25})
    assert (body.seconds("whole", 5), body.seconds("part", 5)) == (5.0, 0.25)


def test_binary_is_as_it_came_and_companions_are_read_where_they_may_be() -> None:
    body = fields({"x": b"\x00\xff", "name": "$cursor/s"})
    assert (body.binary("x"), body.readable_stream("name")) == (b"\x00\xff", b"$cursor/s")
    with pytest.raises(PeerError) as caught:
        body.stream("name")
    assert caught.value.code is Code.RESERVED


def test_maps_within_a_body_are_read_as_bodies() -> None:
    first, second = fields({"x": [{"a": 1, "later": []}, {}]}).maps("x")
    assert first.number("a") == 1
    with pytest.raises(PeerError, match="THING: the field a is missing"):
        second.number("a")
    assert fields({"x": []}).maps("x") == []


def test_absent_and_nil_are_the_same() -> None:
    body = fields({"there": 0, "nil": None})
    assert "there" in body
    assert "nil" not in body
    assert "absent" not in body
    for key in ("nil", "absent"):
        with pytest.raises(PeerError, match=f"THING: the field {key} is missing"):
            body.number(key)


WRONG: list[tuple[Callable[[Fields], object], Any, str]] = [
    (lambda body: body.number("x"), -1, "is -1, not a number from 0 to 9223372036854775807"),
    (lambda body: body.number("x"), NUMBER_MAX + 1, "is 9223372036854775808, not a number"),
    (lambda body: body.number("x", 5), 6, "is 6, not a number from 0 to 5"),
    (lambda body: body.number("x"), True, "is true or false, not a number"),
    (lambda body: body.number("x"), 1.0, "is a float, not a number"),
    (lambda body: body.number("x"), "1", "is a text, not a number"),
    (lambda body: body.number("x"), msgpack.Timestamp(1), "is something else, not a number"),
    (lambda body: body.seconds("x", 5), 0, "is 0, not a number of seconds over 0, to 5"),
    (lambda body: body.seconds("x", 5), -0.5, "is a float, not a number of seconds over 0, to 5"),
    (lambda body: body.seconds("x", 5), 5.1, "is a float, not a number of seconds"),
    (lambda body: body.seconds("x", 5), float("nan"), "is a float, not a number of seconds"),
    (lambda body: body.seconds("x", 5), True, "is true or false, not a number of seconds"),
    (lambda body: body.binary("x"), "text", "is a text, not binary"),
    (lambda body: body.maps("x"), {}, "is a map, not an array of maps"),
    (lambda body: body.maps("x"), [{}, 1], "is an array, not an array of maps"),
    (lambda body: body.flag("x"), 1, "is 1, not true or false"),
    (lambda body: body.text("x"), b"bytes", "is binary, not a text"),
    (lambda body: body.text("x"), "x" * (TEXT_CHARACTERS_MAX + 1), "not a text of at most 4096 characters"),
    (lambda body: body.texts("x"), "text", "is a text, not an array of texts"),
    (lambda body: body.texts("x"), ["a", 1], "is an array, not an array of texts"),
    (lambda body: body.numbers("x"), {"a": "b"}, "is a map, not a map of texts to numbers"),
    (lambda body: body.numbers("x"), {b"a": 1}, "is a map, not a map of texts to numbers"),
    (lambda body: body.rows("x", (int, str)), [[1]], r"not an array of rows of \[int, str\]"),
    (lambda body: body.rows("x", (int, str)), [[True, "a"]], r"not an array of rows of \[int, str\]"),
    (lambda body: body.rows("x", (int, str)), {}, "is a map"),
    (lambda body: body.place("x", ("seq", "new")), ["when", 1], "where kind is one of seq, new"),
    (lambda body: body.place("x", ("seq", "new")), ["seq"], "is not a position"),
    (lambda body: body.place("x", ("seq", "new")), ["seq", -1], "is not a position"),
    (lambda body: body.place("x", ("seq", "new")), "seq", "is not a position"),
]


@pytest.mark.parametrize(("read", "value", "text"), WRONG)
def test_what_is_wrong_is_named(read: Callable[[Fields], object], value: Any, text: str) -> None:
    with pytest.raises(PeerError, match=f"THING: the field x .*{text}") as caught:
        read(fields({"x": value}))
    assert caught.value.code is (Code.FROM if "position" in text or "kind" in text else Code.USAGE)
    assert not caught.value.fatal


def test_the_id_is_had_even_when_the_rest_is_wrong() -> None:
    assert fields({"id": U32_MAX}).id == U32_MAX
    for wrong in (None, -1, U32_MAX + 1, True, "1", [1]):
        assert fields({"id": wrong}).id == 0
    assert fields({}).id == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x01", b"\x90", b"\x81", b"\x81\xa1a", b"\x80\x80", b"\x81\xa1\xff\x01", b"\x81\x01\x02",
     b"\x81\x90\x01", b"\xdf\xff\xff\xff\xff", b"\x81\xa1a\xdd\xff\xff\xff\xff", b"\x81\xa1a\xdb\xff\xff\xff\xff"],
    ids=bytes.hex,
)  # fmt: skip
def test_what_is_no_map(body: bytes) -> None:
    with pytest.raises(PeerError, match=f"THING: a body of {len(body)} bytes that is not a msgpack map") as caught:
        Fields("THING", memoryview(body))
    assert caught.value.code is Code.USAGE
    assert caught.value.__context__ is None  # nothing that would keep the body


def test_long_and_deep_bodies_are_refused() -> None:
    assert "a" in fields({"a": [0] * ELEMENTS_MAX})
    for body in ({"a": [0] * (ELEMENTS_MAX + 1)}, {str(i): 0 for i in range(ELEMENTS_MAX + 1)}):
        with pytest.raises(PeerError, match="not a msgpack map"):
            fields(body)
    with pytest.raises(PeerError, match="not a msgpack map"):
        Fields("THING", memoryview(b"\x81\xa1a" + b"\x91" * 60_000 + b"\x00"))


@pytest.mark.parametrize("size", [ELEMENTS_MAX, 65_535])
def test_a_short_body_cannot_ask_for_much_memory(size: int) -> None:
    nested = b"\x81\xa1a" + (b"\xdc" + size.to_bytes(2)) * 20_000  # arrays, each within the one before
    tracemalloc.start()
    try:
        with pytest.raises(PeerError):
            Fields("THING", memoryview(nested))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60) | ANY.map(msgpack.packb))
def test_any_bytes_give_fields_or_the_one_error(body: bytes) -> None:
    try:
        read = Fields("THING", memoryview(body))
    except PeerError as error:
        assert error.code is Code.USAGE
        return
    assert 0 <= read.id <= U32_MAX


@given(ANY)
def test_any_value_is_a_field_or_an_error(value: Any) -> None:
    body = fields({"x": value})
    readers: list[Callable[[], object]] = [
        lambda: body.number("x"), lambda: body.flag("x"), lambda: body.text("x"), lambda: body.texts("x"),
        lambda: body.numbers("x"), lambda: body.rows("x", (int,)), lambda: body.place("x", ("seq",)),
        lambda: body.seconds("x", 5), lambda: body.maps("x"), lambda: body.binary("x"),
        lambda: body.readable_stream("x"),
    ]  # fmt: skip
    for read in readers:
        try:
            read()
        except PeerError as error:
            assert error.text.isprintable()
            assert len(error.text) < 200
