"""Values: forms, units, ranges, messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.process.setting_specs import DAY_S, Kind, Spec
from tailrace.broker.process.settings import Durability
from tailrace.supervisor.config_values import BYTE_UNITS, WrongValue, format_number, parse_value, show


def spec(kind: Kind, low: float = 0, high: float = 10**18, zero: str = "", choices: tuple[str, ...] = ()) -> Spec:
    return Spec("section", "key", kind, low, high, "doc", zero, choices)


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (Kind.COUNT, 5_050, 5_050),
        (Kind.BYTES, 4_096, 4_096),
        (Kind.BYTES, "8 MiB", 8 << 20),
        (Kind.BYTES, "8MiB", 8 << 20),
        (Kind.BYTES, "1.5 KiB", 1_536),
        (Kind.BYTES, "8 MB", 8_000_000),
        (Kind.BYTES, "17 B", 17),
        (Kind.SECONDS, 20, 20),
        (Kind.SECONDS, 20.0, 20),
        (Kind.SECONDS, "30 s", 30),
        (Kind.SECONDS, "7 d", 7 * DAY_S),
        (Kind.SECONDS, "2 w", 14 * DAY_S),
        (Kind.SECONDS, "10 min", 600),
        (Kind.SECONDS, "2_000 ms", 2),
        (Kind.MILLISECONDS, "1 s", 1_000),
        (Kind.MILLISECONDS, 7, 7),
    ],
)
def test_whole_numbers_and_their_units(kind: Kind, raw: object, value: int) -> None:
    parsed = parse_value(spec(kind), raw, whole=True)
    assert parsed == value
    assert type(parsed) is int


def test_fractions_of_seconds_where_they_are_wanted() -> None:
    assert parse_value(spec(Kind.SECONDS), "250 ms", whole=False) == 0.25
    assert parse_value(spec(Kind.SECONDS), 0.1, whole=False) == 0.1
    assert type(parse_value(spec(Kind.SECONDS), 3, whole=False)) is float


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        (Kind.COUNT, "5050", 'must be a whole number, not "5050"'),
        (Kind.COUNT, 1.5, "must be a whole number, not 1.5"),
        (Kind.COUNT, True, "must be a whole number, not true"),
        (Kind.BYTES, "8", 'must be a number of bytes or text such as "8 MiB", not "8"'),
        (Kind.BYTES, "8 Mib", 'unknown unit "Mib"; units are .*did you mean "MiB"?'),
        (Kind.BYTES, "0.3 B", '"0.3 B" is not a whole number of bytes'),
        (Kind.BYTES, "-1 KiB", 'must be a number of bytes or text such as "8 MiB", not "-1 KiB"'),
        (Kind.SECONDS, float("nan"), "must be a number of seconds"),
        (Kind.SECONDS, float("inf"), "must be a number of seconds"),
        (Kind.SECONDS, "3 sec", 'unknown unit "sec"; units are ms, s, min, h, d, w'),
        (Kind.SECONDS, 0.5, "0.5 is not a whole number of s"),
        (Kind.FLAG, "yes", 'must be true or false, not "yes"'),
        (Kind.HOST, 3, "must be text in quotes, not 3"),
        (Kind.HOST, "", "must not be empty"),
        (Kind.HOST, "a\x1b[31m", r"must not contain control characters: \"a\\x1b\[31m\""),
        (Kind.HOST, "127.0.0.1:5050", '"127.0.0.1:5050" is not an IP address; the port is a key of its own'),
        (Kind.HOST, "1.2.3", '"1.2.3" is not an IP address'),
        (Kind.HOST, "two words", "neither an address nor a host name"),
        (Kind.PATTERN, "a b", "matches no stream"),
        (Kind.STREAMS, "*a*", r'"\*a\*" has a \* before its end; write \*, a prefix and \*, or one'),
        (Kind.STREAMS, "a|*", "matches no stream"),
        (Kind.STREAMS, "$own", "begins with \\$"),
        (Kind.ADDRESS, "h", '"h" is no address: write HOST:PORT'),
        (Kind.ADDRESS, ":5050", "the host before the port is missing"),
        (Kind.PLACE, "", "must not be empty"),
        (
            Kind.PLACE,
            "yesterday",
            "'yesterday' is not a position in a stream: write 0, a time in microseconds, #SEQ or new",
        ),
        (Kind.PATH, "a\0b", "control characters"),
    ],
)
def test_wrong_values_say_what_would_do(kind: Kind, raw: object, message: str) -> None:
    with pytest.raises(WrongValue, match=message):
        parse_value(spec(kind), raw, whole=True)


def test_texts_that_are_fine() -> None:
    assert parse_value(spec(Kind.HOST), "::1", whole=False) == "::1"
    assert parse_value(spec(Kind.HOST), "localhost", whole=False) == "localhost"
    assert parse_value(spec(Kind.PATH), "/a b", whole=False) == Path("/a b")
    assert parse_value(spec(Kind.PATTERN), "log.[ab]*", whole=False) == "log.[ab]*"


def test_choices_suggest_the_near_one() -> None:
    durability = spec(Kind.CHOICE, choices=tuple(Durability))
    assert parse_value(durability, "always", whole=False) is Durability.ALWAYS
    known = "one of async, interval, always, memory"
    with pytest.raises(WrongValue, match=rf'{known}, not "Allways"; did you mean "always"\?'):
        parse_value(durability, "Allways", whole=False)
    with pytest.raises(WrongValue, match=rf"{known}, not 3$"):
        parse_value(durability, 3, whole=False)


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        (Kind.BYTES, 100, "must be 0 (off) or from 1 KiB to 1 GiB, not 100 B"),
        (Kind.BYTES, "2 GiB", "must be 0 (off) or from 1 KiB to 1 GiB, not 2 GiB"),
        (Kind.SECONDS, "2 ms", "must be 0 (off) or from 17 min 4 s"),
        (Kind.COUNT, -1, "must be 0 (off) or from 1,024 to 1,073,741,824, not -1"),
        (Kind.COUNT, 10**40, "not a number out of all bounds"),
    ],
)
def test_ranges_are_told_with_their_unit(kind: Kind, raw: object, message: str) -> None:
    with pytest.raises(WrongValue) as caught:
        parse_value(spec(kind, 1 << 10, 1 << 30, "off"), raw, whole=False)
    if kind is not Kind.SECONDS:
        assert message in str(caught.value)
    else:
        assert "1,024 s" in str(caught.value)
        assert "not 2 ms" in str(caught.value)


def test_zero_is_allowed_only_where_it_means_something() -> None:
    assert parse_value(spec(Kind.COUNT, 1, 9, "off"), 0, whole=True) == 0
    with pytest.raises(WrongValue, match="must be from 1 to 9, not 0"):
        parse_value(spec(Kind.COUNT, 1, 9), 0, whole=True)


def test_flags_are_text_and_may_leave_the_unit_out() -> None:
    assert parse_value(spec(Kind.COUNT), "5050", whole=True, from_flag=True) == 5_050
    assert parse_value(spec(Kind.BYTES), "4096", whole=True, from_flag=True) == 4_096
    assert parse_value(spec(Kind.SECONDS), "0.5", whole=False, from_flag=True) == 0.5
    with pytest.raises(WrongValue, match="whole number"):
        parse_value(spec(Kind.COUNT), "5k", whole=True, from_flag=True)


@given(st.integers(0, 1 << 50))
def test_a_size_written_back_is_the_same_size(size: int) -> None:
    text = format_number(Kind.BYTES, size).replace(",", "")
    assert parse_value(spec(Kind.BYTES), text, whole=True, from_flag=True) == size


@given(st.integers(0, 10**9), st.sampled_from(sorted(BYTE_UNITS)))
def test_every_unit_counts(number: int, unit: str) -> None:
    assert parse_value(spec(Kind.BYTES, high=10**30), f"{number} {unit}", whole=True) == number * BYTE_UNITS[unit]


@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.lists(st.text()), st.none()))
def test_anything_is_a_value_or_a_wrong_value(raw: object) -> None:
    for kind in (
        Kind.COUNT,
        Kind.BYTES,
        Kind.SECONDS,
        Kind.MILLISECONDS,
        Kind.HOST,
        Kind.PATTERN,
        Kind.PATH,
        Kind.FLAG,
    ):
        for from_flag in (False, True):
            try:
                parse_value(spec(kind), raw, whole=True, from_flag=from_flag)
            except WrongValue as wrong:
                assert str(wrong).isprintable()


@given(st.text())
def test_what_is_shown_is_one_short_safe_line(text: str) -> None:
    shown = show(text)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 63
