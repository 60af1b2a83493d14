from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.shard.errors import ShardLocked
from tailrace.shard.lock import DirectoryLock, ShardLock


def test_a_second_holder_is_told_the_first_ones_pid(tmp_path: Path) -> None:
    with ShardLock(tmp_path) as held:
        assert held.held
        held.acquire()
        with pytest.raises(ShardLocked) as caught:
            ShardLock(tmp_path).acquire()
    assert caught.value.holder_pid == os.getpid()
    with DirectoryLock(tmp_path) as again:
        assert again.held
    again.release()


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from tailrace.shard.lock import ShardLock\n"
        f"ShardLock(Path({str(tmp_path)!r})).acquire(); os._exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
    ShardLock(tmp_path).acquire()


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom tailrace.shard.errors import ShardLocked\n"
        "from tailrace.shard.lock import ShardLock\n"
        f"try: ShardLock(Path({str(tmp_path)!r})).acquire()\n"
        "except ShardLocked as error: print(error.holder_pid)"
    )
    with ShardLock(tmp_path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(os.getpid())


def test_an_unknown_holder_is_pid_0(tmp_path: Path) -> None:
    with ShardLock(tmp_path):
        (tmp_path / "LOCK").write_text("")
        with pytest.raises(ShardLocked, match="locked by another process"):
            ShardLock(tmp_path).acquire()


def test_a_full_disk_does_not_keep_the_lock_from_holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", full)
    with ShardLock(tmp_path) as lock:
        assert lock.held


def test_a_missing_directory_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ShardLock(tmp_path / "missing").acquire()
