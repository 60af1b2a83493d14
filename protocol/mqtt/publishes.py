"""Frames of the log as PUBLISH packets, for all subscribers that get them in the same form.

A rendering is a pure function of the frames, the form and the time, so one that was dropped while it was being sent can
be made again. Packets with QoS 1 or 2 have a place for their identifier, which each subscriber fills in its own copy.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tailrace.protocol.mqtt.fields import pack_field, pack_varint
from tailrace.protocol.mqtt.metadata import MessageProperties, read_metadata
from tailrace.protocol.mqtt.packets import MQTT_5
from tailrace.protocol.mqtt.properties import PacketType, PropertyId, pack_properties
from tailrace.protocol.mqtt.replay import WITH_SEQ, WITH_TIME
from tailrace.shard.frame import HEADER, HEADER_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.replacing import replaceable

METADATA_KEPT: Final = 4_096
"""Forms of metadata that need not be packed again: most messages of a topic have the same."""
PROPERTIES_KEPT: Final = 256
"""The same of the properties that subscriptions add."""
MICROSECONDS: Final = 1_000_000
NO_LIMIT: Final = 1 << 32
"""As the largest packet: a client that has set none."""

NOT_RETAINED: Final = 0
AS_PUBLISHED: Final = 1
ALL_RETAINED: Final = 2
"""The flag RETAIN of packets: in none, in those that were published with it, in all."""
RETAIN_BITS: Final = 3
_RETAIN: Final = 0x01

_PUBLISH: Final = PacketType.PUBLISH << 4
_render_cy = load("tailrace.protocol.mqtt.render_cy")
_render, _with_identifiers = _render_cy.render, _render_cy.with_identifiers
_PLAIN: Final = read_metadata(b"", b"")
_NO_IDS: Final = array("Q")
_new_tuple = tuple.__new__  # without the Python function that a NamedTuple has


@replaceable
class PublishForm(NamedTuple):
    """What makes the packets of two subscriptions differ. `qos`: the most; `subscription_id`: 0 without one; `origin`:
    the mark of the session whose messages are left out, if any. `retain`: whether packets have the flag, one of the
    constants; with WITH_SEQ and WITH_TIME, if they have these as user properties.
    """

    version: int
    qos: int
    subscription_id: int
    origin: bytes
    packet_bytes_max: int
    retain: int = NOT_RETAINED

    def key(self) -> bytes:
        """Stands for the form in a cache."""
        numbers = self.version, self.qos, self.subscription_id, self.packet_bytes_max, self.retain
        return b"%d %d %d %d %d " % numbers + self.origin


class PublishRendering(NamedTuple):
    """`id_places`: offsets of the packet identifiers in `data`; `id_ends`: the ends of these packets; `id_seqs`: the
    seqs of their messages; `id_numbers`: how many packets there are up to each. `expires`: whether the
    time makes a difference.
    """

    data: bytes
    messages: int
    id_places: array[int]
    id_ends: array[int]
    id_seqs: array[int]
    id_numbers: array[int]
    expires: bool


class _Head(NamedTuple):
    """All of a packet between its length and its payload, in two parts around the packet identifier."""

    message: MessageProperties
    qos: int
    topic: bytes
    properties: bytes


@lru_cache(METADATA_KEPT)
def _head_of(metadata: bytes, stream: bytes, version: int, qos: int, subscription_id: int) -> _Head:
    message = read_metadata(metadata, stream)
    properties = b""
    if version == MQTT_5:
        properties = _packed(message, subscription_id, [])
    return _Head(message, min(message.qos, qos), pack_field(message.topic), properties)


@lru_cache(PROPERTIES_KEPT)
def _plain_properties(subscription_id: int) -> bytes:
    """Those of a message that has none of its own."""
    return _packed(_PLAIN, subscription_id, [])


def _packed(message: MessageProperties, subscription_id: int, more: list[tuple[PropertyId, Any]]) -> bytes:
    given = [(PropertyId.SUBSCRIPTION_ID, subscription_id)] if subscription_id else []
    return pack_properties([*more, *given, *message.properties])


def _marked(marks: int, seq: int, timestamp_us: int) -> list[tuple[PropertyId, Any]]:
    """The user properties that a subscription has asked for."""
    found = []
    if marks & WITH_SEQ:
        found.append((b"seq", b"%d" % seq))
    if marks & WITH_TIME:
        found.append((b"time", b"%d" % timestamp_us))
    return [(PropertyId.USER_PROPERTY, pair) for pair in found]


def render_publishes(
    frames: bytes, stream: bytes, form: PublishForm, now_us: int, *, expires: bool = True
) -> PublishRendering:
    """The whole frames, which are not checked, as packets. Leaves out those that have expired, unless `expires` is
    False, those of the form's origin, and packets that are larger than the client takes.
    """
    found = render_plain(frames, stream, form)
    return render_any(frames, stream, form, now_us, expires) if found is None else found


def render_plain(frames: bytes, stream: bytes, form: PublishForm) -> PublishRendering | None:
    """The same if the time makes no difference: None if a message has more than a topic, or packets a flag."""
    if form.retain not in (NOT_RETAINED, AS_PUBLISHED):
        return None
    properties = _plain_properties(form.subscription_id) if form.version == MQTT_5 else b""
    found = _render(frames, stream, form.qos, properties, form.packet_bytes_max)
    if found is None:
        return None
    data, messages, *offsets = found
    if not offsets[0]:
        return _new_tuple(PublishRendering, (data, messages, _NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS, False))
    places, ends, seqs, numbers = [array("Q", each) for each in offsets]
    return PublishRendering(data, messages, places, ends, seqs, numbers, False)


def render_any(
    frames: bytes, stream: bytes, form: PublishForm, now_us: int, may_expire: bool = True
) -> PublishRendering:
    """As `render_publishes`, with properties, expiry, origin and the flag RETAIN."""
    version, qos_max, subscription_id, origin, packet_bytes_max, flags = form
    retain, marks = flags & RETAIN_BITS, flags & ~RETAIN_BITS if version == MQTT_5 else 0
    parts: list[bytes] = []
    places, ends, seqs, numbers = array("Q"), array("Q"), array("Q"), array("Q")
    size = messages = at = 0
    expires = False
    while at < len(frames):
        length, _crc, seq, timestamp_us, _epoch, _flags, metadata_bytes = HEADER.unpack_from(frames, at)
        payload_at = at + HEADER_BYTES + metadata_bytes
        metadata, payload = frames[at + HEADER_BYTES : payload_at], frames[payload_at : at + length]
        at += length
        head = _head_of(metadata, stream, version, qos_max, subscription_id)
        message, qos, topic, properties = head
        if message.expiry_s is not None:
            expires = True
            left_s = message.expiry_s - max(now_us - timestamp_us, 0) // MICROSECONDS
            if left_s <= 0 and may_expire:
                continue
            if version == MQTT_5:
                more = [(PropertyId.MESSAGE_EXPIRY, max(left_s, 0)), *_marked(marks, seq, timestamp_us)]
                properties = _packed(message, subscription_id, more)
        elif marks:
            properties = _packed(message, subscription_id, _marked(marks, seq, timestamp_us))
        if origin and message.origin == origin:
            continue
        body_bytes = len(topic) + (2 if qos else 0) + len(properties) + len(payload)
        flag = _RETAIN if retain == ALL_RETAINED or (retain and message.retained) else 0
        start = bytes((_PUBLISH | qos << 1 | flag,)) + pack_varint(body_bytes)
        packet_bytes = len(start) + body_bytes
        if packet_bytes > packet_bytes_max:
            continue
        if qos:
            places.append(size + len(start) + len(topic))
            ends.append(size + packet_bytes)
            seqs.append(seq)
            numbers.append(messages + 1)
            parts += (start, topic, b"\0\0", properties, payload)
        else:
            parts += (start, topic, properties, payload)
        size += packet_bytes
        messages += 1
    return PublishRendering(b"".join(parts), messages, places, ends, seqs, numbers, expires)


def with_ids(rendering: PublishRendering, count: int, first_id: int) -> bytearray:
    """A copy with the packets' identifiers, from `first_id` on, up to the packet with the last of `count`.

    After 65,535 comes 1. Packets without an identifier behind the last of all belong to it.
    """
    whole = count == len(rendering.id_places)
    end = len(rendering.data) if whole else rendering.id_ends[count - 1]
    made: bytearray = _with_identifiers(rendering.data, rendering.id_places, count, end, first_id)
    return made
