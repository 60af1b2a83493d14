from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.base import Unavailable
from bench.peers.programs import find_program, program_version, under_slow_flush


def test_a_server_that_is_not_installed_is_told_apart() -> None:
    with pytest.raises(Unavailable, match="no-such-server-here is not installed"):
        find_program("no-such-server-here")
    with pytest.raises(Unavailable, match="is not installed"):
        program_version("no-such-server-here", "--version")


def test_a_version_is_one_line() -> None:
    assert program_version("python3", "--version").startswith("Python 3")


def test_a_server_that_says_nothing_has_no_version() -> None:
    with pytest.raises(Unavailable, match="true printed no version"):
        program_version("true")


FLUSH_MS = 100  # starting a hundred threads takes a good part of a second on a busy machine
_TIMED = """
import mmap, os, sys, threading, time
from pathlib import Path
from tailrace.shard.files import sync_file_system

fd = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(fd, 4096)

def timed(call, *args):
    began_s = time.monotonic()
    call(*args)
    print(1e3 * (time.monotonic() - began_s))

def several():
    threads = [threading.Thread(target=os.fdatasync, args=(fd,)) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

timed(os.fdatasync, fd)
timed(os.fsync, fd)
timed(sync_file_system, Path(sys.argv[1]))
timed(mapping.flush)
timed(several)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_each_call_that_syncs_takes_as_long_as_a_flush_and_several_take_no_longer(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    command = under_slow_flush([sys.executable, "-c", _TIMED, str(file)], tmp_path, FLUSH_MS)
    ran = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=True)
    *each, several_ms = map(float, ran.stdout.split())
    assert len(each) == 4 and min(each) >= FLUSH_MS
    assert FLUSH_MS <= several_ms < 100 * FLUSH_MS


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no C compiler"):
        under_slow_flush(["true"], tmp_path, 1)


def test_what_cannot_be_compiled_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho this is no C >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(Unavailable, match="this is no C"):
        under_slow_flush(["true"], tmp_path, 1)
