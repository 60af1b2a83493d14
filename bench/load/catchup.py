"""Filling an empty slave: from the word to follow until it holds what its master has."""

from __future__ import annotations

from pathlib import Path

from bench.load.dial import dialled
from bench.load.ingest import Target
from bench.load.limits import Deadline
from bench.load.meter import Meter, Spent
from bench.peers.base import Step

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


def touch_memory(directory: Path, nbytes: int) -> None:
    """Write a file of so many bytes and remove it: what the next file is kept in has been memory before."""
    path = directory / "touched"
    with path.open("wb") as file:
        for start in range(0, nbytes, len(_BLOCK)):
            file.write(_BLOCK[: nbytes - start])
    path.unlink()
