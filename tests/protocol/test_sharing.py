"""INTEREST: there and back, and all that is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import Code
from tailrace.protocol.features import SHARING
from tailrace.protocol.fields import CONTROL_BODY_MAX_BYTES, packed_map
from tailrace.protocol.messages import Malformed, Op, pack
from tailrace.protocol.requests import read_request
from tailrace.protocol.sharing import FILTERS_MAX, INTEREST_BYTES, SHARED_FROM, Interest

GOOD = {"id": SHARED_FROM, "stream": "udp", "everything": False, "added": ["a/+"], "removed": [], "ends": False}


def read(body: bytes) -> object:
    return read_request(int(Op.INTEREST), memoryview(body), frozenset({SHARING}))


def test_there_and_back() -> None:
    filters = tuple(b"%d/%s" % (number, b"x" * (INTEREST_BYTES // FILTERS_MAX - 8)) for number in range(FILTERS_MAX))
    for message in (
        Interest(SHARED_FROM, b"udp", False, (b"a", b"b/#"), (b"+",)),
        Interest(SHARED_FROM + 7, b"udp", everything=True),
        Interest(SHARED_FROM, b"udp", ends=True),
        Interest(SHARED_FROM, b"udp", False, filters),
    ):
        envelope = pack(message)
        assert len(envelope) <= HEAD_BYTES + CONTROL_BODY_MAX_BYTES and read(envelope[HEAD_BYTES:]) == message


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"id": SHARED_FROM - 1}, Code.USAGE),
        ({"id": None}, Code.USAGE),
        ({"stream": "$cursor/udp"}, Code.RESERVED),
        ({"everything": 1}, Code.USAGE),
        ({"added": ["a/#/b"]}, Code.TOPIC),
        ({"removed": [""]}, Code.TOPIC),
        ({"removed": [b"a"]}, Code.USAGE),
        ({"added": ["a"] * (FILTERS_MAX + 1)}, Code.USAGE),
        ({"ends": None}, Code.USAGE),
    ],
)
def test_what_is_wrong_is_refused(fields: dict[str, Any], code: Code) -> None:
    found = read(packed_map({**GOOD, **fields}))
    assert isinstance(found, Malformed) and found.error.code is code


def test_it_needs_its_feature() -> None:
    assert isinstance(read_request(int(Op.INTEREST), memoryview(packed_map(GOOD))), Malformed)
