"""`tailrace tail`, as a shell runs it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tailrace.command.ending import INTERRUPTED, NO_CONNECTION, OK, REFUSED
from tests.tailrace.command.process import DEADLINE_S, start, tailrace
from tests.tailrace.line_server import LineServer, running_server

PAYLOADS = [b"one", b"", b"cr\r", b"\xff\x00", b"two\nlines", b"msg s 0 0 1 |x"]


@pytest.fixture
def server() -> Iterator[LineServer]:
    with running_server() as server:
        server.streams[b"s"] = list(PAYLOADS)
        yield server


def test_everything_there_is(server: LineServer) -> None:
    done = tailrace("tail", "s", "--no-follow", "--server", server.address)
    assert (done.returncode, done.stderr) == (OK, b"")
    assert done.stdout == b"".join(payload + b"\n" for payload in PAYLOADS)


def test_from_a_seq_for_a_count(server: LineServer) -> None:
    done = tailrace("tail", "s", "--from", "#1", "-n", "2", "--port", str(server.port))
    assert (done.returncode, done.stdout) == (OK, b"\ncr\r\n")


def test_times_are_translated(server: LineServer) -> None:
    done = tailrace("tail", "s", "--from", "1970-01-01T00:00:01.000004Z", "--no-follow", "--port", str(server.port))
    assert (done.returncode, done.stdout) == (OK, b"two\nlines\nmsg s 0 0 1 |x\n")
    assert server.lines[-1] == b"sub s 1000004"


def test_json(server: LineServer) -> None:
    done = tailrace("tail", "s", "--json", "--no-follow", "--port", str(server.port))
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert shown[0] == {
        "stream": "s",
        "seq": 0,
        "timestamp_us": 1_000_000,
        "time": "1970-01-01T00:00:01.000000Z",
        "payload": "one",
    }
    assert shown[3]["payload_base64"] == "/wA="
    assert [each["seq"] for each in shown] == list(range(len(PAYLOADS)))


def test_a_refusal_and_a_lost_connection(server: LineServer) -> None:
    server.close_after_history = True
    done = tailrace("tail", "s", "--port", str(server.port))
    assert done.returncode == NO_CONNECTION
    assert done.stdout.endswith(b"|x\n")
    assert done.stderr.endswith(b"lost (the broker closed it) after seq 5; go on with --from '#6'\n")
    server.answers[b"sub s 0"] = b"err unknown no such stream\r\n"
    done = tailrace("tail", "s", "--port", str(server.port))
    assert (done.returncode, done.stdout) == (REFUSED, b"")
    assert done.stderr == f"tailrace: {server.address}: unknown: no such stream\n".encode()


def test_a_hole_is_told_beside(server: LineServer) -> None:
    server.after_history = b"msg s 8 1 1 |y\r\n"
    done = tailrace("tail", "s", "--from", "#5", "-n", "2", "--port", str(server.port))
    assert done.stdout == b"msg s 0 0 1 |x\ny\n"
    assert done.stderr == b"tailrace: seqs 6 to 7 are missing; they may have been trimmed\n"


@pytest.mark.parametrize("messages", [3, 200_000])
def test_a_reader_that_has_enough_ends_it_quietly(server: LineServer, messages: int) -> None:
    """As `| head` does: with much left to write, and with nothing."""
    server.streams[b"s"] = [b"line"] * messages
    read_fd, write_fd = os.pipe()
    process = start("tail", "s", "--port", str(server.port), stdout=write_fd)
    os.close(write_fd)
    assert os.read(read_fd, 5) == b"line\n"
    os.close(read_fd)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (OK, b"")


def test_interrupted_quietly(server: LineServer) -> None:
    process = start("tail", "s", "--port", str(server.port))
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"  # it is in its loop now
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (INTERRUPTED, b"")
