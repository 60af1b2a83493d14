"""The data types of MQTT (section 1.5 of both versions): integers, strings, binary data."""

from __future__ import annotations

from typing import Final

from tailrace.protocol.mqtt.reasons import malformed

VARINT_BYTES_MAX: Final = 4
VARINT_MAX: Final = 268_435_455
FIELD_BYTES_MAX: Final = 65_535
"""Of a string, or of binary data."""


class FieldReader:
    """Reads the fields of one packet in turn. Each method raises PacketError if its field is not whole and valid."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    @property
    def left(self) -> int:
        return self.end - self.at

    def take(self, count: int) -> bytes:
        begin = self.at
        self.at = begin + count
        if self.at > self.end:
            raise malformed("the packet ends within a field")
        return self.data[begin : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def varint(self) -> int:
        value = 0
        for place in range(VARINT_BYTES_MAX):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if not byte and place:
                    raise malformed("a variable byte integer has more bytes than it needs")
                return value
        raise malformed(f"a variable byte integer has more than {VARINT_BYTES_MAX} bytes")

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> bytes:
        """A string as its bytes, which are UTF-8 without NUL."""
        data = self.binary()
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                raise malformed("a string is not UTF-8") from None
        if b"\0" in data:
            raise malformed("a string has U+0000")
        return data

    def rest(self) -> bytes:
        return self.take(self.end - self.at)

    def finish(self, name: str) -> None:
        """There must be nothing more."""
        if self.at != self.end:
            raise malformed(f"{name} has {self.end - self.at} bytes more than its fields")


def pack_varint(value: int) -> bytes:
    """A variable byte integer, which must be at most VARINT_MAX."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack_field(data: bytes) -> bytes:
    """A string or binary data, which must have at most FIELD_BYTES_MAX bytes."""
    return len(data).to_bytes(2, "big") + data
