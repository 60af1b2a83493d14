"""Forecasts which messages retention will remove within a day, if each stream grows as before."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.shard.catalog import all_streams
from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StorageError
from tailrace.shard.names import is_reserved
from tailrace.shard.reader import StreamReader
from tailrace.shard.retention import MICROSECONDS, RetentionPolicy

HORIZON_S: Final = 86_400

PolicyOf = Callable[[str], RetentionPolicy]


class Removal(NamedTuple):
    """The coming removal of a stream. `bytes` are those of its frames; `reason` is the limit: age or size."""

    stream: str
    messages: int
    bytes: int
    kept_bytes: int
    reason: str


def forecast(
    data: DataDirectory, policy_of: PolicyOf, grown_bytes: Mapping[str, int], now_us: int
) -> Iterator[Removal]:
    """The streams that will lose something. `grown_bytes`: of a stream in a day, frames. Raises OSError.

    Streams that cannot be read are left out; they are reported elsewhere.
    """
    for shard, stream in all_streams(data):
        policy = policy_of(stream)
        if is_reserved(stream) or not (policy.max_age_s or policy.max_bytes):
            continue
        try:
            with StreamReader.open(data.shard_path(shard), stream) as reader:
                removal = _removal(reader, policy, grown_bytes.get(stream, 0), now_us)
        except StorageError:
            continue
        if removal.bytes:
            yield removal


def _removal(reader: StreamReader, policy: RetentionPolicy, grown_bytes: int, now_us: int) -> Removal:
    first_seq, next_seq = reader.first_seq(), reader.next_seq()
    start, end = reader.offset_of(first_seq), reader.offset_of(next_seq)
    seq, reason = first_seq, "age"
    if policy.max_age_s:
        seq = reader.seq_at(now_us + int((HORIZON_S - policy.max_age_s) * MICROSECONDS))
    if policy.max_bytes:
        by_size = _first_from(reader, min(end, end + grown_bytes - policy.max_bytes))
        if by_size > seq:
            seq, reason = by_size, "size"
    offset = reader.offset_of(seq)
    return Removal(reader.name, seq - first_seq, offset - start, end - offset, reason)


def _first_from(reader: StreamReader, offset: int) -> int:
    """The first message that begins at this offset or later."""
    seqs = range(reader.first_seq(), reader.next_seq())
    return seqs.start + bisect_left(seqs, offset, key=reader.offset_of)
