"""Starts nodes, commands and publishers by fork from a process that has imported them; a shell starts them by exec.

Most of what the start of a node costs is imports, two thirds of a second of processor time, and of a command a quarter;
the suite starts hundreds of each. A node started here has the same process group, descriptors, environment, directory,
network and exit code as one started by `python -m tailrace.cli.main`, and runs the same `main`. How the command itself
starts is the subject of tests/system/test_lifecycle.py, test_command.py and test_walkthrough.py, and of
scripts/first-week, which start it by exec.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import setproctitle

from tailrace.shard.leaves import INTERPRETED_VARIABLE

ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1 << 18
NODE, PUBLISHER = "tailrace.cli.main", "tests.system.tree_load"
"""Programs: modules with a `main`."""
IMPORTS = (
    NODE,
    PUBLISHER,
    "tailrace.cli.admin",
    "tailrace.cli.pub",
    "tailrace.cli.serve",
    "tailrace.cli.tail",
    "tailrace.supervisor.main",
    "tailrace.broker.worker",
    "logging.handlers",
)
"""What they import, so that no copy need do it."""
TITLE_SPACE = " " * 400
"""An argument that is not used: what a process calls itself must fit where its arguments were."""
NETWORK = "/proc/thread-self/ns/net"
MOUNTS = "/proc/thread-self/ns/mnt"
AT_START = ("PYTHON", "LD_", INTERPRETED_VARIABLE)
"""Beginnings of the environment variables that are read when Python starts or the broker is imported."""


class Nursery:
    """The process that has imported the broker. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owner = os.getpid()
        self.settings = settings_at_start(os.environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        self._socket = ours
        command = [sys.executable, "-m", "tests.system.nursery", str(theirs.fileno()), TITLE_SPACE]
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it. Processes that it started go on."""
        if self.owner == os.getpid():
            self._socket.shutdown(socket.SHUT_RDWR)
            self._process.wait()

    def start(
        self,
        arguments: Sequence[str],
        output: int,
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        program: str = NODE,
        source: int | None = None,
        errors: int | None = None,
    ) -> Forked:
        """`python -m PROGRAM ARGUMENTS` in a session of its own, in this folder and in the network of the calling
        thread. `source`: its standard input, if it has one. `errors`: its standard error, otherwise the output.
        """
        request: dict[str, object] = {
            "program": program,
            "arguments": list(arguments),
            "environment": dict(environment),
            "cwd": str(folder or Path.cwd()),
        }
        network = os.open(NETWORK, os.O_RDONLY | os.O_CLOEXEC)
        try:
            errors = output if errors is None else errors
            return Forked(self, self._ask(request, [output, network, errors, *([] if source is None else [source])]))
        finally:
            os.close(network)

    def reap(self, pid: int) -> int | None:
        """The wait status of a process, once: None while it runs."""
        status = self._ask({"reap": pid})
        return None if status < 0 else status

    def _ask(self, request: dict[str, object], descriptors: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
            answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError(f"the nursery ended with {self._process.wait()}")
        return int(answer)


class Forked:
    """A process that the nursery started, with the part of `subprocess.Popen` that is used here."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._lock = threading.Lock()
        self._pidfd = os.pidfd_open(pid)
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and (status := self._nursery.reap(self.pid)) is not None:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._pidfd)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; negative for the number of a signal. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            ready = select.poll()
            ready.register(self._pidfd, select.POLLIN)
            ready.poll(None if timeout is None else timeout * 1000)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("tailrace serve", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Command(subprocess.Popen[bytes]):
    """`tailrace ARGUMENTS` as a process that the nursery started, with pipes."""

    def __init__(
        self, nursery: Nursery, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._begin = partial(nursery.start, arguments, environment=environment, folder=folder)
        super().__init__(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _execute_child(self, *given: Any) -> None:
        source, feed, read, output, read_errors, errors = given[10:16]
        self._forked = self._begin(output, source=source, errors=errors)
        self.pid = self._forked.pid
        self._child_created = True
        self._close_pipe_fds(source, feed, read, output, read_errors, errors)  # type: ignore[attr-defined]

    def _internal_poll(self, _deadstate: object = None) -> int | None:
        self.returncode = self._forked.poll()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self.returncode = self._forked.wait(timeout)
        return self.returncode


def begin_command(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Starts `tailrace ARGUMENTS` with pipes."""
    found = nursery(environment)
    if found is not None:
        return Command(found, arguments, environment, folder)
    words, pipe = [sys.executable, "-m", NODE, *arguments], subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=folder)


_nurseries: dict[int, Nursery] = {}


def nursery(environment: Mapping[str, str]) -> Nursery | None:
    """The one of this process, started when first asked for; None if a copy of it would differ from a new process with
    this environment.
    """
    found = _nurseries.get(os.getpid())
    if found is None:
        found = _nurseries[os.getpid()] = Nursery()
    return found if found.settings == settings_at_start(environment) else None


def settings_at_start(environment: Mapping[str, str]) -> tuple[object, ...]:
    """What a process gets from the one that starts it and keeps for its life."""
    variables = {name: value for name, value in environment.items() if name.startswith(AT_START)}
    if variables.get(INTERPRETED_VARIABLE) in ("", "0"):
        del variables[INTERPRETED_VARIABLE]
    return os.stat(MOUNTS).st_ino, variables


# --- in the nursery ---------------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> list[str]:
    """Answer requests until there are no more, and end; or return in a copy, with its program and the arguments."""
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not data:
            sys.exit(0)
        request = json.loads(data)
        if "reap" in request:
            found, status = os.waitpid(request["reap"], os.WNOHANG)
            requests.send(str(status if found else -1).encode())
            continue
        begun, begins = os.pipe()
        pid = os.fork()
        if not pid:
            requests.close()
            os.close(begun)
            os.setsid()
            os.close(begins)
            become(request["environment"], request["cwd"], *descriptors)
            return [request["program"], *request["arguments"]]
        for descriptor in (*descriptors, begins):
            os.close(descriptor)
        os.read(begun, 1)  # ends when it has a process group of its own: who asked for it may kill that at once
        os.close(begun)
        requests.send(str(pid).encode())


def become(
    environment: dict[str, str], folder: str, output: int, network: int, errors: int, source: int | None = None
) -> None:
    """Make this copy of the nursery what exec would have made."""
    if os.fstat(network).st_ino != os.stat(NETWORK).st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, 0):
            raise OSError(ctypes.get_errno(), "setns")
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in (output, network, errors):
        os.close(descriptor)
    if source is not None:
        os.dup2(source, 0)
        os.close(source)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def leave(main: Callable[[], object]) -> NoReturn:
    """Run the program, and end with its exit code, as Python would, but without taking all apart that was imported."""
    code = 0
    try:
        main()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in IMPORTS:
        importlib.import_module(name)
    setproctitle.setproctitle("tailrace tests: nursery")  # it finds its place before the environment is exchanged
    gc.collect()
    gc.freeze()  # or each copy would look at all of it again
    with socket.socket(fileno=int(sys.argv[1])) as control:
        sys.argv = serve(control)
    leave(importlib.import_module(sys.argv[0]).main)
