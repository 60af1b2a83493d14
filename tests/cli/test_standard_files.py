"""Commands whose standard input or output is closed, or full."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tailrace.cli.ending import OK, REFUSED, USAGE
from tests.cli.process import DEADLINE_S
from tests.client.model_server import ModelServer

COMMAND = f"{sys.executable} -m tailrace.cli.main"


def shell(line: str) -> tuple[int, str]:
    """The exit code, and what is written to standard error."""
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stderr


@pytest.mark.thorough
def test_a_full_disk_is_one_line(server: ModelServer) -> None:
    server.publish(b"s", b"one")
    text = "tailrace: cannot write the output: No space left on device\n"
    for words in (f"tail s -f --count 1 -s {server.address}", "--help", "deploy --list", "completion bash"):
        assert shell(f"{COMMAND} {words} >/dev/full") == (REFUSED, text), words


@pytest.mark.thorough
def test_closed_files_are_not_those_of_the_connection(server: ModelServer) -> None:
    """A descriptor that a program opens gets the lowest free number, such as that of standard output."""
    server.publish(b"s", b"one")
    text = "tailrace: cannot write the output: Bad file descriptor\n"
    for words in ("tail s --no-follow", "streams", "streams --json", "stat s", "top --once", "top --json"):
        assert shell(f"{COMMAND} {words} -s {server.address} >&-") == (REFUSED, text), words
    for words in ("--help", "tail --help", "completion bash"):
        assert shell(f"{COMMAND} {words} >&-") == (REFUSED, text), words
    text = "tailrace: cannot use standard input: Bad file descriptor\n"
    assert shell(f"{COMMAND} pub s -s {server.address} <&-") == (REFUSED, text)
    assert shell(f"{COMMAND} nonsense 2>&-")[0] == USAGE


@pytest.mark.few(2)
@pytest.mark.parametrize("words", ["tail s --no-follow", "streams", "streams --json", "stat s", "top --once", "--help"])
def test_a_reader_that_has_gone_is_no_failure(server: ModelServer, words: str) -> None:
    server.publish(b"s", b"one")
    arguments = [*words.split(), *([] if words == "--help" else ["-s", server.address])]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as gone:
        done = subprocess.run(
            [*COMMAND.split(), *arguments], stdout=gone, stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False
        )
    assert (done.returncode, done.stderr) == (OK, b"")


@pytest.mark.thorough
def test_commands_that_read_or_ask_without_standard_input() -> None:
    text = "tailrace: cannot use standard input: Bad file descriptor\n"
    assert shell(f"{COMMAND} udp pub s -s 127.0.0.1:9 <&-") == (REFUSED, text)
    for words in ("delete s", "user add ann --file nothing.toml", "stat s --user ann"):
        code, error = shell(f"{COMMAND} {words} <&-")
        assert code == USAGE and error.startswith("tailrace: no") and error.count("\n") == 1, words
