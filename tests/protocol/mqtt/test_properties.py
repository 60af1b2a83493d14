"""The table of properties, and reading and writing them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.mqtt.fields import FieldReader
from tailrace.protocol.mqtt.properties import (
    SPECS,
    PacketType,
    PropertyId,
    ValueType,
    pack_properties,
    read_properties,
)
from tailrace.protocol.mqtt.reasons import PacketError, Reason

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20).map(str.encode)
VALUES = {ValueType.TEXT: TEXT, ValueType.BINARY: st.binary(max_size=20), ValueType.PAIR: st.tuples(TEXT, TEXT)}
BITS = {ValueType.BYTE: 8, ValueType.TWO: 16, ValueType.FOUR: 32, ValueType.VARINT: 28}


def values(number: PropertyId) -> st.SearchStrategy[Any]:
    spec = SPECS[number]
    if spec.type in VALUES:
        return VALUES[spec.type]
    return st.integers(spec.low, min(spec.high, (1 << BITS[spec.type]) - 1))


def read(packed: bytes, packet: PacketType = PacketType.PUBLISH) -> Any:
    fields = FieldReader(packed)
    found = read_properties(fields, packet)
    fields.finish("this")
    return found


def test_the_table_has_all_properties_of_the_standard() -> None:
    assert set(SPECS) == set(PropertyId) and len(SPECS) == 27


@given(st.data(), st.sampled_from(sorted(SPECS)))
def test_every_property_comes_back_in_every_packet_that_may_have_it(data: st.DataObject, number: int) -> None:
    known = PropertyId(number)
    value = data.draw(values(known))
    for packet in SPECS[known].packets:
        several = known is PropertyId.USER_PROPERTY or (
            packet is PacketType.PUBLISH and known is PropertyId.SUBSCRIPTION_ID
        )
        assert read(pack_properties([(known, value)]), packet) == {known: [value] if several else value}


def test_user_properties_keep_their_order_and_repeats() -> None:
    """[MQTT-3.1.3-10], [MQTT-3.3.2-18]."""
    pairs = [(b"b", b"1"), (b"a", b"2"), (b"b", b"1")]
    packed = pack_properties([(PropertyId.USER_PROPERTY, pair) for pair in pairs])
    assert read(packed) == {PropertyId.USER_PROPERTY: pairs}


@pytest.mark.parametrize(
    ("packed", "packet", "reason"),
    [
        ("0101", PacketType.PUBLISH, Reason.MALFORMED_PACKET),  # no value
        ("0205", PacketType.PUBLISH, Reason.MALFORMED_PACKET),  # longer than the packet
        ("020700", PacketType.PUBLISH, Reason.MALFORMED_PACKET),  # no such property
        ("032100ff", PacketType.PUBLISH, Reason.MALFORMED_PACKET),  # a property of CONNECT
        ("0401000101", PacketType.PUBLISH, Reason.PROTOCOL_ERROR),  # twice
        ("020102", PacketType.PUBLISH, Reason.PROTOCOL_ERROR),  # payload format 2
        ("03210000", PacketType.CONNECT, Reason.PROTOCOL_ERROR),  # Receive Maximum 0
        ("052700000000", PacketType.CONNECT, Reason.PROTOCOL_ERROR),  # Maximum Packet Size 0
        ("020b00", PacketType.SUBSCRIBE, Reason.PROTOCOL_ERROR),  # subscription identifier 0
        ("040b010b02", PacketType.SUBSCRIBE, Reason.PROTOCOL_ERROR),
        ("021702", PacketType.CONNECT, Reason.PROTOCOL_ERROR),
        ("021902", PacketType.CONNECT, Reason.PROTOCOL_ERROR),
    ],
)
def test_faulty_properties(packed: str, packet: PacketType, reason: Reason) -> None:
    with pytest.raises(PacketError) as caught:
        read(bytes.fromhex(packed), packet)
    assert caught.value.reason is reason


@given(st.binary(max_size=40), st.sampled_from(list(PacketType)))
def test_any_bytes_are_properties_or_an_error(packed: bytes, packet: PacketType) -> None:
    try:
        read(packed, packet)
    except PacketError as error:
        assert error.reason in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR)
