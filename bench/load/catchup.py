"""Filling an empty slave: from the `slave` command until it holds all messages of its master."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from bench.load.base import Load
from bench.load.meter import Spent
from bench.load.sockets import take_steps
from bench.peers.base import BLOCK, RequestStep
from tailrace.shard.header import HEADER_PAGE_BYTES


def catch_up(load: Load, slave_port: int, name: str, last: list[RequestStep]) -> Spent:
    """Let the node on `slave_port` follow the stream of the server.

    `last` publishes one more message, and is over when the slave holds it, and so all before it: to ask the slave again
    and again how far it is would cost some of its time.
    """
    follow = RequestStep(b"slave 127.0.0.1 %d %s 0\r\n" % (load.target.port, name.encode()), b"ok slave")
    meter = load.meter()
    take_steps(slave_port, [follow], load.deadline)
    take_steps(load.target.port, last, load.deadline)
    return meter.stop()


def touch_memory(directory: Path, *sizes: int) -> None:
    """Write a file of each of these sizes and remove them, so that the next such files use memory that was used before.

    They grow side by side, the first by about a chunk at a time and behind a header's page, as a slave's log does: how
    large the pieces are that are written decides from which of the kernel's free memory their pages come.
    """
    paths = [directory / f"touched-{number}" for number in range(len(sizes))]
    pieces = -(-sizes[0] // len(BLOCK))
    with ExitStack() as stack:
        fds = [stack.enter_context(path.open("wb")).fileno() for path in paths]
        for piece in range(pieces):
            for fd, size in zip(fds, sizes, strict=True):
                start, end = size * piece // pieces, size * (piece + 1) // pieces
                os.pwrite(fd, memoryview(BLOCK)[: end - start], HEADER_PAGE_BYTES + start)
    for path in paths:
        path.unlink()
