from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from tailrace.broker.streams.full_disk import INTERVAL_S, FullDiskLog
from tailrace.shard.errors import StorageFull


def test_one_warning_a_minute_tells_stream_and_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    full_disk = FullDiskLog(tmp_path)
    full = StorageFull("orders", tmp_path / "orders.content", 164)
    for _ in range(5):
        full_disk.note(full)
    now_s += INTERVAL_S
    full_disk.note(full)
    first, second = caplog.records
    assert first.levelno == logging.WARNING
    assert "164 more bytes of stream 'orders'" in first.message and "bytes are free" in first.message
    assert "4 more of these were not logged" in second.message


def test_a_disk_that_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FullDiskLog(tmp_path / "gone").note(StorageFull("orders", tmp_path, 1))
    assert "its space is not known" in caplog.text
