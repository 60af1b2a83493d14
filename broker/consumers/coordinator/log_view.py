"""What the decisions about consumers see of their stream, from its open log: `broker.consumers.state.decide.Look`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgpack

from tailrace.broker.consumers.state.dead_letter import HEADERS_KEY
from tailrace.broker.consumers.state.lookahead import MatchedPiece
from tailrace.broker.consumers.state.ranges import SeqRange
from tailrace.shard.epochs import History
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog

KEY_HEADER: Final = "key"
"""The header that says which messages are done one after the other."""
KEYS_KEPT_MAX: Final = 16_384
"""Keys of the messages looked at last, which gets look at again and again."""

PIECE_BYTES: Final = 128 << 10
PIECE_MESSAGES_MAX: Final = 4_096
"""Of a stream, read at once to find what matches a filter."""
TURN_READ_BYTES: Final = 1 << 20
"""Read by a worker in one turn for that; a piece that was begun is finished."""

_KEY_BYTES = KEY_HEADER.encode()
_match_runs = load("tailrace.broker.topics.pick_cy").match_runs


class ReadBudget:
    """How much one worker may still read in this turn to find the matches of consumers' filters: TURN_READ_BYTES."""

    __slots__ = ("left_bytes",)

    def __init__(self) -> None:
        self.left_bytes = TURN_READ_BYTES


class LogView:
    """A view of one stream's log, valid while its history is this one. `log` must be its open log at each call.

    Methods raise StreamDamaged, OSError.
    """

    __slots__ = ("_budget", "_first_kept", "_generation", "_keys", "history", "log")

    def __init__(self, log: StreamLog, history: History, budget: ReadBudget | None = None) -> None:
        self.log = log
        self.history = history
        self._budget = budget or ReadBudget()
        self._first_kept = 0
        self._keys: list[bytes | None] = []
        self._generation = log.generation

    @property
    def first_seq(self) -> int:
        return self.log.first_seq

    @property
    def next_seq(self) -> int:
        return self.log.next_seq

    def fit(self, first_seq: int, last_seq: int, max_bytes: int) -> tuple[int, int]:
        """How many of these messages, from the first on, have frames of at most `max_bytes` together; and how many."""
        entry = self.log.entry
        start = entry(first_seq).offset
        low, high, nbytes = 0, last_seq - first_seq + 1, 0
        tried = high  # most times all of them fit
        while low < high:
            last = entry(first_seq + tried - 1)
            size = last.offset + last.length - start
            if size <= max_bytes:
                low, nbytes = tried, size
            else:
                high = tried - 1
            tried = (low + high + 1) // 2
        return low, nbytes

    def keys(self, first_seq: int, last_seq: int) -> Sequence[bytes | None]:
        """The key of each of these messages; None for a message without a key, or that is not kept."""
        lost = min(max(self.first_seq - first_seq, 0), last_seq + 1 - first_seq)
        first_seq += lost
        if first_seq > last_seq:
            return [None] * lost
        if self.log.generation != self._generation or not self._holds(first_seq):
            self._generation, self._first_kept = self.log.generation, first_seq
            self._keys = []
        missing = last_seq + 1 - self._first_kept - len(self._keys)
        if missing > 0:
            self._keys += self._read(last_seq + 1 - missing, missing)
        start = first_seq - self._first_kept
        found = self._keys[start : start + last_seq + 1 - first_seq]
        excess = len(self._keys) - KEYS_KEPT_MAX
        if excess > 0:
            del self._keys[:excess]
            self._first_kept += excess
        return [*[None] * lost, *found]

    def matching(self, first_seq: int, topics: bytes, ranges_max: int) -> MatchedPiece:
        """Which of the next messages match a filter: of PIECE_BYTES, of one that is longer, or of none in this turn."""
        if self._budget.left_bytes <= 0:
            return MatchedPiece([], first_seq)
        last_seq = min(self.next_seq, first_seq + PIECE_MESSAGES_MAX) - 1
        count, _nbytes = self.fit(first_seq, last_seq, PIECE_BYTES)
        stream, end_seq = self.log.name.encode(), first_seq
        ranges: list[SeqRange] = []
        for run in self.log.walk(first_seq, first_seq + max(count, 1)):
            self._budget.left_bytes -= len(run.frames)
            found, passed = _match_runs(run.frames, len(run.frames), run.seq, stream, topics, ranges_max - len(ranges))
            ranges += found
            end_seq = run.seq + passed
            if passed < run.messages:
                break
        return MatchedPiece(ranges, end_seq)

    def _holds(self, seq: int) -> bool:
        """Whether the keys from there on are those that are kept, or come right after them."""
        return self._first_kept <= seq <= self._first_kept + len(self._keys)

    def _read(self, first_seq: int, messages: int) -> Iterator[bytes | None]:
        found = 0
        for metadata in self.log.metadata(first_seq, messages):
            found += 1
            yield key_of(metadata)
        for _ in range(messages - found):  # the bytes there are not a frame; reading the message will raise
            yield None


def key_of(metadata: bytes) -> bytes | None:
    """The key of a message with this metadata; None if it has none."""
    if _KEY_BYTES not in metadata:
        return None
    try:
        key: Any = msgpack.unpackb(metadata)[HEADERS_KEY][KEY_HEADER]
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException):
        return None
    if isinstance(key, str):
        return key.encode()
    return key if isinstance(key, bytes) else None
