"""A log of records: refusals, and the times of trims."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.streams.record_log import RecordLog
from tailrace.broker.streams.refused import Refused
from tailrace.shard.frame import pack_frame
from tests.broker.owning import make_owner


def test_records_are_appended_and_trimmed_once_those_behind_them_are_on_the_disk(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    log = RecordLog(owner, b"$own/log")
    with pytest.raises(Refused):
        log.append_records([pack_frame(b"x")], 0.0)
    owner.create(b"$own/log", by_command=True)
    assert [log.append_records([pack_frame(b"x")] * 2, 0.0), log.append_records([pack_frame(b"y")], 0.0)] == [0, 2]
    log.trim_later(2, 0.0)
    log.trim()
    assert log.stream().log.first_seq == 0
    log.stream().log.sync()
    log.trim()
    assert log.stream().log.first_seq == 2
