"""RECALL: what is left out, and for all else an error that names the fault."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tailrace.protocol import recalling
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import ELEMENTS_MAX, Fields
from tailrace.protocol.messages import Op


def read(**fields: Any) -> recalling.Recall:
    body = Fields("RECALL", memoryview(msgpack.packb(fields)), ELEMENTS_MAX)
    message: recalling.Recall = recalling.READERS.requests[Op.RECALL](body)
    return message


def test_what_is_left_out() -> None:
    assert read(id=1, name="a/#") == recalling.Recall(1, b"a/#")
    assert read(id=1, name="a/#", stream="s", after="a/1") == recalling.Recall(1, b"a/#", b"s", b"a/1")


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"name": "s"}, Code.USAGE, "the field id is missing"),
        ({"id": 1}, Code.USAGE, "the field name is missing"),
        ({"id": 1, "name": "$last/*"}, Code.RESERVED, "begins with"),
        ({"id": 1, "name": "s", "stream": "s"}, Code.USAGE, "are one place"),
        ({"id": 1, "name": "s", "after": "t"}, Code.USAGE, "are one place"),
        ({"id": 1, "name": "s", "stream": "s", "after": "t/#"}, Code.TOPIC, "stands for levels in filters"),
        ({"id": 1, "name": "s", "stream": "$s", "after": "t"}, Code.RESERVED, "begins with"),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], code: Code, text: str) -> None:
    with pytest.raises(PeerError, match=text) as raised:
        read(**fields)
    assert raised.value.code is code
