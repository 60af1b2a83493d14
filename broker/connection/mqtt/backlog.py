"""The packets of a read that stand behind something that waits. Most connections never have any."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tailrace.protocol.mqtt.codec import AnyPacket
from tailrace.protocol.mqtt.packets import PublishPacket


class Backlog:
    """A row of packets, which takes no memory before the first comes: an empty deque takes 620 bytes."""

    __slots__ = ("_packets",)

    def __init__(self) -> None:
        self._packets: deque[AnyPacket] | None = None

    def __len__(self) -> int:
        return 0 if self._packets is None else len(self._packets)

    def extend(self, packets: Iterable[AnyPacket]) -> None:
        if self._packets is None:
            self._packets = deque()
        self._packets.extend(packets)

    def put_back(self, packets: Sequence[AnyPacket]) -> None:
        """Before all others."""
        if packets:
            self.extend(())
            assert self._packets is not None
            self._packets.extendleft(reversed(packets))

    def take(self) -> list[AnyPacket]:
        """Remove the first packet; of PUBLISH packets, all that follow one another. IndexError if it is empty."""
        if self._packets is None:
            raise IndexError
        row = self._packets
        taken = [row.popleft()]
        while row and isinstance(taken[0], PublishPacket) and isinstance(row[0], PublishPacket):
            taken.append(row.popleft())
        return taken

    def clear(self) -> None:
        self._packets = None
