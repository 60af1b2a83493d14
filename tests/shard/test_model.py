"""A log and its readers against a list: after any append, take, trim, tail set aside, crash and mend, both agree.

A crash of the process leaves the files as they are, perhaps with a batch that was never committed. A crash of the
machine leaves the synced bytes, and any part of the rest: here, some first frames of it, then zeros or garbage, an
index past the synced seq that is worth nothing, and header pages of now or of the last sync.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tailrace.shard import window
from tailrace.shard.check import check_stream
from tailrace.shard.errors import StreamCut
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.mend import rebuild_index
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import NAME, Message, batch, messages_of, open_log, overwrite
from tests.thorough import examples

stamp = load("tailrace.shard.frame_cy").stamp
payload = st.binary(max_size=40) | st.integers(0, 9_000).map(lambda size: b"x" * size)
payloads_of = st.lists(payload, min_size=1, max_size=8)


class LogMachine(RuleBasedStateMachine):
    log: StreamLog
    reader: StreamReader

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tailrace-model-"))
        self.content, self.index = (self.directory / (NAME + suffix) for suffix in (".content", ".indx"))
        self.boots = 0
        self.messages: list[Message] = []  # of all time; trimmed ones stay
        self.first_seq = self.synced_seq = self.first_in_file = 0
        self.tails: list[list[Message]] = []
        self.disk_pages: tuple[bytes, bytes] | None = None  # both header pages at the last sync
        self.disk_first_seq = 0

    @property
    def boot(self) -> str:
        return f"boot {self.boots}"

    @property
    def last(self) -> Message:
        """The message that the files end with; one before the first if they have none."""
        return self.messages[-1] if len(self.messages) > self.first_in_file else Message(0, 0, 1, b"")

    @initialize()
    def begin(self) -> None:
        self.log = open_log(self.directory, boot=self.boot)
        self.reader = self.open_reader()

    def open_reader(self) -> StreamReader:
        return StreamReader.open(self.directory, NAME, boot_id=self.boot)

    def reopen(self, *, check_bytes: int = 64 * 1024) -> None:
        self.log = open_log(self.directory, boot=self.boot, create=False, check_bytes=check_bytes)

    @rule(payloads=payloads_of, now_us=st.integers(0, 50), epoch=st.integers(1, 5))
    def append(self, payloads: list[bytes], now_us: int, epoch: int) -> None:
        at, epoch = max(now_us, self.last.timestamp_us), max(epoch, self.last.epoch)
        first = self.log.append(batch(payloads), len(payloads), now_us, epoch)
        assert first == len(self.messages)
        self.messages += [Message(first + i, at, epoch, payload) for i, payload in enumerate(payloads)]

    @rule(count=st.integers(1, 900))
    def append_many(self, count: int) -> None:
        self.append([b"%d" % i for i in range(count)], 0, 1)

    @rule(payloads=payloads_of, at=st.integers(0, 50), epoch=st.integers(1, 5))
    def take(self, payloads: list[bytes], at: int, epoch: int) -> None:
        """From a master whose log is the list."""
        frames, first = batch(payloads), len(self.messages)
        at, epoch = max(at, self.last.timestamp_us), max(epoch, self.last.epoch)
        stamp(frames, first, at, epoch, 0)
        assert self.log.take(frames) == len(payloads)
        self.messages += [Message(first + i, at, epoch, payload) for i, payload in enumerate(payloads)]

    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, len(self.messages)))
        if seq == len(self.messages):
            assert self.log.set_aside(seq) is None
            return
        tail = self.messages[max(seq, self.first_seq) :]
        assert bool(self.log.set_aside(seq)) == bool(tail)
        if tail and self.tails[-1:] != [tail]:  # the very bytes are kept once
            self.tails.append(tail)
        del self.messages[seq:]
        if seq <= self.first_seq:
            self.first_seq = self.first_in_file = seq
        with pytest.raises(StreamCut):
            self.reader.next_seq()
        self.reader.close()
        self.reader = self.open_reader()
        self.synced_seq = seq
        self.capture_disk()

    @rule()
    def sync(self) -> None:
        self.capture_disk()
        assert self.log.sync() == len(self.messages)
        self.synced_seq = len(self.messages)

    def capture_disk(self) -> None:
        """The header pages on the disk with everything but the synced seq itself."""
        pages = [file.read_bytes()[:HEADER_PAGE_BYTES] for file in (self.content, self.index)]
        self.disk_pages, self.disk_first_seq = (pages[0], pages[1]), self.first_seq

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, len(self.messages)))
        self.log.trim(seq)
        self.first_seq = max(self.first_seq, seq)

    @rule()
    def punch(self) -> None:
        self.sync()
        self.capture_disk()
        self.log.punch(self.first_seq)

    @rule(check_bytes=st.sampled_from([0, 64 * 1024]))
    def reopen_clean(self, check_bytes: int) -> None:
        self.log.close()
        assert self.content.stat().st_size == self.log.end_offset
        self.reopen(check_bytes=check_bytes)

    @rule(ghosts=payloads_of)
    def kill_the_process(self, ghosts: list[bytes]) -> None:
        """In the middle of an append, before its commit."""
        end = self.log.end_offset
        self.log.abandon()
        with open(self.content, "r+b") as file:
            file.seek(end)
            file.write(batch(ghosts))
        self.reopen()

    @rule(data=st.data(), headers_of_last_sync=st.booleans(), closed=st.booleans())
    def crash_the_machine(self, data: st.DataObject, headers_of_last_sync: bool, closed: bool) -> None:
        left = data.draw(st.integers(self.synced_seq, len(self.messages)), label="frames left")
        torn = data.draw(st.sampled_from([b"\0", b"\xa5", b"\0\0\0\0\xff"]), label="torn")
        start = self.end_of(left)
        size = self.log.end_offset - start
        if closed:
            self.log.close()
        else:
            self.log.abandon()
        if size:
            overwrite(self.content, start, (torn * size)[:size])
        self.garble_index()
        if headers_of_last_sync and self.disk_pages is not None:
            overwrite(self.content, 0, self.disk_pages[0])
            overwrite(self.index, 0, self.disk_pages[1])
            self.first_seq = self.disk_first_seq
        self.boots += 1
        del self.messages[left:]
        self.first_seq = min(self.first_seq, left)
        self.reader.close()
        self.reader = self.open_reader()
        assert self.reader.next_seq() <= left
        self.reopen()
        self.disk_pages = None

    def end_of(self, seq: int) -> int:
        """The offset of message `seq` in the content, existing or not."""
        return self.reader.offset_of(seq) if seq >= self.first_seq else self.seek(seq)

    def seek(self, seq: int) -> int:
        kept = self.messages[self.first_in_file : seq]
        return HEADER_PAGE_BYTES + sum(32 + len(message.payload) for message in kept)

    def garble_index(self) -> None:
        """Past the synced seq the index on the disk is not evidence."""
        place = HEADER_PAGE_BYTES + 24 * (self.synced_seq - self.base_seq)
        size = self.index.stat().st_size
        if size > place:
            overwrite(self.index, place, os.urandom(size - place))

    @property
    def base_seq(self) -> int:
        return self.log._base_seq

    @rule()
    def lose_the_index(self) -> None:
        self.log.close()
        self.reader.close()
        self.index.unlink()
        mended = rebuild_index(self.directory, NAME, boot_id=self.boot)
        assert (mended.next_seq, mended.cut_bytes) == (len(self.messages), 0)
        self.synced_seq = len(self.messages)
        self.reopen()
        self.reader = self.open_reader()
        self.capture_disk()

    @rule(at=st.integers(0, 60), skip=st.integers(0, 10))
    def find_a_time(self, at: int, skip: int) -> None:
        kept = self.messages[self.first_seq :]
        first = next((message.seq for message in kept if message.timestamp_us >= at), len(self.messages))
        same = sum(message.timestamp_us == at for message in kept)
        expected = first + min(skip, same)
        assert self.log.seq_at(at, skip) == self.reader.seq_at(at, skip) == expected

    @rule()
    def check(self) -> None:
        report = check_stream(self.directory, NAME, boot_id=self.boot)
        assert report.ok, report.faults
        assert report.messages == len(self.messages) - self.first_seq
        ends = [(tail[0].seq, tail[-1].seq + 1, tail[0].epoch, tail[-1].epoch) for tail in self.tails]
        assert [kept.tail[:4] for kept in report.diverged] == ends

    @rule()
    def read(self) -> None:
        assert messages_of(self.reader) == self.messages[self.first_seq :]

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.first_seq, self.log.next_seq) == (self.first_seq, len(self.messages))
        assert (self.reader.first_seq(), self.reader.next_seq()) == (self.first_seq, len(self.messages))
        assert self.log.synced_seq >= 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.read()
            self.log.close()
            self.reader.close()
        shutil.rmtree(self.directory)


class MappedLogMachine(LogMachine):
    """Every small batch but the first goes through a window, of the smallest size."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(window, "SMALL_APPENDS_MIN", 1)
        self.patch.setattr(window, "CONTENT_WINDOW_BYTES_MIN", 4_096)
        self.patch.setattr(window, "CONTENT_WINDOW_BYTES_MAX", 8_192)
        self.patch.setattr(window, "INDEX_WINDOW_BYTES_MAX", 4_096)

    @rule(sizes=st.lists(st.sampled_from([0, 1, 100, 1_247, 1_248, 1_249]), min_size=1, max_size=40))
    def append_one_by_one(self, sizes: list[int]) -> None:
        for size in sizes:
            self.append([b"y" * size], 0, 1)

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


LogMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestLogAgainstAList = LogMachine.TestCase
MappedLogMachine.TestCase.settings = LogMachine.TestCase.settings
TestMappedLogAgainstAList = MappedLogMachine.TestCase
