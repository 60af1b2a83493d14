"""Integers, strings and binary data of MQTT."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.mqtt.fields import VARINT_MAX, FieldReader, pack_field, pack_varint
from tailrace.protocol.mqtt.reasons import PacketError, Reason


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (VARINT_MAX, "ffffff7f"),
    ],
)
def test_variable_byte_integers_of_the_standard(value: int, packed: str) -> None:
    """[MQTT-1.5.5-1], table 1-1."""
    assert pack_varint(value).hex() == packed
    assert FieldReader(bytes.fromhex(packed)).varint() == value


@given(st.integers(0, VARINT_MAX))
def test_any_variable_byte_integer(value: int) -> None:
    assert FieldReader(pack_varint(value)).varint() == value


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60), st.binary(max_size=60))
def test_strings_and_binary_data(text: str, data: bytes) -> None:
    fields = FieldReader(pack_field(text.encode()) + pack_field(data) + b"rest")
    assert (fields.text(), fields.binary(), fields.rest()) == (text.encode(), data, b"rest")
    fields.finish("this")


@pytest.mark.parametrize(
    ("packed", "read"),
    [
        ("8000", "varint"),  # [MQTT-1.5.5-1]: no more bytes than needed
        ("80808000", "varint"),
        ("ffffffff01", "varint"),
        ("80", "varint"),
        ("", "varint"),
        ("0003c3", "text"),
        ("0001c3", "text"),  # [MQTT-1.5.4-1]: UTF-8
        ("0003eda080", "text"),  # [MQTT-1.5.4-1]: a surrogate
        ("000300612e", "text"),  # [MQTT-1.5.4-2]: U+0000
        ("00", "text"),
        ("000561", "binary"),
    ],
)
def test_malformed_fields(packed: str, read: str) -> None:
    with pytest.raises(PacketError) as caught:
        getattr(FieldReader(bytes.fromhex(packed)), read)()
    assert caught.value.reason is Reason.MALFORMED_PACKET and caught.value.fatal


def test_a_byte_order_mark_is_kept() -> None:
    """[MQTT-1.5.4-3]."""
    assert FieldReader(b"\0\3\xef\xbb\xbf").text() == b"\xef\xbb\xbf"


def test_bytes_behind_the_last_field() -> None:
    fields = FieldReader(b"\1\2\3", 0, 2)
    assert fields.number(1) == 1 and fields.left == 1
    with pytest.raises(PacketError, match="PINGREQ has 1 bytes more"):
        fields.finish("PINGREQ")
