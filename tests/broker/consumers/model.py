"""A durable consumer, message by message: what `broker.consumers` is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.broker.consumers.stream import Stream


@dataclass
class Entry:
    """A message that is not finished. `member`: its holder, b"" for nobody; `due_us`: when it may be delivered."""

    deliveries: int = 0
    member: bytes = b""
    deadline_us: int = 0
    due_us: int = 0


@dataclass
class Model:
    next_seq: int
    ack_wait_us: int
    deliveries_max: int
    unsure_seq: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)

    def at(self, member: bytes) -> list[int]:
        return sorted(seq for seq, entry in self.entries.items() if entry.member == member)

    def waiting(self, stream: Stream) -> list[int]:
        return [*self.at(b""), *range(self.next_seq, stream.next_seq)]

    def pass_over(self, end_seq: int) -> None:
        """Messages before this one are known of."""
        for seq in range(self.next_seq, end_seq):
            self.entries[seq] = Entry()
        self.next_seq = max(self.next_seq, end_seq)

    def end_of_given(self, stream: Stream) -> int:
        """The first message that no member was given, as far as is known."""
        return max(self.next_seq, min(self.unsure_seq, stream.next_seq))

    def finish(self, member: bytes, rows: Iterable[Sequence[int]], stream: Stream) -> set[tuple[int, int]]:
        """Rows of first seq, last seq, epoch; the stale ones, each as seq and epoch."""
        stale = set()
        end_seq = self.end_of_given(stream)
        for seq, epoch in sorted({(seq, epoch) for first, last, epoch in rows for seq in range(first, last + 1)}):
            if seq >= end_seq or stream.messages[seq].epoch != epoch:
                stale.add((seq, epoch))
                continue
            self.pass_over(seq + 1)
            entry = self.entries.get(seq)
            if entry is not None and entry.member not in (b"", member):
                stale.add((seq, epoch))
            elif entry is not None:
                del self.entries[seq]
        return stale

    def fail(
        self, member: bytes, seqs: Iterable[int], stream: Stream
    ) -> tuple[set[int], list[tuple[int, int]], set[int]]:
        """The stale ones, the dead ones with their deliveries, and those that wait for another delivery."""
        stale, dead, again = set(), [], set()
        for seq in sorted(set(seqs)):
            entry = self.entries.get(seq)
            if entry is None and seq >= self.end_of_given(stream):
                stale.add(seq)
                continue
            if entry is None or not entry.member:
                continue
            if entry.member != member:
                stale.add(seq)
                continue
            deliveries = entry.deliveries + 1
            if 0 < self.deliveries_max <= deliveries:
                dead.append((seq, deliveries))
                del self.entries[seq]
            else:
                self.entries[seq] = Entry(deliveries)
                again.add(seq)
        return stale, dead, again

    def followers(self, member: bytes, failed: set[int], stream: Stream) -> set[int]:
        """What the member has of the keys of these, behind them."""
        return {
            seq
            for seq in self.at(member)
            for before in failed
            if before < seq and stream.messages[before].key is not None
            if stream.messages[seq].key == stream.messages[before].key
        }

    def back(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.entries[seq] = Entry(self.entries[seq].deliveries)

    def trim(self, member: bytes, fresh: bool, stream: Stream) -> int:
        """How many messages are lost for this member."""
        self.pass_over(stream.first_seq)
        gone = {b""} if fresh else {b"", member}
        lost = [seq for seq, entry in self.entries.items() if seq < stream.first_seq and entry.member in gone]
        for seq in lost:
            del self.entries[seq]
        return len(lost)

    def free(self, member: bytes, stream: Stream, now_us: int) -> list[int]:
        """What the member may be given, in order: nobody has it, no other member has one of the same key, and no
        earlier one of the same key waits for its time."""
        held = {
            stream.messages[seq].key for seq, entry in self.entries.items() if entry.member not in (b"", member)
        } - {None}
        late = {seq for seq, entry in self.entries.items() if not entry.member and entry.due_us > now_us}
        first: dict[bytes | None, int] = {}
        for seq in sorted(late):
            first.setdefault(stream.messages[seq].key, seq)
        first.pop(None, None)
        waiting = (seq for seq in self.waiting(stream) if seq not in late)
        return [seq for seq in waiting if (key := stream.messages[seq].key) not in held and first.get(key, seq) >= seq]

    def give(self, member: bytes, seqs: Iterable[int], now_us: int) -> None:
        for seq in seqs:
            self.pass_over(seq + 1)
            self.entries[seq].member = member
            self.entries[seq].deadline_us = now_us + self.ack_wait_us
            self.entries[seq].due_us = 0

    def late(self, now_us: int, left: Iterable[bytes]) -> dict[bytes, set[int]]:
        """The messages to be returned, by member."""
        found: dict[bytes, set[int]] = {}
        for seq, entry in self.entries.items():
            if entry.member and (entry.deadline_us <= now_us or entry.member in left):
                found.setdefault(entry.member, set()).add(seq)
        return found

    def cut(self, seq: int) -> None:
        """Messages from this one on are others now, or none."""
        self.entries = {each: entry for each, entry in self.entries.items() if each < seq}
        self.next_seq = min(self.next_seq, seq)
