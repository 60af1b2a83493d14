from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.names import (
    CURSOR_PREFIX,
    DEAD_SUFFIX,
    InvalidName,
    base_of,
    cursor_name,
    dead_name,
    file_stem,
    is_reserved,
    name_bytes_valid,
    name_of_stem,
    new_name_fault,
    shard_of,
    stem_is_hashed,
    validate_name,
)

GOOD = ["25", "a", "a/b", ".", "..", "x" * 200, "ü" * 100, "größe", "$cursor/x", "a.content", "=", "%41", "日本", "~"]
BAD = ["", "x" * 201, "ü" * 101, "a b", "a\tb", "a|b", "|", "a\n", "\x00", "\x7f", "a\x85", "a b", "a\u2028b", " "]


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    assert validate_name(name) == name
    assert name_bytes_valid(name.encode())


@pytest.mark.parametrize("name", BAD)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidName, match="stream name"):
        validate_name(name)
    assert not name_bytes_valid(name.encode())


def test_bytes_that_are_no_utf8_are_no_name() -> None:
    assert not name_bytes_valid(b"a\xff")
    with pytest.raises(InvalidName, match="no UTF-8 form"):
        validate_name("a\udcff")


@given(st.binary(max_size=210))
def test_bytes_and_text_are_judged_alike(name: bytes) -> None:
    try:
        validate_name(name.decode())
        good = True
    except (UnicodeDecodeError, InvalidName):
        good = False
    assert name_bytes_valid(name) == good


@given(st.text(min_size=1, max_size=40).filter(lambda text: name_bytes_valid(text.encode(errors="replace"))))
def test_a_stem_is_a_file_name_and_tells_the_name(name: str) -> None:
    stem = file_stem(name)
    assert "/" not in stem
    assert stem.isascii()
    assert len(stem) <= 200
    assert stem_is_hashed(stem) == (name_of_stem(stem) is None)
    assert name_of_stem(stem) in (name, None)


def test_long_encodings_become_a_hash() -> None:
    long, longer = "ü" * 34, "ü" * 33 + "ä"
    assert stem_is_hashed(file_stem(long))
    assert file_stem(long) != file_stem(longer)
    assert not stem_is_hashed(file_stem("="))
    assert file_stem("=") == "%3D"


@pytest.mark.parametrize("stem", ["a b", "a%2", "%41", "a%2f", "%FF", "ü", "", "x" * 201, "%7C"])
def test_stems_that_no_name_makes(stem: str) -> None:
    assert name_of_stem(stem) is None


def test_shards_never_move_and_are_even() -> None:
    assert [shard_of(name) for name in (b"25", b"a", b"stream")] == [45, 3, 28]
    counts = Counter(shard_of(b"sensor-%06d" % i) for i in range(64_000))
    assert len(counts) == 64
    assert max(counts.values()) < 1_500
    assert min(counts.values()) > 500


def test_reserved() -> None:
    assert is_reserved("$x")
    assert is_reserved(b"$x")
    assert not is_reserved("x$")


def test_companions_live_with_their_stream() -> None:
    for name in (b"a", b"a$b", b"$x", b"a/b", "größe".encode()):
        dead = dead_name(name)
        assert (cursor_name(name), dead) == (b"$cursor/" + name, name + b"/$dead")
        for each in (name, cursor_name(name), dead, cursor_name(dead), dead_name(dead), cursor_name(dead_name(dead))):
            assert base_of(each) == name
            assert shard_of(each) == shard_of(name)


@pytest.mark.parametrize("name", [CURSOR_PREFIX, DEAD_SUFFIX, b"a/$deadly", b"$cursors/a", b"$dead"])
def test_what_only_looks_like_a_companion(name: bytes) -> None:
    assert base_of(name) == name
    assert base_of(cursor_name(name)) == name


def test_companions_of_names_that_are_too_long() -> None:
    assert len(cursor_name(b"x" * 192)) == len(dead_name(b"x" * 194)) == 200
    with pytest.raises(InvalidName, match="would have 201"):
        cursor_name(b"x" * 193)
    with pytest.raises(InvalidName, match="would have 201"):
        dead_name(b"x" * 195)


@pytest.mark.parametrize("name", ["orders", "a/b", "a.b-c_d", "Bestellungen-Zürich", "注文", "заказы", "שלום"])
def test_names_that_new_streams_may_have(name: str) -> None:
    assert new_name_fault(name) == ""
    assert new_name_fault(f"{name}/$dead") == new_name_fault(f"$cursor/{name}") == ""


@pytest.mark.parametrize(
    "name",
    ["orders*", "*", "a+b", "#", "a#b", "orders/", "a\u202eb", "a\u200bb", "a\ufeff", "a\u00adb", "a\u3164", "a\ufe0f"],
)
def test_names_that_no_new_stream_may_have(name: str) -> None:
    """They are names of streams that exist already, all the same."""
    assert new_name_fault(name) and name_bytes_valid(name.encode())
    assert new_name_fault(f"{name}/$dead") and new_name_fault(f"$cursor/{name}")
