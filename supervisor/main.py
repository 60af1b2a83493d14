"""The way into a node: take the data directory, open the ports, fork the workers, run until stopped."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import logging
import os
import resource
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil
import setproctitle

from tailrace.broker.access.renewal import change_between, change_file
from tailrace.broker.connection.accept import tune
from tailrace.broker.process.control import ControlChannel
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.tls_contexts import CertificateError, TLSContexts, load_contexts
from tailrace.broker.streams.memory_rings import uses_memory
from tailrace.broker.worker import EXIT_CANNOT_LOCK, EXIT_CANNOT_OPEN, WorkerBoot, run_worker
from tailrace.shard.directory import DataDirectory, data_dir_exists, make_data_dir, open_data_dir
from tailrace.shard.errors import DirectoryError, ShardLocked
from tailrace.shard.first_levels import with_own_levels
from tailrace.shard.journal_replay import replay_all
from tailrace.shard.leaves import build
from tailrace.shard.lock import DirectoryLock
from tailrace.shard.memory_directory import make_memory_directory, memory_path, remove_memory_directory
from tailrace.supervisor import http
from tailrace.supervisor.arbiter import Arbiter
from tailrace.supervisor.config import ConfigError
from tailrace.supervisor.crew import Crew
from tailrace.supervisor.listeners import (
    CannotListen,
    open_admin_listener,
    open_listeners,
    open_metrics_listener,
    open_udp_sockets,
)
from tailrace.supervisor.notify import Notifier
from tailrace.supervisor.process import Child, fork_child
from tailrace.supervisor.signals import SignalQueue

log = logging.getLogger(__name__)

Bound = TypeVar("Bound")

EXIT_CANNOT_BIND = 4
DESCRIPTORS_FOR_EACH_STREAM = 16  # of a process; an open stream takes two of them, and two more if it is read
OPEN_STREAMS_LEAST = 8
UMASK = 0o027  # all that a node writes is for its user and, to read, for its group
BIND_PATIENCE_S, BIND_RETRY_S = 3.0, 0.02
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_VARIABLE = "TAILRACE_BOOT_ID"  # tests play a crash of the machine with it


class NodeState:
    """The state that the supervisor holds while the node runs, and passes to each worker it forks."""

    def __init__(self, settings: Settings, tls: TLSContexts, directory: DataDirectory, lock: DirectoryLock) -> None:
        self.settings = fit_open_streams(settings)
        self.tls = tls
        self.directory = directory
        self.lock = lock
        self.slots = settings.workers or len(os.sched_getaffinity(0))
        self.boot_id = os.environ.get(BOOT_ID_VARIABLE) or BOOT_ID_FILE.read_text().strip()
        self.admin_path = admin_path(settings, directory.path)
        self.admin_listener: socket.socket | None = None
        self.listeners = patiently(lambda: open_listeners(settings.host, settings.port, self.slots))
        for listener in self.listeners:  # for connections that come before the workers are there
            tune(listener, settings.notsent_bytes)
        self.udp_sockets: list[socket.socket] = []
        try:
            if settings.udp:
                port = self.listeners[0].getsockname()[1]
                self.udp_sockets = patiently(
                    lambda: open_udp_sockets(settings.host, port, self.slots, settings.udp_receive_bytes)
                )
            if settings.admin != "none":
                self.admin_listener = patiently(lambda: open_admin_listener(self.admin_path))
            self.http_listener = patiently(lambda: open_metrics_listener(settings.metrics_host, settings.metrics_port))
        except CannotListen:
            self._close_listeners()
            raise
        self.metrics_port: int = self.http_listener.getsockname()[1]
        self.board = Board(self.slots)
        if settings.start_fenced:
            self.board.lease.fence()
        self.memory_path = memory_path(directory.node_id)
        remove_memory_directory(self.memory_path)  # of a node that was killed
        remove_old_metric_files([Path(tempfile.gettempdir()), Path("/dev/shm"), *runtime_directories()])

    def worker(self, slot: int, generation: int, own: bool, control: ControlChannel) -> int:
        """The life of a worker, in its own process."""
        for sockets in (self.listeners, self.udp_sockets):
            for other, sock in enumerate(sockets):
                if other != slot:
                    sock.close()
        self.http_listener.close()
        return run_worker(
            WorkerBoot(
                settings=replace(self.settings, metrics_port=self.metrics_port, own_levels=self.directory.own_levels),
                directory=self.directory,
                slot=slot,
                slots=self.slots,
                generation=generation,
                boot_id=self.boot_id,
                own=own,
                control=control,
                listener=self.listeners[slot],
                board=self.board,
                admin_listener=self.admin_listener,
                udp_socket=self.udp_sockets[slot] if self.udp_sockets else None,
                tls=self.tls,
            )
        )

    def metrics_process(self, control: ControlChannel) -> int:
        """The life of the metrics process, in its own process."""
        setproctitle.setproctitle("tailrace: metrics")
        self._close_listeners()
        http.run(self.settings, self.board, self.http_listener, control.fileno())
        return 0

    def _close_listeners(self) -> None:
        """Those of the workers, in this process."""
        for sock in (*self.listeners, *self.udp_sockets):
            sock.close()
        if self.admin_listener is not None:
            self.admin_listener.close()

    def close(self) -> None:
        self._close_listeners()
        if self.admin_listener is not None:
            self.admin_path.unlink(missing_ok=True)
        self.http_listener.close()
        remove_memory_directory(self.memory_path)
        self.lock.release()

    def make_memory(self, settings: Settings) -> None:
        """Raises DirectoryError."""
        if uses_memory(settings):
            make_memory_directory(self.memory_path, self.directory.shards)


def serve(settings: Settings, reload: Callable[[], Settings] | None = None) -> int:
    """Run a node in this process until it is stopped; the exit code. `reload` reads the configuration anew on
    SIGHUP.
    """
    raise_descriptor_limit()
    os.umask(os.umask(UMASK) | UMASK)
    try:
        tls = load_contexts(settings)
    except CertificateError as error:
        log.critical("cannot speak TLS: %s", error)
        return EXIT_CANNOT_OPEN
    try:
        directory, lock = take_directory(settings)
    except ShardLocked as error:
        log.critical("another node runs on this data directory: %s", error)
        return EXIT_CANNOT_LOCK
    except (DirectoryError, OSError) as error:
        log.critical("cannot use the data directory: %s", error)
        return EXIT_CANNOT_OPEN
    try:
        node = NodeState(settings, tls, directory, lock)
    except CannotListen as error:
        log.critical("%s", error)
        lock.release()
        return EXIT_CANNOT_BIND
    try:
        node.make_memory(node.settings)
        return _run(node, reload)
    except DirectoryError as error:
        log.critical("%s", error)
        return EXIT_CANNOT_OPEN
    finally:
        node.close()


def _run(node: NodeState, reload: Callable[[], Settings] | None) -> int:
    setproctitle.setproctitle(f"tailrace: supervisor {node.directory.path}")
    host, port = node.listeners[0].getsockname()[:2]
    http_host, http_port = node.http_listener.getsockname()[:2]
    log.info(
        "listening on %s port %d, data in %s, metrics on http://%s:%d/metrics, %d workers, %s build",
        host,
        port,
        node.directory.path,
        http_host,
        http_port,
        node.slots,
        build(),
    )
    signals = SignalQueue()

    def let_go() -> None:
        """In a fresh child: closes the supervisor's descriptors."""
        signals.close()
        node.lock.release()
        arbiter.let_go()

    def start_metrics() -> Child:
        def in_child() -> None:
            for child in crew:
                child.control.close()
            let_go()

        return fork_child("metrics", -1, 0, in_child, node.metrics_process)

    crew = Crew(node.board, node.worker, let_go)
    arbiter = Arbiter(
        node.settings,
        node.board,
        crew,
        signals,
        start_metrics=start_metrics,
        reload=lambda: _reload(node, reload, crew),
        notifier=Notifier(),
    )
    gc.collect()
    gc.freeze()
    try:
        return arbiter.run()
    finally:
        signals.close()


