"""Starting a peer's server in an empty directory on a free port, and ending it."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.load.apart import raise_open_files
from bench.load.dial import dialled, steps_succeed
from bench.load.ingest import Target
from bench.load.limits import Deadline, LoadError
from bench.load.meter import ProcessTree
from bench.peers.base import Peer, Site

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
_PROBE_S = 0.02
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # those of connections
_PORTS_FIRST, _PORTS_END = 10_000, 32_000
_PORT_TRIES_MAX = 100
_FURTHER_PORTS = 5  # as many as a server of three nodes needs
_ports = count(random.SystemRandom().randrange(_PORTS_END))
_LOG_TAIL_BYTES = 2000
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A loopback TCP port nobody has now, and that the kernel gives to nobody who connects; each time another.

    A port that the kernel had chosen could be some connection's own before the server listens on it.
    """
    last = min(int(_PORT_RANGE.read_text().split()[0]), _PORTS_END) - 1
    for _ in range(_PORT_TRIES_MAX):
        port = _PORTS_FIRST + next(_ports) % (last - _PORTS_FIRST)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
                continue
        return port
    raise OSError(f"no port from {_PORTS_FIRST} to {last} is free")


@contextmanager
def fresh_site(scratch: Path, name: str) -> Iterator[Site]:
    """An empty directory below `scratch`, removed at the end, and free ports."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=scratch))
    try:
        yield Site(directory, free_port(), free_port(), tuple(free_port() for _ in range(_FURTHER_PORTS)))
    finally:
        shutil.rmtree(directory)


class Server:
    """A peer's process group on a site. Entering starts it and waits until it serves; leaving ends it."""

    def __init__(self, peer: Peer, site: Site) -> None:
        self._peer = peer
        self.site = site
        self._log = site.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> Target:
        return Target(self.site.port, self._running().pid)

    def __enter__(self) -> Self:
        try:
            self.start()
            prepare = self._peer.prepare()
            if prepare:
                with dialled(self.site.port, [prepare], Deadline(START_TIMEOUT_S)):
                    pass
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def start(self) -> float:
        """Start it; the seconds until it served. LoadError, with the end of its log, if it never does."""
        command = self._peer.command(self.site)
        environment = {**os.environ, **self._peer.environment()}
        begin = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.site.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_in_child,
            )
        self._await_ready(begin + START_TIMEOUT_S)
        return time.monotonic() - begin

    def stop(self, first_signal: signal.Signals = signal.SIGTERM) -> float:
        """End it and all of its group; the seconds until the process was gone. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return 0.0
        begin = time.monotonic()
        if first_signal == signal.SIGKILL:
            _signal_group(process.pid, first_signal)
        else:
            process.send_signal(first_signal)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        seconds = time.monotonic() - begin
        # The group outlives its leader where workers are left; it is named by the leader's id all the same.
        _signal_group(process.pid, signal.SIGKILL)
        process.wait(STOP_TIMEOUT_S)
        return seconds

    def peak_rss_bytes(self) -> int:
        return ProcessTree(self._running().pid).peak_rss_bytes()

    def private_bytes(self) -> int:
        return ProcessTree(self._running().pid).private_bytes()

    def open_files(self) -> list[int]:
        return ProcessTree(self._running().pid).open_files()

    def log_tail(self) -> str:
        """The end of what the server printed."""
        try:
            return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _await_ready(self, end: float) -> None:
        while not steps_succeed(self.site.port, self._peer.ready(), 1.0):
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


def _in_child() -> None:
    """As many files as are allowed; and the server does not outlive the harness, whatever ends that."""
    raise_open_files()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
