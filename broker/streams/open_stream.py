"""A stream whose log is open, and its growth."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.broker.process.settings import Durability, StreamPolicy
from tailrace.broker.routing.batch import StampableFrames, UnsyncedPart
from tailrace.shard.log import StreamLog
from tailrace.shard.names import group_key

if TYPE_CHECKING:
    from tailrace.broker.streams.deduplication import KnownProducers


class Growth(NamedTuple):
    """What one turn appended to a stream: `frames`, stamped, the last of them ending at `end_offset` of the content."""

    first_seq: int
    next_seq: int
    end_offset: int
    frames: StampableFrames


Grown = dict[bytes, Growth]


class OpenStream:
    """A stream whose log is open, with what every append needs at hand."""

    __slots__ = (
        "announced_seq",
        "busy",
        "epoch",
        "group_key",
        "in_memory",
        "is_synced_always",
        "log",
        "name",
        "policy",
        "producers",
        "sync_due_s",
        "syncing",
        "unwritten",
        "waiting",
    )

    def __init__(self, name: bytes, stream_log: StreamLog, epoch: int, policy: StreamPolicy) -> None:
        self.name = name
        self.log = stream_log
        self.group_key = group_key(name)
        self.announced_seq = stream_log.next_seq  # kept for `broker.routing.growth_watch` while somebody watches
        self.epoch = epoch
        self.policy = policy
        self.is_synced_always = policy.durability is Durability.ALWAYS
        self.in_memory = policy.durability is Durability.MEMORY
        self.busy = False  # its end is being set aside in another thread: nothing is appended or trimmed
        self.unwritten = False  # its role is on its way to the disk: nothing is appended
        self.syncing = False
        self.sync_due_s = float("inf") if self.in_memory else 0.0  # 0: nothing to sync
        self.waiting: list[UnsyncedPart] = []
        self.producers: KnownProducers | None = None  # once a numbered message has come

    @property
    def idle(self) -> bool:
        return not self.syncing and not self.waiting and not self.busy and not self.unwritten
