"""Publishers that continue until the power is lost, and the messages acknowledged to them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace.broker.streams.failed_syncs import WRITING_TEXT
from tests.system.node import Node

POLICIES: Final = ("always", "interval", "async")
STREAMS_OF_EACH: Final = 6
CONFIG: Final = """
[timing]
async_sync_s = "200 ms"

[[stream]]
pattern = "always-*"
durability = "always"

[[stream]]
pattern = "interval-*"
durability = "interval"
interval_ms = "20 ms"
"""
PAYLOAD_BYTES_MAX: Final = 6_000
NEW_STREAMS_MAX: Final = 12  # of one publisher
NEW_STREAM_EACH: Final = 3  # batches
BATCH_MAX: Final = 12
ALWAYS_BATCH_MAX: Final = 40  # so that many streams wait for one sync


class Acknowledged(NamedTuple):
    stream: str
    seq: int
    payload: bytes


class Publisher(threading.Thread):
    """Publishes to the streams of one policy, and to new ones of it, until the node refuses or is gone."""

    def __init__(self, node: Node, policy: str, part: str, rng: random.Random, is_over: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[Acknowledged] = []
        self.streams = [f"{policy}-{number}" for number in range(STREAMS_OF_EACH)]
        self.failures: list[str] = []
        self._policy, self._part, self._rng, self._is_over = policy, part, rng, is_over
        self._client = node.client()
        self._made = 0

    def run(self) -> None:
        try:
            self._client.send("ack on")
            self._client.read_answers(1)
            while not self._is_over():
                self._publish(self._choose())
        except (OSError, AssertionError) as error:
            if not self._is_over():
                self.failures.append(str(error))
        finally:
            self._client.close()

    def _choose(self) -> list[str]:
        """Streams for one batch: some that are there, and now and then one that is not."""
        most = ALWAYS_BATCH_MAX if self._policy == "always" else BATCH_MAX
        chosen = [self._rng.choice(self.streams) for _ in range(self._rng.randint(1, most))]
        if self._made < NEW_STREAMS_MAX and self._rng.randrange(NEW_STREAM_EACH) == 0:
            self._made += 1
            self.streams.append(f"{self._policy}-{self._part}-{self._made}")
            chosen.append(self.streams[-1])
        return chosen

    def _publish(self, streams: list[str]) -> None:
        batch = [(stream, self._payload()) for stream in streams]
        before = len(self._client.answers)
        self._client.send(*(b"pub %s |%s" % (stream.encode(), payload) for stream, payload in batch))
        try:
            self._client.read_answers(before + len(batch))
        finally:
            self._take_answers(batch, self._client.answers[before:])

    def _take_answers(self, batch: list[tuple[str, bytes]], answers: list[str]) -> None:
        """Answers come in order for each stream, in any order for several."""
        waiting: dict[str, list[bytes]] = {}
        for stream, payload in batch:
            waiting.setdefault(stream, []).append(payload)
        for answer in answers:
            words = answer.split()
            if words[:2] == ["ok", "pub"]:
                self.acknowledged.append(Acknowledged(words[2], int(words[3]), waiting[words[2]].pop(0)))
            elif not self._is_over() and WRITING_TEXT not in answer:  # a refusal after a failed sync does not last
                self.failures.append(answer)

    def _payload(self) -> bytes:
        size = int(self._rng.paretovariate(0.7) * 20)
        return self._rng.randbytes(min(size, PAYLOAD_BYTES_MAX) // 2).hex().encode() or b"00"
