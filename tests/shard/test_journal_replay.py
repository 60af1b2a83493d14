"""A loss of power is played by putting the files back as they were when they were synced last."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.shard.directory import DataDirectory, make_data_dir
from tailrace.shard.errors import ShardLocked
from tailrace.shard.files import FileSystem
from tailrace.shard.group_journal import journal_together
from tailrace.shard.journal import journal_files, journal_path
from tailrace.shard.journal_replay import PutBack, put_back, replay_all
from tailrace.shard.journal_writer import JournalWriter
from tailrace.shard.lock import ShardLock
from tailrace.shard.log import StreamLog
from tailrace.shard.mend_data import mend_data
from tests.shard.helpers import BOOT, LATER_BOOT, append, open_log, payloads

NAMES = [f"s{number}" for number in range(6)]


class World:
    """Some streams with one synced message each, and an open journal."""

    def __init__(self, path: Path) -> None:
        self.data: DataDirectory = make_data_dir(path / "data", 2)
        self.journal = JournalWriter(journal_path(self.data.path, 0))
        self.journal.open(FileSystem(path))
        self.logs = {name: open_log(self.data.stream_directory(name), name) for name in NAMES}
        self._saved = path / "saved"
        for log in self.logs.values():
            append(log, b"first of " + log.name.encode())
            log.sync()
        self.save()

    def save(self) -> None:
        """These files are on the disk."""
        shutil.rmtree(self._saved, ignore_errors=True)
        shutil.copytree(self.data.path, self._saved, ignore=shutil.ignore_patterns("journal-*"))

    def publish(self, *payloads: bytes) -> None:
        for log in self.logs.values():
            append(log, *payloads)
        assert journal_together(list(self.logs.values()), self.journal) == set(self.logs.values())

    def lose_power(self) -> None:
        self.end()
        for file in journal_files(self.data.path):
            shutil.copy(file, self._saved)
        shutil.rmtree(self.data.path)
        shutil.move(self._saved, self.data.path)

    def end(self) -> None:
        self.journal.close()
        for log in self.logs.values():
            log.abandon()

    def payloads(self, name: str, boot: str = LATER_BOOT) -> list[bytes]:
        directory = self.data.stream_directory(name)
        open_log(directory, name, create=False, boot=boot).close()
        return payloads(directory, name, boot=boot)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.end()


def test_what_only_the_journal_had_is_there_after_a_loss_of_power(world: World) -> None:
    world.publish(b"second")
    world.publish(b"third", b"fourth")
    world.lose_power()
    found = replay_all(world.data)
    assert sorted(each.name for each in found) == NAMES
    assert all(each.frames_bytes > 0 for each in found)
    assert journal_files(world.data.path) == []
    for name in NAMES:
        assert world.payloads(name) == [b"first of " + name.encode(), b"second", b"third", b"fourth"]
    assert replay_all(world.data) == []


def test_without_a_replay_it_would_be_lost(world: World) -> None:
    world.publish(b"second")
    world.lose_power()
    assert world.payloads("s0") == [b"first of s0"]


def test_a_torn_frame_is_written_again(world: World) -> None:
    world.publish(b"second" * 100)
    log = world.logs["s0"]
    start = log.entry(1).offset
    content = Path(log._pair.paths.content_file)
    world.end()
    whole = content.read_bytes()
    for torn in (whole[: start + 40], whole[: start + 40] + bytes(len(whole) - start - 40), whole[:start]):
        content.write_bytes(torn)
        put_back(world.journal.path, world.data.stream_directory)
        assert content.read_bytes() == whole
    assert world.payloads("s0") == [b"first of s0", b"second" * 100]


def test_the_same_frames_are_written_again_although_they_seem_to_be_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed write the kernel may take their pages for clean."""
    world.publish(b"second")
    world.end()
    written: list[int] = []
    real = os.pwrite

    def watched(fd: int, data: bytes, offset: int) -> int:
        written.append(offset)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", watched)
    put_back(world.journal.path, world.data.stream_directory)
    assert len(written) == len(NAMES)


def test_what_the_files_have_on_the_disk_is_passed_over(world: World) -> None:
    world.publish(b"second")
    for log in world.logs.values():
        log.sync()
    world.end()
    assert {each.frames_bytes for each in put_back(world.journal.path, world.data.stream_directory)} == {0}


def test_a_stream_that_was_cut_made_anew_deleted_or_trimmed_since_is_passed_over(world: World) -> None:
    world.publish(b"second", b"third")
    cut, anew, again, gone, trimmed, kept = (world.logs[name] for name in NAMES)
    cut.set_aside(1)
    append(cut, b"other second", epoch=2)
    anew.set_aside(0)
    append(anew, b"other first", epoch=2)
    for log in (again, gone):
        log.close()
        for file in (log._pair.paths.content_file, log._pair.paths.index_file):
            os.unlink(file)
    world.logs["s2"] = open_log(world.data.stream_directory("s2"), "s2")
    append(world.logs["s2"], b"born again")
    trimmed.trim(3)
    append(kept, b"fourth")
    world.end()
    found = {each.name: each.frames_bytes for each in replay_all(world.data)}
    assert found.pop("s5") > 0
    assert set(found.values()) == {0}
    assert world.payloads("s0", BOOT) == [b"first of s0", b"other second"]
    assert world.payloads("s1", BOOT) == [b"other first"]
    assert world.payloads("s2", BOOT) == [b"born again"]
    assert not Path(gone._pair.paths.content_file).exists()
    assert world.payloads("s4", BOOT) == []
    assert world.payloads("s5", BOOT) == [b"first of s5", b"second", b"third", b"fourth"]


