"""COLLECT: what is left out, and for all else an error that names the fault."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tailrace.protocol import collecting as g
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import CONTROL_BODY_MAX_BYTES, Fields
from tailrace.protocol.messages import Op, pack
from tailrace.protocol.places import FROM_NEW, From

LEAST: dict[str, Any] = {"id": 1, "pattern": "a.*", "from": ["new", 0]}


def read(**fields: Any) -> g.Collect:
    body = Fields("COLLECT", memoryview(msgpack.packb(fields)), g.POSITIONS_MAX)
    message: g.Collect = g.READERS.requests[Op.COLLECT](body)
    return message


def test_what_is_left_out() -> None:
    assert read(**LEAST) == g.Collect(1, b"a.*", FROM_NEW)
    assert read(**LEAST, positions=[["a.1", 7], ["a/$dead", 0]]).positions == {b"a.1": 7, b"a/$dead": 0}


def test_as_many_positions_as_there_may_be_fit_into_an_envelope() -> None:
    positions = {b"orders.%016d" % number: 2**62 for number in range(g.POSITIONS_MAX)}
    message = g.Collect(1, b"orders.*", From("time", 0), positions=positions)
    assert len(pack(message)) <= CONTROL_BODY_MAX_BYTES
    assert read(**msgpack.unpackb(pack(message)[5:])) == message


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"id": None}, Code.USAGE, "the field id is missing"),
        ({"pattern": None}, Code.USAGE, "the field pattern is missing"),
        ({"from": None}, Code.USAGE, "from"),
        ({"pattern": "$x*"}, Code.RESERVED, "begins with"),
        ({"skip": 1}, Code.USAGE, "from must be one"),
        ({"end": ["seq", 1]}, Code.FROM, "end"),
        ({"topics": "a/#/b"}, Code.TOPIC, "#"),
        ({"positions": [["a.1"]]}, Code.USAGE, "positions"),
        ({"positions": [["a.1", -1]]}, Code.USAGE, "the position -1"),
        ({"positions": [["a b", 1]]}, Code.NAME, "is not a stream name"),
        ({"positions": [["a.1", 1]] * (g.POSITIONS_MAX + 1)}, Code.USAGE, "1024"),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], code: Code, text: str) -> None:
    with pytest.raises(PeerError, match=text) as raised:
        read(**{**LEAST, **fields})
    assert raised.value.code is code
