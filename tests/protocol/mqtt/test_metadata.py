"""Properties of messages as metadata of frames."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.mqtt.metadata import MessageProperties, pack_metadata, read_metadata
from tailrace.protocol.mqtt.properties import PropertyId
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.topics import topic_in

CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS, min_size=1, max_size=9).map(str.encode)
PROPERTIES: Any = st.fixed_dictionaries(
    {},
    optional={
        PropertyId.PAYLOAD_FORMAT: st.integers(0, 1),
        PropertyId.MESSAGE_EXPIRY: st.integers(0, 0xFFFFFFFF),
        PropertyId.CONTENT_TYPE: TEXT,
        PropertyId.RESPONSE_TOPIC: TEXT,
        PropertyId.CORRELATION_DATA: st.binary(max_size=9),
        PropertyId.USER_PROPERTY: st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
    },
)


def test_a_plain_message_has_the_metadata_that_the_other_protocols_give_it() -> None:
    assert pack_metadata(b"a/b", 1) == topic_metadata(b"a/b") and pack_metadata(b"", 1) == b""


@given(TEXT, st.integers(0, 2), PROPERTIES, st.binary(max_size=6))
def test_it_comes_back(topic: bytes, qos: int, properties: dict[PropertyId, Any], origin: bytes) -> None:
    packed = pack_metadata(topic, qos, properties, origin)
    found = read_metadata(packed, b"stream")
    assert topic_in(packed) == topic == found.topic
    assert (found.qos, found.origin) == (qos, origin)
    assert found.expiry_s == properties.pop(PropertyId.MESSAGE_EXPIRY, None)
    pairs = properties.pop(PropertyId.USER_PROPERTY, [])
    assert [value for number, value in found.properties if number is PropertyId.USER_PROPERTY] == pairs
    rest = {number: value for number, value in found.properties if number is not PropertyId.USER_PROPERTY}
    assert rest == properties


def test_a_message_of_another_protocol() -> None:
    found = read_metadata(b"", b"stream")
    assert found == MessageProperties(b"stream", 1, None, b"", False, ())
    headers = msgpack.packb({"t": "a", "h": {"lang": "en", "raw": b"\xff", "x": "\0"}})
    assert read_metadata(headers, b"s").properties == ((PropertyId.USER_PROPERTY, (b"lang", b"en")),)


@pytest.mark.parametrize(
    "keys",
    [
        {"t": 5, "q": 3, "e": -1, "o": "x", "f": 2, "c": "a\0", "r": 7, "d": "x", "u": "abc"},
        {"q": True, "u": [1, 2], "h": [1]},
        [1],
        7,
    ],
)
def test_keys_that_are_not_as_they_should_be_count_as_absent(keys: object) -> None:
    assert read_metadata(msgpack.packb(keys), b"s") == MessageProperties(b"s", 1, None, b"", False, ())


@given(st.binary(min_size=1, max_size=60))
def test_any_metadata_can_be_read(metadata: bytes) -> None:
    assert read_metadata(metadata, b"s").qos in (0, 1, 2)
