"""Replays by a topic index get the same as a search of the whole log, also if the index is damaged or out of date."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.delivery.cursor import Cursor, Park
from tailrace.broker.topics import skipping
from tailrace.broker.topics.index_builder import IndexBuilder
from tailrace.broker.topics.skipping import BlockSkips
from tailrace.shard import topic_index_build
from tailrace.shard.deletion import DeletedStream, delete_stream
from tailrace.shard.files import write_all
from tailrace.shard.memory_directory import MemoryDirectory
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tailrace.shard.topic_index import BLOCK_BYTES, RECORD_BYTES, topics_path
from tailrace.shard.topic_index_build import build_index
from tests.broker.delivery.test_fanout import FakeClient, give_back, trim
from tests.broker.topics import naive
from tests.broker.topics.test_picking import NAME, TopicWorld
from tests.shard.helpers import open_log
from tests.thorough import examples

STREAM = NAME.encode()
PATIENCE_S = 60.0
FILTERS = [b"t/%d" % number for number in range(0, 60, 7)] + [
    b"t/+",
    b"t/1/#",
    b"t/2/+",
    b"d/1/2/3/4/+",
    b"d/1/2/3/4/5",
    b"d/#",
    b"t/1",
    b"#",
    b"+/3",
    b"none",
    b"t/none",
]
TOPICS = [b"t/%d" % number for number in range(60)] + [b"t/1/a", b"t/2/b", b"d/1/2/3/4/5", b"d/1/2/3/4/6", b"d"]


class IndexWorld(TopicWorld):
    """Its index is made by the test alone. `topics`: those of all messages there are."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.topics: list[bytes] = []
        self.requests: list[tuple[bytes, bool]] = []
        self.numbers = itertools.count(1_000)

    @property
    def paths(self) -> StreamPaths:
        return stream_paths(self.readers.path(STREAM), NAME)

    @property
    def file(self) -> Path:
        return Path(topics_path(self.paths))

    def add(self, topics: list[bytes], nbytes: int = 300) -> None:
        payloads = [b"%s!%d %s" % (topic, next(self.numbers), b"x" * nbytes) for topic in topics]  # no two are equal
        self.append(NAME, *payloads)
        self.topics += topics

    def build(self, slices: int = 1 << 30, *, verify: bool = False) -> int:
        left = iter(range(slices))
        with self.readers.open_apart(STREAM) as reader:
            return build_index(self.paths, reader, lambda: next(left, None) is not None, verify=verify)

    def replay(self, topics: bytes, seq: int = 0, room: int = 1 << 30) -> FakeClient:
        client = self.client(room)
        cursor = self.filtered(client, topics, seq)
        for _ in range(100_000):
            self.run()
            if cursor.done or (cursor.park() is Park.CAUGHT_UP and not client.out):
                break
            client.room, client.blocked = room, False
            self.fanout.make_runnable(client)
        self.fanout.end(cursor)
        return client

    def expected(self, topics: bytes, seq: int = 0) -> list[int]:
        begin, wanted = max(seq, self.logs[NAME].first_seq), topics.decode()
        return [
            number
            for number, topic in enumerate(self.topics)
            if number >= begin and naive.matches(wanted, topic.decode())
        ]

    def check(self, topics: bytes, seq: int = 0, room: int = 1 << 30) -> None:
        assert self.replay(topics, seq, room).seqs(NAME) == self.expected(topics, seq), (topics, seq)

    def searched(self, topics: bytes) -> int:
        before = self.fanout.skips.looked_bytes
        self.check(topics)
        return self.fanout.skips.looked_bytes - before


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexWorld]:
    monkeypatch.setattr(skipping, "BEHIND_BYTES_MIN", 1)
    monkeypatch.setattr(skipping, "LOOK_S", 0.0)
    monkeypatch.setattr(skipping, "WINDOW_BLOCKS", 7)
    world = IndexWorld(tmp_path)

    def note_request(_builder: IndexBuilder, name: bytes, *, suspect: bool = False) -> None:
        world.requests.append((name, suspect))

    monkeypatch.setattr(IndexBuilder, "request", note_request)
    yield world
    world.fanout.skips.close()
    world.readers.close()
    for log in world.logs.values():
        log.close()


def in_turn(count: int, topics: int) -> list[bytes]:
    return [b"t/%d" % (number % topics) for number in range(count)]


