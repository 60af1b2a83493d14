"""HOST:PORT, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.address import HOST_BYTES_MAX, host_valid, join_address, split_address

LONG = "h" * HOST_BYTES_MAX


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:5050", ("10.0.0.1", 5_050)),
        ("broker-2.example.com:1", ("broker-2.example.com", 1)),
        ("[::1]:65535", ("::1", 65_535)),
        ("[fe80::1%eth0]:05050", ("fe80::1%eth0", 5_050)),
        (f"{LONG}:5050", (LONG, 5_050)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert split_address(join_address(*address)) == address


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "write HOST:PORT"),
        ("broker", "write HOST:PORT"),
        ("::1:5050", r"IPv6 address as \[V6\]:PORT"),
        ("[::1]", "write HOST:PORT"),
        ("[broker]:5050", "write HOST:PORT"),
        ("h:5050 ", "write HOST:PORT"),
        ("h:-1", "write HOST:PORT"),
        ("h:\u0663", "write HOST:PORT"),
        (":5050", "the host before the port is missing"),
        ("a/b:5050", "invalid host"),
        ("a b:5050", "invalid host"),
        (f"{LONG}h:5050", "invalid host"),
        ("h:0", "a port is 1 to 65535"),
        ("h:65536", "a port is 1 to 65535"),
        ("h" * 10_000 + ":1", "write HOST:PORT"),
    ],
)
def test_what_is_no_address(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        split_address(text)


@given(st.text(alphabet="[]:.%a1é\n ", max_size=20))
def test_any_text_is_an_address_or_a_clean_error(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError as error:
        assert str(error).isprintable()
        return
    assert host_valid(host) and split_address(join_address(host, port)) == (host, port)
