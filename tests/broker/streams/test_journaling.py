"""The journal of an owner with real files, a clock that the test moves, and helper threads that the test plays."""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path

import pytest

from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.lag_scanner import LagScanner
from tailrace.broker.process.settings import Durability
from tailrace.broker.streams.journaling import JOURNAL_AGE_S, OPENING_RETRY_S, RETRY_S, JournalKeeper
from tailrace.broker.streams.maintenance import Maintenance
from tailrace.broker.streams.syncer import Syncable, SyncOutcome, SyncRequest
from tailrace.shard.errors import StorageError
from tailrace.shard.files import FileSystem
from tailrace.shard.group_journal import JOURNAL_STREAMS_MIN, journal_together
from tailrace.shard.journal import journal_path, read_journal
from tailrace.shard.journal_writer import JournalWriter
from tailrace.shard.log import StreamLog
from tests.broker.owning import Clock, Sink, around, make_owner, policies, publish

READY_FD = os.open(os.devnull, os.O_RDONLY)
NAMES = [b"s%d" % number for number in range(JOURNAL_STREAMS_MIN)]


class PlayedSyncer:
    """Does what it was asked for when the test says so: publishers' syncs in a group, through the journal if it can."""

    def __init__(self, journal: JournalWriter) -> None:
        self.asked: deque[SyncRequest] = deque()
        self._journal = journal
        self._done: list[SyncOutcome] = []

    def fileno(self) -> int:
        return READY_FD

    def request(self, target: Syncable, token: object) -> None:
        self.request_all([SyncRequest(target, token)])

    def request_all(self, requests: list[SyncRequest], *, urgent: bool = False) -> None:
        self.asked += requests

    def outcomes(self) -> list[SyncOutcome]:
        done, self._done = self._done, []
        return done

    def work(self) -> None:
        row = list(self.asked)
        self.asked.clear()
        awaited = [each.target for each in row if each.in_group and each.is_awaited]
        journaled = journal_together(awaited, self._journal)  # type: ignore[arg-type]
        for target, token, *_flags in row:
            error: OSError | StorageError | None = None
            try:
                if target not in journaled:
                    target.sync()
            except (StorageError, OSError) as failed:
                error = failed
            self._done.append(SyncOutcome(target, token, error, 0.001))


