"""`tailrace sessions`, with answers in place of a node's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.cli import main, sessions
from tailrace.cli.admin_answer import Answer
from tailrace.cli.ending import OK, REFUSED, USAGE

HEAD = "ok client user connected away_s expiry_s bytes"
ROWS = ["%2E%20a - 1 0 3600 120", "12 ann 0 90 604800 2048", "b - 0 5 3600 431"]

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the node is asked; it has ROWS, of which it shows two at once, and no session of `nobody`."""
    asked: list[str] = []

    def ask(line: str, path: Path | None, answer: Answer) -> int:
        asked.append(line)
        verb, _, client = line.partition(" ")
        if verb == "sessions":
            shown = [row for row in ROWS if row.split()[0] > client][:2]
            answer.take("".join(f"{each}\r\n" for each in (HEAD, *shown, ".")).encode())
        else:
            answer.take(b"err unknown no such session\r\n" if client == "nobody" else f"ok {line}\r\n".encode())
        answer.end()
        return REFUSED if answer.refused else OK

    monkeypatch.setattr(sessions, "ask", ask)
    return asked


def test_all_pages_are_listed(lines: list[str], capsys: Captured) -> None:
    assert main.run(["sessions", "ls"]) == OK
    assert lines == ["sessions", "sessions 12", "sessions b"]
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == ["client", "user", "away", "lasts", "size"]
    assert shown[1:] == [
        ["%2E%20a", "-", "connected", "1.0", "h", "120", "B"],
        ["12", "ann", "1.5", "min", "7.0", "d", "2.0", "KiB"],
        ["b", "-", "5.0", "s", "1.0", "h", "431", "B"],
    ]


def test_as_json(lines: list[str], capsys: Captured) -> None:
    assert main.run(["sessions", "ls", "--json"]) == OK
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == {"client": "12", "user": "ann", "connected": 0, "away_s": 90, "expiry_s": 604800, "bytes": 2048}
    assert [row["client"] for row in rows] == ["%2E%20a", "12", "b"] and rows[0]["user"] is None


def test_one_is_removed(lines: list[str], capfd: Captured) -> None:
    assert main.run(["sessions", "rm", "12"]) == OK
    assert main.run(["sessions", "rm", "b", "--json"]) == OK
    assert capfd.readouterr().out == 'ok forget 12\n{"answer": "forget b"}\n'
    assert main.run(["sessions", "rm", "nobody"]) == REFUSED
    assert "no such session" in capfd.readouterr().err
    assert main.run(["sessions", "rm", "a b"]) == USAGE
    assert "white space as in a URL" in capfd.readouterr().err and len(lines) == 3


def test_a_node_without_any(lines: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROWS", [])
    assert main.run(["sessions", "ls"]) == OK
    assert capsys.readouterr() == ("", "tailrace: the node has no durable MQTT sessions\n")
