"""Names of streams as peers write them."""

from __future__ import annotations

import pytest

from broker.protocol.errors import Code, PeerError
from broker.protocol.names import shown, stream_name


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


def test_shown_is_bounded_and_printable() -> None:
    assert shown(b"abc") == "'abc'"
    assert shown("é\n\x1b".encode()) == r"'\xe9\n\x1b'"
    assert shown(b"\xff") == r"'\\xff'"
    assert shown(b"x" * 1_000) == repr("x" * 60) + " and 940 bytes more"