class World:
    def __init__(self, path: Path, **settings: object) -> None:
        self.clock = Clock()
        settings = {"streams": policies(Durability.ALWAYS), **settings}
        self.owner = make_owner(path / "data", self.clock, **settings)  # type: ignore[arg-type]
        directory = self.owner.catalog.directory.path
        self.journal = JournalWriter(journal_path(directory, 0))
        self.syncer = PlayedSyncer(self.journal)
        self.keeper = JournalKeeper(self.owner, self.syncer, self.journal, FileSystem(directory))
        patrol = LagScanner(Coordinator(self.owner, self.clock.seconds, lambda name: patrol.forget(name)))
        times = self.clock.seconds, self.clock.microseconds
        spared = patrol.spared_seq
        self.upkeep = Maintenance(
            self.owner,
            patrol,
            self.syncer,  # type: ignore[arg-type]
            *times,
            spared_seq=spared,
            journal=self.keeper,
        )
        around(self.owner).put_back = self.upkeep.put_back
        self.keeper.take()

    def publish(self, *names: bytes) -> list[Sink]:
        sinks = [publish(self.owner, name, b"message", now_s=self.clock.now_s) for name in names]
        self.upkeep.sync_urgent()
        self.work()
        return sinks

    def work(self) -> None:
        while self.syncer.asked:
            self.syncer.work()
            self.upkeep.take_outcomes()

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.now_s += seconds
        self.upkeep.request_syncs()
        self.work()

    def log(self, name: bytes) -> StreamLog:
        return self.owner.catalog.open[name].log


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Its journal was wanted and made, and the streams are there."""
    made = World(tmp_path)
    made.tick()
    assert (made.journal.is_open, made.journal.wanted) == (False, False)
    made.publish(*NAMES)
    made.publish(*NAMES)
    made.tick()
    assert made.journal.is_open
    made.tick(10.0)
    return made


def test_publishers_of_many_streams_are_answered_when_the_journal_has_their_messages(world: World) -> None:
    sinks = world.publish(*NAMES)
    assert all(sink.published_at for sink in sinks)
    assert [(world.log(name).synced_seq, world.log(name).durable.seq) for name in NAMES] == [(2, 3)] * len(NAMES)
    assert len(read_journal(world.journal.path)) == len(NAMES)


def test_soon_after_that_their_own_files_are_synced_and_the_journal_is_free(world: World) -> None:
    world.publish(*NAMES)
    assert (world.journal.is_empty, world.journal.pending()) == (False, {})
    world.tick(JOURNAL_AGE_S + 0.01)
    assert [world.log(name).synced_seq for name in NAMES] == [3] * len(NAMES)
    assert not world.owner.syncs.dirty
    world.tick(RETRY_S)
    assert world.journal.is_empty


def test_a_stream_that_was_closed_meanwhile_is_opened_for_it(world: World) -> None:
    world.publish(*NAMES)
    stream = world.owner.catalog.open[NAMES[0]]
    world.owner.forget(stream)
    assert NAMES[0] in world.owner.syncs.unsynced
    world.tick(JOURNAL_AGE_S + 0.01)
    world.tick(RETRY_S)
    assert world.log(NAMES[0]).synced_seq == 3
    assert world.journal.is_empty


def test_a_stream_that_was_deleted_or_cut_meanwhile_does_not_hold_up_the_journal(world: World) -> None:
    world.publish(*NAMES)
    world.log(NAMES[1]).set_aside(1)
    world.owner.drop(NAMES[0])
    world.tick(JOURNAL_AGE_S + 0.01)
    world.tick(RETRY_S)
    assert world.journal.is_empty


def test_if_their_files_cannot_be_synced_the_messages_are_put_back_before_they_are_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(*NAMES)
    log = world.log(NAMES[0])

    def failing(self: FileSystem) -> None:
        self.errors += 1
        raise OSError(errno.EIO, "broken")

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "sync", failing)
        patch.setattr(os, "fdatasync", broken)
        world.tick(JOURNAL_AGE_S + 0.01)
    assert (log.sync_failed_seq, log.synced_seq) == (2, 2)
    assert set(NAMES) <= set(world.owner.syncs.failed)
    content = Path(log._pair.paths.content_file)
    whole, start = content.read_bytes(), log.entry(2).offset
    with content.open("r+b") as file:  # the pages were dropped, and the disk has zeros there
        file.seek(start)
        file.write(bytes(log.end_offset - start))
    world.tick(5.0)
    assert content.read_bytes() == whole
    assert log.sync_failed_seq is None
    assert log.synced_seq == 3
    world.tick(RETRY_S)
    world.tick(RETRY_S)
    assert world.journal.is_empty


def test_a_marked_stream_that_is_opened_anew_loses_nothing_that_the_journal_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(*NAMES)
    log = world.log(NAMES[0])
    begun = log.begin_sync()
    assert begun is not None
    log.mark_sync_failed(begun)
    begun.close()
    world.owner.syncs.failed.failed(NAMES[0], world.clock.now_s)
    start, end, content = log.entry(2).offset, log.end_offset, Path(log._pair.paths.content_file)
    world.owner.forget(world.owner.catalog.open[NAMES[0]])
    with content.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))
    opened = world.owner.stream(NAMES[0]).log
    assert (opened.next_seq, opened.lost_messages) == (3, 0)


def test_what_a_predecessor_left_is_put_back_and_its_journal_is_made_anew_once_it_is_synced(
    world: World, tmp_path: Path
) -> None:
    world.publish(*NAMES)
    log = world.log(NAMES[0])
    content, start, end = Path(log._pair.paths.content_file), log.entry(2).offset, log.end_offset
    whole = content.read_bytes()[:end]
    world.keeper.stop()
    for each in world.owner.catalog.open.values():
        each.log.abandon()
    world.owner.catalog.open.clear()
    world.owner.release()
    with content.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))
    later = World(tmp_path)
    assert content.read_bytes()[:end] == whole
    assert later.journal.wanted
    assert (later.journal.is_open, later.keeper.busy) == (False, False)
    assert read_journal(later.journal.path) != []
    later.tick()
    assert later.journal.is_open
    assert read_journal(later.journal.path) == []


def test_while_a_stream_is_marked_the_journal_of_a_predecessor_stays(world: World, tmp_path: Path) -> None:
    world.publish(*NAMES)
    log = world.log(NAMES[0])
    begun = log.begin_sync()
    assert begun is not None
    log.mark_sync_failed(begun)
    begun.close()
    world.keeper.stop()
    for each in world.owner.catalog.open.values():
        each.log.abandon()
    world.owner.catalog.open.clear()
    world.owner.release()
    later = World(tmp_path)
    assert NAMES[0] in later.owner.syncs.failed
    later.owner.syncs.failed.failed(NAMES[0], later.clock.now_s)
    later.tick()
    assert (later.journal.is_open, later.keeper.busy) == (False, False)
    later.tick(5.0)
    later.tick(OPENING_RETRY_S)
    assert later.journal.is_open
    assert later.log(NAMES[0]).synced_seq == 3


def test_a_journal_that_cannot_be_made_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    tries: list[float] = []

    def failing(_self: JournalWriter, _file_system: FileSystem) -> None:
        tries.append(world.clock.now_s)
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "open", failing)
        world.publish(*NAMES)
        world.publish(*NAMES)
        for _ in range(3):
            world.tick(1.0)
        assert len(tries) == 1
        assert all(sink.published_at for sink in world.publish(*NAMES))
    world.tick(OPENING_RETRY_S)
    assert world.journal.is_open


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_clean_stop_leaves_no_journal(world: World, monkeypatch: pytest.MonkeyPatch, is_clean: bool) -> None:
    world.publish(*NAMES)

    def failing(self: FileSystem) -> None:
        raise OSError(errno.EIO, "broken")

    if not is_clean:
        monkeypatch.setattr(FileSystem, "sync", failing)
    monkeypatch.setattr("tailrace.broker.streams.maintenance.PAUSE_S", 0.0)
    world.upkeep.finish_syncs(world.syncer.work)
    world.upkeep.close_clean(world.syncer.work)
    assert world.journal.path.exists() != is_clean
