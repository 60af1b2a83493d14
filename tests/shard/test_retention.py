from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.log import StreamLog
from tailrace.shard.retention import RetentionPolicy, retention_seq
from tests.shard.helpers import append, open_log

NOW_US = 100_000_000


def log_of(directory: Path, count: int = 20) -> StreamLog:
    """Messages one second apart, the last one now; each has 132 bytes."""
    log = open_log(directory)
    for i in range(count):
        append(log, b"x" * 100, at=NOW_US - 1_000_000 * (count - 1 - i))
    return log


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetentionPolicy(), 0),
        (RetentionPolicy(max_age_s=19), 0),
        (RetentionPolicy(max_age_s=18.5), 1),
        (RetentionPolicy(max_age_s=5), 14),
        (RetentionPolicy(max_age_s=0.1), 19),
        (RetentionPolicy(max_bytes=20 * 132), 0),
        (RetentionPolicy(max_bytes=20 * 132 - 1), 1),
        (RetentionPolicy(max_bytes=5 * 132 + 131), 15),
        (RetentionPolicy(max_bytes=131), 20),
        (RetentionPolicy(max_age_s=5, max_bytes=10 * 132), 14),
        (RetentionPolicy(max_age_s=5, max_bytes=3 * 132), 17),
    ],
)
def test_what_may_stay(tmp_path: Path, policy: RetentionPolicy, expected: int) -> None:
    log = log_of(tmp_path)
    assert retention_seq(log, policy, NOW_US) == expected
    log.trim(expected)
    assert retention_seq(log, policy, NOW_US) == expected
    log.close()


def test_everything_grows_old(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    assert retention_seq(log, RetentionPolicy(max_age_s=5), NOW_US + 60_000_000) == 20
    log.trim(20)
    assert retention_seq(log, RetentionPolicy(max_age_s=5, max_bytes=1), NOW_US) == 20
    log.close()


def test_nothing_to_do_costs_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path)
    pread, reads = os.pread, []

    def counted(fd: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert retention_seq(log, RetentionPolicy(max_age_s=60, max_bytes=10_000), NOW_US) == 0
    assert reads == [24]
    assert retention_seq(log, RetentionPolicy(), NOW_US) == 0
    assert reads == [24]
    log.close()
