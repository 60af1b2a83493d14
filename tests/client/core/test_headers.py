"""User headers in a frame's metadata."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.headers import pack_headers, unpack_headers
from tailrace.errors import InvalidArgument

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(texts, texts | st.binary(max_size=20), max_size=5))
def test_what_goes_in_comes_out(headers: dict[str, str | bytes]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


def test_none_cost_nothing() -> None:
    assert pack_headers(None) == pack_headers({}) == b""
    assert unpack_headers(b"") == {}


@pytest.mark.parametrize(
    "headers", [{1: "a"}, {"a": 1}, {"a": None}, {b"a": "a"}, {"\ud800": "a"}, {"a": "x" * 65_536}]
)
def test_what_is_no_header(headers: dict[str, str | bytes]) -> None:
    with pytest.raises(InvalidArgument, match="header"):
        pack_headers(headers)


@pytest.mark.parametrize("metadata", [b"\xc1", b"\x81", b"\x90", b"\x01\x02", b"\x81\xa1h\x01", b"\xff" * 9])
def test_metadata_that_nobody_can_read_has_none(metadata: bytes) -> None:
    assert unpack_headers(metadata) == {}


@given(st.binary(max_size=60))
def test_any_metadata_gives_something(metadata: bytes) -> None:
    assert isinstance(unpack_headers(metadata), dict)


def test_beside_other_metadata() -> None:
    assert unpack_headers(msgpack.packb({"p": 1, "h": {"a": b"b"}})) == {"a": b"b"}
