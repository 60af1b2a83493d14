"""Peers that are not brokers."""

from __future__ import annotations

import pytest

from tailrace.protocol.strangers import PROTOCOLS, stranger


@pytest.mark.parametrize("start", PROTOCOLS)
def test_known_protocols(start: bytes) -> None:
    assert stranger(start + b"more") == f"this is not a tailrace broker: {PROTOCOLS[start]}"


def test_others() -> None:
    assert stranger(b"hello world") == "this is not a tailrace broker: its first bytes are 'hello wo'"
    assert stranger(b"\0\xff").endswith(r"its first bytes are '\x00\xff'")
