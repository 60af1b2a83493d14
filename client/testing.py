"""A broker in a child process, for the tests of applications.

    from tailrace.testing import Server

    def test_orders_are_taken():
        with Server() as server, server.connect() as client:
            client.publish("orders", b"one")

With pytest it is the fixture `tailrace_server`, which `tailrace.pytest_plugin` brings. The broker needs
`tailrace[server]`. docs/testing.md has more.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tailrace import testing_cleanup
from tailrace.errors import ConnectFailed

if TYPE_CHECKING:
    from tailrace.sync.client import Client

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_BYTES = 4_096
_LISTENING = re.compile(r"listening on \S+ port (\d+), .* metrics on (http://\S+)/metrics")
# The broker ends with this process, however that ends: the pipe of its standard input is closed then, and the kernel
# sends the signal.
# -P below: a module of the application in its working folder, such as http.py, is not one of the standard library's.
_CHILD = """
import fcntl, os, select, signal
fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
input = select.poll()
input.register(0, 0)
if input.poll(0):
    raise SystemExit  # it was closed before
from tailrace.cli.main import main
main()
"""


class StartFailed(ConnectFailed):
    """The broker ended while it started, or was not ready in time; the text is the end of its log."""


class Server:
    """A broker of its own on 127.0.0.1, at a free port, with an empty data directory that is removed at the end.

    Use it as a context, or call `start` and `close`. It ends with the process that started it, and its files go,
    however that ends. `settings` are those of `tailrace serve`, such as `max_message_bytes=1000`; `config` is a
    configuration file, for policies of streams.
    """

    def __init__(self, *, workers: int = 1, config: Path | str | None = None, **settings: object) -> None:
        if "log_level" in settings:
            raise ValueError("log_level: a server reads its own log, at its default level")
        self._settings = {"workers": workers, "host": "127.0.0.1", "port": 0, "metrics_port": 0, **settings}
        self._config = config
        self._folder = ""
        self._lifeline = -1  # the end of a pipe that this process and the broker hold; the remover waits at the other
        self._remover: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._notified: socket.socket | None = None
        self.port = 0
        self.metrics_url = ""
        """Where Prometheus' text is; `/healthz` and `/readyz` are beside it."""

    @property
    def address(self) -> str:
        """`HOST:PORT`, for `tailrace.connect`."""
        return f"{self._settings['host']}:{self.port}"

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._base / "data"

    @property
    def log(self) -> str:
        """All that the broker has logged since the first `start`."""
        return (self._base / "log").read_text()

    def connect(self, **options: Any) -> Client:
        """A client of this broker; the options are those of `tailrace.connect`."""
        from tailrace.sync.client import connect

        return connect(self.address, **options)

    def start(self) -> None:
        """Start the broker, and wait until it serves: again after `stop` or `kill`, with its messages, at the same
        port. Raises StartFailed.
        """
        if self._process is not None:
            return
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="tailrace-")
            self._start_remover()
        name = f"tailrace-testing-{secrets.token_hex(8)}"
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # open as long as the broker, which uses it
        self._notified.bind(f"\0{name}")  # a path in the folder could be too long for a socket
        self._process = self._spawn({**os.environ, "NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "0"})
        self._wait_ready(self._notified, self._process)
        found = _LISTENING.findall(self.log)
        port, self.metrics_url = found[-1][0], f"{found[-1][1]}/metrics"
        self.port = self._settings["port"] = int(port)

    def stop(self) -> None:
        """Stop the broker as an operator does: it finishes its work. The messages stay for the next `start`."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End all of the broker's processes at once, as a crash does. The messages stay for the next `start`."""
        self._end(_kill_group)

    def close(self) -> None:
        """Stop the broker, and remove its data."""
        self.stop()
        folder, self._folder = self._folder, ""
        if folder:
            testing_cleanup.remove(folder)
        if self._remover is not None:
            self._remover.kill()
            self._remover.wait()
            self._remover = None
            os.close(self._lifeline)

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _base(self) -> Path:
        if not self._folder:
            raise ValueError("the server was not started, or is closed; use it as a context, or call start()")
        return Path(self._folder)

    def _start_remover(self) -> None:
        """It outlives a process of tests that is killed, and removes the folder behind the broker."""
        end, self._lifeline = os.pipe()
        command = [sys.executable, "-I", "-S", testing_cleanup.__file__, self._folder]
        with os.fdopen(end) as source:
            self._remover = subprocess.Popen(command, stdin=source, start_new_session=True)

    def _spawn(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-c", _CHILD, "serve", "--data", str(self.data)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        for name, value in self._settings.items():
            command += _flag(name, value)
        with (self._base / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=(self._lifeline,),
            )

    def _wait_ready(self, notified: socket.socket, process: subprocess.Popen[bytes]) -> None:
        ended = os.pidfd_open(process.pid)
        try:
            while True:
                waiting: list[Any] = [notified, ended]
                readable, _, _ = select.select(waiting, [], [], START_TIMEOUT_S)
                if notified in readable and b"READY=1" in notified.recv(4_096).splitlines():
                    return
                if ended in readable or not readable:
                    break
        finally:
            os.close(ended)
        text = self.log[-LOG_TAIL_BYTES:].strip()
        what = "ended while it started" if readable else f"was not ready after {START_TIMEOUT_S:g} s"
        self.kill()
        raise StartFailed(f"the broker {what}: {text or 'it has logged nothing'}")

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        how(process)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            process.wait(STOP_TIMEOUT_S)
        if process.stdin is not None:
            process.stdin.close()
        if self._notified is not None:
            self._notified.close()


def _flag(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, str(value)]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """The supervisor leads a session of its own, in which its workers are."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
