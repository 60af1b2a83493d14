"""An owner of real files with its coordinator of consumers; the test moves the clock and completes the syncs of the
disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.broker.consumers.coordinator import verbs
from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.lag_scanner import LagScanner
from tailrace.broker.streams.maintenance import Maintenance
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol.errors import Code
from tailrace.protocol.places import From
from tailrace.shard.leaves import load
from tests.broker.owning import Clock, around, batch, make_owner
from tests.broker.streams.test_maintenance import HandSyncer

S = b"s"
C = b"c"
TURNS_MAX = 100

_parse = load("tailrace.shard.frame_cy").parse


class Office:
    """The worker around a desk, as far as consumers need one. `made_of` another: its successor, after a crash."""

    def __init__(self, path: Path, clock: Clock | None = None, **settings: Any) -> None:
        self.path = path
        self.clock = clock or Clock()
        self.owner: Owner = make_owner(path, self.clock, **settings)
        self.desk = Coordinator(self.owner, self.clock.seconds, lambda name: self.patrol.forget(name))
        around(self.owner).on_role = self.desk.role_changed
        self.syncer = HandSyncer()
        self.patrol = patrol = LagScanner(self.desk)
        around(self.owner).spared_seq = patrol.spared_seq
        self.upkeep = Maintenance(
            self.owner,
            patrol,
            self.syncer,  # type: ignore[arg-type]
            self.clock.seconds,
            self.clock.microseconds,
            spared_seq=patrol.spared_seq,
        )
        around(self.owner).on_trim = self.upkeep.on_trim

    # --- requests ---------------------------------------------------------------------------------------------------

    def get(self, member: bytes = b"m", *, name: bytes = S, consumer: bytes = C, **wanted: Any) -> list[Any]:
        """Ask; the list has the answer as soon as there is one. All messages are of epoch 1."""
        answers: list[Any] = []
        request = c.Get(
            1,
            name,
            consumer,
            member,
            tuple((*row, 1) for row in wanted.get("finished", [])),
            tuple((seq, 1, reason) for seq, reason in wanted.get("failed", [])),
            wanted.get("most", 100),
            wanted.get("max_bytes", 1 << 20),
            wanted.get("wait_ms", 0),
            wanted.get("fresh", False),
            c.ACK_SYNCED if wanted.get("sync", False) else c.ACK_APPENDED,
            wanted.get("replicas", 0),
            wanted.get("session", 0),
        )
        verbs.get(self.desk, [name, request], answers.append)
        return answers

    def consume(
        self,
        do: Any,
        *,
        stream: bytes = S,
        name: bytes = C,
        start: tuple[Any, int] | None = None,
        sync: bool = False,
        **fields: Any,
    ) -> list[Any]:
        answers: list[Any] = []
        request: c.Consume | c.MemberNotice
        if do in ("away", "wake"):
            request = c.MemberNotice(do, stream, name, **fields)
        else:
            place = None if start is None else From(*start)
            ack = c.ACK_SYNCED if sync else c.ACK_APPENDED
            request = c.Consume(1, do, stream, name, place, ack=ack, **fields)
        verbs.consume(self.desk, [stream, request], answers.append)
        return answers

    def runs(self, *args: Any, **wanted: Any) -> list[tuple[int, int, int]]:
        """What a get is given, at once."""
        answers = self.get(*args, **wanted)
        self.turn()
        (answer,) = answers
        assert not isinstance(answer, Refused), answer.text
        return [tuple(run[:3]) for run in answer["runs"]]

    def create(self, name: bytes = C, start: tuple[str, int] = ("seq", 0), **fields: Any) -> Any:
        answers = self.consume("create", name=name, start=start, **fields)
        self.turn()
        (answer,) = answers
        return answer

    def rows(self, stream: bytes = S) -> dict[bytes, dict[str, Any]]:
        (answer,) = self.consume("list", stream=stream)
        return {row["name"]: row for row in answer["consumers"]}

    # --- the world around it ------------------------------------------------------------------------------------------

    def publish(self, *payloads: bytes, name: bytes = S) -> None:
        self.owner.append(batch(name, *(payloads or (b"x",))), self.clock.now_s)

    def turn(self) -> None:
        """Until nothing moves any more."""
        for _ in range(TURNS_MAX):
            self.desk.grew(self.owner.take_grown())
            self.desk.work()
            self.upkeep.sync_urgent()
            if not self.desk.pending and not self.owner.grown:
                return
        raise AssertionError("the desk does not come to rest")

    def sync(self) -> None:
        """The disk completes the requested syncs."""
        self.upkeep.sync_urgent()
        self.upkeep.request_syncs()
        self.syncer.work()
        self.upkeep.take_outcomes()
        self.turn()

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.now_s += seconds
        self.desk.tick()
        self.desk.seldom()
        self.turn()

    def crash(self) -> Office:
        """The process ends without a word, and another begins."""
        for stream in self.owner.catalog.open.values():
            stream.log.abandon()
        self.owner.catalog.open.clear()
        self.owner.release()
        return Office(self.path, self.clock)

    def messages(self, name: bytes) -> list[tuple[bytes, bytes]]:
        """Metadata and payload of all that a stream keeps."""
        log = self.owner.stream(name).log
        return [row[4:6] for run in log.walk(log.first_seq) for row in _parse(run.frames, 0, len(run.frames), True)]


def code_of(answers: list[Any]) -> Code:
    (answer,) = answers
    assert isinstance(answer, Refused), answer
    return answer.code
