"""Filling an empty slave: from the word to follow until it holds what its master has."""

from __future__ import annotations

import os
from pathlib import Path

from bench.load.dial import dialled
from bench.load.ingest import Target
from bench.load.limits import Deadline
from bench.load.meter import Meter, Spent
from bench.peers.base import Step
from tailrace.shard.header import HEADER_PAGE_BYTES

_BLOCK = bytes(range(256)) * 4096


def catch_up(target: Target, slave_port: int, name: str, last: list[Step], deadline: Deadline) -> Spent:
    """Let the node on `slave_port` follow the stream at `target`.

    `last` publishes one message more, and is over when the slave holds it, and so all before it: to ask the slave again
    and again how far it is would take of its time.
    """
    follow = Step(b"slave 127.0.0.1 %d %s 0\r\n" % (target.port, name.encode()), b"ok slave")
    meter = Meter(target.pid)
    for port, script in ((slave_port, [follow]), (target.port, last)):
        with dialled(port, [script], deadline):
            pass
    return meter.stop()


def touch_memory(directory: Path, *sizes: int) -> None:
    """Write a file of each of these sizes and remove them: what the next such files are kept in has been memory before.

    They grow side by side, the first by about a chunk at a time and behind a header's page, as a slave's log does: how
    large the pieces are that are written decides from which of the kernel's free memory their pages come.
    """
    paths = [directory / f"touched-{number}" for number in range(len(sizes))]
    fds = [os.open(path, os.O_CREAT | os.O_WRONLY) for path in paths]
    pieces = -(-sizes[0] // len(_BLOCK))
    for piece in range(pieces):
        for fd, size in zip(fds, sizes, strict=True):
            start, end = size * piece // pieces, size * (piece + 1) // pieces
            os.pwrite(fd, memoryview(_BLOCK)[: end - start], HEADER_PAGE_BYTES + start)
    for fd, path in zip(fds, paths, strict=True):
        os.close(fd)
        path.unlink()
