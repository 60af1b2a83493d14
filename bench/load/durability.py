"""How long the disk takes: until publishes to many streams are acknowledged as synced, and until they are synced."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from socket import socket

from bench.figures import median
from bench.load.base import Load
from bench.load.limits import Deadline, LoadError
from bench.peers.base import RequestStep
from tailrace.shard.directory import open_data_dir
from tailrace.shard.files import sync_file_system
from tailrace.shard.header import INDEX_NEXT_SEQ, INDEX_SYNCED_SEQ, untagged
from tailrace.shard.stream_files import stream_paths

ACKS = RequestStep(b"ack on\r\n", b"ok ack on\r\n")
RECEIVE_BYTES = 1 << 16
_POLL_S = 0.001

assert INDEX_SYNCED_SEQ == INDEX_NEXT_SEQ + 1


def acknowledged(load: Load, names: Sequence[str], rounds: int) -> list[float]:
    """Publish once to each stream, with one `send`; return the seconds until the last acknowledgement of each round.

    The first round, which makes the streams, is left out.
    """
    request = b"".join(load.peer.publish(name, load.payload) for name in names)
    with load.connected([ACKS]) as (sock,):
        sock.setblocking(True)
        return [_round(sock, request, len(names)) for _ in range(rounds + 1)][1:]


def synced(load: Load, data: Path, names: Sequence[str], rounds: int) -> list[float]:
    """Do the same; return the seconds from the `send` until the node has noted all messages as synced."""
    request, seconds = b"".join(load.peer.publish(name, load.payload) for name in names), []
    with load.connected([ACKS]) as (sock,), ExitStack() as files:
        sock.setblocking(True)
        _round(sock, request, len(names))
        indexes = _indexes(data, names)
        for fd in indexes:
            files.callback(os.close, fd)
        _wait_until_synced(indexes, load.deadline)
        for _ in range(rounds):
            began_s = time.perf_counter()
            _round(sock, request, len(names))
            _wait_until_synced(indexes, load.deadline)
            seconds.append(time.perf_counter() - began_s)
    return seconds


def disk_sync_s(directory: Path, rounds: int, files: int = 1) -> float:
    """Return the median time to append a little to each of `files` files and sync them all, in seconds."""
    found = []
    with tempfile.TemporaryDirectory(dir=directory) as folder, ExitStack() as opened:
        grown = [opened.enter_context((Path(folder) / str(each)).open("ab", buffering=0)) for each in range(files)]
        for _ in range(rounds + 1):
            began_s = time.perf_counter()
            for file in grown:
                file.write(bytes(100))
            if files == 1:
                os.fdatasync(grown[0])
            else:
                sync_file_system(directory)
            found.append(time.perf_counter() - began_s)
    return median(found[1:])  # the first makes the files


def _round(sock: socket, request: bytes, answers: int) -> float:
    began_s = time.perf_counter()
    sock.sendall(request)
    while answers > 0:
        data = sock.recv(RECEIVE_BYTES)
        if not data or b"err " in data:
            raise LoadError(f"a publish was not acknowledged: {data[:200]!r}")
        answers -= data.count(b"\n")
    return time.perf_counter() - began_s


def _indexes(data: Path, names: Sequence[str]) -> list[int]:
    directory = open_data_dir(data)
    paths = [stream_paths(directory.shard_path(directory.shard_of(name)), name) for name in names]
    return [os.open(each.index_file, os.O_RDONLY) for each in paths]


def _wait_until_synced(indexes: Sequence[int], deadline: Deadline) -> None:
    left = list(indexes)
    while left := [fd for fd in left if not _is_synced(fd)]:
        deadline.check(f"{len(left)} streams to be synced")
        time.sleep(_POLL_S)


def _is_synced(fd: int) -> bool:
    words = os.pread(fd, 16, 8 * INDEX_NEXT_SEQ)
    next_seq, synced_seq = (untagged(int.from_bytes(words[place : place + 8], "little")) for place in (0, 8))
    return next_seq == synced_seq
