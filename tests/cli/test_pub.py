"""`tailrace pub`, as a shell runs it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

import tailrace as library
from tailrace.cli import main
from tailrace.cli.ending import INTERRUPTED, NO_CONNECTION, OK, REFUSED, USAGE
from tailrace.cli.pub import report
from tailrace.cli.publishing import PublishOutcome
from tailrace.protocol import messages as m
from tests.cli.process import DEADLINE_S, start, tailrace
from tests.client.model import ModelConnection
from tests.client.model_server import ModelServer


def test_lines_of_a_file_and_the_report(server: ModelServer, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"one\r\n\xff\nthree")
    done = _from_file(file, server)
    assert server.payloads(b"s") == [b"one\r", b"\xff", b"three"]
    assert done.returncode == OK
    assert done.stdout == b""
    assert done.stderr.startswith(b"3 lines, 12 bytes in 0.")
    assert done.stderr.endswith(b" lines/s), 3 acknowledged, seq 0 to 2\n")


def _from_file(file: Path, server: ModelServer) -> subprocess.CompletedProcess[bytes]:
    with file.open("rb") as source:
        process = start("pub", "s", "--server", server.address, stdin=source)
        out, err = process.communicate(timeout=DEADLINE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize(
    ("flags", "ack"), [(["--no-ack"], 0), (["--ack", "none"], 0), ([], 1), (["--ack", "synced"], 2)]
)
def test_quiet_with_any_acknowledgement(server: ModelServer, flags: list[str], ack: int) -> None:
    done = tailrace("pub", "s", "--quiet", *flags, "--port", str(server.port), stdin=b"a\nb\n")
    assert (done.returncode, done.stdout, done.stderr) == (OK, b"", b"")
    assert server.payloads(b"s") == [b"a", b"b"]
    assert [each.ack for each in server.model.said(m.Publish)] == [ack]  # type: ignore[union-attr]


@pytest.mark.parametrize(("flags", "replicas"), [([], 1), (["--replicas", "2"], 2)])
def test_lines_that_other_nodes_hold(server: ModelServer, flags: list[str], replicas: int) -> None:
    done = tailrace("pub", "s", "--ack", "replicated", *flags, "--port", str(server.port), stdin=b"a\nb\n")
    assert done.returncode == OK
    [said] = server.model.said(m.Publish)
    assert isinstance(said, m.Publish) and (said.ack, said.replicas) == (3, replicas)


def test_lines_that_too_few_nodes_hold(server: ModelServer) -> None:
    def answer(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            rows = ((5, message.count, 0, "unreplicated", "logged, but 0 of 1 nodes hold it"),)
            connection.fail("unreplicated", "s: x", op=m.Op.PUBLISH, id=message.request, results=rows)
        return isinstance(message, m.Publish)

    server.model.on_message = answer
    done = tailrace("pub", "s", "--ack", "replicated", "--port", str(server.port), stdin=b"a\nb\n")
    assert done.returncode == REFUSED
    first, *_, last = done.stderr.decode().splitlines()
    assert first == "tailrace: line 1: unreplicated: s: messages 5 to 6: logged, but 0 of 1 nodes hold it"
    assert last.endswith("0 acknowledged, 2 refused")


def test_templates_and_headers(server: ModelServer) -> None:
    words = ("--stream", "t.{1}", "--headers", "source=web1", "-H", "empty=")
    done = tailrace("pub", *words, "--port", str(server.port), stdin=b"a 1\nb 2\n")
    assert done.returncode == OK
    assert done.stderr.endswith(b"2 acknowledged\n")
    with library.connect(server.address) as client:
        [message] = client.subscribe("t.b", end=library.NOW)
    assert (message.payload, message.headers) == (b"b 2", {"source": "web1", "empty": ""})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], b"one of STREAM and --stream TEMPLATE is needed"),
        (["s", "--stream", "{1}"], b"one of STREAM and --stream TEMPLATE is needed"),
        (["--stream", "plain"], b"'plain': write {N}"),
        (["s", "-H", "novalue"], b"'novalue' is not KEY=VALUE"),
        (["s", "-H", "k=" + "x" * 70_000], b"headers of 70,0"),
        (["s", "--ack", "all"], b"'all' is not one of"),
        (["s", "--replicas", "2"], b"--replicas goes with --ack replicated"),
        (["s", "--ack", "replicated", "--replicas", "0"], b"0 is not in the range 1<=x<=255"),
        (["a b"], b"white space"),
    ],
)
def test_wrong_arguments(words: list[str], why: bytes) -> None:
    done = tailrace("pub", *words)
    assert done.returncode == USAGE
    assert why in done.stderr


def test_refused_lines_are_named(server: ModelServer) -> None:
    large = bytes((1 << 20) + 1)
    done = tailrace("pub", "s", "--port", str(server.port), stdin=b"a\n%s\n" % large)
    assert done.returncode == REFUSED
    told, report_line = done.stderr.decode().splitlines()
    assert told == "tailrace: line 2: size: the line exceeds the broker's limit of 1,048,576 bytes"
    assert report_line.endswith("1 acknowledged, 1 refused, seq 0 to 0")


def test_a_connection_that_is_lost_is_one_line(server: ModelServer) -> None:
    def on_message(connection: object, message: m.AnyMessage) -> bool:
        gone = isinstance(message, m.Publish) or bool(server.model.said(m.Publish))
        if gone:
            connection.closed = True  # type: ignore[attr-defined]
        return gone

    server.model.on_message = on_message
    done = tailrace("pub", "s", "--reconnect", "0", "--port", str(server.port), stdin=b"a\nb\n" * 1_000)
    assert done.returncode == NO_CONNECTION
    assert done.stderr.startswith(b"tailrace: connection to 127.0.0.1:")
    assert done.stderr.count(b"\n") == 1


def test_no_standard_input(server: ModelServer) -> None:
    done = tailrace("pub", "s", "--port", str(server.port), preexec_fn=lambda: os.close(0))
    assert done.returncode == REFUSED
    assert done.stderr == b"tailrace: cannot use standard input: Bad file descriptor\n"


def test_interrupted_quietly(server: ModelServer) -> None:
    process = start("pub", "s", "--port", str(server.port))
    assert process.stdin is not None
    process.stdin.write(b"a\n")
    process.stdin.flush()
    while not server.payloads(b"s"):  # it is in its loop now
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (INTERRUPTED, b"", b"")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_bar_on_a_terminal(server: ModelServer, tmp_path: Path, kind: str) -> None:
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


def test_no_progress_hides_what_is_typed(server: ModelServer) -> None:
    main_fd, terminal_fd = pty.openpty()
    process = start("pub", "s", "--port", str(server.port), stdin=terminal_fd, stderr=terminal_fd)
    os.close(terminal_fd)
    os.write(main_fd, b"typed line\n\x04")  # which the terminal shows, and Control-D
    shown = _read_terminal(main_fd)
    process.communicate(timeout=DEADLINE_S)
    assert server.payloads(b"s") == [b"typed line"]
    assert shown.startswith(b"typed line\r\n") and b"1 line, 11 bytes" in shown and b"\x1b[" not in shown


def _read_terminal(fd: int) -> bytes:
    shown = b""
    try:
        while piece := os.read(fd, 1 << 16):
            shown += piece
    except OSError:  # a terminal's answer instead of an end
        pass
    os.close(fd)
    return shown


def test_the_report() -> None:
    outcome = PublishOutcome(
        lines=1_000, input_bytes=5_000, acknowledged=999, refused=1, first_seq=7, last_seq=1_500, seconds=0.5
    )
    text = "1,000 lines, 5,000 bytes in 0.50 s (2,000 lines/s)"
    assert report(outcome, ack=True) == f"{text}, 999 acknowledged, 1 refused, seq 7 to 1,500"
    assert report(outcome, ack=True, one_stream=False) == f"{text}, 999 acknowledged, 1 refused"
    assert report(outcome, ack=False) == f"{text}, not acknowledged, 1 error"
    assert report(PublishOutcome(), ack=True) == "0 lines, 0 bytes in 0.00 s (0 lines/s), 0 acknowledged"


def test_one_message_from_the_command_line(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pub", "s", "two\nlines", "--key", "k", "--server", server.address]) == OK
    assert main.run(["pub", "s", "more", "--quiet", "--no-ack", "--server", server.address]) == OK
    assert capfd.readouterr() == ("", "seq 0 of s\n")
    with library.connect(server.address) as client:
        first, second = client.subscribe("s", end=library.NOW)
    assert (first.payload, first.headers) == (b"two\nlines", {"key": "k"})
    assert (second.payload, second.headers) == (b"more", {})


def test_one_message_that_is_refused(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.model.on_message = refuse_full
    assert main.run(["pub", "s", "text", "--server", server.address]) == REFUSED
    assert capfd.readouterr().err == f"tailrace: {server.address}: full: s: because of the test\n"
    assert main.run(["pub", "s", "text", "--no-ack", "--server", server.address]) == REFUSED
    assert capfd.readouterr().err == f"tailrace: {server.address}: full: because of the test\n"


def refuse_full(connection: ModelConnection, message: m.AnyMessage) -> bool:
    if isinstance(message, m.Publish):
        connection.fail("full", op=m.Op.PUBLISH, id=message.request)
        return True
    return False


def test_keys_from_the_lines(server: ModelServer) -> None:
    lines = b"k1:a\nk2::b\nno key\n:empty\n\xff:c\n"
    done = tailrace("pub", "s", "-K", ":", "--port", str(server.port), stdin=lines)
    assert done.returncode == OK
    with library.connect(server.address) as client:
        found = [(each.headers.get("key"), each.payload) for each in client.subscribe("s", end=library.NOW)]
    assert found == [("k1", b"a"), ("k2", b":b"), (None, b"no key"), ("", b"empty"), (b"\xff", b"c")]


def test_reports_as_objects(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pub", "s", "one", "--json", "--server", server.address]) == OK
    assert json.loads(capfd.readouterr().out) == {"stream": "s", "seq": 0, "subscribers": 1}
    done = tailrace("pub", "s", "--json", "--server", server.address, stdin=b"two\nthree\n")
    report = json.loads(done.stdout)
    assert (report["lines"], report["acknowledged"], report["first_seq"], report["last_seq"]) == (2, 2, 1, 2)
