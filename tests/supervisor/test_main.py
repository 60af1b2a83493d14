"""The start of a node, up to the first fork; the rest is in tests/system."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.broker.access.renewal import PolicyChange, read_change
from tailrace.broker.access.users import User
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.tls_contexts import TLSContexts
from tailrace.shard.errors import DirectoryError, ShardLocked
from tailrace.shard.files import FileSystem
from tailrace.shard.group_journal import JOURNAL_STREAMS_MIN, journal_together
from tailrace.shard.journal import journal_path
from tailrace.shard.journal_writer import JournalWriter
from tailrace.supervisor import main
from tailrace.supervisor.config import ConfigError
from tailrace.supervisor.listeners import CannotListen, open_admin_listener, open_listeners, open_metrics_listener
from tailrace.supervisor.main import (
    EXIT_CANNOT_BIND,
    patiently,
    raise_descriptor_limit,
    remove_old_metric_files,
    serve,
    take_directory,
)
from tests.shard.helpers import append, open_log


def settings_for(data: Path, **rest: object) -> Settings:
    return Settings(data=data, port=0, metrics_port=0, workers=1, **rest)  # type: ignore[arg-type]


def test_a_data_directory_is_made_then_found_and_locked_meanwhile(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "some" / "data", shards=8)
    directory, lock = take_directory(settings)
    assert directory.shards == 8
    with pytest.raises(ShardLocked):
        take_directory(settings)
    lock.release()
    directory, lock = take_directory(replace(settings, shards=64))
    assert directory.shards == 8, "fixed from then on"
    lock.release()


def test_the_journals_of_the_last_run_are_put_back_before_any_worker_starts(tmp_path: Path) -> None:
    directory, lock = take_directory(settings_for(tmp_path))
    logs = [open_log(directory.stream_directory(f"s{number}"), f"s{number}") for number in range(JOURNAL_STREAMS_MIN)]
    for log in logs:
        append(log, b"first")
        log.sync()
        append(log, b"second")
    journal = JournalWriter(journal_path(directory.path, 7))
    journal.open(FileSystem(directory.path))
    assert journal_together(logs, journal) == set(logs)
    journal.close()
    content = Path(logs[0]._pair.paths.content_file)
    whole, start = content.read_bytes(), logs[0].entry(1).offset
    for log in logs:
        log.abandon()
    os.truncate(content, start)
    lock.release()
    _directory, lock = take_directory(settings_for(tmp_path))
    assert content.read_bytes() == whole
    assert not journal.path.exists()
    lock.release()


HOLDS_ON = """
import os, sys, time
from pathlib import Path
from tailrace.shard.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
if os.fork():
    os._exit(0)
