"""Roles on their way to the disk: the loop goes on meanwhile, and nobody is notified of them before they are there."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.broker.replication.roles.role_writer import RoleWriter
from tailrace.broker.streams.syncer import Syncable, SyncJob
from tailrace.shard.meta import Role, read_meta
from tests.broker.world import World, world

PATIENCE_S = 60.0


class Disk:
    """Syncs of files wait until they are let go; with `error` they fail then."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()
        self.error: OSError | None = None
        self.calls = 0

    def sync(self, _path: object) -> None:
        self.calls += 1
        self.asked.set()
        assert self.free.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr("tailrace.shard.files.sync_file", disk.sync)
    yield disk
    disk.free.set()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as node:
        yield node


def turns(node: World, count: int = 5) -> None:
    for _ in range(count):
        node.workers[0].turn()
    for peer in node.peers:
        peer.read()


def until_asked(node: World, disk: Disk) -> None:
    turns(node)
    assert disk.asked.wait(PATIENCE_S)
    disk.asked.clear()


def test_the_loop_goes_on_while_a_role_is_written(node: World, disk: Disk) -> None:
    node.fill("s", [b"a"])
    node.fill("t", [b"a"])
    admin, neighbour = node.connect(), node.connect()
    node.ask(neighbour, "ack on")
    admin.send("unmaster s", "master s", "stat s")
    until_asked(node, disk)
    neighbour.send("pub t |b")
    turns(node)
    assert neighbour.take() == ["ok pub t 1"] and admin.take() == []
    neighbour.send("pub s |b")
    turns(node)
    assert neighbour.take() == [], "nothing is appended before it is known in what term"
    disk.free.set()
    node.settle()
    assert admin.take()[:2] == ["ok unmaster s 1", "ok master s 2"]
    assert neighbour.take() == ["ok pub s 1"]
    stored = read_meta(node.workers[0].owner.catalog.shard_path(b"s"), "s")
    assert (stored.role, stored.epoch) == (Role.MASTER, 2)


def test_a_role_that_cannot_be_written_is_taken_back(node: World, disk: Disk) -> None:
    node.fill("s", [b"a"])
    admin, publisher = node.connect(), node.connect()
    admin.send("unmaster s")
    until_asked(node, disk)
    publisher.send("ack on", "pub s |b")
    turns(node)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    disk.free.set()
    node.settle()
    assert admin.take() == ["err full the role could not be written down: No space left on device"]
    assert publisher.take() == ["ok ack on", "ok pub s 1"]
    directory = node.workers[0].owner.catalog.shard_path(b"s")
    assert read_meta(directory, "s").role is Role.MASTER and not list(directory.glob("*.new"))


def test_a_worker_that_is_replaced_writes_its_roles_first(node: World, disk: Disk) -> None:
    node.fill("s", [b"a"])
    node.connect().send("unmaster s")
    until_asked(node, disk)
    threading.Timer(0.05, disk.free.set).start()
    node.workers[0]._retire()
    assert read_meta(node.directory.stream_directory("s"), "s").role is Role.DISABLED


# --- by itself --------------------------------------------------------------------------------------------------------


class Helper:
    def __init__(self) -> None:
        self.jobs: list[tuple[Syncable, Callable[[], None]]] = []

    def request(self, target: Syncable, token: object) -> None:
        assert isinstance(token, SyncJob)
        self.jobs.append((target, token.done))

    def work(self) -> None:
        target, done = self.jobs.pop(0)
        target.sync()
        done()


def test_what_comes_while_files_are_under_way_goes_together(tmp_path: Path) -> None:
    helper, heard = Helper(), list[str]()
    writer = RoleWriter(helper.request)
    writer.when_written(lambda _error: heard.append("nothing"))
    assert heard == ["nothing"] and not writer.pending
    one, two = tmp_path / "one", tmp_path / "two"
    writer.replace(one, b"1")
    writer.when_written(lambda error: heard.append(f"one {error}"))
    writer.flush()
    writer.flush()
    for content in (b"2", b"3"):
        writer.replace(one, content)
        writer.replace(two, content)
    writer.when_written(lambda error: heard.append(f"two {error}"))
    writer.flush()
    assert len(helper.jobs) == 1
    helper.work()
    assert heard[1:] == ["one None"] and one.read_bytes() == b"1" and len(helper.jobs) == 1
    writer.when_written(lambda error: heard.append(f"both {error}"))
    writer.remove(two)
    helper.work()
    assert heard[2:] == ["two None", "both None"] and (one.read_bytes(), two.read_bytes()) == (b"3", b"3")
    writer.flush()
    helper.work()
    assert not two.exists() and not writer.pending
