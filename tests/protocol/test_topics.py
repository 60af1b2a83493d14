"""Which topic names and topic filters are valid, and the errors of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.names import stream_name
from tailrace.protocol.topics import (
    LEVELS_MAX,
    TOPIC_BYTES_MAX,
    filter_fault,
    has_wildcards,
    name_of_word,
    published_name,
    read_name,
    topic_fault,
    unescaped,
    word_of_name,
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


@pytest.mark.parametrize(
    ("word", "name"),
    [
        (b"a%20b/c", b"a b/c"),
        (b"a/%25", b"a/%"),
        (b"a/\xc3\xa9", "a/é".encode()),
        (b"100%", b"100%"),  # a stream's
        (b"100%/$dead", b"100%/$dead"),
        (b"$cursor/a%/b", b"$cursor/a%/b"),
        (b"a/b%0A/$dead", b"a/b\n/$dead"),
    ],
)
def test_a_name_as_a_word_of_a_line(word: bytes, name: bytes) -> None:
    assert name_of_word(word) == name and word_of_name(name) == word


@pytest.mark.parametrize("name", [b"a b/c", b"a/b\n", b"a/" + b"x" * 1_022, b"a|b/c", b"/" * 10 + b" "])
def test_names_that_no_stream_has(name: bytes) -> None:
    assert published_name(name) == name == read_name(name) == read_name(name, stream_name)


@pytest.mark.parametrize("name", [b"a b", b"a|b", b"x" * 201, b"a b/$dead", b"$a/b c", b"\n"])
def test_names_that_are_refused_as_those_of_streams(name: bytes) -> None:
    for check in (published_name, read_name):
        with pytest.raises(PeerError) as caught:
            check(name)
        assert caught.value.code in (Code.NAME, Code.RESERVED)


@pytest.mark.parametrize("name", [b"a/" + b"x" * 1_023, b"a/\0", b"a/\xff", b"/" * 128 + b" "])
def test_names_that_are_refused_as_those_of_topics(name: bytes) -> None:
    for check in (published_name, read_name):
        with pytest.raises(PeerError) as caught:
            check(name)
        assert caught.value.code is Code.TOPIC
