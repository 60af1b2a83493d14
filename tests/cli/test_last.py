"""`tailrace last`, with a client in place of a broker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from tailrace import Message
from tailrace.cli import last, main
from tailrace.cli.ending import OK

MESSAGES = [
    Message("s", 5, 1_000_000, b"21.5", msgpack.packb({"t": "s/a b"})),
    Message("s", 3, 1_000_000, b"19", msgpack.packb({"t": "s/b"})),
    Message("plain", 0, 1_000_000, b"x"),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are asked for; every second one has no values."""
    names: list[str] = []

    class Client:
        def last(self, name: str) -> list[Message]:
            names.append(name)
            return MESSAGES if len(names) % 2 else []

    @contextlib.contextmanager
    def broker_client() -> Iterator[Any]:
        yield Client()

    monkeypatch.setattr(last, "broker_client", broker_client)
    return names


def test_a_line_for_each_topic(asked: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["last", "s/#"]) == OK
    assert capfd.readouterr() == ("s/a%20b\t21.5\ns/b\t19\nplain\tx\n", "")
    assert main.run(["last", "none"]) == OK
    assert capfd.readouterr() == ("", "tailrace: no last values of none\n") and asked == ["s/#", "none"]


def test_json(asked: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["last", "s/#", "--json"]) == OK
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["stream"], row.get("topic"), row["payload"]) for row in rows] == [
        ("s", "s/a b", "21.5"),
        ("s", "s/b", "19"),
        ("plain", None, "x"),
    ]


def test_a_name_that_cannot_be_one(asked: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["last", "a b"]) == 2 and not asked
    assert "white space" in capfd.readouterr().err
