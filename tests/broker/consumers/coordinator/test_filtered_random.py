"""Consumers with topic filters against a naive model: random publishes, members, verdicts, crashes, resets, over real
files and the leaf that the broker uses.

TAILRACE_SEEDS=1000 takes that many seeds.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.routing.batch import StreamBatch
from tailrace.shard.frame import pack_frame
from tests.broker.consumers.desks import C, Office, S
from tests.broker.owning import Sink
from tests.broker.topics.naive import matches

SEEDS = int(os.environ.get("TAILRACE_SEEDS") or 6)
STEPS = 120
TOPICS = ("a/1", "a/2", "b/1", "b/1/c", None)
FILTERS = ("a/+", "b/#", "+/1", "#", "s", "none")
MEMBERS = (b"m", b"n")
ACK_WAIT_S = 1_000.0


class Naive:
    """`open`: messages that match and are not finished; `held`: at which member they are."""

    def __init__(self, topic_filter: str, seq: int) -> None:
        self.topic_filter = topic_filter
        self.begin_seq = seq
        self.topics: list[str | None] = []
        self.done: set[int] = set()
        self.held: dict[int, bytes] = {}

    def matching(self) -> list[int]:
        return [
            seq
            for seq, topic in enumerate(self.topics)
            if seq >= self.begin_seq and matches(self.topic_filter, topic or "s")
        ]

    @property
    def open(self) -> list[int]:
        return [seq for seq in self.matching() if seq not in self.done]


class World:
    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.office = Office(path)
        self.office.publish(b"first")
        self.model = Naive(self.chance.choice(FILTERS), self.chance.randrange(2))
        self.model.topics.append(None)
        self.has_keys = self.chance.random() < 0.5
        self.members = MEMBERS[: self.chance.randrange(1, 3)]
        self.keys: dict[int, str] = {}
        topics = self.model.topic_filter.encode()
        self.office.create(start=("seq", self.model.begin_seq), topics=topics, ack_wait_s=ACK_WAIT_S, retry_s=0.0)

    def publish(self) -> None:
        batch, frames = StreamBatch(S, 0), bytearray()
        count = self.chance.choice((1, 3, 40, 400))
        for _ in range(count):
            topic, seq = self.chance.choice(TOPICS), len(self.model.topics)
            metadata: dict[str, Any] = {} if topic is None else {"t": topic}
            if self.has_keys and self.chance.random() < 0.3:
                self.keys[seq] = self.chance.choice("kl")
                metadata["h"] = {"key": self.keys[seq]}
            frames += pack_frame(b"x" * self.chance.choice((1, 100)), metadata=msgpack.packb(metadata))
            self.model.topics.append(topic)
        batch.add(Sink(), 0, count, frames)
        self.office.owner.append(batch, self.office.clock.now_s)
        self.office.turn()

    def get(self) -> None:
        member = self.chance.choice(self.members)
        fresh, most = self.chance.random() < 0.5, self.chance.choice((1, 5, 100))
        runs = self.office.runs(member, most=most, fresh=fresh)
        had = sorted(seq for seq, holder in self.model.held.items() if holder == member)
        seqs = [seq for first, count, _times in runs for seq in range(first, first + count)]
        assert set(seqs) <= set(self.model.open), "only what matches and is not finished"
        if had and not fresh:
            assert seqs == had[: len(seqs)] and seqs
            return
        assert not set(seqs) & set(self.model.held), "nothing that somebody has"
        if len(self.members) == 1:
            free = [seq for seq in self.model.open if seq not in self.model.held]
            assert seqs == free[: len(seqs)], "in order"
            assert seqs or not free
        for seq in seqs:
            holder = [
                held for other, held in self.model.held.items() if seq in self.keys
                and self.keys.get(other) == self.keys[seq]
            ]  # fmt: skip
            assert set(holder) <= {member}, "those of a key are at one member"
            self.model.held[seq] = member

    def settle(self) -> None:
        member = self.chance.choice(self.members)
        had = [seq for seq, holder in self.model.held.items() if holder == member]
        some = sorted(self.chance.sample(had, self.chance.randrange(len(had) + 1)))
        failed = [seq for seq in some if self.chance.random() < 0.3]
        finished = [seq for seq in some if seq not in failed]
        (answer,) = now(self.office, member, finished, failed)
        assert not answer["stale"]
        for seq in finished:
            self.model.done.add(seq)
            del self.model.held[seq]
        for seq in failed:
            later = [
                other for other in had if other > seq and self.keys.get(other, object()) == self.keys.get(seq)
                and other in self.model.held and other not in failed
            ]  # fmt: skip
            for each in (seq, *later):
                self.model.held.pop(each, None)

    def crash(self) -> None:
        self.office = self.office.crash()

    def reset(self) -> None:
        seq = self.chance.randrange(len(self.model.topics))
        self.office.consume("reset", start=("seq", seq))
        self.office.turn()
        old, self.model = self.model, Naive(self.model.topic_filter, seq)
        self.model.topics = old.topics

    def lag(self) -> None:
        row = self.office.rows()[C]
        assert row.get("topics", b"").decode() == self.model.topic_filter
        assert len(self.model.open) <= row["lag_messages"] <= len(self.model.topics)
        assert row.get("lag_at_most", False) or row["lag_messages"] == len(self.model.open)
        self.office.turn()
        row = self.office.rows()[C]
        assert (row["lag_messages"], row.get("lag_at_most", False)) == (len(self.model.open), False), "it was counted"
        assert row["in_flight"] == len(self.model.held)
        assert row["next_seq"] <= min(self.model.open, default=len(self.model.topics))

    def drain(self) -> None:
        """In the end each match is finished, and nothing is left."""
        self.crash()
        for member in self.members:
            self.office.consume("leave", member=member)
        self.office.turn()
        self.model.held.clear()
        while self.model.open:
            runs = self.office.runs(self.members[0])
            seqs = [seq for first, count, _times in runs for seq in range(first, first + count)]
            assert seqs and set(seqs) <= set(self.model.open)
            now(self.office, self.members[0], seqs, [])
            self.model.done.update(seqs)
        assert self.office.runs(self.members[0]) == []
        row = self.office.rows()[C]
        assert (row["lag_messages"], row["next_seq"]) == (0, len(self.model.topics))


def now(office: Office, member: bytes, finished: list[int], failed: list[int]) -> list[Any]:
    answers = office.get(member, most=0, finished=[(seq, seq) for seq in finished], failed=[(s, "x") for s in failed])
    office.turn()
    return answers


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_consumer_gets_what_matches(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    world = World(tmp_path / "data", seed)
    deeds = (world.publish, world.get, world.get, world.settle, world.settle, world.lag, world.crash)
    for _ in range(STEPS):
        deed = world.chance.choice(deeds)
        if deed is not world.crash or world.chance.random() < 0.3:
            deed()
        elif world.chance.random() < 0.1:
            world.reset()
    world.drain()


@pytest.mark.parametrize("wait_ms", [0, 1_000])
def test_one_get_reads_on_over_turns_until_there_is_a_match(tmp_path: Path, wait_ms: int) -> None:
    office = Office(tmp_path / "data")
    office.publish(*[b"x" * 1_000] * 3_000)
    office.create(topics=b"a")
    batch = StreamBatch(S, 0)
    batch.add(Sink(), 0, 1, bytearray(pack_frame(b"mine", metadata=msgpack.packb({"t": "a"}))))
    office.owner.append(batch, office.clock.now_s)
    assert office.runs(wait_ms=wait_ms) == [(3_000, 1, 0)]
