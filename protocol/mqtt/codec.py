"""The bytes of one client as packets: framing, the bound on a packet's size, and the end at the first fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tailrace.protocol.mqtt.fields import VARINT_BYTES_MAX
from tailrace.protocol.mqtt.packets import ConnectPacket, Packet, parse_packet, read_plain_publish
from tailrace.protocol.mqtt.properties import PacketType
from tailrace.protocol.mqtt.reasons import PacketError, Reason, malformed

CONNECT_BYTES_MAX: Final = 512 << 10
"""Of the first packet: a will, a user name and a password, each of 65,535 bytes, with their properties."""


class MqttCodec:
    """`version`: of the connection, 0 until its CONNECT has come. `ended`: after a fault, the rest is ignored."""

    __slots__ = ("_buffer", "_missing", "ended", "packet_bytes_max", "version")

    def __init__(self, packet_bytes_max: int) -> None:
        self.packet_bytes_max = packet_bytes_max
        self.version = 0
        self.ended = False
        self._buffer = bytearray()
        self._missing = 0  # bytes before the packet in the buffer can be whole

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Packet | PacketError]:
        """The packets that end within these bytes, and an error as the last of them.

        Take all of it, or feed nothing more.
        """
        if self.ended:
            return
        self._buffer += data
        self._missing -= len(data)
        if self._missing > 0:
            return
        buffer, at = bytes(self._buffer), 0
        try:
            while (begin := self._begin(buffer, at)) is not None:
                end = begin[1] + begin[2]
                if end > len(buffer):
                    self._missing = end - len(buffer)
                    break
                packet = self._packet(begin[0], buffer, begin[1], end)
                at = end
                if type(packet) is ConnectPacket:
                    self.version = packet.version
                yield packet
            del self._buffer[:at]
        except PacketError as error:
            self.stop()
            yield error

    def _packet(self, first: int, buffer: bytes, begin: int, end: int) -> Packet:
        if self.version and first >> 4 == PacketType.PUBLISH:
            plain = read_plain_publish(first, buffer, begin, end, self.version)
            if plain is not None:
                return plain
        return parse_packet(first, buffer[begin:end], self.version)

    def _begin(self, buffer: bytes, at: int) -> tuple[int, int, int] | None:
        """First byte, place and size of the body of the packet at `at`; None if its head is not whole."""
        if at >= len(buffer):
            return None
        size = shift = 0
        for place in range(at + 1, at + 1 + VARINT_BYTES_MAX):
            if place >= len(buffer):
                return None
            byte = buffer[place]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if not byte and place > at + 1:
                    raise malformed("the length of a packet has more bytes than it needs")
                self._check_size(place + 1 - at + size)
                return buffer[at], place + 1, size
        raise malformed("the length of a packet has more than 4 bytes")

    def _check_size(self, nbytes: int) -> None:
        bytes_max = self.packet_bytes_max if self.version else min(CONNECT_BYTES_MAX, self.packet_bytes_max)
        if nbytes > bytes_max:
            raise PacketError(Reason.PACKET_TOO_LARGE, f"a packet of {nbytes} bytes; {bytes_max} are allowed")

    def stop(self) -> None:
        """Ignore all input from here on."""
        self.ended = True
        self._buffer = bytearray()

    # --- moving to another worker -----------------------------------------------------------------------------------

    def export_state(self) -> dict[str, Any]:
        return {"version": self.version, "ended": self.ended, "buffer": bytes(self._buffer)}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.version, self.ended = state["version"], state["ended"]
        self._buffer = bytearray(state["buffer"])
