"""`tailrace get`: one message of a durable consumer, against a broker in memory."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE
from tests.client.model_consumers import Groups
from tests.client.model_server import ModelServer


def test_each_has_the_next_message(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    Groups(server.model)
    server.publish(b"orders", b"one", b"two", b"three")
    where = ["get", "orders", "billing", "--wait", "30", "--server", server.address]
    assert (main.run(where), capfd.readouterr()) == (OK, ("one\n", ""))
    assert main.run([*where, "--json"]) == OK
    assert json.loads(capfd.readouterr().out)["payload"] == "two"
    assert (main.run([*where, "--", "tr", "a-z", "A-Z"]), capfd.readouterr()) == (OK, ("THREE", ""))


def test_a_command_that_fails_and_no_message(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    Groups(server.model)
    server.publish(b"orders", b"one")
    where = ["--server", server.address]
    assert main.run(["get", "orders", "g", "--wait", "30", *where, "--", "false"]) == REFUSED
    assert capfd.readouterr().err == "tailrace: seq 0: false: exit code 1\n"
    assert main.run(["get", "orders", "h", "--from", "new", "--wait", "0.1", *where]) == REFUSED
    assert capfd.readouterr() == ("", "tailrace: no message of orders for h within 0.1 s\n")
    assert main.run(["get", "orders", "g", "--wait", "0", *where]) == USAGE