time.sleep(0.3)
"""


def test_the_workers_of_a_killed_supervisor_are_waited_for(tmp_path: Path) -> None:
    """They have its lock with the descriptors that they were born with, until they end."""
    subprocess.run([sys.executable, "-c", HOLDS_ON, str(tmp_path)], check=True)
    _directory, lock = take_directory(settings_for(tmp_path))
    lock.release()


def test_a_directory_that_cannot_be_used_is_not_left_locked(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"format": 99}))
    for _ in range(2):
        with pytest.raises(DirectoryError):
            take_directory(settings_for(tmp_path))


def test_exit_codes_before_anything_is_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    _directory, lock = take_directory(settings_for(data))
    assert serve(settings_for(data)) == 3
    lock.release()
    (tmp_path / "file").touch()
    assert serve(settings_for(tmp_path / "file")) == 5
    assert "another node runs on this data directory" in caplog.text
    assert "cannot use the data directory" in caplog.text


@pytest.mark.parametrize("below", ["", "below"])
def test_what_is_in_the_place_of_the_data_directory_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, below: str
) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    for name, text in (
        ("dangling", f"dangling: a symbolic link to {tmp_path / 'gone'}, which does not exist"),
        ("loop", "loop: a loop of symbolic links"),
        ("file", "file: not a directory"),
    ):
        assert serve(settings_for(tmp_path / name / below)) == 5
        assert caplog.records[-1].message == f"cannot use the data directory: {tmp_path}/{text}"


def test_a_taken_port_ends_the_start_and_frees_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "BIND_PATIENCE_S", 0.0)
    settings = settings_for(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(replace(settings, port=port)) == EXIT_CANNOT_BIND
        assert serve(replace(settings, metrics_port=port)) == EXIT_CANNOT_BIND
    assert caplog.text.count("Address already in use") == 2 and "for metrics" in caplog.text
    _directory, lock = take_directory(settings)
    lock.release()


def test_a_port_that_is_being_freed_is_waited_for() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    threading.Timer(0.1, taken.close).start()
    (listener,) = patiently(lambda: open_listeners("127.0.0.1", port, 1))
    assert listener.getsockname()[1] == port
    listener.close()


def test_a_socket_of_administration_that_is_being_freed_is_waited_for(tmp_path: Path) -> None:
    """The workers of a node whose supervisor was killed hold it until they have ended."""
    settings = settings_for(tmp_path)
    directory, lock = take_directory(settings)
    taken = open_admin_listener(main.admin_path(settings, directory.path))
    threading.Timer(0.1, taken.close).start()
    node = main.NodeState(settings, TLSContexts(), directory, lock)
    assert node.admin_listener is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(node.admin_path))
    node.close()


def test_what_waiting_does_not_help_is_told_at_once() -> None:
    began_s = time.monotonic()
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1 port 0 for metrics"):
        patiently(lambda: open_metrics_listener("192.0.2.1", 0))
    assert time.monotonic() - began_s < main.BIND_PATIENCE_S


class Crew:
    """Keeps the messages sent to all workers."""

    def __init__(self) -> None:
        self.changes: list[PolicyChange] = []

    def send_all(self, kind: str, fds: tuple[int, ...]) -> None:
        assert kind == "rights"
        self.changes.append(read_change(os.dup(fds[0])))


CREW: Any = Crew()


def test_a_reload_sends_the_workers_what_it_changes_in_the_rights(tmp_path: Path) -> None:
    ann, bob, new = (User(name, token_hashes=(name.encode() * 32,)) for name in ("a", "b", "c"))
    settings = replace(settings_for(tmp_path), users=(ann, bob))
    node, crew = node_with(settings), Crew()
    assert main._reload(node, lambda: replace(settings, max_streams=7), crew)  # type: ignore[arg-type]
    assert not crew.changes
    changed, before = replace(ann, groups=frozenset({"ops"})), len(os.listdir("/proc/self/fd"))
    fresh = replace(settings, users=(changed, new), allow_anonymous=True)
    assert main._reload(node, lambda: fresh, crew)  # type: ignore[arg-type]
    (change,) = crew.changes
    assert (change.changed, change.removed, change.has_users) == ((changed, new), ("b",), True)
    assert change.terms.allow_anonymous and len(os.listdir("/proc/self/fd")) == before


def node_with(settings: Settings) -> main.NodeState:
    return SimpleNamespace(settings=settings, make_memory=lambda _settings: None)  # type: ignore[return-value]


def test_a_reload_without_a_place_for_streams_in_memory_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(tmp_path)
    node: Any = node_with(settings)

    def fail(_settings: Settings) -> None:
        raise DirectoryError(tmp_path, "needs a file system of another kind")

    node.make_memory = fail
    assert not main._reload(node, lambda: replace(settings, max_message_bytes=5), CREW)
    assert node.settings is settings and "needs a file system" in caplog.text


def test_a_reload_changes_what_can_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = settings_for(tmp_path)
    node = node_with(settings)
    assert main._reload(node, None, CREW)
    assert node.settings is settings
    assert main._reload(node, lambda: replace(settings, max_message_bytes=5, port=77, workers=9), CREW)
    assert node.settings.max_message_bytes == 5
    assert "change only with a restart: workers, port" in caplog.text


def test_a_wrong_configuration_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_for(tmp_path)
    node = node_with(settings)

    def wrong() -> Settings:
        raise ConfigError([])

    assert not main._reload(node, wrong, CREW)
    assert node.settings is settings and "keeping the configuration as it was" in caplog.text


def test_all_descriptors_that_the_system_grants_are_used() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("limit", "wanted", "taken"),
    [
        (1_024, 1_024, 64),
        (1_024, 50, 50),
        (64, 1_024, 8),
        (1 << 20, 1_024, 1_024),
        (resource.RLIM_INFINITY, 9_999, 9_999),
    ],
)
def test_open_streams_leave_descriptors_for_connections(
    limit: int, wanted: int, taken: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (limit, limit))
    assert main.fit_open_streams(Settings(max_open_streams=wanted)).max_open_streams == taken
    assert (f"max_open_streams is taken as {taken} instead of {wanted}" in caplog.text) is (taken != wanted)


def test_metric_files_of_earlier_versions_are_removed(tmp_path: Path) -> None:
    def leave(name: str) -> Path:
        path = tmp_path / name
        path.mkdir()
        for file in ("node.lock", "lane_0.0.lock", "counter_0.0.db", "gauge_livesum_0.0.db"):
            (path / file).write_bytes(b"old")
        return path

    mine = f"tailrace-{os.getuid()}-"
    left, used, other, kept = leave(f"{mine}12ab"), leave(f"{mine}used"), leave("tailrace-x-1"), leave(f"{mine}more")
    (kept / "precious").touch()
    (tmp_path / f"{mine}link").symlink_to(other)
    (tmp_path / f"{mine}data").mkdir()
    with (used / "node.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_old_metric_files([tmp_path, tmp_path / "nothing", tmp_path])
    assert not left.exists()
    assert [len(list(path.iterdir())) for path in (used, other, kept)] == [4, 4, 1]
    assert (tmp_path / f"{mine}data").is_dir()
