"""Maintenance with real files, a clock that the test moves, and a stand-in for the helper thread."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import pytest

from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.lag_scanner import LagScanner
from tailrace.broker.process.settings import Durability, StreamPolicy
from tailrace.broker.streams.maintenance import Maintenance, PunchJob
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.owner_calls import call
from tailrace.broker.streams.syncer import Syncable, SyncOutcome, SyncRequest
from tailrace.protocol.errors import Code
from tailrace.shard.diverged import diverged_path
from tailrace.shard.errors import StorageError
from tailrace.shard.files import FileSystem
from tailrace.shard.growth import STEP_BYTES_MAX, limit_steps
from tailrace.shard.header import HEADER_PAGE_BYTES, STATE_CLOSED, parse_index
from tailrace.shard.holes import FOLIO_MAX_BYTES
from tailrace.shard.stream_files import stream_paths
from tests.broker.owning import Clock, Sink, around, make_owner, policies, publish

READY_FD = os.open(os.devnull, os.O_RDONLY)
WHOLE = "all that are closed"


class HandSyncer:
    """Syncs when the test asks, synchronously."""

    def __init__(self) -> None:
        self.asked: deque[tuple[Syncable, object]] = deque()
        self.urgent: list[str] = []
        self._done: list[SyncOutcome] = []

    def fileno(self) -> int:
        return READY_FD

    def request(self, target: Syncable, token: object) -> None:
        self.request_all([SyncRequest(target, token)])

    def request_all(self, requests: list[SyncRequest], *, urgent: bool = False) -> None:
        for target, token, *_flags in requests:
            self.asked.append((target, token))
            self.urgent += [target.name] if urgent else []

    def outcomes(self) -> list[SyncOutcome]:
        done, self._done = self._done, []
        return done

    def work(self, error: OSError | None = None) -> None:
        while self.asked:
            target, token = self.asked.popleft()
            wrong: OSError | StorageError | None = error
            if error is None:
                try:
                    target.sync()
                except (StorageError, OSError) as failed:
                    wrong = failed
            self._done.append(SyncOutcome(target, token, wrong, 0.001))


class World:
    def __init__(self, path: Path, **settings: object) -> None:
        self.clock = Clock()
        self.owner: Owner = make_owner(path / "data", self.clock, **settings)  # type: ignore[arg-type]
        self.syncer = HandSyncer()
        clock = self.clock
        patrol = LagScanner(Coordinator(self.owner, clock.seconds, lambda name: patrol.forget(name)))
        self.upkeep = Maintenance(
            self.owner,
            patrol,
            self.syncer,  # type: ignore[arg-type]
            clock.seconds,
            clock.microseconds,
            spared_seq=patrol.spared_seq,
        )
        around(self.owner).on_trim = self.upkeep.on_trim

    def tick(self, seconds: float = 0.0) -> list[str]:
        """Time passes; returns the streams to be synced by now."""
        self.clock.now_s += seconds
        self.upkeep.request_syncs()
        return [target.name for target, _token in self.syncer.asked]

    def work(self, error: OSError | None = None) -> None:
        self.syncer.work(error)
        self.upkeep.take_outcomes()

    def publish(self, name: bytes, *payloads: bytes) -> Sink:
        return publish(self.owner, name, *payloads, now_s=self.clock.now_s)

    def synced_seq(self, name: bytes) -> int:
        file = stream_paths(self.owner.catalog.shard_path(name), name.decode()).index_file
        return parse_index(Path(file).read_bytes()[:HEADER_PAGE_BYTES])[1].synced_seq


def settled(tmp_path: Path, **settings: object) -> World:
    """A world in which what a predecessor left is synced."""
    world = World(tmp_path, **settings)
    assert world.tick() == [WHOLE]
    world.work()
    return world


def test_a_new_owner_syncs_what_its_predecessor_may_have_left(tmp_path: Path) -> None:
    world = settled(tmp_path)
    assert world.tick(100.0) == []
    world.owner.release()


def test_async_streams_are_synced_in_time_and_once(tmp_path: Path) -> None:
    world = settled(tmp_path, async_sync_s=30.0)
    world.publish(b"s")
    assert world.tick(29.0) == []
    world.publish(b"s")
    assert world.tick(1.5) == world.tick() == ["s"], "the first append counts, and one sync is under way"
    world.work()
    assert world.synced_seq(b"s") == 2
    assert world.tick(100.0) == []
    world.owner.release()


def test_what_publishers_wait_for_is_synced_at_the_end_of_the_turn(tmp_path: Path) -> None:
    world = settled(tmp_path, streams=policies(Durability.ALWAYS))
    first = publish(world.owner, b"s", now_s=world.clock.now_s)
    world.upkeep.sync_urgent()
    second = publish(world.owner, b"s", now_s=world.clock.now_s)  # it comes while the first is being synced
    world.upkeep.sync_urgent()
    assert len(world.syncer.asked) == 1
    assert first.published_at == {}
    world.work()
    assert (first.published_at, second.published_at) == ({0: 0}, {})
    world.work()
    assert second.published_at == {0: 1}, "it had its turn right after"
    assert world.tick(100.0) == []
    world.owner.release()


def test_a_disk_that_does_not_sync_is_told_to_whoever_waits(tmp_path: Path) -> None:
    world = settled(tmp_path, streams=policies(Durability.ALWAYS))
    sink = publish(world.owner, b"s", now_s=world.clock.now_s)
    world.upkeep.sync_urgent()
    world.work(OSError(5, "Input/output error"))
    assert sink.refusals[0][0] is Code.UNAVAILABLE
    world.owner.release()


def test_streams_that_were_closed_unsynced_are_synced_together_and_in_time(tmp_path: Path) -> None:
    world = settled(tmp_path, max_open_streams=8, streams=policies(Durability.INTERVAL, interval_ms=500))
    for number in range(20):
        world.publish(b"s%d" % number)
    assert world.tick(0.4) == []
    assert world.tick(0.2)[-1] == WHOLE
    assert world.tick().count(WHOLE) == 1, "one is under way"
    world.work()
    world.publish(b"s0")  # closes s12, which has been on the disk since
    assert world.tick(0.4) == []
    world.owner.release()


def test_a_stop_leaves_nothing_to_check(tmp_path: Path) -> None:
    world = settled(tmp_path, max_open_streams=8)
    names = [b"s%d" % number for number in range(20)]
    for name in names:
        world.publish(name)
    world.upkeep.close_clean(world.syncer.work)
    for name in names:
        file = stream_paths(world.owner.catalog.shard_path(name), name.decode()).index_file
        words = parse_index(Path(file).read_bytes()[:HEADER_PAGE_BYTES])[1]
        assert (words.state, words.synced_seq) == (STATE_CLOSED, 1)
    assert not world.owner.catalog.owning
    world.upkeep.close_clean(world.syncer.work)  # once more changes nothing


def test_publishers_that_wait_at_the_stop_are_told(tmp_path: Path) -> None:
    world = settled(tmp_path, streams=policies(Durability.ALWAYS))
    sink = publish(world.owner, b"s", now_s=world.clock.now_s)
    world.upkeep.finish_syncs(world.syncer.work)
    assert sink.published_at == {0: 0} and world.synced_seq(b"s") == 1
    world.owner.release()


def test_trimmed_space_comes_back_after_the_grace_period(tmp_path: Path) -> None:
    world = settled(tmp_path, trim_grace_s=5.0)
    world.publish(b"s", *(bytes(5_000) for _ in range(100)))
    world.owner.trim(world.owner.stream(b"s"), 90)
    assert world.owner.metrics.trimmed_messages == 90
    world.clock.now_s += 4.0
    world.upkeep.punch_due()
    assert not world.syncer.asked
    world.clock.now_s += 1.5
    world.upkeep.punch_due()
    ((target, _token),) = world.syncer.asked
    assert isinstance(target, PunchJob)
    file = Path(stream_paths(world.owner.catalog.shard_path(b"s"), "s").content_file)
    before = file.stat().st_blocks
    world.work()
    assert file.stat().st_blocks < before - 90 * 5_000 // 512 // 2
    world.owner.release()


@pytest.mark.parametrize("fails", ["sync", "punch"])
def test_trimmed_space_waits_until_the_messages_behind_a_failed_sync_were_written_again(
    tmp_path: Path, fails: str
) -> None:
    """They are written again only while nothing is appended, and a punch does not keep publishers away."""
    world = settled(tmp_path, async_sync_s=1.0, trim_grace_s=5.0)
    world.publish(b"s", *(bytes(5_000) for _ in range(100)))
    file = Path(stream_paths(world.owner.catalog.shard_path(b"s"), "s").content_file)
    before = file.stat().st_blocks
    world.owner.trim(world.owner.stream(b"s"), 90)
    if fails == "sync":
        assert world.tick(1.5) == ["s"]
        world.work(OSError(5, "Input/output error"))
    for _ in range(2):
        world.clock.now_s += 5.5
        world.upkeep.punch_due()
        assert [type(target) for target, _token in world.syncer.asked] == ([] if fails == "sync" else [PunchJob])
        world.work(OSError(5, "Input/output error"))
        fails = "sync"
    assert file.stat().st_blocks == before
    assert world.tick() == ["s"], "its next try"
    world.work()
    world.clock.now_s += 5.5
    world.upkeep.punch_due()
    world.work()
    assert file.stat().st_blocks < before - 90 * 5_000 // 512 // 2
    world.owner.release()


def test_space_that_a_predecessor_has_trimmed_comes_back(tmp_path: Path) -> None:
    """The worker is replaced within the grace period."""
    former = settled(tmp_path, trim_grace_s=5.0)
    former.publish(b"s", *(bytes(5_000) for _ in range(100)))
    former.publish(b"whole", *(bytes(5_000) for _ in range(100)))
    former.owner.trim(former.owner.stream(b"s"), 90)
    former.owner.release()
    world = settled(tmp_path, trim_grace_s=5.0)
    for _ in range(2):
        world.upkeep.sweep()
    world.upkeep.punch_due()
    assert not world.syncer.asked
    world.clock.now_s += 5.5
    world.upkeep.punch_due()
    ((target, _token),) = world.syncer.asked
    assert isinstance(target, PunchJob) and target.name == "s"
    file = Path(stream_paths(world.owner.catalog.shard_path(b"s"), "s").content_file)
    before = file.stat().st_blocks
    world.work()
    assert file.stat().st_blocks < before - 90 * 5_000 // 512 // 2
    world.clock.now_s += 100.0
    for _ in range(3):
        world.upkeep.sweep()
    world.clock.now_s += 100.0
    world.upkeep.punch_due()
    assert not world.syncer.asked, "it is looked for once"
    world.owner.release()


@pytest.mark.parametrize("subscribers", [0, 1])
def test_space_that_a_subscriber_may_still_be_sent_comes_back_in_large_pieces(tmp_path: Path, subscribers: int) -> None:
    world = settled(tmp_path, trim_grace_s=1.0)
    for _ in range(9):
        world.publish(b"s", *(bytes(5_000) for _ in range(100)))
    around(world.owner).subscribers = lambda _name: subscribers
    world.owner.trim(world.owner.stream(b"s"), 890)
    world.clock.now_s += 2.0
    world.upkeep.punch_due()
    file = Path(stream_paths(world.owner.catalog.shard_path(b"s"), "s").content_file)
    before = file.stat().st_blocks
    world.work()
    freed_bytes = (before - file.stat().st_blocks) * 512
    assert freed_bytes == pytest.approx(2 * FOLIO_MAX_BYTES if subscribers else 890 * 5_032, abs=8_192)
    world.owner.release()


def test_a_stream_that_was_damaged_before_its_space_came_back_ends_nothing(tmp_path: Path) -> None:
    world = settled(tmp_path, trim_grace_s=1.0)
    world.publish(b"s", b"a", b"b")
    world.owner.trim(world.owner.stream(b"s"), 1)
    world.owner.close_logs()
    Path(stream_paths(world.owner.catalog.shard_path(b"s"), "s").content_file).write_bytes(b"no stream")
    world.clock.now_s += 2.0
    world.upkeep.punch_due()
    assert b"s" in world.owner.catalog.damaged and not world.syncer.asked
    world.owner.release()


def test_retention_drops_by_age_and_size_what_its_pattern_names(tmp_path: Path) -> None:
    streams = (StreamPolicy(pattern="old*", max_age_s=60), StreamPolicy(pattern="big*", max_bytes=4_096))
    world = settled(tmp_path, streams=streams, retention_interval_s=10.0)
    for name in (b"old", b"big", b"other"):
        for _ in range(10):
            world.publish(name, bytes(1_000))
    world.clock.now_s += 100.0
    for name in (b"old", b"big", b"other"):
        world.publish(name, bytes(1_000))
    world.upkeep.sweep()  # finds its beginning
    world.upkeep.sweep()
    first_seqs = {name: world.owner.stream(name).log.first_seq for name in (b"old", b"big", b"other")}
    assert first_seqs[b"old"] == 10 and first_seqs[b"other"] == 0
    assert 6 <= first_seqs[b"big"] <= 8
    world.upkeep.sweep()
    assert world.owner.metrics.disk_bytes > 0
    world.owner.release()


def test_sweeps_follow_quickly_while_the_node_is_short_of_space_and_measure_all_files(tmp_path: Path) -> None:
    world = settled(tmp_path, retention_interval_s=600.0, node_max_bytes=1 << 30)
    space, total, others = world.owner.space, [0], [0]

    def share(nbytes: int, _is_whole: bool) -> int:
        total.append(nbytes)
        return others[0]

    space._share = share
    world.publish(b"a", bytes(1_000))
    others[0] = 1 << 30
    paths = stream_paths(world.owner.catalog.shard_path(b"a"), "a")
    beside = diverged_path(paths.directory, paths.stem)
    beside.write_bytes(bytes(50_000))
    for _ in range(3):
        world.clock.now_s += 1.0
        world.upkeep.sweep()
    files = (Path(paths.content_file), Path(paths.index_file), beside)
    assert total[-1] == sum(file.stat().st_blocks * 512 for file in files)
    assert space.is_met
    beside.unlink()
    for _ in range(2):
        world.clock.now_s += 1.0
        world.upkeep.sweep()
    assert total[-1] < 50_000
    before = len(total)
    others[0] = 0
    world.upkeep.look_at_space()
    for _ in range(30):
        world.clock.now_s += 1.0
        world.upkeep.sweep()
    assert len(total) <= before + 2, "without a shortage the interval is that of retention"
    world.owner.release()


def test_what_is_reserved_ahead_does_not_count_and_is_given_back_when_publishes_are_refused(tmp_path: Path) -> None:
    world = settled(tmp_path, retention_interval_s=600.0, node_max_bytes=1 << 30)
    space = world.owner.space
    for _ in range(12):
        world.publish(b"a", bytes(500_000))
    stream = world.owner.stream(b"a")
    paths = stream_paths(world.owner.catalog.shard_path(b"a"), "a")
    content = Path(paths.content_file)
    assert content.stat().st_size > stream.log.end_offset + (1 << 20)
    for _ in range(3):
        world.clock.now_s += 1.0
        world.upkeep.sweep()
    assert stream.log.end_offset <= space._total_bytes < stream.log.end_offset + (1 << 18)
    space._share = lambda _nbytes, _is_whole: 1 << 30
    world.upkeep.look_at_space()
    world.tick(30.0)
    for _ in range(3):
        world.work()
        world.clock.now_s += 1.0
        world.upkeep.sweep()
    assert content.stat().st_size == stream.log.end_offset
    limit_steps(STEP_BYTES_MAX)
    world.owner.release()


def test_replies_that_nobody_reads_are_dropped_a_minute_later(tmp_path: Path) -> None:
    world = settled(tmp_path, retention_interval_s=10.0)
    names = (b"reply-to/gone", b"reply-to/read", b"reply-to/late", b"other")
    world.owner.context.subscribers = lambda name: int(name == b"reply-to/read")  # type: ignore[method-assign]
    for name in names:
        world.publish(name, b"x")
    world.clock.now_s += 61.0
    world.publish(b"reply-to/late", b"x")
    world.upkeep.sweep()
    world.upkeep.sweep()
    assert {name: world.owner.stream(name).log.first_seq for name in names} == {
        **dict.fromkeys(names, 0),
        b"reply-to/gone": 1,
    }
    world.owner.release()


def test_a_sweep_takes_no_more_than_its_slice(tmp_path: Path) -> None:
    world = settled(tmp_path)
    for number in range(10):
        world.publish(b"s%d" % number)
    visited: list[bytes] = []

    def visit(name: bytes) -> None:
        visited.append(name)
        world.clock.now_s += 0.02

    world.upkeep._visit = visit  # type: ignore[method-assign]
    for _ in range(12):
        world.upkeep.sweep()
    assert visited == list(world.owner.catalog.names)
    world.owner.release()


def test_the_loop_knows_when_the_next_sync_is_due_and_those_that_follow_closely_go_with_it(tmp_path: Path) -> None:
    world = settled(tmp_path, streams=policies(Durability.INTERVAL, interval_ms=10))
    assert world.owner.syncs.due_s == float("inf")
    began_s = world.clock.now_s
    for number, later_s in enumerate((0.0, 0.004, 0.004)):
        world.clock.now_s += later_s
        world.publish(b"s%d" % number)
    assert world.owner.syncs.due_s == pytest.approx(began_s + 0.010)
    world.clock.now_s = began_s + 0.010
    assert world.tick() == ["s0", "s1"]
    assert world.syncer.urgent == ["s0", "s1"]
    assert world.owner.syncs.due_s == pytest.approx(began_s + 0.018)
    world.publish(b"s0")
    world.tick(0.020)
    assert world.owner.syncs.due_s == float("inf"), "s0 is being synced: its outcome comes first"
    world.work()
    assert world.owner.syncs.due_s == pytest.approx(began_s + 0.020)
    assert world.tick() == ["s0"]
    world.owner.release()


# --- after a failed sync ----------------------------------------------------------------------------------------------


def fail_sync(world: World, name: bytes, patch: pytest.MonkeyPatch) -> Sink:
    """A message of the stream whose sync has failed."""

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with patch.context() as broken_disk:
        broken_disk.setattr(os, "fdatasync", broken)
        sink = world.publish(name)
        world.upkeep.sync_urgent()
        world.work()
    return sink


def test_a_failed_sync_is_tried_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = settled(tmp_path, streams=policies(Durability.ALWAYS))
    assert fail_sync(world, b"s", monkeypatch).refusals[0][0] is Code.UNAVAILABLE
    assert (world.owner.metrics.sync_failures, len(world.owner.syncs.failed)) == (1, 1)
    refused = world.publish(b"s")
    assert refused.refusals[0][0] is Code.UNAVAILABLE and "nothing was appended" in refused.refusals[0][1]
    assert world.owner.stream(b"s").log.next_seq == 1
    assert world.tick(1.5) == ["s"], "its time has come"
    assert "being written again" in world.publish(b"s").refusals[0][1]
    world.work()
    assert (world.synced_seq(b"s"), len(world.owner.syncs.failed)) == (1, 0)
    done = world.publish(b"s")
    world.upkeep.sync_urgent()
    world.work()
    assert done.published_at == {0: 1}
    world.owner.release()


def test_a_new_owner_finds_the_streams_whose_sync_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = settled(tmp_path, streams=policies(Durability.ALWAYS))
    fail_sync(world, b"s", monkeypatch)
    world.owner.release()
    world = settled(tmp_path)
    assert not world.owner.catalog.open
    for _ in range(2):
        world.upkeep.sweep()
    assert world.tick() == ["s"]
    world.work()
    assert world.synced_seq(b"s") == 1 and not world.owner.syncs.failed
    world.owner.release()


def test_what_a_failed_sync_left_unreadable_is_cut_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = settled(tmp_path, streams=policies(Durability.ALWAYS))
    cuts: list[tuple[bytes, int]] = []
    around(world.owner).on_cut = lambda name, seq: cuts.append((name, seq))
    fail_sync(world, b"s", monkeypatch)
    file = stream_paths(world.owner.catalog.shard_path(b"s"), "s").content_file
    with open(file, "r+b") as content:
        content.seek(HEADER_PAGE_BYTES + 4)
        content.write(bytes(4))
    world.tick(1.5)
    world.work()
    assert world.tick() == ["s"] and world.owner.stream(b"s").log.next_seq == 0
    world.tick()
    assert cuts == [(b"s", 0)]
    world.work()
    assert not world.owner.syncs.failed
    world.owner.release()


def test_an_error_of_the_whole_file_system_marks_what_was_closed_unsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = settled(tmp_path, max_open_streams=8, async_sync_s=5.0)
    for number in range(20):
        world.publish(b"s%d" % number)

    def broken(_file_system: FileSystem) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "sync", broken)
        assert WHOLE in world.tick(6.0)
        world.syncer.asked = deque(asked for asked in world.syncer.asked if asked[0].name == WHOLE)
        world.work()
    assert len(world.owner.syncs.failed) == 20
    for stream in world.owner.catalog.open.values():
        stream.syncing = False
    for _ in range(6):
        world.tick()
        world.work()
    assert not world.owner.syncs.failed
    assert {world.synced_seq(b"s%d" % number) for number in range(20)} == {1}
    world.owner.release()


def test_a_stop_that_waits_for_the_disk_goes_on_beating(tmp_path: Path) -> None:
    world = settled(tmp_path, streams=policies(Durability.ALWAYS))
    sink = world.publish(b"s")
    beats: list[bool] = []

    def beat() -> None:
        beats.append(bool(sink.published_at))
        if len(beats) == 3:
            world.syncer.work()

    world.upkeep.finish_syncs(beat)
    assert beats[:3] == [False] * 3 and sink.published_at == {0: 0}
    world.upkeep.close_clean(lambda: world.syncer.work())
    assert not world.owner.catalog.owning


def test_what_is_set_aside_is_seen_until_it_is_removed(tmp_path: Path) -> None:
    """Also by an owner that was not there when it was set aside; a file that cannot be read counts too."""
    before = World(tmp_path)
    before.publish(b"s", b"a", b"b", b"c")
    before.publish(b"other", b"x")
    for seq in (2, 1):
        before.owner.stream(b"s").log.set_aside(seq)
    before.owner.release()
    world = World(tmp_path)
    path = diverged_path(world.owner.catalog.shard_path(b"s"), "s")

    def seen() -> tuple[int, int, int]:
        world.clock.now_s += world.owner.settings.retention_interval_s
        for _ in range(3):
            world.upkeep.sweep()
        stat = call(world.owner, "stat", [b"s"])
        return world.owner.metrics.diverged_tails, stat["diverged_tails"], stat["diverged_messages"]

    assert seen() == (2, 2, 2)
    path.write_bytes(b"x" + path.read_bytes())
    assert seen() == (1, 1, 0)
    path.unlink()
    assert seen() == (0, 0, 0)
    world.owner.release()
