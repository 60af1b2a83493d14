"""Answers: whole lines that nothing in their parts can break."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import answers
from tailrace.protocol.errors import Code, UsageError
from tailrace.protocol.grammar import VERBS, WORDS


def test_err() -> None:
    assert answers.err(Code.FULL, "no space") == b"err full no space\r\n"


@given(st.sampled_from(Code), st.text())
def test_an_error_is_one_line_whatever_its_text(code: Code, text: str) -> None:
    line = answers.err(code, text)
    assert line.endswith(b"\r\n")
    assert line.count(b"\n") == line.count(b"\r") == 1
    assert line.split(b" ")[:2] == [b"err", code.value.encode()]
    assert line.decode().rstrip("\r\n").isprintable()


def test_an_error_is_bounded() -> None:
    assert len(answers.err(Code.FULL, "é" * 1_000_000)) < 2 * answers.TEXT_CHARACTERS_MAX + 20


def test_publish_refused() -> None:
    assert answers.publish_refused("é".encode(), 1, Code.FULL, "no space") == "err full é: no space\r\n".encode()
    assert answers.publish_refused(b"s", 7, Code.FULL, "no space") == b"err full s: 7 messages: no space\r\n"


def test_ok() -> None:
    assert answers.ok("quit") == b"ok quit\r\n"
    assert answers.ok("trim", b"s", 5, "x") == b"ok trim s 5 x\r\n"


def test_the_fixed_ones() -> None:
    assert answers.ok_sub(b"s", 7) == b"ok sub s 7\r\n"
    assert answers.ok_unsub(b"s") == b"ok unsub s\r\n"
    assert answers.ok_ack(True) == b"ok ack on\r\n"
    assert answers.ok_ack(False) == b"ok ack off\r\n"
    assert answers.ok("quit") == b"ok quit\r\n"
    assert answers.pong() == b"ok pong\r\n"


def test_ok_pub_in_the_order_sent() -> None:
    text = answers.ok_pub([b"s", b"t"], [0, 1, 0], [7, 100])
    assert text == b"ok pub s 7\r\nok pub t 100\r\nok pub s 8\r\n"


def test_ok_pub_line_by_line() -> None:
    assert answers.ok_pub_each(b"s", 9, 1) == [b"ok pub s 9\r\n"]
    assert answers.ok_pub_each(b"s", 9, 3) == [b"ok pub s 9\r\n", b"ok pub s 10\r\n", b"ok pub s 11\r\n"]


def test_ok_pub_takes_any_sequence() -> None:
    assert answers.ok_pub((b"s",), range(1), (7,)) == b"ok pub s 7\r\n"


def test_table() -> None:
    rows: list[list[object]] = [["s", 1, "master"], ["a b\tc", "", None]]
    assert answers.table(("stream", "epoch", "role"), rows) == (
        b"ok stream epoch role\r\ns 1 master\r\na_b_c - None\r\n.\r\n"
    )
    assert answers.table(("a", "b"), []) == b"ok a b\r\n.\r\n"


@given(st.lists(st.tuples(st.text(max_size=5), st.integers()), max_size=5))
def test_no_value_can_break_a_table(rows: list[tuple[str, int]]) -> None:
    lines = answers.table(("a", "b"), rows).decode().split("\r\n")
    assert (lines[0], lines[-2], lines[-1]) == ("ok a b", ".", "")
    assert [len(line.split(" ")) for line in lines[1:-2]] == [2] * len(rows)


def test_a_table_of_one_column_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two"):
        answers.table(("a",), [["."]])


def test_help_shows_everybody_their_commands() -> None:
    everybody, admin = answers.help_text(admin=False).decode(), answers.help_text(admin=True).decode()
    for text in (everybody, admin):
        assert text.startswith("ok command meaning\r\n")
        assert text.endswith("\r\n.\r\n")
        assert text.isascii()
    for verb in VERBS.values():
        assert (verb.form in everybody) == (not verb.admin)
        assert verb.form in admin
        assert verb.meaning in admin


def test_help_on_one_command() -> None:
    shown = answers.help_on(b"ack", admin=False).decode().split("\r\n")
    assert shown[0] == "ok command meaning"
    assert [line.split()[0] for line in shown[1:-2]] == ["ack", "ack", "STREAM", "NAME", "SEQ", "LAST"]
    assert "FROM  " in answers.help_on(b"sub", admin=False).decode()
    assert answers.help_on(b"bye", admin=False) == b"ok command meaning\r\nbye  end this connection\r\n.\r\n"
    assert answers.help_on(b"streams", admin=False) == b"ok command meaning\r\n.\r\n"
    assert b"streams [PREFIX]" in answers.help_on(b"streams", admin=True)


def test_every_word_in_a_form_has_a_meaning() -> None:
    named = {part for verb in VERBS.values() for part in re.findall(r"[A-Z_]{3,}", verb.form)}
    assert named - set(WORDS) <= {"HOST", "PORT", "USER", "TOKEN"}
