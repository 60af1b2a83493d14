"""`tailrace dead`, against a broker in memory; `tests/system/test_dead_letters.py` has real dead letters."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, USAGE
from tests.client.model_server import ModelServer, running_model


def test_each_is_a_line(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"orders/$dead", b"one\ttwo", b"x" * 50)
    assert main.run(["dead", "orders", "--server", server.address]) == OK
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [[line[0], *line[2:]] for line in lines] == [
        ["0", "-", "-", "-", "-", "one.two"],
        ["1", "-", "-", "-", "-", "x" * 40 + "…"],
    ]


def test_some_of_them(server: ModelServer, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    server.publish(b"orders/$dead", b"one", b"\xff", b"three")
    assert main.run(["dead", "orders", "--seq", "1", "--server", server.address]) == OK
    assert capfdbinary.readouterr().out == b"\xff"
    assert main.run(["dead", "orders", "--json", "--count", "2", "--server", server.address]) == OK
    assert [json.loads(line)["seq"] for line in capfdbinary.readouterr().out.splitlines()] == [0, 1]


def test_what_goes_wrong(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"orders/$dead", b"one")
    assert main.run(["dead", "orders", "--seq", "7", "--server", server.address]) == REFUSED
    assert capfd.readouterr().err == "tailrace: orders has no dead letter 7\n"
    assert main.run(["dead", "a b"]) == USAGE
    with running_model() as gone:
        address = gone.address
    assert main.run(["dead", "orders", "--server", address]) == NO_CONNECTION
