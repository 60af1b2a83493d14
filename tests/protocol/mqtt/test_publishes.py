"""Frames as PUBLISH packets."""

from __future__ import annotations

from typing import Any

import mqtt5
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.mqtt.metadata import pack_metadata
from tailrace.protocol.mqtt.properties import PropertyId
from tailrace.protocol.mqtt.publishes import NO_LIMIT, PublishForm, render_publishes, with_ids
from tailrace.shard.frame import HEADER, HEADER_BYTES, pack_frame
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5

NOW_US = 1_000_000_000


def frame(seq: int, payload: bytes, metadata: bytes = b"", time_us: int = NOW_US) -> bytes:
    made = pack_frame(payload, metadata=metadata)
    return HEADER.pack(len(made), 0, seq, time_us, 1, 0, len(metadata)) + made[HEADER_BYTES:]


def form(version: int = V5, qos: int = 2, number: int = 0, origin: bytes = b"", most: int = NO_LIMIT) -> PublishForm:
    return PublishForm(version, qos, number, origin, most)


def read(data: bytes | bytearray) -> list[Any]:
    """The packets, by another implementation."""
    return [
        mqtt5.read(memoryview(wire.packet(kind << 4 | flags, body)))[0] for kind, flags, body in wire.split(bytes(data))
    ]


def test_a_message_and_its_properties() -> None:
    properties = {
        PropertyId.PAYLOAD_FORMAT: 1,
        PropertyId.CONTENT_TYPE: b"text/plain",
        PropertyId.RESPONSE_TOPIC: b"re",
        PropertyId.CORRELATION_DATA: b"\0\1",
        PropertyId.MESSAGE_EXPIRY: 60,
        PropertyId.USER_PROPERTY: [(b"b", b"1"), (b"a", b"2"), (b"b", b"1")],
    }
    frames = frame(5, b"hello", pack_metadata(b"a/b", 1, properties))
    made = render_publishes(frames, b"a", form(number=300), NOW_US + 10_900_000)
    (found,) = read(with_ids(made, 1, 7))
    assert (found.topic, found.payload, found.qos, found.packet_id, found.retain) == ("a/b", b"hello", 1, 7, False)
    assert (found.content_type, found.response_topic, found.correlation_data) == ("text/plain", "re", b"\0\1")
    assert (found.payload_format_indicator, found.subscription_ids) == (1, [300])
    assert found.user_properties == [("b", "1"), ("a", "2"), ("b", "1")], "[MQTT-3.3.2-18]"
    assert found.message_expiry_interval == 50, "[MQTT-3.3.2-6]"
    assert made.expires and made.messages == 1


def test_version_3_1_1_gets_the_message_alone() -> None:
    frames = frame(0, b"x", pack_metadata(b"a/b", 1, {PropertyId.CONTENT_TYPE: b"t", PropertyId.MESSAGE_EXPIRY: 9}))
    made = render_publishes(frames, b"a", form(V4, 0), NOW_US)
    assert made.data == wire.publish(V4, "a/b", b"x")


def test_a_message_that_has_expired_is_left_out() -> None:
    """[MQTT-3.3.2-5]."""
    metadata = pack_metadata(b"a", 0, {PropertyId.MESSAGE_EXPIRY: 2})
    frames = frame(0, b"old", metadata, NOW_US - 2_000_000) + frame(1, b"new", metadata, NOW_US - 1_900_000)
    for version in wire.VERSIONS:
        found = wire.delivered(version, wire.split(render_publishes(frames, b"s", form(version), NOW_US).data))
        assert [each.payload for each in found] == [b"new"]


def test_a_message_that_was_sent_before_does_not_expire() -> None:
    """[MQTT-4.3.3-7]."""
    metadata = pack_metadata(b"a", 2, {PropertyId.MESSAGE_EXPIRY: 2})
    made = render_publishes(frame(0, b"old", metadata, NOW_US - 9_000_000), b"s", form(), NOW_US, expires=False)
    (found,) = read(with_ids(made, 1, 7))
    assert (found.payload, found.message_expiry_interval) == (b"old", 0)


def test_the_qos_is_the_lesser_of_two() -> None:
    """[MQTT-3.8.4-8]."""
    frames = b"".join(frame(qos, b"%d" % qos, pack_metadata(b"a", qos)) for qos in range(3))
    for granted in range(3):
        made = render_publishes(frames, b"a", form(qos=granted), NOW_US)
        data = with_ids(made, len(made.id_places), 1) if granted else made.data
        assert [each.qos for each in wire.delivered(V5, wire.split(bytes(data)))] == [min(q, granted) for q in range(3)]


def test_a_session_without_its_own_messages() -> None:
    frames = frame(0, b"mine", pack_metadata(b"a", 1, origin=b"me")) + frame(1, b"theirs", pack_metadata(b"a", 1))
    assert render_publishes(frames, b"a", form(qos=0, origin=b"me"), NOW_US).messages == 1
    assert render_publishes(frames, b"a", form(qos=0, origin=b"other"), NOW_US).messages == 2


def test_packets_that_are_larger_than_the_client_takes() -> None:
    """[MQTT-3.1.2-24]."""
    frames = b"".join(frame(seq, bytes(size)) for seq, size in enumerate((10, 11, 9)))
    limit = len(wire.publish(V5, "st", bytes(10)))
    found = wire.delivered(V5, wire.split(render_publishes(frames, b"st", form(qos=0, most=limit), NOW_US).data))
    assert [len(each.payload) for each in found] == [10, 9]


@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 2)), min_size=1, max_size=20), st.data())
def test_identifiers_of_a_part(rows: list[tuple[bytes, int]], data: st.DataObject) -> None:
    frames = b"".join(frame(9 + seq, payload, pack_metadata(b"t", qos)) for seq, (payload, qos) in enumerate(rows))
    made = render_publishes(frames, b"t", form(), NOW_US)
    awaited = [place for place, (_, qos) in enumerate(rows) if qos]
    assert list(made.id_seqs) == [9 + place for place in awaited] and made.messages == len(rows)
    assert list(made.id_numbers) == [place + 1 for place in awaited]
    if not awaited:
        return
    count, first = data.draw(st.integers(1, len(awaited))), data.draw(st.integers(1, 0xFFFF))
    found = wire.delivered(V5, wire.split(bytes(with_ids(made, count, first))))
    sent = len(rows) if count == len(awaited) else awaited[count - 1] + 1
    assert [(each.payload, each.qos) for each in found] == rows[:sent]
    assert [each.packet_id for each in found if each.qos] == [(first - 1 + n) % 0xFFFF + 1 for n in range(count)]


def test_identifiers_begin_again_behind_the_last() -> None:
    frames = b"".join(frame(seq, b"x") for seq in range(4))
    made = with_ids(render_publishes(frames, b"t", form(), NOW_US), 4, 0xFFFE)
    assert [each.packet_id for each in wire.delivered(V5, wire.split(bytes(made)))] == [0xFFFE, 0xFFFF, 1, 2]


def test_the_key_of_a_form_is_its_own() -> None:
    forms = [form(), form(V4), form(qos=1), form(number=1), form(origin=b"x"), form(most=9), form(number=12)]
    assert len({each.key() for each in forms}) == len(forms)
