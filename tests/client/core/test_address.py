"""Addresses as people write them."""

from __future__ import annotations

import pytest

from tailrace.core.address import Address, parse_address, parse_addresses
from tailrace.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", Address("127.0.0.1", 5_050)),
        ("broker", Address("broker", 5_050)),
        ("broker:7", Address("broker", 7)),
        (":7", Address("127.0.0.1", 7)),
        ("[::1]:7", Address("::1", 7)),
        ("[::1]", Address("::1", 5_050)),
        ("::1", Address("::1", 5_050)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["broker:x", "broker:0", "broker:65536", "[::1]7", "[::1]:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not HOST:PORT"):
        parse_address(text)


def test_several() -> None:
    assert parse_addresses(()) == (Address(),)
    assert parse_addresses(("a", ["b:1", "a"], "c")) == (Address("a"), Address("b", 1), Address("c"))