def _reload(node: NodeState, reload: Callable[[], Settings] | None, crew: Crew) -> bool:
    """Take the new configuration for the workers to come; what only a restart can change stays as it is. The present
    ones go by the new rights too: they might be minutes about leaving.

    Returns False, and changes nothing, if there is a fault in it.
    """
    if reload is None:
        return True
    try:
        fresh = reload()
    except ConfigError as error:
        log.error("keeping the configuration as it was: %s", error)
        return False
    try:
        tls = load_contexts(fresh)
    except CertificateError as error:
        log.error("keeping the configuration and the certificates as they were: %s", error)
        return False
    try:
        node.make_memory(fresh)
    except DirectoryError as error:
        log.error("keeping the configuration as it was: %s", error)
        return False
    fixed = (
        "data",
        "workers",
        "shards",
        "host",
        "port",
        "udp",
        "udp_receive_bytes",
        "metrics_host",
        "metrics_port",
        "metrics_textfile",
        "admin",
        "admin_socket",
    )
    changed = [name for name in fixed if getattr(fresh, name) != getattr(node.settings, name)]
    if changed:
        log.warning("these settings change only with a restart: %s", ", ".join(changed))
    _send_rights(node.settings, fresh, crew)
    node.settings, node.tls = fit_open_streams(fresh), tls
    return True


