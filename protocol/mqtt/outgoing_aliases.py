"""Topic aliases that the broker gives a client of MQTT 5 ([MQTT-3.1.2-26], [MQTT-3.1.2-27])."""

from __future__ import annotations

from typing import Final

from tailrace.protocol.mqtt.fields import FieldReader, pack_field, pack_varint
from tailrace.protocol.mqtt.properties import PropertyId

ALIASES_MAX: Final = 64
"""Of one connection, if its client allows as many."""
PROPERTY_BYTES: Final = 3
"""An alias in the properties. A topic that is no longer than this gets none."""
GROWTH_MAX: Final = PROPERTY_BYTES + 3 + 3
"""Of a packet that has a topic with its alias: the two lengths may take more bytes, too."""


class OutgoingAliases:
    """Those of one connection, by topic. When all are given away, the oldest one gets another topic."""

    __slots__ = ("_by_topic", "allowed")

    def __init__(self, allowed: int) -> None:
        self.allowed = min(allowed, ALIASES_MAX)
        self._by_topic: dict[bytes, int] = {}

    def rewrite(self, packets: bytes | bytearray, packet_bytes_max: int) -> bytes:
        """Whole PUBLISH packets, which are sent in this order, with aliases."""
        out, reader = bytearray(), FieldReader(bytes(packets))
        while reader.left:
            first, (head,) = reader.at, reader.take(1)
            end = reader.varint() + reader.at
            topic = reader.binary()
            room = packet_bytes_max - (end - first)
            if len(topic) <= PROPERTY_BYTES or (room < GROWTH_MAX and topic not in self._by_topic):
                out += reader.data[first:end]
            else:
                packet_id = reader.take(2 if head & 0x06 else 0)
                sent, alias = self._alias_of(topic)
                size = reader.varint() + PROPERTY_BYTES
                shown = pack_field(b"" if sent else topic) + packet_id + pack_varint(size)
                body_bytes = len(shown) + PROPERTY_BYTES + end - reader.at
                out.append(head)
                out += pack_varint(body_bytes)
                out += shown
                out.append(PropertyId.TOPIC_ALIAS)
                out += alias.to_bytes(2, "big")
                out += reader.data[reader.at : end]
            reader.at = end
        return bytes(out)

    def _alias_of(self, topic: bytes) -> tuple[bool, int]:
        """Whether the client knows the topic's alias, and the alias."""
        alias = self._by_topic.get(topic)
        if alias is not None:
            return True, alias
        if len(self._by_topic) < self.allowed:
            alias = len(self._by_topic) + 1
        else:
            alias = self._by_topic.pop(next(iter(self._by_topic)))
        self._by_topic[topic] = alias
        return False, alias