def test_a_rare_topic_costs_a_small_part_of_the_log(world: IndexWorld) -> None:
    """Also counting the index: messages of 350 bytes, 47 in a block; one of 2,000 topics is in 1 of 43 blocks."""
    world.add(in_turn(20_000, 2_000))
    log_bytes = world.logs[NAME].end_offset
    assert world.searched(b"t/77") >= log_bytes - BLOCK_BYTES
    assert world.build() >= log_bytes // BLOCK_BYTES - 1
    assert world.searched(b"t/77") < 0.07 * log_bytes
    assert world.searched(b"t/none") < 0.03 * log_bytes
    assert world.file.stat().st_size <= 4_096 + log_bytes * RECORD_BYTES // BLOCK_BYTES
    skipped = world.fanout.skips.skipped_bytes
    assert skipped > 1.8 * log_bytes


def test_a_filter_with_a_literal_beginning_uses_it_too(world: IndexWorld) -> None:
    world.add([b"d/%d/%d" % (number % 500, number % 3) for number in range(5_000)])
    log_bytes = world.logs[NAME].end_offset
    world.build()
    assert world.searched(b"d/7/#") < 0.2 * log_bytes
    assert world.searched(b"d/7/+") < 0.2 * log_bytes
    assert world.searched(b"+/7/0") >= log_bytes - BLOCK_BYTES
    world.add([b"d/8"])
    world.check(b"d/8/#")  # the level above counts


def test_large_messages_leave_empty_blocks(world: IndexWorld) -> None:
    for _ in range(20):
        world.add([b"t/1"], 5 * BLOCK_BYTES)
        world.add([b"t/2", b"t/3"], 1_000)
        world.add([b"t/2"], 3 * topic_index_build.SLICE_BYTES)
    world.build()
    for topics in (b"t/1", b"t/2", b"t/3", b"t/4", b"t/+"):
        world.check(topics)
    assert world.searched(b"t/4") < 4 * topic_index_build.SLICE_BYTES


def test_an_index_grows_with_its_log(world: IndexWorld) -> None:
    for _ in range(10):
        world.add(in_turn(2_000, 1_000))
        assert world.build()
        world.check(b"t/5")
    assert world.build() == 0
    assert world.searched(b"t/5") < 0.2 * world.logs[NAME].end_offset


