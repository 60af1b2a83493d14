"""Which topic names and topic filters are valid, and the errors of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.topics import (
    LEVELS_MAX,
    TOPIC_BYTES_MAX,
    filter_fault,
    has_wildcards,
    topic_fault,
    unescaped,
)

DEEPEST = b"/" * (LEVELS_MAX - 1)
LONGEST = "é".encode() * (TOPIC_BYTES_MAX // 2)
VALID = (b"a", b"a/b", b"/", b"//", b"/a", b"a/", b"a//b", b"$SYS/a", b"a/$dead", b" |\n", DEEPEST, LONGEST)
# What the fault is called: of topics and filters alike.
FAULTS = {
    b"": "has 1 to 1024 bytes of UTF-8, not 0",
    LONGEST + b"a": "has 1 to 1024 bytes of UTF-8, not 1025",
    DEEPEST + b"/": "has at most 128 levels, not 129",
    b"a\0b": "has no NUL",
    b"a/\xff": "is UTF-8",
    b"\xed\xa0\x80": "is UTF-8",  # half of a surrogate pair
    b"\xc0\xaf": "is UTF-8",  # a slash, longer than it need be
}
FILTERS = (b"+", b"#", b"+/+", b"a/+", b"+/a", b"a/#", b"/#", b"+/#", b"a/+/#", b"/+/", b"$SYS/#")


@pytest.mark.parametrize("name", VALID)
def test_valid_names_are_topics_and_filters(name: bytes) -> None:
    assert topic_fault(name) == "" and filter_fault(name) == ""
    assert not has_wildcards(name)


@pytest.mark.parametrize(("name", "fault"), FAULTS.items())
def test_faults_of_both(name: bytes, fault: str) -> None:
    assert topic_fault(name).startswith(f"a topic {fault}")
    assert filter_fault(name).startswith(f"a topic filter {fault}")


@pytest.mark.parametrize("name", FILTERS)
def test_only_filters_have_wildcards(name: bytes) -> None:
    assert filter_fault(name) == "" and has_wildcards(name)
    assert "no topic may have it" in topic_fault(name)


@pytest.mark.parametrize("name", [b"a+", b"+a", b"a/b+/c", b"++", b"a#", b"#a", b"a/##", b"+#"])
def test_a_wildcard_is_a_whole_level(name: bytes) -> None:
    assert "must be a whole level" in filter_fault(name)


@pytest.mark.parametrize("name", [b"#/", b"#/a", b"a/#/b", b"#/#"])
def test_the_rest_is_the_last_level(name: bytes) -> None:
    assert filter_fault(name).startswith("# must be the last level")


@given(st.binary(max_size=40))
def test_every_topic_is_a_filter_for_itself(name: bytes) -> None:
    assert bool(topic_fault(name)) == bool(filter_fault(name) or has_wildcards(name))


@given(st.binary(min_size=1, max_size=2_000))
def test_faults_are_short_and_printable(name: bytes) -> None:
    for fault in (topic_fault(name), filter_fault(name)):
        assert len(fault) < 500 and (not fault or fault.isprintable())


@pytest.mark.parametrize("word", [b"%zz", b"a/%", b"%4", b"100%", b"%2%20"])
def test_a_percent_sign_of_a_line_begins_two_hexadecimal_digits(word: bytes) -> None:
    with pytest.raises(PeerError, match="%25 stands for a % itself") as caught:
        unescaped(word)
    assert caught.value.code is Code.TOPIC
