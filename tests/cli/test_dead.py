"""`tailrace dead`, against a broker in memory; `tests/system/test_dead_letters.py` has real dead letters."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, USAGE
from tests.client.model_consumers import Groups
from tests.client.model_server import ModelServer, running_model


@pytest.fixture(autouse=True)
def groups(server: ModelServer) -> Groups:
    return Groups(server.model)


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


def test_a_range_and_all_are_redriven_and_purged(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"orders/$dead", b"0", b"1", b"2", b"3", b"4", b"5")
    assert main.run(["dead", "orders", "--redrive", "--seq", "1-3", "--server", server.address]) == OK
    assert main.run(["dead", "orders", "--purge", "--seq", "5", "--server", server.address]) == OK
    assert capfd.readouterr().out.splitlines() == [
        "3 dead letters published to orders again",
        "1 dead letter of orders removed",
    ]
    assert main.run(["dead", "orders", "--server", server.address]) == OK
    assert [line.split("\t")[0] for line in capfd.readouterr().out.splitlines()] == ["0", "4"]
    assert main.run(["dead", "orders", "--seq", "2-3", "--server", server.address]) == REFUSED
    assert capfd.readouterr().err == "tailrace: orders has no dead letter 2 to 3\n"
    assert main.run(["dead", "orders", "--purge", "--all", "--server", server.address]) == OK
    assert capfd.readouterr().out == "2 dead letters of orders removed\n"
    assert main.run(["dead", "orders", "--purge", "--all", "--json", "--server", server.address]) == OK
    assert capfd.readouterr().out == '{"stream": "orders", "purged": 0}\n'


@pytest.mark.parametrize(
    "words",
    [
        ["--redrive"],
        ["--purge"],
        ["--all"],
        ["--redrive", "--purge", "--all"],
        ["--redrive", "--all", "--seq", "1"],
        ["--purge", "--all", "--count", "1"],
        ["--purge", "--seq", "3-2"],
        ["--seq", "x"],
    ],
)
def test_what_cannot_be_asked(words: list[str]) -> None:
    assert main.run(["dead", "orders", *words]) == USAGE