def _send_rights(before: Settings, after: Settings, crew: Crew) -> None:
    change = change_between(before, after)
    if change is not None:
        fd = change_file(change)
        crew.send_all("rights", (fd,))
        os.close(fd)


def patiently(bind: Callable[[], Bound]) -> Bound:
    """Bind or lock; if the processes of a node whose supervisor was killed hold it, wait for them: they are leaving.

    Raises CannotListen, ShardLocked and what `bind` raises.
    """
    deadline_s = time.monotonic() + BIND_PATIENCE_S
    while True:
        try:
            return bind()
        except (CannotListen, ShardLocked) as error:
            if not _may_be_freed(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(BIND_RETRY_S)


def _may_be_freed(error: CannotListen | ShardLocked) -> bool:
    """Whether what holds it may be on its way out. A lock has the pid of the supervisor, whose workers hold it too."""
    if isinstance(error, ShardLocked):
        return not psutil.pid_exists(error.holder_pid)
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE


def take_directory(settings: Settings) -> tuple[DataDirectory, DirectoryLock]:
    """Locks the data directory, making it first if it does not exist. Raises ShardLocked, DirectoryError, OSError."""
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError:
        _refuse_what_is_there(settings.data)
        raise
    path = settings.data.resolve()
    lock = DirectoryLock(path)
    patiently(lock.acquire)
    try:
        if data_dir_exists(path):
            directory = open_data_dir(path)
            replay_all(directory)
            return with_own_levels(directory), lock
        return make_data_dir(path, settings.shards), lock
    except (DirectoryError, ShardLocked, OSError):
        lock.release()
        raise


def _refuse_what_is_there(path: Path) -> None:
    """Raises DirectoryError if something in the place of the directory, or of one above it, is not a directory."""
    for each in (*reversed(path.parents), path):
        if each.is_symlink() and not each.exists():
            try:
                each.stat()
            except FileNotFoundError:
                raise DirectoryError(each, f"a symbolic link to {each.readlink()}, which does not exist") from None
            except OSError as error:
                loop = error.errno == errno.ELOOP
                raise DirectoryError(each, "a loop of symbolic links" if loop else str(error.strerror)) from None
        if each.exists() and not each.is_dir():
            raise DirectoryError(each, "not a directory")


def admin_path(settings: Settings, data: Path) -> Path:
    """Where the socket of administration is."""
    return next(runtime_directories(), data) / settings.admin_socket


def runtime_directories() -> Iterator[Path]:
    return map(Path, filter(None, os.environ.get("RUNTIME_DIRECTORY", "").split(":")))


def remove_old_metric_files(places: Iterable[Path]) -> None:
    """Delete the metric files that nodes of earlier versions left when they were killed.

    A node of such a version that still runs holds the lock in its directory.
    """
    for lock in {lock for place in places for lock in place.glob(f"tailrace-{os.getuid()}-*/node.lock")}:
        with contextlib.suppress(OSError), lock.open("rb") as held:
            found = lock.parent.lstat()  # in a place that all may write, a name alone proves nothing
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in (*lock.parent.glob("*.db"), *lock.parent.glob("lane_*.lock"), lock):
                path.unlink()
            lock.parent.rmdir()


def fit_open_streams(settings: Settings) -> Settings:
    """The settings with no more open streams than leave descriptors for connections: somebody who uses many streams
    would otherwise take them all.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = max(limit // DESCRIPTORS_FOR_EACH_STREAM, OPEN_STREAMS_LEAST)
    if limit == resource.RLIM_INFINITY or settings.max_open_streams <= most:
        return settings
    text = "a process may have %d descriptors here: max_open_streams is taken as %d instead of %d; raise LimitNOFILE"
    log.warning(text, limit, most, settings.max_open_streams)
    return replace(settings, max_open_streams=most)


def raise_descriptor_limit() -> None:
    """A connection is a descriptor: use all that the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