def test_another_whole_frame_is_never_written_over(world: World) -> None:
    world.publish(b"second")
    log = world.logs["s0"]
    content, start = Path(log._pair.paths.content_file), log.entry(1).offset
    world.end()
    other = open_log(world.data.stream_directory("other"), "other")
    append(other, b"x")
    append(other, b"fourth", epoch=3)
    frame = Path(other._pair.paths.content_file).read_bytes()[other.entry(1).offset :]
    other.close()
    content.write_bytes(content.read_bytes()[:start] + frame)
    assert {each.name: each.frames_bytes for each in put_back(world.journal.path, world.data.stream_directory)}[
        "s0"
    ] == 0
    assert content.read_bytes()[start:] == frame


def test_an_older_content_gets_nothing_that_would_lie_behind_its_end(world: World) -> None:
    world.publish(b"second")
    world.publish(b"third")
    content, size = Path(world.logs["s0"]._pair.paths.content_file), world.logs["s0"].entry(1).offset - 1
    world.end()
    os.truncate(content, size)
    assert put_back(world.journal.path, world.data.stream_directory, "s0")[0].frames_bytes == 0
    assert content.stat().st_size == size


def test_a_damaged_stream_is_left_to_its_opening_and_the_others_are_put_back(world: World) -> None:
    world.publish(b"second")
    world.lose_power()
    file = Path(world.logs["s0"]._pair.paths.index_file)
    file.write_bytes(b"?" + file.read_bytes()[1:])
    found = {each.name: each.frames_bytes for each in replay_all(world.data)}
    assert found["s0"] == 0
    assert world.payloads("s1") == [b"first of s1", b"second"]


def test_while_a_stream_is_marked_after_a_failed_sync_the_journal_stays(world: World) -> None:
    world.publish(b"second")
    begun = world.logs["s0"].begin_sync()
    assert begun is not None
    world.logs["s0"].mark_sync_failed(begun)
    begun.close()
    world.end()
    found = replay_all(world.data)
    assert [each.name for each in found if each.is_marked] == ["s0"]
    assert journal_files(world.data.path) == [world.journal.path]
    assert put_back(world.journal.path, world.data.stream_directory, "s0") == [
        PutBack("s0", found[0].frames_bytes, True)
    ]


def test_no_worker_may_own_a_shard_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish(b"second")
    world.end()
    monkeypatch.setattr("tailrace.shard.journal_replay.LOCK_PATIENCE_S", 0.05)
    with ShardLock(world.data.shard_path(1)), pytest.raises(ShardLocked):
        replay_all(world.data)
    assert journal_files(world.data.path) == [world.journal.path]
    with ShardLock(world.data.shard_path(0)), ShardLock(world.data.shard_path(1)):
        pass


def test_a_repair_puts_back_first(world: World) -> None:
    world.publish(b"second")
    world.lose_power()
    for _ in mend_data(world.data, may_rebuild=True, may_repair=True, boot_id=LATER_BOOT):
        pass
    assert world.payloads("s3") == [b"first of s3", b"second"]


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(8))
def test_after_any_loss_all_that_was_journaled_is_there(tmp_path: Path, seed: int) -> None:
    """Appends, group commits, syncs of the files, trims and cuts in any order; then pages of the files are lost."""
    print("seed", seed)
    rng, world = random.Random(seed), World(tmp_path)
    model = {name: [b"first of " + name.encode()] for name in NAMES}
    durable = dict.fromkeys(NAMES, 1)
    for number in range(rng.randrange(5, 60)):
        for name in rng.sample(NAMES, rng.randint(1, len(NAMES))):
            row = [b"%d " % number * rng.randint(1, 300) for _ in range(rng.randint(1, 3))]
            append(world.logs[name], *row, at=1_000 + number)
            model[name] += row
        act = rng.choice(["journal", "journal", "journal", "sync", "cut", "turn"])
        if act == "journal":
            for log in journal_together(list(world.logs.values()), world.journal):
                durable[log.name] = log.next_seq
        elif act == "sync":
            name = rng.choice(NAMES)
            world.logs[name].sync()
            durable[name] = world.logs[name].next_seq
            _save(world, world.logs[name])
        elif act == "cut":
            name = rng.choice(NAMES)
            seq = rng.randint(1, len(model[name]))
            world.logs[name].set_aside(seq)
            model[name], durable[name] = model[name][:seq], min(seq, durable[name])
            _save(world, world.logs[name])
        else:
            world.journal.turn_over()
            for name, seq in world.journal.pending().items():
                world.logs[name].sync()
                durable[name] = world.logs[name].next_seq
                _save(world, world.logs[name])
                world.journal.synced(name, seq)
    world.lose_power()
    replay_all(world.data)
    for name in NAMES:
        found = world.payloads(name)
        assert len(found) >= durable[name]
        assert found == model[name][: len(found)]


def _save(world: World, log: StreamLog) -> None:
    """The stream's files are on the disk as they are."""
    for file in (log._pair.paths.content_file, log._pair.paths.index_file):
        shutil.copy(file, world._saved / Path(file).relative_to(world.data.path))
