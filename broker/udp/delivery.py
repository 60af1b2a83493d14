"""The datagrams of the UDP door that are made and not sent yet."""

from __future__ import annotations

from typing import Final

from tailrace.broker.process.metrics import Traffic, WorkerMetrics
from tailrace.shard.leaves import load

ENTRIES_MAX: Final = 1_024
"""Datagrams that are made at one time."""
TEXTS_BYTES: Final = 256 << 10
"""Of these; several addresses get the same text."""

_packets = load("tailrace.broker.udp.packets_cy")


class DatagramOutbox:
    """The datagrams that are made and not sent yet. `blocked`: the socket takes no more now."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self.buffers = bytearray(ENTRIES_MAX * 40), bytearray(ENTRIES_MAX * 16), bytearray(TEXTS_BYTES)
        self.count = 0
        self.blocked = False
        self._next = 0
        self._segments = True
        self._metrics = metrics

    def send(self, fd: int, most: int) -> int:
        """Sends up to `most` datagrams. Returns how many were sent or given up; `count` is 0 once all were."""
        entries, _work, texts = self.buffers
        before = self._next
        self._next, sent, nbytes, lost, self.blocked, self._segments = _packets.send(
            fd, entries, self._next, self.count, texts, most, self._segments
        )
        done = self._next - before
        self._count(self._metrics.udp, sent, nbytes)
        if lost:
            self._metrics.udp_dropped.add("unsent", lost)
        if self._next == self.count:
            self._next = self.count = 0
        return done

    def send_run(self, fd: int, entries: bytearray, count: int, texts: bytearray) -> None:
        """Sends answers at once; those that the socket does not take are lost."""
        _next, sent, nbytes, _lost, _blocked, self._segments = _packets.send(
            fd, entries, 0, count, texts, count, self._segments
        )
        self._metrics.udp.bytes_out += nbytes
        if sent < count:
            self._metrics.udp_dropped.add("unsent", count - sent)

    def _count(self, traffic: Traffic, sent: int, nbytes: int) -> None:
        traffic.messages_out += sent
        traffic.bytes_out += nbytes


def send_answers(fd: int, answers: list[tuple[bytes, bytes]]) -> tuple[int, int]:
    """Sends datagrams, each with its address. Returns (their bytes, how many could not be sent)."""
    entries = bytearray()
    texts = bytearray()
    for name, text in answers:
        entries += name + bytes(4) + len(texts).to_bytes(4, "little") + len(text).to_bytes(4, "little")
        texts += text
    _next, sent, nbytes, _lost, _blocked, _segments = _packets.send(
        fd, entries, 0, len(answers), texts, len(answers), False
    )
    return nbytes, len(answers) - sent
