"""`tailrace pub`, as a shell runs it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.command.ending import INTERRUPTED, NO_CONNECTION, OK, REFUSED
from tailrace.command.pub import report
from tailrace.publisher import Outcome
from tests.tailrace.command.process import DEADLINE_S, start, tailrace
from tests.tailrace.line_server import LineServer, running_server


@pytest.fixture
def server() -> Iterator[LineServer]:
    with running_server() as server:
        yield server


def test_lines_of_a_file_and_the_report(server: LineServer, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"one\r\n\xff\nthree")
    done = _from_file(file, server)
    assert server.streams[b"s"] == [b"one\r", b"\xff", b"three"]
    assert done.returncode == OK
    assert done.stdout == b""
    assert done.stderr.startswith(b"3 lines, 12 bytes in 0.")
    assert done.stderr.endswith(b" lines/s), 3 acknowledged, seq 0 to 2\n")


def _from_file(file: Path, server: LineServer) -> subprocess.CompletedProcess[bytes]:
    with file.open("rb") as source:
        process = start("pub", "s", "--server", server.address, stdin=source)
        out, err = process.communicate(timeout=DEADLINE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_quiet_and_without_acknowledgements(server: LineServer) -> None:
    done = tailrace("pub", "s", "--quiet", "--no-ack", "--port", str(server.port), stdin=b"a\nb\n")
    assert (done.returncode, done.stdout, done.stderr) == (OK, b"", b"")
    assert server.streams[b"s"] == [b"a", b"b"]
    assert b"ack on" not in server.lines


def test_refused_lines_are_named(server: LineServer) -> None:
    server.publish_answer = lambda _name, payload, _seq: b"err size s: too large\r\n" if payload == b"big" else None
    done = tailrace("pub", "s", "--port", str(server.port), stdin=b"a\nbig\n")
    assert done.returncode == REFUSED
    told, report_line = done.stderr.decode().splitlines()
    assert told == "tailrace: line 2: size: s: too large"
    assert report_line.endswith("1 acknowledged, 1 refused, seq 0 to 0")


def test_a_connection_that_is_lost_is_one_line(server: LineServer) -> None:
    server.close_after_publishes = 1
    done = tailrace("pub", "s", "--port", str(server.port), stdin=b"a\nb\n" * 1_000)
    assert done.returncode == NO_CONNECTION
    assert done.stderr.startswith(b"tailrace: connection to 127.0.0.1:")
    assert done.stderr.count(b"\n") == 1


def test_no_standard_input(server: LineServer) -> None:
    done = tailrace("pub", "s", "--port", str(server.port), preexec_fn=lambda: os.close(0))
    assert done.returncode == REFUSED
    assert done.stderr == b"tailrace: cannot read standard input: Bad file descriptor\n"


def test_interrupted_quietly(server: LineServer) -> None:
    process = start("pub", "s", "--port", str(server.port))
    assert process.stdin is not None
    process.stdin.write(b"a\n")
    process.stdin.flush()
    while not server.streams[b"s"]:  # it is in its loop now
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (INTERRUPTED, b"", b"")


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_bar_on_a_terminal(server: LineServer, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"line\n" * 50_000)
    main_fd, terminal_fd = pty.openpty()
    with file.open("rb") as source:
        process = start(
            "pub",
            "s",
            "--port",
            str(server.port),
            stdin=source if kind == "file" else subprocess.PIPE,
            stderr=terminal_fd,
        )
        os.close(terminal_fd)
        if process.stdin is not None:
            process.stdin.write(source.read())
            process.stdin.close()
            process.stdin = None
        shown = _read_terminal(main_fd)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == OK
    assert b"50,000 lines" in shown
    assert (b"250.0" in shown) == (kind == "file")  # kB of a total that is known
    assert b"50,000 acknowledged" in shown


def _read_terminal(fd: int) -> bytes:
    shown = b""
    try:
        while piece := os.read(fd, 1 << 16):
            shown += piece
    except OSError:  # what a terminal says instead of an end
        pass
    os.close(fd)
    return shown


def test_the_report() -> None:
    outcome = Outcome(
        lines=1_000, input_bytes=5_000, acknowledged=999, refused=1, first_seq=7, last_seq=1_500, seconds=0.5
    )
    text = "1,000 lines, 5,000 bytes in 0.50 s (2,000 lines/s)"
    assert report(outcome, ack=True) == f"{text}, 999 acknowledged, 1 refused, seq 7 to 1,500"
    assert report(outcome, ack=False) == f"{text}, not acknowledged, 1 errors"
    assert report(Outcome(), ack=True) == "0 lines, 0 bytes in 0.00 s (0 lines/s), 0 acknowledged"
