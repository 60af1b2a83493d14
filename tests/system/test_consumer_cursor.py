"""What the state of a durable consumer takes on the disk, and how soon it is there again.

TAILRACE_ACKS=1000000 acknowledges that many messages, each by a request of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import tailrace
from tailrace.protocol.consuming import Get, Got
from tailrace.protocol.features import CONSUMERS
from tailrace.protocol.messages import VERSION, Hello
from tailrace.shard.directory import open_data_dir
from tailrace.shard.names import cursor_name, file_stem
from tailrace.shard.reader import StreamReader
from tests.system.binary_peer import BinaryPeer
from tests.system.node import Node, running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.slow]

ACKS_VARIABLE = "TAILRACE_ACKS"
ACKS = 20_000
HELLO = Hello(VERSION, (CONSUMERS,), "test/1")
AT_ONCE = 200  # requests on their way
CURSOR = cursor_name(b"s").decode()
ON_DISK_MAX_BYTES = 10_000_000
OPENED_MAX_S = 30.0  # generous: a busy machine is not a fault


def disk_bytes(node: Node) -> int:
    """What the cursor's files occupy."""
    directory = open_data_dir(node.data).stream_directory(CURSOR)
    files = list(directory.glob(f"{file_stem(CURSOR)}.*"))
    assert files
    return sum(path.stat().st_blocks * 512 for path in files)


def extent(node: Node) -> tuple[int, int]:
    """first_seq, next_seq"""
    with StreamReader.open(open_data_dir(node.data).stream_directory(CURSOR), CURSOR) as reader:
        return reader.first_seq(), reader.next_seq()


def acknowledge_each(peer: BinaryPeer, count: int) -> None:
    """Each request finishes the message before, and asks for the next."""
    for first in range(0, count, AT_ONCE):
        peer.answers.clear()
        asked = range(first, min(first + AT_ONCE, count))
        peer.say(
            *(Get(seq, b"s", b"c", b"m", ((seq - 1, seq - 1, 1),) if seq else (), max_messages=1) for seq in asked)
        )
        peer.read_until(lambda asked=asked: len(peer.answers) == len(asked))  # type: ignore[misc]
        for answer in peer.answers:
            assert isinstance(answer, Got) and answer.runs == ((answer.id, 1, 0, 1),), answer
    peer.answers.clear()
    peer.say(Get(count, b"s", b"c", b"m", ((count - 1, count - 1, 1),)))
    peer.read_until(lambda: bool(peer.answers))


@pytest.mark.thorough
def test_many_acknowledgements_leave_little(tmp_path: Path) -> None:
    acks = int(os.environ.get(ACKS_VARIABLE) or ACKS)
    with running(tmp_path / "data") as node:
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            with client.batcher("s") as batcher:
                for number in range(acks):
                    batcher.add(b"%d" % number)
            client.create_consumer("s", "c", start=tailrace.START)
            with BinaryPeer(node.port, hello=HELLO) as peer:
                began_s = time.monotonic()
                acknowledge_each(peer, acks)
                took_s = time.monotonic() - began_s
            next_seq = extent(node)[1]
            print(f"{acks:,} acknowledged in {took_s:.1f} s, {next_seq:,} records")
            assert next_seq >= acks, "each was a record"
            wait_for(lambda: extent(node)[0] > acks // 4, "what is before a checkpoint is dropped")
            wait_for(lambda: disk_bytes(node) < ON_DISK_MAX_BYTES, "its place is given back")
            print(f"{disk_bytes(node):,} bytes on the disk")
        node.kill()
        node.start()
        began_s = time.monotonic()
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            (standing,) = client.consumers("s")
        opened_s = time.monotonic() - began_s
        print(f"opened in {opened_s:.2f} s")
        assert (standing.next_seq, standing.lag_messages) == (acks, 0)
        assert opened_s < OPENED_MAX_S
