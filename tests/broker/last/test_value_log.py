"""`$last/X` as it is appended to and trimmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.last.value_log import ValueLog, frame_in
from tailrace.broker.streams.refused import Refused
from tailrace.shard.frame import pack_frame
from tailrace.shard.meta import Role, StreamMeta, Upstream
from tests.broker.owning import make_owner


@pytest.fixture
def log(tmp_path: Path) -> ValueLog:
    owner = make_owner(tmp_path)
    owner.create(b"$last/s", by_command=True)
    return ValueLog(owner, b"s")


def test_it_is_trimmed_once_what_replaces_the_records_is_on_the_disk(log: ValueLog) -> None:
    frame = pack_frame(b"x")
    assert [log.append([frame, frame], 0.0), log.append([frame], 0.0)] == [0, 2]
    stream = log.stream()
    log.trim_later(2, 5.0)
    log.trim()
    assert stream.log.first_seq == 0 and stream.sync_due_s == 5.0
    log.append([frame], 0.0)
    stream.log.sync()
    log.trim()
    assert stream.log.first_seq == 2


def test_a_record_that_is_appended_again_holds_the_same_frame(log: ValueLog) -> None:
    frame = pack_frame(b"x", metadata=b"\x81\xa1t\xa1a")
    for is_old in (False, True):
        log.append_again([(memoryview(frame), is_old)], 0.0)
    run = next(log.stream().log.walk(0))
    size = len(run.frames) // 2 - 2
    assert frame_in(run.frames[:size]) == frame
    assert frame_in(run.frames[size:]) == frame


def test_nothing_is_written_where_this_node_is_not_the_master(log: ValueLog) -> None:
    owner = log._owner
    owner.close_logs()
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, upstream=Upstream("up", 1, "seq", 0)))
    with pytest.raises(Refused):
        log.append([pack_frame(b"x")], 0.0)
