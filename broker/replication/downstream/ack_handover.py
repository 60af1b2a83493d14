"""Publishes that wait for other nodes while the worker that logged them is replaced: its successor waits in its stead.

The answers still come from the old worker, which stays until they are known. Its siblings send the successor nothing
before that, so this wait is a short one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tailrace.broker.replication.downstream.replica_acks import ReplicaWait
from tailrace.broker.routing.batch import LoggedAnswer, StreamBatch
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.refused import CallArgs, OnResult
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError, peer_text
from tailrace.shard.meta import Role

PATIENCE_S: Final = 2.0
LOST_TEXT: Final = "logged, but the worker that waited for other nodes to hold it was replaced meanwhile"
CUT_TEXT: Final = "messages of the stream were set aside, or it was made again, before other nodes held them"


def hand_over(owner: Owner, call: Callable[[bytes, str, CallArgs, OnResult], None]) -> Callable[[], None]:
    """Take the waits from an owner that still has its logs; the returned function asks its successor, by `call`."""
    waits = [(wait, owner.roles.epoch(wait.batch.name)) for wait in owner.replicas.take_waits()]

    def ask() -> None:
        for wait, epoch in waits:
            batch = wait.batch
            args = [batch.name, wait.first_seq, batch.count, epoch, batch.replicas]
            call(batch.name, "await", args, _answer(wait))

    return ask


def _answer(wait: ReplicaWait) -> OnResult:
    def done(value: Any) -> None:
        if isinstance(value, Refused):
            text = value.text if value.code is Code.UNREPLICATED else LOST_TEXT
            wait.batch.unreplicated(wait.first_seq, text)
        else:
            wait.batch.published(wait.first_seq, value)

    return done


def wait_on(owner: Owner, args: CallArgs, done: OnResult) -> None:
    """[stream, first seq, messages, epoch, nodes]: `done` gets the number of subscribers once N nodes hold the
    messages that the predecessor logged, or Refused.
    """
    name, first_seq, count, epoch, replicas = args
    try:
        log = owner.stream(name).log
        last_seq = first_seq + count - 1
        found = owner.roles.role(name) is Role.MASTER and log.first_seq <= last_seq < log.next_seq
        found = found and log.entry(last_seq).epoch == epoch
    except (Refused, StorageError, OSError):
        found = False
    if not found:
        done(Refused(Code.UNREPLICATED, LOST_TEXT))
        return
    batch = StreamBatch(name, 0, None, replicas)
    batch.count = count
    batch.parts.append((_HandedOverWait(done, None), 0, 0))
    owner.replicas.wait(batch, first_seq, PATIENCE_S)


def held(owner: Owner, args: CallArgs, done: OnResult) -> None:
    """[stream, seq, nodes] -> None once N nodes hold the messages before this one; at once if that is not for this node
    to know: of a stream that it copies or has not, or that is in memory.
    """
    name, end_seq, replicas = args
    try:
        is_here = name in owner.catalog.names and owner.roles.role(name) is Role.MASTER
        if not is_here or owner.catalog.directory.is_in_memory(name):
            done(None)
            return
        owner.require_replicas(name, replicas)
        if end_seq > owner.stream(name).log.next_seq:
            raise Refused(Code.UNREPLICATED, CUT_TEXT)
    except Refused as refused:
        done(refused)
    except (StorageError, OSError) as error:
        done(Refused(Code.UNAVAILABLE, peer_text(error)))
    else:
        owner.replicas.wait_for(name, end_seq, replicas, LoggedAnswer(done, None))


def calls_of(owner: Owner) -> dict[str, Callable[[CallArgs, OnResult], None]]:
    """By name."""
    return {"await": partial(wait_on, owner), "held": partial(held, owner)}


class _HandedOverWait(LoggedAnswer):
    """Receives the outcome of a batch for the predecessor."""

    __slots__ = ()

    def published(self, _key: int, _first_seq: int, subscribers: int) -> None:
        self._done(subscribers)
