"""What several system tests need besides a node: streams by their owner, workers' memory, a real text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import count, islice
from pathlib import Path

import psutil

from tailrace.shard.names import shard_of
from tests.system.node import Node
from tests.system.nursery import begin_command

SHARDS = 64
TEXT_LINES = 25_000  # many times what sockets and pipes hold
# Texts that Debian installs, some of them with letters beyond ASCII; python's own sources make up the rest.
TEXT_FILES = (
    ("/usr/share/zoneinfo", "*.tab"),
    ("/usr/share/common-licenses", "*"),
    ("/usr/share/perl", "*/unicore/*.txt"),
    (os.path.dirname(os.__file__), "*.py"),
    (os.path.dirname(os.__file__), "*/*.py"),
)


def owner_of(name: str, workers: int) -> int:
    """The worker slot that owns a stream."""
    return shard_of(name.encode(), SHARDS) % workers


def names_of(slot: int, workers: int, how_many: int, prefix: str = "s") -> list[str]:
    """The first names `prefix`0, `prefix`1, ... of streams that this slot owns."""
    numbered = (f"{prefix}{number}" for number in count())
    return list(islice((name for name in numbered if owner_of(name, workers) == slot), how_many))


def name_of(slot: int, workers: int, prefix: str) -> str:
    return names_of(slot, workers, 1, prefix)[0]


def rss_bytes(pids: list[int]) -> int:
    """What these processes hold in memory, pages they share counted once for each."""
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids)


def lives(node: Node) -> tuple[list[int], list[str]]:
    """What stays the same as long as no worker ends: process ids, restarts."""
    rows = node.workers()
    return [int(row["pid"]) for row in rows], [row["restarts"] for row in rows]


def tailrace(node: Node, command: str, *words: str) -> list[str]:
    """The command line of `tailrace COMMAND WORDS` against this node."""
    return [sys.executable, "-m", "tailrace.cli.main", command, "--server", f"127.0.0.1:{node.port}", *words]


def run_tailrace(node: Node, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    _python, _m, _main, *arguments = tailrace(node, *words)
    with begin_command(arguments, os.environ, Path.cwd()) as process:
        try:
            out, errors = process.communicate(given, 60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


@cache
def real_text() -> bytes:
    """TEXT_LINES lines of text that people wrote, each with its line feed; the same at every call on one machine."""
    lines = list(islice(_lines(), TEXT_LINES))
    assert len(lines) == TEXT_LINES
    return b"\n".join(lines) + b"\n"


def _lines() -> Iterator[bytes]:
    for folder, pattern in TEXT_FILES:
        for path in sorted(Path(folder).glob(pattern)):
            if path.is_file():
                yield from path.read_bytes().removesuffix(b"\n").split(b"\n")
