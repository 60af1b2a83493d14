"""The properties of a message as keys of its frame's metadata, and back.

The topic comes first (`shard.topics`). A message that was published with QoS 1 and without properties has no key but
that, as one that was published by the other protocols: its frame is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgpack

from tailrace.protocol.mqtt.properties import NO_PROPERTIES, Properties, PropertyId
from tailrace.shard.topics import RETAIN_KEY, TOPIC_KEY, is_retained

CONTENT_TYPE_KEY: Final = "c"
RESPONSE_TOPIC_KEY: Final = "r"
CORRELATION_KEY: Final = "d"
FORMAT_KEY: Final = "f"
EXPIRY_KEY: Final = "e"
"""Seconds from the message's timestamp on."""
USER_PROPERTIES_KEY: Final = "u"
"""Names and values in turn, in their order."""
QOS_KEY: Final = "q"
"""With which it was published; without it, 1."""
ORIGIN_KEY: Final = "o"
"""A mark of the session that published it, if that has a subscription with No Local."""
HEADERS_KEY: Final = "h"
"""Of the client library: a map of names and texts."""

PLAIN_QOS: Final = 1

_UNREADABLE: Final = (ValueError, TypeError, msgpack.UnpackException)
_TEXTS: Final = (
    (CONTENT_TYPE_KEY, PropertyId.CONTENT_TYPE),
    (RESPONSE_TOPIC_KEY, PropertyId.RESPONSE_TOPIC),
)


class MessageProperties(NamedTuple):
    """The metadata of a frame as a subscriber gets it. `properties`: without the expiry."""

    topic: bytes
    qos: int
    expiry_s: int | None
    origin: bytes
    retained: bool
    properties: tuple[tuple[PropertyId, Any], ...]


def pack_metadata(
    topic: bytes, qos: int, properties: Properties = NO_PROPERTIES, origin: bytes = b"", *, retain: bool = False
) -> bytes:
    """Metadata for a frame; none if there is nothing to keep. `topic`: empty if the stream's name is the topic."""
    keys: dict[str, Any] = {}
    if topic:
        keys[TOPIC_KEY] = topic.decode()
    if retain:
        keys[RETAIN_KEY] = 1
    if properties:
        keys |= _kept(properties)
    if qos != PLAIN_QOS:
        keys[QOS_KEY] = qos
    if origin:
        keys[ORIGIN_KEY] = origin
    if not keys:
        return b""
    packed: bytes = msgpack.packb(keys)
    return packed


def _kept(properties: Properties) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, number in _TEXTS:
        if number in properties:
            keys[key] = properties[number].decode()
    if PropertyId.CORRELATION_DATA in properties:
        keys[CORRELATION_KEY] = properties[PropertyId.CORRELATION_DATA]
    if PropertyId.PAYLOAD_FORMAT in properties:
        keys[FORMAT_KEY] = properties[PropertyId.PAYLOAD_FORMAT]
    if PropertyId.MESSAGE_EXPIRY in properties:
        keys[EXPIRY_KEY] = properties[PropertyId.MESSAGE_EXPIRY]
    pairs = properties.get(PropertyId.USER_PROPERTY)
    if pairs:
        keys[USER_PROPERTIES_KEY] = [text.decode() for pair in pairs for text in pair]
    return keys


def read_metadata(metadata: bytes, stream: bytes) -> MessageProperties:
    """A frame's metadata, by any publisher: a key with another value than those written here counts as absent."""
    keys = _unpacked(metadata)
    topic = keys.get(TOPIC_KEY)
    origin = keys.get(ORIGIN_KEY)
    return MessageProperties(
        topic.encode() if isinstance(topic, str) and topic else stream,
        keys[QOS_KEY] if _is_number(keys.get(QOS_KEY), 2) else PLAIN_QOS,
        keys[EXPIRY_KEY] if _is_number(keys.get(EXPIRY_KEY), 0xFFFFFFFF) else None,
        origin if isinstance(origin, bytes) else b"",
        is_retained(metadata),
        tuple(_given_back(keys)),
    )


def _unpacked(metadata: bytes) -> Mapping[str, Any]:
    if not metadata:
        return {}
    try:
        keys = msgpack.unpackb(metadata)
    except _UNREADABLE:
        return {}
    return keys if isinstance(keys, dict) else {}


def _given_back(keys: Mapping[str, Any]) -> list[tuple[PropertyId, Any]]:
    found: list[tuple[PropertyId, Any]] = []
    if _is_number(keys.get(FORMAT_KEY), 1):
        found.append((PropertyId.PAYLOAD_FORMAT, keys[FORMAT_KEY]))
    for key, number in _TEXTS:
        if _is_text(keys.get(key)):
            found.append((number, keys[key].encode()))
    data = keys.get(CORRELATION_KEY)
    if isinstance(data, bytes):
        found.append((PropertyId.CORRELATION_DATA, data))
    found += [(PropertyId.USER_PROPERTY, pair) for pair in _pairs(keys)]
    return found


def _pairs(keys: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    flat, headers = keys.get(USER_PROPERTIES_KEY), keys.get(HEADERS_KEY)
    pairs = list(zip(flat[::2], flat[1::2], strict=False)) if isinstance(flat, list) else []
    if isinstance(headers, dict):
        pairs += headers.items()
    return [(name.encode(), value.encode()) for name, value in pairs if _is_text(name) and _is_text(value)]


def _is_text(value: object) -> bool:
    """Whether MQTT takes it as a string: metadata may have been written by anybody."""
    return isinstance(value, str) and "\0" not in value and len(value.encode("utf-8", "replace")) <= 0xFFFF


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
