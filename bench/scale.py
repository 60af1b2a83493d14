"""How much of everything a run does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int = 3
    payload_bytes: int = 100
    seconds: float = 3.0  # of publishing, in the rows that go as fast as they can
    feed_bytes: int = 1_000_000  # pipelined publishes that are sent at one go
    streams: int = 1_000
    connections: int = 1_000
    replay_bytes: int = 1_000_000_000  # about so much a reader, as frames in tailrace's log
    latency_pairs: int = 6  # publisher and subscriber connections anew, so that each worker gets its turn
    latency_seconds: float = 9.0  # all pairs together
    crowd_share: float = 1.0  # of the subscribers that the rows of quiet connections name
    crowd_messages: int = 9  # each to all of them
    idle_seconds: float = 10.0  # in which they are left alone
    long_idle_seconds: float = 40.0  # the largest crowd: longer than any broker here leaves a connection unasked
    noise_bytes: int = 10_000_000_000  # at least, replayed beside the subscriber that is timed
    many_streams: int = 100_000
    spark_messages: int = 40_000_000
    live_seconds: float = 60.0  # of publishing beside a live query
    timeout_s: float = 180.0  # of one measurement


FULL = Scale()
QUICK = Scale(
    rounds=1,
    seconds=0.4,
    connections=200,
    replay_bytes=50_000_000,
    latency_pairs=2,
    latency_seconds=1.0,
    crowd_share=0.1,
    crowd_messages=3,
    idle_seconds=1.5,
    long_idle_seconds=3.0,
    noise_bytes=300_000_000,
    many_streams=2_000,
    spark_messages=400_000,
    live_seconds=12.0,
    timeout_s=60.0,
)
