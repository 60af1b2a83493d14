"""Answers of the line protocol, in pieces, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from tailrace.cli.admin_answer import Answer, JsonAnswer, parse_error, value_of

Captured = pytest.CaptureFixture[str]


def shown(verb: str, answer: bytes, capfd: Captured) -> list[object]:
    """The output for an answer that comes byte by byte."""
    found = JsonAnswer(verb)
    for at in range(len(answer)):
        found.take(answer[at : at + 1])
    assert not found.is_cut
    found.end()
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_errors_are_told_apart() -> None:
    assert parse_error(b"err size s: too large") == ("size", "s: too large")
    assert parse_error(b"ok err") is None


def test_text_in_pieces(capfd: Captured) -> None:
    found = Answer()
    for piece in (b"ok stream ro", b"le\r", b"\na master\r\n.", b"\r\n"):
        found.take(piece)
    assert capfd.readouterr().out == "ok stream role\na master\n" and not found.is_cut


def test_a_node_that_was_asked_to_stop_may_say_so(capfd: Captured) -> None:
    """It closes the connection that asked, as all others: that is no refusal. Of another command it is one."""
    for answer, refused in ((b"ok shutdown\r\n", False), (b"ok stream role\r\na master\r\n", True)):
        found = Answer()
        for piece in (answer, b"err closing this node is stop", b"ping\r\n"):
            found.take(piece)
        assert found.refused is refused
        assert ("closing" in capfd.readouterr().err) is refused


def test_rows(capfd: Captured) -> None:
    answer = b"ok stream role epoch\r\n7 master 1\r\n- slave -\r\n.\r\n"
    assert shown("streams", answer, capfd) == [
        {"stream": "7", "role": "master", "epoch": 1},
        {"stream": "-", "role": "slave", "epoch": None},
    ]
    assert shown("streams", b"ok stream role epoch\r\n.\r\n", capfd) == []


def test_fields_and_values(capfd: Captured) -> None:
    answer = b"ok field value\r\nstream 12\r\nlast_master 1234567890123456\r\nmessages 3\r\nlag_s 0.250\r\n.\r\n"
    assert shown("stat", answer, capfd) == [
        {"stream": "12", "last_master": "1234567890123456", "messages": 3, "lag_s": 0.25}
    ]
    answer = b"ok field value\r\nmark 5\r\nstreams 2\r\nknown 1\r\ngrown a\r\ngrown 8\r\n.\r\n"
    assert shown("grown", answer, capfd) == [{"mark": "5", "streams": 2, "known": 1, "grown": ["a", "8"]}]
    assert shown("grown", b"ok field value\r\nmark 5\r\n.\r\n", capfd) == [{"mark": "5", "grown": []}]


@pytest.mark.parametrize(
    ("verb", "line"), [("trim", "trim s 0 12"), ("delete", "delete s"), ("ping", "pong"), ("ack", "ack on")]
)
def test_one_line(verb: str, line: str, capfd: Captured) -> None:
    assert shown(verb, f"ok {line}\r\n".encode(), capfd) == [{"answer": line}]


def test_meanings_hold_blanks(capfd: Captured) -> None:
    answer = b"ok command meaning\r\nunsub STREAM  no more messages\r\n.\r\n"
    assert shown("help", answer, capfd) == [{"command": "unsub STREAM", "meaning": "no more messages"}]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("pid", "7", 7), ("lag_us", "-1", -1), ("peer", "7", "7"), ("copy", "7e3", "7e3"), ("consumer", "12", "12")],
)
def test_values(name: str, text: str, value: object) -> None:
    assert value_of(name, text) == value
