"""docs/protocol.md matches the code."""

from __future__ import annotations

import re
from itertools import dropwhile, takewhile
from pathlib import Path

from tailrace.broker.connection import commands as run
from tailrace.broker.consumers.edge import line as line_serving
from tailrace.broker.process.settings import Settings
from tailrace.protocol import answers
from tailrace.protocol.consuming import MESSAGES_MAX, WAIT_MAX_MS
from tailrace.protocol.errors import Code
from tailrace.protocol.grammar import NUMBER_MAX, VERBS, parse_line
from tailrace.protocol.line import LineCodec
from tests.protocol.lines import feed, messages

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()


def is_row(line: str) -> bool:
    return line.startswith("|")


def table(title: str) -> list[list[str]]:
    """The rows of the first table under a heading, their cells with plain bars."""
    under = TEXT.split(f"# {title}\n", 1)[1].splitlines()
    lines = list(takewhile(is_row, dropwhile(lambda line: not is_row(line), under)))
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines[2:]]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]


def test_the_codes_are_those_of_the_code() -> None:
    assert table("Errors") == [[f"`{code}`", code.meaning] for code in Code]


def test_the_commands_are_those_of_the_grammar() -> None:
    assert table("Commands") == [
        [f"`{verb.form}`", verb.meaning, "this machine" if verb.admin else "anywhere"] for verb in VERBS.values()
    ]


def test_the_limits_are_those_of_the_settings() -> None:
    for setting, default, above in table("Limits"):
        assert getattr(Settings(), setting.strip("`")) == int(default), setting
        assert all(Code(word) for word in re.findall(r"`err ([a-z]+)`", above))
    assert str(NUMBER_MAX) in TEXT


def test_every_code_named_in_the_text_exists() -> None:
    assert all(Code(word) for word in re.findall(r"`err ([a-z]+)", TEXT) if word != "CODE")


def test_the_columns_are_those_of_the_commands() -> None:
    shown = dict(table("Administering"))
    assert shown["`streams`"] == f"rows of `{' '.join(run.GATHER_COLUMNS_STREAMS)}`"
    assert shown["`conns`"] == f"rows of `{' '.join(run.GATHER_COLUMNS_CONNS)}`"
    assert shown["`sessions`"].startswith(f"rows of `{' '.join(run.SESSION_COLUMNS)}`")
    assert shown["`workers`"] == f"rows of `{' '.join(run.WORKER_COLUMNS)}`"


def test_what_is_said_of_consumers() -> None:
    shown = dict(table("Durable consumers"))
    assert shown["`consumers`"] == f"rows of `{' '.join(line_serving.COLUMNS)}`"
    assert f"at most {WAIT_MAX_MS})" in " ".join(TEXT.split()) and f"MAX is at most {MESSAGES_MAX};" in TEXT


def test_the_first_example_is_what_is_said() -> None:
    example = TEXT.split("```\n")[1].splitlines()
    sent = [line[2:].encode() for line in example if line.startswith("→")]
    heard = [line[2:].encode() + b"\r\n" for line in example if line.startswith("←")]
    commands = feed(LineCodec(1_000, 1_000), [line + b"\r\n" for line in sent])
    assert [type(command) for command in commands] == [type(parse_line(line, 1_000)) for line in sent]
    assert heard[0] == answers.ok_ack(True)
    assert heard[1] == answers.ok_pub([messages(commands[1])[0][0]], [0], [0])  # type: ignore[arg-type]
    assert heard[2] == answers.ok_sub(b"news", 0)
