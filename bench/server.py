"""Starting a peer's server in an empty directory on a free port, and ending it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.load.base import ServerProcess, raise_open_files
from bench.load.limits import Deadline, LoadError
from bench.load.meter import ProcessTree
from bench.load.sockets import steps_succeed, take_steps
from bench.peers.base import Contestant, Site
from bench.ports import free_port

START_TIMEOUT_S = 30.0
PREPARE_TIMEOUT_S = 180.0
"""For Kafka's 40,000 requests before it is measured, on a machine that is busy."""
STOP_TIMEOUT_S = 30.0
_PROBE_S = 0.02
_FURTHER_PORTS = 6  # as many as a server of three nodes needs
_LOG_TAIL_BYTES = 2000
_PR_SET_PDEATHSIG = 1


@contextmanager
def fresh_site(scratch: Path, name: str) -> Iterator[Site]:
    """An empty directory below `scratch`, removed at the end, and free ports."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=scratch))
    try:
        yield Site(directory, free_port(), free_port(), tuple(free_port() for _ in range(_FURTHER_PORTS)))
    finally:
        shutil.rmtree(directory)


class PeerServer:
    """A peer's process group on a site. Entering starts it and waits until it serves; leaving ends it."""

    def __init__(self, peer: Contestant, site: Site) -> None:
        self._peer = peer
        self.site = site
        self._log = site.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> ServerProcess:
        return ServerProcess(self.site.port, self._running().pid)

    def __enter__(self) -> Self:
        try:
            self.start()
            self._prepare()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop(signal.SIGTERM if error is None else signal.SIGKILL)

    def start(self) -> float:
        """Start it; the seconds until it served. LoadError, with the end of its log, if it never does."""
        command = self._peer.command(self.site)
        environment = {**os.environ, **self._peer.environment()}
        begin = time.monotonic()
        with self._log.open("ab") as log:
            self._process = launch(command, self.site.directory, environment, log.fileno())
        self._await_ready(begin + START_TIMEOUT_S)
        return time.monotonic() - begin

    def stop(self, first_signal: signal.Signals = signal.SIGTERM) -> float:
        """End it and all of its group; the seconds until the process was gone. Does nothing if it does not run.

        LoadError, with the end of its log, if it had to be killed.
        """
        process, self._process = self._process, None
        if process is None:
            return 0.0
        begin = time.monotonic()
        if first_signal == signal.SIGKILL:
            _signal_group(process.pid, first_signal)
        else:
            process.send_signal(first_signal)
        has_stopped = _ended(process)
        seconds = time.monotonic() - begin
        # The group outlives its leader where workers are left; it is named by the leader's id all the same.
        _signal_group(process.pid, signal.SIGKILL)
        process.wait(STOP_TIMEOUT_S)
        if not has_stopped:
            raise LoadError(f"{self._peer.name} did not stop within {STOP_TIMEOUT_S:g} s:\n{self.log_tail()}")
        return seconds

    def tree(self) -> ProcessTree:
        """Its processes as they are now."""
        return ProcessTree(self._running().pid)

    def peak_rss_bytes(self) -> int:
        return self.tree().peak_rss_bytes()

    def log_tail(self) -> str:
        """The end of what the server printed."""
        try:
            return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _prepare(self) -> None:
        prepare = self._peer.prepare()
        if not prepare:
            return
        try:
            take_steps(self.site.port, prepare, Deadline(PREPARE_TIMEOUT_S), self._peer.tls)
        except LoadError as error:
            raise LoadError(f"{self._peer.name} could not be prepared: {error}\n{self.log_tail()}") from error

    def _await_ready(self, end: float) -> None:
        while not steps_succeed(self.site.port, self._peer.ready(), 1.0, self._peer.tls):
            exit_code = self._running().poll()
            if exit_code is not None:
                raise LoadError(f"{self._peer.name} ended with code {exit_code} at start:\n{self.log_tail()}")
            if time.monotonic() >= end:
                raise LoadError(f"{self._peer.name} did not serve within {START_TIMEOUT_S:g} s:\n{self.log_tail()}")
            time.sleep(_PROBE_S)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self._peer.name} is not running")
        return self._process


def launch(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own."""
    return subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=_in_child,
    )


def _in_child() -> None:
    """Allow many open files; and let the server not outlive the harness, however that ends."""
    raise_open_files()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Returns whether it ends within STOP_TIMEOUT_S."""
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
