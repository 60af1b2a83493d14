"""What the clients of a soak must have seen, in memory that does not grow with the time it runs.

A publisher numbers its messages to each stream from 0 on. So a stream is whole when its seqs have no gap and, of each
publisher, neither have the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FAULTS_MAX = 20
MARK = b"|"
"""Ends the publisher's name and the number; padding follows."""


def payload_of(publisher: str, number: int, padding_bytes: int) -> bytes:
    return b"%s/%d%s%s" % (publisher.encode(), number, MARK, b"x" * padding_bytes)


@dataclass
class Faults:
    """The first FAULTS_MAX faults, and how many there were."""

    texts: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.texts) < FAULTS_MAX:
            self.texts.append(text)


class Continuity:
    """Checks one reading of a stream: every seq and every publisher's number follows the one before it."""

    def __init__(self, stream: str, faults: Faults, *, from_start: bool = False) -> None:
        """`from_start`: the first message must be seq 0, and number 0 of its publisher."""
        self.stream = stream
        self.next_seq = 0 if from_start else -1
        self.next_numbers: dict[str, int] = {}
        self._from_start = from_start
        self._faults = faults

    def begin_again(self) -> None:
        """Any message may be the next one: it counts as the first."""
        self.next_seq = -1
        self.next_numbers.clear()

    def take(self, seq: int, payload: bytes) -> None:
        if self.next_seq not in (-1, seq):
            self._faults.add(f"{self.stream}: seq {seq} follows seq {self.next_seq - 1}")
        self.next_seq = seq + 1
        publisher, _slash, number = payload.partition(MARK)[0].decode().rpartition("/")
        expected = self.next_numbers.get(publisher, 0 if self._from_start else int(number))
        if int(number) != expected:
            self._faults.add(f"{self.stream}: seq {seq} is {publisher}/{number}, not {publisher}/{expected}")
        self.next_numbers[publisher] = int(number) + 1


class Finished:
    """Which messages a durable consumer has finished: everything below `low`, and some seqs above it."""

    def __init__(self) -> None:
        self.low = 0
        self._above: set[int] = set()

    def __contains__(self, seq: int) -> bool:
        return seq < self.low or seq in self._above

    def add(self, seq: int) -> None:
        self._above.add(seq)
        while self.low in self._above:
            self._above.remove(self.low)
            self.low += 1
