from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.header import INDEX_BOOT, INDEX_SYNCED_SEQ
from tailrace.shard.sync_marks import mark_closed_synced, publish_synced_word
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, cut, filled, flip, open_log


def test_a_closed_stream_is_marked(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    assert mark_closed_synced(tmp_path, NAME, boot_id=BOOT)
    assert mark_closed_synced(tmp_path, NAME, boot_id=BOOT)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.synced_seq, log.next_seq) == (5, 5)
    log.close()


def test_a_stream_that_is_open_or_of_another_boot_or_damaged_or_gone_is_not(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    assert not mark_closed_synced(tmp_path, NAME, boot_id=LATER_BOOT)
    assert not mark_closed_synced(tmp_path, "gone", boot_id=BOOT)
    log = open_log(tmp_path)
    append(log, b"more")
    assert not mark_closed_synced(tmp_path, NAME, boot_id=BOOT)
    log.close()
    flip(paths.index_file, 8 * INDEX_BOOT)
    assert not mark_closed_synced(tmp_path, NAME, boot_id=BOOT)
    cut(paths.index_file, 100)
    assert not mark_closed_synced(tmp_path, NAME, boot_id=BOOT)


def test_the_word_never_goes_back_and_a_damaged_one_stays(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    fd = os.open(paths.index_file, os.O_RDWR)
    assert publish_synced_word(fd, 4)
    assert publish_synced_word(fd, 3)
    log = open_log(tmp_path)
    assert log.synced_seq == 4
    log.close()
    flip(paths.index_file, 8 * INDEX_SYNCED_SEQ)
    assert not publish_synced_word(fd, 5)
    os.close(fd)


@pytest.mark.parametrize("count", [0, 1])
def test_marking_costs_no_mapping_and_no_descriptor(tmp_path: Path, count: int) -> None:
    filled(tmp_path, count)
    before = len(os.listdir("/proc/self/fd"))
    assert mark_closed_synced(tmp_path, NAME, boot_id=BOOT)
    assert len(os.listdir("/proc/self/fd")) == before
