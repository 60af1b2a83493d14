"""A real node in real processes, and a plain line-protocol client, for the system tests.

Nothing here sleeps for luck: every wait is on a condition, with a deadline.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench.ports import free_port
from tests.system.nursery import Forked, nursery

Found = TypeVar("Found")

PATIENCE_S = 60.0  # for steps that take a moment on an idle machine, and many times as long beside the whole suite
STEP_MOST_S = 0.05
RECEIVE_BYTES = 1 << 18


def wait_for(
    condition: Callable[[], Found | None], what: str, patience_s: float = PATIENCE_S, step_s: float = 0.005
) -> Found:
    """What `condition()` returned when it was true, asked no second time; fails with `what` when it is not in time.

    The longer it takes, the longer are the pauses: asking a node costs processor time that it needs to get there.
    """
    began_s = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began_s
        if waited_s > patience_s:
            raise AssertionError(f"after {patience_s} s still not so: {what}")
        time.sleep(max(step_s, min(waited_s / 20, STEP_MOST_S)))
    return found


class Message(NamedTuple):
    stream: str
    seq: int
    timestamp_us: int
    payload: bytes
    topic: str = ""


class LineClient:
    """A client of the line protocol that keeps input apart: answers in one list, messages in another."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._begin(socket.create_connection((host, port), timeout=PATIENCE_S))

    @classmethod
    def over(cls, sock: socket.socket) -> LineClient:
        """A client of a connection that is there, such as one under TLS."""
        client = cls.__new__(cls)
        client._begin(sock)
        return client

    def _begin(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small sends must not wait for each other
        self.answers: list[str] = []
        self.messages: list[Message] = []
        self._received = bytearray()
        self.ended = False

    def send(self, *lines: str | bytes) -> None:
        """Send lines; each gets its CRLF."""
        self.send_raw(b"".join((line.encode() if isinstance(line, str) else line) + b"\r\n" for line in lines))

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, line: str | bytes) -> str:
        """Send one line, return the next answer that comes after those already here."""
        before = len(self.answers)
        self.send(line)
        self.read_until(lambda: len(self.answers) > before)
        return self.answers[before]

    def ask_table(self, line: str) -> list[str]:
        """Send one line whose answer has several lines, ending in `.`."""
        before = len(self.answers)
        self.send(line)
        self.read_until(lambda: any(a == "." or a.startswith("err ") for a in self.answers[before:]))
        return self.answers[before:]

    def read_until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + patience_s
        while not condition():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise AssertionError(f"timed out; answers {self.answers[-5:]}, {len(self.messages)} messages")
            self.sock.settimeout(left_s)
            try:
                data = self.sock.recv(RECEIVE_BYTES)
            except TimeoutError:
                continue
            if not data:
                self.ended = True
                if condition():
                    return
                raise ConnectionError(f"the broker closed; answers {self.answers[-5:]}, {len(self.messages)} messages")
            self._received += data
            self._parse()

    def read_answers(self, count: int, patience_s: float = PATIENCE_S) -> list[str]:
        """Wait until `count` answers in all are here."""
        self.read_until(lambda: len(self.answers) >= count, patience_s)
        return self.answers

    def read_messages(self, count: int, patience_s: float = PATIENCE_S) -> list[Message]:
        """Wait until `count` messages in all are here."""
        self.read_until(lambda: len(self.messages) >= count, patience_s)
        return self.messages

    def read_to_end(self) -> None:
        """Read until the broker closes."""
        with contextlib.suppress(ConnectionError):
            self.read_until(lambda: False)

    def _parse(self) -> None:
        start = 0
        received = self._received
        while True:
            if received.startswith(b"msg ", start):
                bar = received.find(b"|", start)
                if bar < 0:
                    break
                _msg, stream, seq, timestamp_us, length, *words = received[start:bar].split()
                end = bar + 1 + int(length)
                if len(received) < end + 2:
                    break
                assert received[end : end + 2] == b"\r\n", "a message does not end where its length says"
                payload = bytes(received[bar + 1 : end])
                topic = b" ".join(words).decode()
                self.messages.append(Message(stream.decode(), int(seq), int(timestamp_us), payload, topic))
                start = end + 2
                continue
            newline = received.find(b"\r\n", start)
            if newline < 0:
                break
            self.answers.append(received[start:newline].decode("utf-8", "backslashreplace"))
            start = newline + 2
        del received[:start]

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> LineClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Node:
    """`tailrace serve` in a process group of its own."""

    by_exec = False
    """Whether every one is started as a shell would, for tests of the start."""

    def __init__(
        self,
        data: Path,
        *flags: str,
        workers: int = 2,
        config: str = "",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.data = data
        self.port = free_port()
        self.metrics_port = free_port()
        self.log_path = data.parent / f"{data.name}.log"
        self._flags = list(flags)
        if config:
            path = data.parent / f"{data.name}.toml"
            path.write_text(config)
            path.chmod(0o640)  # it may hold secrets
            self._flags += ["--config", str(path)]
        self._workers = workers
        self._environment = environment or {}
        self.process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, *, wait: bool = True) -> Node:
        arguments = ["serve", "--data", str(self.data), "--port", str(self.port)]
        arguments += ["--metrics-port", str(self.metrics_port), "--workers", str(self._workers), *self._flags]
        with self.log_path.open("ab") as output:
            self.process = self._begin(arguments, output.fileno())
        if wait:
            self.wait_ready()
        return self

    def _begin(self, arguments: list[str], output: int) -> subprocess.Popen[bytes] | Forked:
        environment = {**os.environ, **self._environment}
        found = None if self.by_exec else nursery(environment)
        if found is not None:
            return found.start(arguments, output, environment)
        return subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )

    def restart_with(self, environment: dict[str, str]) -> Node:
        """Start again, after a stop or a kill, with other environment variables."""
        self._environment = environment
        return self.start()

    def wait_ready(self, patience_s: float = PATIENCE_S) -> None:
        wait_for(lambda: self.get("/readyz")[0] == 200 or self.exited(), "the node is ready", patience_s)
        assert not self.exited(), f"the node ended:\n{self.log()}"

    def exited(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def get(self, path: str) -> tuple[int, str]:
        """(status, body) of an HTTP request to the metrics port; status 0 when it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over all labels."""
        samples = [line for line in self.get("/metrics")[1].splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    def client(self) -> LineClient:
        return LineClient(self.port)

    def workers(self) -> list[dict[str, str]]:
        """The rows of the command `workers`."""
        with self.client() as client:
            return rows(client.ask_table("workers"))

    def worker_pids(self) -> list[int]:
        return [int(row["pid"]) for row in self.workers()]

    def client_of(self, slot: int) -> LineClient:
        """A connection that the worker of this slot serves: connect until the kernel's hash agrees."""
        for _ in range(500):
            client = self.client()
            try:
                if self.slot_of(client) == slot:
                    return client
            except BaseException:
                client.close()
                raise
            client.close()
        raise AssertionError(f"no connection came to worker {slot}")

    def slot_of(self, client: LineClient) -> int:
        """Which worker serves a connection."""
        me = "{}:{}".format(*client.sock.getsockname()[:2])
        row = next(row for row in rows(client.ask_table("conns")) if row["peer"] == me)
        client.answers.clear()
        return int(row["worker"])

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the whole process group: all at once, as a power cut of the processes."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, patience_s: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the node did not stop:\n{self.log()}") from None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


def rows(lines: list[str]) -> list[dict[str, str]]:
    """The rows of a table answer, by column."""
    assert lines[-1] == ".", lines
    header, *body = lines[:-1]
    names = header.split()[1:]
    return [dict(zip(names, line.split(), strict=True)) for line in body]


@contextlib.contextmanager
def running(
    data: Path, *flags: str, workers: int = 2, config: str = "", environment: dict[str, str] | None = None
) -> Iterator[Node]:
    """A node for the length of a block; it must stop cleanly, and its log must be free of tracebacks."""
    node = Node(data, *flags, workers=workers, config=config, environment=environment).start()
    try:
        yield node
    except BaseException:
        print(node.log())
        node.kill()
        raise
    assert node.stop() == 0, node.log()
    assert "Traceback" not in node.log(), node.log()
