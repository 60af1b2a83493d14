from __future__ import annotations

from pathlib import Path

from bench.load.durability import disk_sync_s


def test_the_disk_takes_some_time_and_nothing_is_left(tmp_path: Path) -> None:
    assert disk_sync_s(tmp_path, 3) > 0
    assert disk_sync_s(tmp_path, 3, files=20) > 0
    assert not list(tmp_path.iterdir())
