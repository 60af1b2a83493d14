"""When each sync is due, without an owner or a disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tailrace.broker.process.settings import Durability, StreamPolicy
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.sync_schedule import JOURNALED_DUE_S, NEVER_S, SyncSchedule
from tailrace.shard.log import StreamLog

NOW_S = 100.0


def stream(durability: Durability = Durability.INTERVAL, name: bytes = b"s") -> OpenStream:
    policy = StreamPolicy(durability=durability, interval_ms=500)
    return OpenStream(name, cast(StreamLog, SimpleNamespace(next_seq=0)), 1, policy)


@pytest.mark.parametrize(
    ("durability", "delay_s", "next_s"),
    [(Durability.ASYNC, 30.0, 130.0), (Durability.INTERVAL, 0.5, 100.5), (Durability.ALWAYS, 0.0, NEVER_S)],
)
def test_a_stream_is_due_by_its_durability(durability: Durability, delay_s: float, next_s: float) -> None:
    """A sync that is due at once is not waited for: the end of the turn does it."""
    schedule, made = SyncSchedule(30.0), stream(durability)
    schedule.add(made, NOW_S)
    assert (made.sync_due_s, schedule.due_s) == (NOW_S + delay_s, next_s)
    assert schedule.dirty == {b"s": made}


def test_the_next_is_the_earliest_that_is_not_being_synced() -> None:
    schedule, first, second = SyncSchedule(30.0), stream(), stream(Durability.ASYNC, b"t")
    schedule.add(second, NOW_S)
    schedule.add(first, NOW_S)
    assert schedule.due_s == NOW_S + 0.5
    first.syncing = True
    schedule.find_next()
    assert schedule.due_s == NOW_S + 30


def test_what_is_closed_unsynced_is_due_with_the_file_system() -> None:
    schedule, made = SyncSchedule(30.0), stream()
    schedule.remove(made)
    assert not schedule.unsynced and schedule.unsynced_due_s == NEVER_S
    schedule.add(made, NOW_S)
    schedule.remove(made)
    assert schedule.unsynced == {b"s"} and not schedule.dirty and schedule.unsynced_due_s == NOW_S + 0.5
    schedule.whole_sync_begins(NOW_S + 1)
    schedule.add(made, NOW_S + 1)
    schedule.remove(made)
    assert schedule.unsynced_due_s == NOW_S + 1.5, "not so soon after the last one"


def test_a_stream_that_is_in_the_journal_only_is_due_later_and_settled_with_its_files() -> None:
    schedule, made = SyncSchedule(30.0), stream(Durability.ALWAYS)
    schedule.add_journaled(made, NOW_S)
    assert (made.sync_due_s, schedule.due_s) == (NOW_S + JOURNALED_DUE_S, NOW_S + JOURNALED_DUE_S)
    schedule.remove(made)
    assert schedule.unsynced == {b"s"}
    schedule.add_journaled(made, NOW_S)
    schedule.settle(made)
    assert (made.sync_due_s, schedule.dirty, schedule.unsynced) == (0.0, {}, set())
