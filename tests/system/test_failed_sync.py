"""A disk fails some writes and recovers: messages acknowledged afterwards are on it, also if the worker died."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.shard.directory import open_data_dir
from tailrace.shard.log import StreamLog
from tests.system.fuse_disk import FaultyDisk, faulty_disk, own_mounts
from tests.system.mounts import CannotMount
from tests.system.node import LineClient, Node, running, wait_for
from tests.system.processes import alive, all_workers

pytestmark = pytest.mark.system

MESSAGES = 20
MARKER = b"does not reach the disk at first"
CONFIG = """
[limits]
max_open_streams = 8
[[stream]]
pattern = "*"
durability = "always"
"""
SHUTDOWN, WITHOUT_LOG_FLUSH = 0x8004587D, 2  # of ext4 and XFS: data not on the disk by now are lost


def payload(number: int) -> bytes:
    """Longer than a page, so that no later message makes all of its pages dirty again."""
    return MARKER * 300 + b"%d" % number


def publish(client: LineClient, stream: str, data: bytes) -> int | None:
    """The seq, None if it was refused."""
    answer = client.ask(b"pub %s |%s" % (stream.encode(), data))
    if answer.startswith("ok pub"):
        return int(answer.split()[-1])
    assert answer.startswith("err unavailable"), answer
    return None


def fail_some(node: Node, disk: FaultyDisk, stream: str) -> None:
    """Publishes that the disk refuses."""
    with node.client() as client:
        client.ask("ack on")
        assert publish(client, stream, b"on the disk") == 0
        disk.set(fail_marker=MARKER)
        assert [publish(client, stream, payload(number)) for number in range(3)] == [None] * 3
        assert any(line.split() == ["sync_failed_seq", "1"] for line in client.ask_table(f"stat {stream}"))
        wait_for(lambda: node.metric("tailrace_sync_failed_streams") == 1, "the metrics show the stream")
        assert node.metric("tailrace_sync_failures_total") >= 1
        disk.set()


def acknowledged(node: Node, stream: str) -> dict[int, bytes]:
    """Publishes until `count` are acknowledged; by seq."""
    found: dict[int, bytes] = {}
    with node.client() as client:
        client.ask("ack on")
        deadline_s = time.monotonic() + 30
        while len(found) < MESSAGES:
            assert time.monotonic() < deadline_s, f"{len(found)} were acknowledged"
            data = payload(100 + len(found))
            seq = publish(client, stream, data)
            if seq is None:
                time.sleep(0.05)
            else:
                found[seq] = data
    return found


def lose_power(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
    finally:
        os.close(fd)


def messages_after_boot(data: Path, stream: str) -> dict[int, bytes]:
    """What the next boot of the machine finds."""
    directory = open_data_dir(data)
    path = directory.shard_path(directory.shard_of(stream))
    log = StreamLog.open(path, stream, create=False, boot_id="the next boot")
    try:
        found = {}
        for run in log.walk(0):
            frames = bytes(run.frames)
            for seq in range(run.seq, run.seq + run.messages):
                length = int.from_bytes(frames[:4], "little")
                found[seq], frames = frames[32:length], frames[length:]
        return found
    finally:
        log.close()


def go_on(node: Node) -> None:
    """The same worker has the stream open all along."""


def kill_workers(node: Node) -> None:
    for pid in all_workers(node):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: not alive(pid), "the worker is dead")  # type: ignore[misc]
    node.wait_ready()


def reload(node: Node) -> None:
    before = all_workers(node)
    node.signal(signal.SIGHUP)
    wait_for(lambda: (now := all_workers(node)) and not now & before, "all workers are new")
    node.wait_ready()


def use_others(node: Node) -> None:
    """Use enough other streams that this one is closed."""
    with node.client() as client:
        client.ask("ack on")
        for number in range(20):
            assert client.ask(f"pub other{number} |message").startswith("ok pub")


def restart(node: Node) -> None:
    assert node.stop() == 0, node.log()
    node.start()


def test_nothing_that_is_acknowledged_after_a_failed_sync_is_lost(tmp_path: Path) -> None:
    try:
        with own_mounts(), faulty_disk(tmp_path, "ext4", 64 << 20) as disk:
            (disk.path / "data").mkdir()
            data = tmp_path / "data"
            data.symlink_to(disk.path / "data")  # the node's own log stands beside it, on a disk that works
            with running(data, workers=1, config=CONFIG) as node:
                found = {then.__name__: after_failure(node, disk, then) for then in THEN}
                node.kill()
                lose_power(disk.path)
                disk.remount()
                for stream, messages in found.items():
                    after = messages_after_boot(data, stream)
                    assert {seq: after.get(seq) for seq in messages} == messages, stream
                node.start()
    except CannotMount as error:
        pytest.skip(str(error))


def after_failure(node: Node, disk: FaultyDisk, then: Callable[[Node], None]) -> dict[int, bytes]:
    """The acknowledged messages of a stream after a failed sync and the event `then`."""
    stream = then.__name__
    fail_some(node, disk, stream)
    then(node)
    found = acknowledged(node, stream)
    wait_for(lambda: node.metric("tailrace_sync_failed_streams") == 0, "the metrics show it mended")
    with node.client() as client:
        assert not any("sync_failed_seq" in line for line in client.ask_table(f"stat {stream}"))
    return found


@pytest.mark.thorough
@pytest.mark.slow
def test_what_only_the_journal_has_survives_failed_syncs_of_the_streams_files(tmp_path: Path) -> None:
    try:
        with own_mounts(), faulty_disk(tmp_path, "ext4", 64 << 20) as disk:
            (disk.path / "data").mkdir()
            data = tmp_path / "data"
            data.symlink_to(disk.path / "data")
            with running(data, workers=1, config=CONFIG.replace("= 8", "= 16")) as node:
                found: dict[str, dict[int, bytes]] = {}
                for then in (kill_workers, use_others, no_more):
                    streams = [f"{then.__name__}{number}" for number in range(8)]
                    found |= journaled(node, disk, streams)
                    then(node)
                    if then is not no_more:
                        disk.set()
                        wait_for(lambda: node.metric("tailrace_sync_failed_streams") == 0, "they are mended")
                node.kill()
                lose_power(disk.path)
                disk.set()
                disk.remount()
                node.start()
                for stream, messages in found.items():
                    after = messages_after_boot(data, stream)
                    assert {seq: after.get(seq) for seq in messages} == messages, stream
    except CannotMount as error:
        pytest.skip(str(error))


def no_more(node: Node) -> None:
    """The disk refuses the streams' files until the power is lost."""


def journaled(node: Node, disk: FaultyDisk, streams: list[str]) -> dict[str, dict[int, bytes]]:
    """Acknowledged messages of these streams, of which the disk has refused to write some to the streams' own files."""
    found: dict[str, dict[int, bytes]] = {stream: {} for stream in streams}
    deadline_s = time.monotonic() + 60
    with node.client() as client:
        client.ask("ack on")
        while True:
            assert time.monotonic() < deadline_s, "the disk has refused nothing"
            data = payload(sum(map(len, found.values())))
            before = len(client.answers)
            client.send(*(b"pub %s |%s" % (stream.encode(), data) for stream in streams))
            client.read_answers(before + len(streams))
            disk.set(fail_marker=MARKER)
            for answer in client.answers[before:]:
                if answer.startswith("ok pub"):
                    _ok, _pub, stream, seq = answer.split()
                    found[stream][int(seq)] = data
                else:
                    assert answer.startswith("err unavailable"), answer
                    print(answer)
            for _ in range(20):  # the files are synced within this time, or that fails
                time.sleep(0.1)
                if node.metric("tailrace_sync_failed_streams"):
                    return found
            disk.set()


THEN = (go_on, kill_workers, reload, use_others, restart)