def test_an_index_is_asked_for_by_those_far_behind(world: IndexWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(in_turn(2_000, 1_000))
    world.check(b"t/5")
    assert not world.requests
    monkeypatch.setattr(skipping, "BUILD_BYTES_MIN", 100_000)
    for topics in (b"#", b"+/5", NAME.encode() + b"/#"):
        world.replay(topics)
    assert not world.requests
    world.check(b"t/5")
    assert set(world.requests) == {(STREAM, False)}
    world.build()
    world.requests.clear()
    world.check(b"t/5")
    assert not world.requests
    monkeypatch.setattr(skipping, "GROWN_BYTES", 100_000)
    world.add(in_turn(2_000, 1_000))
    world.check(b"t/5")
    assert set(world.requests) == {(STREAM, False)}


def test_a_stream_in_memory_gets_none(world: IndexWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(skipping, "BUILD_BYTES_MIN", 1)
    world.add(in_turn(2_000, 1_000))
    world.readers.memory = MemoryDirectory(tmp_path, 1, lambda name: name == STREAM)
    world.check(b"t/5")
    assert not world.requests
    world.readers.memory = None
    world.check(b"t/5")
    assert world.requests


def test_a_subscription_with_an_end_ends_there(world: IndexWorld) -> None:
    world.add(in_turn(5_000, 1_000))
    world.build()
    for until_seq in (1, 1_500, 4_999, 5_000):
        client = world.client()
        cursor = world.fanout.subscribe(client, STREAM, 0, remote=False, key=(STREAM, b"t/5"), topics=b"t/5")
        cursor.until_seq = until_seq
        world.fanout.start(cursor)
        world.run()
        assert cursor.done and client.ended == [cursor] and cursor.seq == until_seq
        assert client.seqs(NAME) == [seq for seq in range(5, 5_000, 1_000) if seq < until_seq]


def test_trimmed_blocks_are_given_back(world: IndexWorld) -> None:
    world.add(in_turn(60_000, 1_000))
    world.build()
    before = world.file.stat().st_blocks
    trim(world, NAME, 55_000)
    give_back(world, NAME)
    world.check(b"t/5", 0)
    world.build()
    assert world.file.stat().st_blocks < before / 2
    world.add(in_turn(3_000, 1_000))
    world.check(b"t/5", 55_000)
    assert not [suspect for _, suspect in world.requests if suspect]


def test_one_who_lags_behind_a_trim_is_notified(world: IndexWorld) -> None:
    world.add(in_turn(5_000, 1_000))
    world.build()
    client = world.client(room=0)
    world.filtered(client, b"t/5")
    world.run()
    trim(world, NAME, 4_000)
    give_back(world, NAME)
    world.build()
    world.drain(client, 1 << 30)
    assert [line.split()[:2] for line in client.answers()] == [[b"trimmed", STREAM]]
    assert client.seqs(NAME)[-1] == 4_005


def test_a_deleted_stream_has_no_index(world: IndexWorld) -> None:
    world.add(in_turn(2_000, 1_000))
    world.build()
    with world.readers.open_apart(STREAM) as reader:
        world.logs.pop(NAME).close()
        delete_stream(world.paths.directory, DeletedStream(NAME, 0, "", (world.paths.stem,)))
        assert not world.file.exists()
        assert not reader.is_current


def test_one_process_builds_at_a_time(world: IndexWorld) -> None:
    world.add(in_turn(2_000, 1_000))
    with topic_index_build._locked(str(world.file)) as fd:
        assert fd is not None
        assert world.build() == 0
    assert world.build() > 0


def test_without_room_on_the_disk_nothing_is_built(world: IndexWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(in_turn(2_000, 1_000))
    monkeypatch.setattr(topic_index_build, "SPARE_BYTES", 1 << 60)
    assert world.build() == 0 and not world.file.exists()


def test_a_damaged_record_is_noticed_and_the_index_made_anew(world: IndexWorld) -> None:
    world.add(in_turn(5_000, 1_000))
    world.build()
    overwrite(world.file, 4_096 + 20 * RECORD_BYTES + 40, b"\0\xff\0")
    world.check(b"t/5")
    assert (STREAM, True) in world.requests
    assert world.build() == 0  # only the last record is looked at
    assert world.build(verify=True) > 0
    world.requests.clear()
    world.check(b"t/5")
    assert not world.requests


def test_the_thread_builds_what_is_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipping, "BEHIND_BYTES_MIN", 1)
    monkeypatch.setattr(skipping, "BUILD_BYTES_MIN", 1)
    world = IndexWorld(tmp_path)
    world.add(in_turn(20_000, 2_000))
    world.check(b"t/5")
    end_s = time.monotonic() + PATIENCE_S
    while not (world.file.exists() and not world.fanout.skips.is_building):
        assert time.monotonic() < end_s, "the index was not built"
        time.sleep(0.01)
    monkeypatch.setattr(skipping, "LOOK_S", 0.0)
    assert world.searched(b"t/5") < 0.1 * world.logs[NAME].end_offset
    world.fanout.skips.close()
    world.fanout.skips.close()
    world.readers.close()
    world.logs[NAME].close()


# --- random steps --------------------------------------------------------------------------------------------------


class Killed(Exception):
    """The process died here."""


class Model:
    """Random steps over one stream, and after each a replay that is compared with the naive search."""

    def __init__(self, world: IndexWorld, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.chance, self.patch = world, chance, monkeypatch
        self.saved: tuple[Path, list[bytes]] | None = None
        self.old_index: bytes | None = None
        self.steps = 0

    def step(self) -> None:
        steps = [self.append] * 4 + [self.build] * 3 + [self.build_and_die] * 2
        steps += [self.trim, self.cut, self.damage, self.damage, self.save, self.lose, self.restore_index, self.replay]
        self.chance.choice(steps)()
        seq = self.chance.choice([0, self.chance.randrange(len(self.world.topics) + 1)])
        seq = max(min(seq, len(self.world.topics)), self.world.logs[NAME].first_seq)
        self.world.check(self.chance.choice(FILTERS), seq, self.chance.choice([1 << 30, 1 << 30, 5_000]))

    def append(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(1, 5)):
            few = chance.sample(TOPICS, chance.randrange(1, 6))
            size = chance.choice([0, 300, 3_000, 3_000, 40_000])
            self.world.add([chance.choice(few) for _ in range(chance.randrange(1, 40))], size)

    def build(self) -> None:
        self.world.build(self.chance.choice([0, 1, 2, 1 << 30]), verify=self.chance.random() < 0.2)

    def build_and_die(self) -> None:
        """A write is not finished, or a step between two writes was the last one."""
        left, write = self.chance.randrange(4), write_all

        def write_some(fd: int, data: bytes, offset: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                write(fd, bytes(data)[: self.chance.randrange(len(data) + 1)], offset)
                raise Killed
            write(fd, data, offset)

        with self.patch.context() as patch:
            patch.setattr(topic_index_build, "write_all", write_some)
            try:
                self.world.build()
            except Killed:
                pass

    def trim(self) -> None:
        log = self.world.logs[NAME]
        trim(
            self.world,
            NAME,
            self.chance.randrange(log.first_seq, log.first_seq + (log.next_seq - log.first_seq) // 2 + 1),
        )
        if self.chance.random() < 0.5:
            give_back(self.world, NAME)

    def cut(self) -> None:
        log = self.world.logs[NAME]
        if log.next_seq - log.first_seq > 2:
            seq = self.chance.randrange(log.first_seq + 1, log.next_seq)
            log.set_aside(seq)
            del self.world.topics[seq:]
            self.world.fanout.cut(STREAM, seq)

    def damage(self) -> None:
        file, chance = self.world.file, self.chance
        if file.exists() and (size := file.stat().st_size):
            place = chance.choice(
                [chance.randrange(size), max(size - chance.randrange(1, 600), 0), chance.randrange(64)]
            )
            kind = chance.randrange(4)
            if kind == 0:
                os.truncate(file, min(place, size))
            elif kind == 1:
                os.truncate(file, size + chance.choice([1, 256, 512]))
            else:
                overwrite(file, place, bytes(chance.choice([1, 300])) if kind == 2 else chance.randbytes(3))

    def save(self) -> None:
        """What would be on the disk if the power went now; the index goes its own way."""
        log = self.world.logs[NAME]
        log.sync()
        directory = self.world.directory.path / f"saved-{self.steps}"
        directory.mkdir(exist_ok=True)
        for file in (self.world.paths.content_file, self.world.paths.index_file):
            shutil.copy(file, directory)
        self.saved = directory, list(self.world.topics)

    def lose(self) -> None:
        if self.saved is None:
            return
        directory, topics = self.saved
        self.world.logs[NAME].close()
        for file in (self.world.paths.content_file, self.world.paths.index_file):
            os.unlink(file)
            shutil.copy(directory / Path(file).name, file)
        self.world.logs[NAME] = open_log(self.world.paths.directory, NAME)
        self.world.topics = list(topics)
        self.world.fanout.cut(STREAM, 0)
        self.append()

    def restore_index(self) -> None:
        """As a copy from a backup does it, which gives the name to another file."""
        file = self.world.file
        if self.old_index is not None:
            copy = file.with_suffix(".copy")
            copy.write_bytes(self.old_index)
            copy.rename(file)
        self.old_index = file.read_bytes() if file.exists() else None

    def replay(self) -> None:
        """One that is in the middle while other things happen."""
        log, client = self.world.logs[NAME], self.world.client(room=3_000)
        topics, seq = self.chance.choice(FILTERS), log.first_seq
        cursor: Cursor = self.world.filtered(client, topics, seq)
        for _ in range(10):
            self.world.fanout.run(200_000)
            self.chance.choice([self.build, self.damage, self.append])()
            self.world.renderings.cache.clear()
            self.world.fanout.grew(STREAM, 0, 0)
            client.room, client.blocked = self.chance.choice([100, 50_000]), False
            self.world.fanout.make_runnable(client)
        self.world.drain(client, 1 << 30)
        while self.world.fanout.walks.due:  # their time in one turn is bounded
            self.world.drain(client, 1 << 30)
        self.world.fanout.end(cursor)
        assert client.seqs(NAME) == self.world.expected(topics, seq), (topics, seq)


@pytest.mark.few(5)
@pytest.mark.parametrize("number", range(examples(60)))
def test_a_replay_gets_what_matches_after_random_steps(
    world: IndexWorld, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    seed = number if number < 5 else random.randrange(1 << 32)
    print("seed", seed)
    model = Model(world, random.Random(seed), monkeypatch)
    model.append()
    for model.steps in range(40):
        model.step()


def overwrite(file: Path, place: int, data: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(place)
        opened.write(data)


def test_the_windows_kept_and_the_indexes_open_are_bounded(world: IndexWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipping, "WINDOWS_MAX", 3)
    monkeypatch.setattr(skipping, "INDEXES_MAX", 1)
    world.add(in_turn(5_000, 1_000))
    world.build()
    for number in range(10):
        world.check(b"t/%d" % number)
    skips: BlockSkips = world.fanout.skips
    assert len(skips._windows) == 3 and len(skips._known) == 1
