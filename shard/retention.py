"""Retention: the decision which message a stream may begin with. Trimming to it is the caller's act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.shard.log import StreamLog

MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The limits of a stream: messages of at most this age and frames of at most this many bytes; 0 means unlimited."""

    max_age_s: float = 0
    max_bytes: int = 0


def retention_seq(log: StreamLog, policy: RetentionPolicy, now_us: int) -> int:
    """The seq to trim to: first_seq when everything may stay. Raises StreamDamaged, OSError.

    With one entry read it sees that nothing is to be done; otherwise it is two binary searches in the index.
    """
    first_seq, next_seq = log.first_seq, log.next_seq
    if first_seq == next_seq or not (policy.max_age_s or policy.max_bytes):
        return first_seq
    oldest = log.entry(first_seq)
    seq = first_seq
    if policy.max_age_s:
        limit_us = now_us - int(policy.max_age_s * MICROSECONDS)
        if oldest.timestamp_us < limit_us:
            seq = log.seq_at(limit_us)
    if policy.max_bytes and log.end_offset - oldest.offset > policy.max_bytes:
        seq = max(seq, _first_within(log, log.end_offset - policy.max_bytes))
    return seq


def _first_within(log: StreamLog, offset: int) -> int:
    """The first message that begins at `offset` or later."""
    low, high = log.first_seq, log.next_seq
    while low < high:
        middle = (low + high) // 2
        if log.entry(middle).offset < offset:
            low = middle + 1
        else:
            high = middle
    return low
