"""The leaf that renders packets of MQTT: the same as one by one, by both bodies."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.mqtt.metadata import pack_metadata
from tailrace.protocol.mqtt.properties import PropertyId
from tailrace.protocol.mqtt.publishes import (
    ALL_RETAINED,
    AS_PUBLISHED,
    NO_LIMIT,
    NOT_RETAINED,
    PublishForm,
    render_any,
    render_publishes,
)
from tailrace.shard.frame import HEADER, HEADER_BYTES, pack_frame
from tailrace.shard.leaves import load, load_source
from tests.protocol.mqtt.wire import VERSIONS

LEAF = "tailrace.protocol.mqtt.render_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()


def frame(seq: int, payload: bytes, metadata: bytes) -> bytes:
    made = pack_frame(payload, metadata=metadata)
    return HEADER.pack(len(made), 0, seq, 1_000, 1, 0, len(metadata)) + made[HEADER_BYTES:]


METADATA = st.one_of(
    st.sampled_from(
        [
            b"",
            b"\x80",
            pack_metadata(b"a/b", 1),
            pack_metadata(b"a/b", 0),
            pack_metadata(b"a/b", 1, retain=True),
            pack_metadata(b"x" * 40, 2),
            pack_metadata(b"x" * 300, 1),
            pack_metadata("é".encode(), 1),
            b"\x82\xa1p\xc4\x02id\xa1n\xcd\x01\x00",
            b"\x83\xa1p\xc4\x02id\xa1n\x05\xa1t\xa3a/b",
            b"\x81\xa1q\x03",
            b"\x82\xa1t\xa1a\xa1t\xa1b",
            b"\x81\xa1t\xa0",
            b"\x81\xa1t\xd9\x01a",
            b"\x81\xa1t\xa5a",
            b"\x81\xa1n\xcf",
            b"\x81\xa1p\xc4",
            pack_metadata(b"a", 1, {PropertyId.CONTENT_TYPE: b"t"}),
        ]
    ),
    st.binary(max_size=12),
)


@given(
    messages=st.lists(st.tuples(METADATA, st.sampled_from((0, 5, 100, 200, 20_000))), max_size=8),
    version=st.sampled_from(VERSIONS),
    qos=st.integers(0, 2),
    number=st.sampled_from((0, 300)),
    most=st.sampled_from((NO_LIMIT, 150)),
    retain=st.sampled_from((NOT_RETAINED, AS_PUBLISHED, ALL_RETAINED)),
)
def test_packets_are_those_that_are_rendered_one_by_one(
    messages: Sequence[tuple[bytes, int]], version: int, qos: int, number: int, most: int, retain: int
) -> None:
    frames = b"".join(frame(n * 7, bytes(size), metadata) for n, (metadata, size) in enumerate(messages))
    form = PublishForm(version, qos, number, b"", most, retain)
    assert render_publishes(frames, b"stream", form, 2_000) == render_any(frames, b"stream", form, 2_000)
    found = [each.render(frames, b"stream", qos, b"\0", most) for each in (LOADED, SOURCE)]
    assert found[0] == found[1]


def test_messages_with_properties_are_not_rendered_here(leaf: ModuleType) -> None:
    frames = frame(1, b"x", b"") + frame(2, b"x", pack_metadata(b"a", 1, {PropertyId.MESSAGE_EXPIRY: 5}))
    assert leaf.render(frames, b"s", 2, b"", NO_LIMIT) is None
    assert leaf.render(frames[: len(frame(1, b"x", b""))], b"s", 2, b"", NO_LIMIT)[1] == 1


def test_identifiers_begin_again_behind_the_last(leaf: ModuleType) -> None:
    places = array("Q", [1, 5, 9])
    made = leaf.with_identifiers(bytes(12), places, 2, 11, 0xFFFF)
    assert made == b"\0\xff\xff\0\0\0\1\0\0\0\0"


@pytest.mark.parametrize(("place", "end"), [(2, 3), (3, 3), (0, 1), (0, 0), (2**64 - 2, 3), (2**64 - 1, 3)])
def test_an_identifier_outside_of_the_copy(leaf: ModuleType, place: int, end: int) -> None:
    with pytest.raises(ValueError, match=rf"^an identifier at {place} of {end} bytes$"):
        leaf.with_identifiers(bytes(12), array("Q", [place]), 1, end, 7)


@pytest.mark.parametrize("end", [-1, 13])
def test_a_copy_of_bytes_that_are_not_there(leaf: ModuleType, end: int) -> None:
    with pytest.raises(ValueError, match=f"^{end} bytes of 12$"):
        leaf.with_identifiers(bytes(12), array("Q"), 0, end, 7)
