"""The bytes of one client as packets: framing, the bound on a packet's size, and the end at the first fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tailrace.protocol.mqtt.fields import VARINT_BYTES_MAX
from tailrace.protocol.mqtt.packets import MQTT_5, ConnectPacket, Packet, parse_packet, read_plain_publish
from tailrace.protocol.mqtt.properties import PacketType
from tailrace.protocol.mqtt.reasons import PacketError, Reason, malformed
from tailrace.shard.leaves import load

CONNECT_BYTES_MAX: Final = 512 << 10
"""Of the first packet: a will, a user name and a password, each of 65,535 bytes, with their properties."""


_stage_cy = load("tailrace.protocol.mqtt.stage_cy")
_stage, _count_acks = _stage_cy.stage, _stage_cy.count_acks
_ACK_BYTES: Final[int] = _stage_cy.ACK_BYTES
_UNSTAGED_MAX: Final = 64
"""Packets between two attempts to stage, where none of them could be."""


_PUBACK: Final = PacketType.PUBACK << 4
_STAGED: Final = frozenset({0x30, 0x32, 0x3A, _PUBACK})
"""First bytes of the packets that may come as a run."""


class StagingLimits(NamedTuple):
    """What `stage_cy.stage` takes at the time. `acked_max`: messages with QoS 1."""

    max_message_bytes: int
    acked_max: int
    table: bytes


class StagedPublishes(NamedTuple):
    """A run of PUBLISH as frames, by `stage_cy.stage`: (stream, messages, frames) for each stream; the identifiers of
    those with QoS 1, and the group of each of them if there are several.
    """

    groups: list[tuple[bytes, int, bytearray]]
    ids: bytes
    owners: list[int]


class AckRun(NamedTuple):
    """PUBACKs with identifiers one after the other."""

    first_id: int
    packets: int


AnyPacket = Packet | StagedPublishes | AckRun | PacketError


def never_staged() -> None:
    """For a connection that gets all packets one by one."""


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

    def feed(
        self, data: bytes | bytearray | memoryview, limits: Callable[[], StagingLimits | None] = never_staged
    ) -> Iterator[AnyPacket]:
        """The packets that end within these bytes, and an error as the last of them.

        Runs of PUBLISH and of PUBACK come as one if `limits`, which is called before each, gives any. Take all of it,
        or feed nothing more.
        """
        if self.ended:
            return
        self._buffer += data
        self._missing -= len(data)
        if self._missing > 0:
            return
        buffer, at = bytes(self._buffer), 0
        unstaged = wait = 0  # packets since the last attempt to stage, and those that the next one is put off by
        try:
            while at < len(buffer):
                if unstaged >= wait and buffer[at] in _STAGED:
                    run, at = self._run_at(buffer, at, limits)
                    unstaged, wait = 0, 0 if run else min(2 * wait + 1, _UNSTAGED_MAX)
                    if run is not None:
                        yield run
                        continue
                begin = self._begin(buffer, at)
                if begin is None:
                    break
                end = begin[1] + begin[2]
                if end > len(buffer):
                    self._missing = end - len(buffer)
                    break
                packet = self._packet(begin[0], buffer, begin[1], end)
                at = end
                unstaged += 1
                if type(packet) is ConnectPacket:
                    self.version = packet.version
                yield packet
            del self._buffer[:at]
        except PacketError as error:
            self.stop()
            yield error

    def _run_at(
        self, buffer: bytes, at: int, limits: Callable[[], StagingLimits | None]
    ) -> tuple[StagedPublishes | AckRun | None, int]:
        """The run that begins here, if there is one of at least a packet, and where it ends."""
        given = limits() if self.version else None
        if given is None:
            return None, at
        if buffer[at] == _PUBACK:
            count = _count_acks(buffer, at, len(buffer))
            run = AckRun(buffer[at + 2] << 8 | buffer[at + 3], count) if count else None
            return run, at + count * _ACK_BYTES
        has_properties = self.version == MQTT_5
        stop, groups, ids, owners = _stage(buffer, at, len(buffer), has_properties, self.packet_bytes_max, *given)
        return StagedPublishes(groups, ids, owners) if stop > at else None, stop

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
