"""Spark's Python processes as forks of one that has imported their modules: each would take a second of a processor to
import them, and every query starts at least one.

`python -m tests.spark.forked_python SOCKET` is that one, until its standard input ends. Spark gets a program that hands
its arguments, environment and standard files to it (`forked_client.py`).
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

MODULES: Final = (
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.datasource",
    "pyspark.worker",
    "pyarrow.compute",
    "tailrace.spark.datasource",
    "tailrace.spark.live",
    "tailrace.spark.rollup.spark_engine",
    "tailrace.spark.rollup.tasks",
)
FILES: Final = 3
REQUEST_BYTES_MAX: Final = 1 << 20
ARCHIVES: Final = (".zip", ".jar")
_CLIENT: Final = Path(__file__).with_name("forked_client.py")
_ROOT: Final = _CLIENT.parents[2]


@contextmanager
def forked_python(folder: Path) -> Iterator[Path]:
    """A program that is this Python, for as long as this lasts."""
    path, program = folder / "socket", folder / "python"
    words = [sys.executable, "-IS", str(_CLIENT), str(path)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    command = [sys.executable, "-m", "tests.spark.forked_python", str(path)]
    quiet = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot be forked
    with subprocess.Popen(command, cwd=_ROOT, env=quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield program
        server.stdin.close()


class Server:
    """Forks a process for each connection, and sends its exit code over the connection when it has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """Returns the arguments in each fork, and None in the first process, when its standard input has ended."""
        while True:
            key, _ = self._selector.select()[0]  # only one: it may be the end of what another one is about
            if key.fileobj is self._listener:
                words = self._start()
                if words is not None:
                    return words
            elif key.fd == 0:
                return None
            else:
                self._end(key)

    def _start(self) -> list[str] | None:
        connection, _ = self._listener.accept()
        content, files = receive(connection)
        pid = os.fork()
        if pid == 0:
            connection.close()
            self._close()
            return become(content, files)
        for file in files:
            os.close(file)
        ended = os.pidfd_open(pid)
        # The one if the process ends by itself, the other if Spark ends its client.
        self._selector.register(ended, selectors.EVENT_READ, (pid, connection))
        self._selector.register(connection, selectors.EVENT_READ, (pid, ended))
        return None

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd:
                os.close(key.fd)
        self._selector.close()

    def _end(self, key: Any) -> None:
        pid, other = key.data
        if isinstance(other, int):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            self._selector.unregister(key.fileobj)
            return
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            other.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
        with suppress(KeyError):
            self._selector.unregister(other)
        other.close()
        self._selector.unregister(key.fileobj)
        os.close(key.fd)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A request with its length before it, and the files that came with it."""
    start, files, _, _ = socket.recv_fds(connection, 8, FILES)
    size = int.from_bytes(start, "little")
    assert len(start) == 8 and size <= REQUEST_BYTES_MAX
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(size - len(content))
        assert piece
        content += piece
    return bytes(content), files


def become(content: bytes, files: list[int]) -> list[str]:
    """Takes the environment of the client. Returns its arguments."""
    words, environment, folder = marshal.loads(content)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # Without this checkout's tests, and without Spark's zip of PySpark, which is imported already.
    kept = [path for path in environment.get("PYTHONPATH", "").split(":") if path and not path.endswith(ARCHIVES)]
    sys.path[:] = [*kept, *(path for path in sys.path if path not in ("", str(_ROOT)))]
    return list(words)


def main(path: str) -> None:
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen(16)
        os.write(1, b"ready\n")
        words = Server(listener).serve()
    if words is not None:
        run(words)


def run(words: list[str]) -> None:
    option, what, *rest = words
    sys.argv = [what if option == "-m" else option, *rest]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        assert option == "-c", words
        exec(what, {"__name__": "__main__"})


if __name__ == "__main__":
    main(sys.argv[1])
