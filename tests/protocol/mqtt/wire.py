"""The client's side of MQTT, written from the standard for the tests alone: packets as bytes, answers taken apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

V4, V5 = 4, 5
VERSIONS = (V4, V5)


class Answer(NamedTuple):
    """A packet of the server: its type and flags, and its body."""

    kind: int
    flags: int
    body: bytes


def varint(value: int) -> bytes:
    out = b""
    while True:
        value, low = divmod(value, 128)
        out += bytes((low | (0x80 if value else 0),))
        if not value:
            return out


def text(data: str | bytes) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes = b"") -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def properties(version: int, raw: bytes = b"") -> bytes:
    """`raw`: the properties without their length."""
    return varint(len(raw)) + raw if version == V5 else b""


def connect(
    version: int,
    client_id: str | bytes = "c",
    *,
    clean: bool = True,
    keep_alive_s: int = 0,
    raw: bytes = b"",
    will: tuple[str, bytes, int] | None = None,
    will_raw: bytes = b"",
    will_retain: bool = False,
    user: str | None = None,
    password: bytes | None = None,
    flags: int | None = None,
    name: bytes = b"MQTT",
) -> bytes:
    made = clean << 1 | (user is not None) << 7 | (password is not None) << 6
    payload = text(client_id)
    if will is not None:
        topic, message, qos = will
        made |= 4 | qos << 3 | will_retain << 5
        payload += properties(version, will_raw) + text(topic) + text(message)
    payload += b"" if user is None else text(user)
    payload += b"" if password is None else text(password)
    head = text(name) + bytes((version, made if flags is None else flags)) + keep_alive_s.to_bytes(2, "big")
    return packet(0x10, head + properties(version, raw) + payload)


def publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 1,
    *,
    raw: bytes = b"",
    dup: bool = False,
    retain: bool = False,
) -> bytes:
    number = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | dup << 3 | qos << 1 | retain, text(topic) + number + properties(version, raw) + payload)


def subscribe(version: int, packet_id: int, *filters: tuple[str | bytes, int], raw: bytes = b"") -> bytes:
    """Each filter with its options."""
    payload = b"".join(text(each) + bytes((options,)) for each, options in filters)
    return packet(0x82, packet_id.to_bytes(2, "big") + properties(version, raw) + payload)


def unsubscribe(version: int, packet_id: int, *filters: str | bytes) -> bytes:
    return packet(0xA2, packet_id.to_bytes(2, "big") + properties(version) + b"".join(map(text, filters)))


def ack(first: int, packet_id: int, rest: bytes = b"") -> bytes:
    return packet(first, packet_id.to_bytes(2, "big") + rest)


def authentication(method: str | bytes, data: bytes | None = None) -> bytes:
    """The properties of a CONNECT or AUTH."""
    return b"\x15" + text(method) + (b"" if data is None else b"\x16" + text(data))


def auth(reason: int, method: str | bytes, data: bytes | None = None) -> bytes:
    return packet(0xF0, bytes((reason,)) + properties(V5, authentication(method, data)))


def authentication_data(answer: Answer) -> bytes:
    """The Authentication Data of an AUTH or CONNACK; its method comes before."""
    at = answer.body.index(b"\x15") + 1
    at += 2 + int.from_bytes(answer.body[at : at + 2], "big")
    assert answer.body[at] == 0x16, answer
    return answer.body[at + 3 : at + 3 + int.from_bytes(answer.body[at + 1 : at + 3], "big")]


PINGREQ = packet(0xC0)
DISCONNECT = packet(0xE0)
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


def split(data: bytes) -> list[Answer]:
    """The packets in these bytes, which must be whole."""
    found = []
    at = 0
    while at < len(data):
        size = shift = 0
        place = at + 1
        while True:
            size |= (data[place] & 0x7F) << shift
            shift += 7
            place += 1
            if data[place - 1] < 0x80:
                break
        assert place + size <= len(data), "the last packet is not whole"
        found.append(Answer(data[at] >> 4, data[at] & 15, data[place : place + size]))
        at = place + size
    return found


class Delivered(NamedTuple):
    """A PUBLISH of the server. `raw`: its properties."""

    topic: str
    payload: bytes
    qos: int
    packet_id: int
    raw: bytes
    retain: bool = False
    dup: bool = False


def delivered(version: int, answers: Iterable[Answer]) -> list[Delivered]:
    """The messages among these packets."""
    found = []
    for kind, flags, body in answers:
        if kind == 3:
            end = 2 + int.from_bytes(body[:2], "big")
            topic, qos, packet_id, raw = body[2:end].decode(), flags >> 1 & 3, 0, b""
            if qos:
                packet_id = int.from_bytes(body[end : end + 2], "big")
                end += 2
            if version == V5:
                size, end = _varint_at(body, end)
                raw, end = body[end : end + size], end + size
            found.append(Delivered(topic, body[end:], qos, packet_id, raw, bool(flags & 1), bool(flags & 8)))
    return found


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        size |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return size, at


def reason(answer: Answer) -> Any:
    """The reason code of a CONNACK, DISCONNECT or acknowledgement of MQTT 5."""
    if answer.kind == 2:
        return answer.body[1]
    if answer.kind == 14:
        return answer.body[0] if answer.body else 0
    return answer.body[2] if len(answer.body) > 2 else 0
