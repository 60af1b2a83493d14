"""What an owner answers to a listing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.broker.streams import listing
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.owner_calls import call
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.listing import StreamRow
from tailrace.shard.frame import IndexEntry
from tailrace.shard.header import HEADER_PAGE_BYTES, parse_index
from tailrace.shard.log import StreamLog
from tailrace.shard.stream_files import stream_paths
from tests.broker.owning import Clock, around, make_owner, publish


def test_names_come_page_by_page(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    for name in (b"b", b"a2", b"!", b"a1", b"a3", b"a1/$dead", b"$cursor/a1", b"a$b"):
        owner.create(name)
    owner.create(b"a2")
    owner.close_logs()
    assert call(owner, "list_names", [b"", b"", 3]) == [b"!", b"a$b", b"a1"]
    assert call(owner, "list_names", [b"", b"a1", 2]) == [b"a2", b"a3"]
    assert call(owner, "list_names", [b"a", b"a2", 2]) == [b"a3"]
    assert call(owner, "list_names", [b"!", b"", 2]) == [b"!"]
    assert call(owner, "list_names", [b"$", b"", 2]) == [b"$cursor/a1"]
    assert call(owner, "list_names", [b"a$", b"", 2]) == [b"a$b"]
    assert call(owner, "list_names", [b"a1/$", b"", 2]) == [b"a1/$dead"]
    assert not owner.catalog.open, "names are listed without opening a stream"
    owner.release()


def test_names_that_were_there_before(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    names = [b"s%d" % number for number in range(100)]
    for name in names:
        owner.create(name)
    owner.release()
    owner = make_owner(tmp_path)
    assert call(owner, "list_names", [b"", b"s5", 100]) == sorted(names)[sorted(names).index(b"s5") + 1 :]
    owner.release()


def id_of(owner: Owner, name: bytes) -> int:
    paths = stream_paths(owner.catalog.shard_path(name), name.decode())
    return parse_index(Path(paths.index_file).read_bytes()[:HEADER_PAGE_BYTES])[0].stream_id


def test_ends_of_streams_that_are_open_or_closed(tmp_path: Path) -> None:
    clock = Clock()
    owner = make_owner(tmp_path, clock)
    for name in (b"closed", b"open", b"left"):
        publish(owner, name, b"1", b"2")
    owner.create(b"empty")
    owner.catalog.open[b"left"].log.abandon()
    del owner.catalog.open[b"left"]
    owner.close_logs()
    publish(owner, b"open", b"3")
    opened = set(owner.catalog.open)
    names = [b"closed", b"empty", b"left", b"none", b"open"]
    now_us = owner.clock_us()
    ids = {name: id_of(owner, name) for name in names if name != b"none"}
    assert len(set(ids.values())) == 4
    assert call(owner, "list_ends", [b"closed", names]) == [
        [b"closed", ids[b"closed"], 0, 0, 2, now_us, 1],
        [b"empty", ids[b"empty"], 0, 0, 0, 0, 0],
        [b"open", ids[b"open"], 0, 0, 3, now_us, 1],
    ]
    assert set(owner.catalog.open) == opened, "nothing is opened for it"
    owner.release()


def test_one_stream_in_numbers(tmp_path: Path) -> None:
    clock = Clock()
    owner = make_owner(tmp_path, clock)
    around(owner).consumer_lag = lambda _name: (2, 3)
    publish(owner, b"s", b"12345")
    clock.now_s += 90
    publish(owner, b"s", b"1234567", b"1234567")
    found = StreamRow(*call(owner, "list_stream", [b"s"]))
    assert (found.name, found.role, found.epoch, found.first_seq, found.next_seq) == ("s", "master", 1, 0, 3)
    assert (found.content_bytes, found.minute_messages, found.minute_bytes) == (3 * 32 + 19, 2, 2 * 32 + 14)
    assert found.last_timestamp_us - found.first_timestamp_us == 90_000_000
    assert (found.consumers, found.consumer_lag_messages, found.lag_messages) == (2, 3, 0)
    assert found.disk_bytes > 0
    owner.release()


def test_an_empty_stream_and_a_damaged_one(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    call(owner, "master", [b"empty"])
    publish(owner, b"torn", b"a", b"b")
    paths = stream_paths(owner.catalog.shard_path(b"torn"), "torn")
    os.truncate(paths.index_file, HEADER_PAGE_BYTES)
    empty, torn = [StreamRow(*call(owner, "list_stream", [name])) for name in (b"empty", b"torn")]
    assert (empty.name, empty.next_seq, empty.content_bytes, empty.last_timestamp_us) == ("empty", 0, 0, 0)
    assert (torn.name, torn.role, torn.next_seq) == ("torn", listing.DAMAGED, 0)
    owner.release()


def test_a_stream_whose_end_is_set_aside_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread does that. A request that looks at the stream in the same moment must not end the worker."""
    owner = make_owner(tmp_path)
    seq_at, entry = StreamLog.seq_at, StreamLog.entry

    def cut(log: StreamLog) -> None:
        log.set_aside(0)

    def seq_at_of_cut(log: StreamLog, timestamp_us: int, skip: int = 0) -> int:
        found = seq_at(log, timestamp_us, skip)
        cut(log)
        return found

    def entry_of_cut(log: StreamLog, seq: int) -> IndexEntry:
        cut(log)
        return entry(log, seq)

    publish(owner, b"s", b"12345")
    with monkeypatch.context() as patch:
        patch.setattr(StreamLog, "seq_at", seq_at_of_cut)
        found = StreamRow(*call(owner, "list_stream", [b"s"]))
    assert (found.role, found.content_bytes, found.first_timestamp_us) == ("master", 0, 0)
    publish(owner, b"s", b"12345")
    monkeypatch.setattr(StreamLog, "entry", entry_of_cut)
    with pytest.raises(Refused) as caught:
        call(owner, "stat", [b"s"])
    assert caught.value.code is Code.UNAVAILABLE
    owner.release()
