"""`tailrace consume`, against a broker in memory."""

from __future__ import annotations

import json
import sys

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE
from tests.client.model_consumers import Groups
from tests.client.model_server import ModelServer

FAILS_AT_1 = """
import os, sys
seq = int(os.environ["TAILRACE_MESSAGE_SEQ"])
print(seq, os.environ.get("TAILRACE_MESSAGE_KEY"), sys.stdin.read(), flush=True)
sys.exit(3 if seq == 1 and os.environ["TAILRACE_MESSAGE_DELIVERIES"] == "1" else 0)
"""


@pytest.fixture
def known(server: ModelServer) -> Groups:
    groups = Groups(server.model)
    server.publish(b"s", b"one", b"two", b"three")
    return groups


def test_a_command_settles_each_message(server: ModelServer, known: Groups, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["consume", "s", "g", "--count", "4", "--server", server.address, "--", sys.executable, "-c", FAILS_AT_1]
    assert main.run(words) == REFUSED
    out, err = capfd.readouterr()
    assert out.splitlines() == ["0 None one", "1 None two", "1 None two", "2 None three"]
    assert err.count("seq 1: ") == 1 and "exit code 3" in err
    assert known.group(b"s", b"g").finished == {0, 1, 2}


def test_without_a_command_messages_are_printed_and_finished(
    server: ModelServer, known: Groups, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["consume", "s", "g", "--from", "#1", "-n", "2", "--json", "--server", server.address]) == OK
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(each["seq"], each["payload"]) for each in shown] == [(1, "two"), (2, "three")]
    assert known.group(b"s", b"g").finished == {1, 2}


def test_a_command_that_cannot_be_run_settles_nothing(
    server: ModelServer, known: Groups, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["consume", "s", "g", "--server", server.address, "--", "/no/such/program"]) == USAGE
    assert "cannot run /no/such/program: No such file" in capfd.readouterr().err
    assert not known.group(b"s", b"g").finished


def test_it_ends_when_no_message_comes(server: ModelServer, known: Groups) -> None:
    assert main.run(["consume", "s", "g", "--wait", "0.05", "--server", server.address]) == OK
    assert known.group(b"s", b"g").finished == {0, 1, 2}


@pytest.mark.parametrize("words", [["consume", "s"], ["consume", "s", "a b"], ["consume", "s", "g", "--from", "x"]])
def test_wrong_arguments(words: list[str]) -> None:
    assert main.run(words) == USAGE
