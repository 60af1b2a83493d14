"""Names of streams and nodes as peers write them."""

from __future__ import annotations

from itertools import product

import pytest

from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.names import (
    consumer_name,
    is_pattern,
    matcher,
    may_share,
    node_address,
    node_id,
    prefix_of,
    printable,
    readable_name,
    shown,
    shown_text,
    stream_name,
    stream_pattern,
)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (b"*", b"anything", True),
        (b"orders.*", b"orders.eu", True),
        (b"orders.*", b"orders", False),
        (b"*.eu", b"orders.eu", True),
        (b"a*b*c", b"abc", True),
        (b"a*b*c", b"acb", False),
        (b"a*bc*bc", b"abc", False),
        (b"a**b", b"ab", True),
        (b"plain", b"plain", True),
        (b"plain", b"plainer", False),
        (b"*a" * 100, b"a" * 199, True),
        (b"*a" * 100, b"a" * 99 + b"b" * 100, False),
    ],
)
def test_names_of_a_pattern(pattern: bytes, name: bytes, matches: bool) -> None:
    assert matcher(pattern)(name) is matches
    assert not matches or name.startswith(prefix_of(pattern))
    assert is_pattern(pattern) is (pattern != b"plain")


@pytest.mark.parametrize("name", [b"s", b"25", b"a/b", "é".encode(), b"x" * 200, b"a$"])
def test_names(name: bytes) -> None:
    assert stream_name(name) == name


@pytest.mark.parametrize("name", [b"", b"a b", b"a|b", b"a\0b", b"\xff", b"x" * 201])
def test_what_is_no_name(name: bytes) -> None:
    with pytest.raises(PeerError, match="is not a stream name: 1 to 200 bytes") as caught:
        stream_name(name)
    assert caught.value.code is Code.NAME
    assert caught.value.text.isprintable()


def test_the_brokers_own_names() -> None:
    with pytest.raises(PeerError, match="begins with \\$") as caught:
        stream_name(b"$s")
    assert caught.value.code is Code.RESERVED


@pytest.mark.parametrize("name", [b"s", b"$cursor/s", b"s/$dead", b"$cursor/s/$dead"])
def test_what_may_be_read(name: bytes) -> None:
    assert readable_name(name) == name


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (b"$s", Code.RESERVED),
        (b"$cursor/", Code.RESERVED),
        (b"$cursor/$s", Code.RESERVED),
        (b"$s/$dead", Code.RESERVED),
        (b"$cursor/a b", Code.NAME),
        (b"$cursor/" + b"s" * 193, Code.NAME),
        (b"", Code.NAME),
    ],
)
def test_what_may_not_even_be_read(name: bytes, code: Code) -> None:
    with pytest.raises(PeerError) as caught:
        readable_name(name)
    assert caught.value.code is code


@pytest.mark.parametrize("name", [b"n", b"$n", "é".encode(), b"x" * 100])
def test_names_of_consumers_and_members(name: bytes) -> None:
    assert consumer_name(name) == name


@pytest.mark.parametrize("name", [b"", b"a b", b"a|b", b"a\0b", b"\xff", b"x" * 101])
def test_what_is_no_name_of_a_consumer(name: bytes) -> None:
    with pytest.raises(PeerError, match="is not the name of a consumer or a member: 1 to 100 bytes") as caught:
        consumer_name(name)
    assert caught.value.code is Code.USAGE
    assert caught.value.text.isprintable()


def test_shown_is_bounded_and_printable() -> None:
    assert shown(b"abc") == "'abc'"
    assert shown("é\n\x1b".encode()) == r"'\xe9\n\x1b'"
    assert shown(b"\xff") == r"'\\xff'"
    assert shown(b"x" * 1_000) == repr("x" * 60) + " and 940 bytes more"


def test_a_text_for_the_log_is_one_line() -> None:
    assert shown_text("not now: é") == "not now: é"
    assert shown_text("a\r\nb\x1b\u2028") == "a\ufffd\ufffdb\ufffd\ufffd"
    assert shown_text("x" * 4_096) == "x" * 400


def test_a_text_for_people_is_escaped() -> None:
    assert printable("line é 数\n\tline") == "line é 数\n\tline"
    assert printable("a\r\x1b\u202e\u200b\udcff\U000e0041") == r"a\r\x1b\u202e\u200b\udcff\U000e0041"


@pytest.mark.parametrize("pattern", [b"*", b"log.*", b"s", b"a*b", b"**", b"x" * 200 + b"*"])
def test_patterns(pattern: bytes) -> None:
    assert stream_pattern(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "code"),
    [(b"", Code.NAME), (b"a b*", Code.NAME), (b"$*", Code.RESERVED), (b"x" * 201 + b"*", Code.NAME)],
)
def test_what_is_no_pattern(pattern: bytes, code: Code) -> None:
    with pytest.raises(PeerError) as caught:
        stream_pattern(pattern)
    assert caught.value.code is code


@pytest.mark.parametrize("text", ["n", "0123456789abcdef", "é" * 16, "$n"])
def test_ids_of_nodes(text: str) -> None:
    assert node_id(text) == text


@pytest.mark.parametrize("text", ["", "a b", "a|b", "a\n", "x" * 33, "é" * 17])
def test_what_is_no_id_of_a_node(text: str) -> None:
    with pytest.raises(PeerError, match="is not the id of a node: 1 to 32 bytes") as caught:
        node_id(text)
    assert caught.value.code is Code.USAGE
    assert caught.value.text.isprintable()


@pytest.mark.parametrize("text", [":1", ":65535", "10.0.0.1:5050", "broker-2.example:5050", "[::1]:5050"])
def test_addresses_of_nodes(text: str) -> None:
    assert node_address(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a",
        "5050",
        "a:",
        "a:0",
        "a:65536",
        "a:-1",
        "a: 1",
        "a b:1",
        "a\n:1",
        "a:\u0661",
        ":1:1",
        "x" * 300 + ":1",
    ],
)
def test_what_is_no_address_of_a_node(text: str) -> None:
    with pytest.raises(PeerError, match="is not the address of a node: ") as caught:
        node_address(text)
    assert caught.value.code is Code.USAGE
    assert caught.value.text.isprintable()


def test_patterns_with_names_in_common() -> None:
    names = [bytes(each) for length in range(7) for each in product(b"ab", repeat=length)]
    patterns = [bytes(each) for length in range(1, 4) for each in product(b"ab*", repeat=length) if 42 in each]
    for pattern, other in product(patterns, repeat=2):
        both = any(matcher(pattern)(name) and matcher(other)(name) for name in names)
        assert may_share(pattern, other) == both
