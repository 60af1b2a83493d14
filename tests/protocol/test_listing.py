"""LIST and LISTED: round trips, and for all else an error that names the fault."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tailrace.protocol import listing
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import ELEMENTS_MAX, Fields
from tailrace.protocol.messages import CONTROL_BODY_MAX_BYTES, Op, pack
from tests.protocol.wires import STREAM_ROW


def read(**fields: Any) -> listing.List:
    body = Fields("LIST", memoryview(msgpack.packb(fields)), ELEMENTS_MAX)
    message: listing.List = listing.READERS.requests[Op.LIST](body)
    return message


def test_what_is_left_out() -> None:
    assert read(id=1, what="names") == listing.List(1, "names")
    assert read(id=1, what="streams", prefix="", after=None) == listing.List(1, "streams")


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"what": "names"}, Code.USAGE, "the field id is missing"),
        ({"id": 1, "what": "all"}, Code.USAGE, "must be one of names, streams, grown, ends, workers, total"),
        ({"id": 1, "what": "names", "prefix": "a b"}, Code.NAME, "cannot begin a stream name"),
        ({"id": 1, "what": "names", "after": "x" * 201}, Code.NAME, "cannot begin a stream name"),
        ({"id": 1, "what": "grown", "mark": "1" * 65}, Code.USAGE, "the field `mark` has more than 64 characters"),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], code: Code, text: str) -> None:
    with pytest.raises(PeerError, match=text) as raised:
        read(**fields)
    assert raised.value.code is code


def test_a_full_answer_is_short_enough() -> None:
    rows = [STREAM_ROW] * listing.STREAMS_MAX
    assert len(pack(listing.Listed(1, (), tuple(rows)))) < CONTROL_BODY_MAX_BYTES
    names = ("n" * 200,) * listing.NAMES_MAX
    assert len(pack(listing.Listed(1, names))) < 4 * CONTROL_BODY_MAX_BYTES


def test_as_many_ends_as_may_be_asked_for() -> None:
    names = tuple(b"n" * 197 + b"%03d" % number for number in range(listing.ENDS_MAX))
    asked = listing.List(1, "ends", names=names)
    assert len(pack(asked)) < CONTROL_BODY_MAX_BYTES
    body = Fields("LIST", memoryview(pack(asked))[5:], listing.READERS.request_elements_max)
    assert listing.READERS.requests[Op.LIST](body) == asked
    with pytest.raises(PeerError, match="reserved"):
        read(id=1, what="ends", names=["a", "$x"])
