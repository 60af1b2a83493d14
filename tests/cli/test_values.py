"""Types of the values of arguments and options."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tailrace.cli import main
from tailrace.cli.man import all_commands, root
from tailrace.cli.values import SECONDS_MAX, FilePath, Seconds

MEANT = {"pub text", "pub key", "streams names", "top names", "udp pub payload"}
"""Here the empty text is a value: a message or key without bytes, and names that begin with anything."""
CHECKED_LATER = {
    *("pub separator", "pub template", "man words", "admin words", "consume words", "get words", "conformance program"),
    *("stat stream", "dump stream", "user add name", "user add groups", "user passwd name", "user limit name"),
    *("user rm name", "cert hosts", "rollup day", "rollup first", "rollup last", "rollup cores", "rollup memory"),
    *("rollup conf", "rollup py_files", "agent address", "agent metrics"),
}
"""These are refused, or found nowhere, by the command itself."""


def accepts_nothing(ctx: click.Context, parameter: click.Parameter) -> bool:
    """Whether the parameter takes the empty text."""
    try:
        parameter.process_value(ctx, ("",) if parameter.nargs == -1 or parameter.multiple else "")
    except click.UsageError:
        return False
    return True


def test_an_empty_text_is_no_default() -> None:
    """`--server "$BROKER"` must not go to the default if the variable is not set."""
    found = set()
    for words in all_commands():
        command: click.Command = root()
        ctx = click.Context(command)
        for word in words:
            assert isinstance(command, click.Group)
            command = command.get_command(ctx, word) or command
            ctx = click.Context(command, ctx)
        flags = [each for each in command.params if isinstance(each, click.Option) and each.is_flag]
        settings = [each for each in command.params if words == ("serve",) and each.name not in ("config", "log_level")]
        others = [each for each in command.params if each not in flags and each not in settings]
        found |= {f"{' '.join(words)} {each.name}" for each in others if accepts_nothing(ctx, each)}
    assert found == MEANT | CHECKED_LATER


@pytest.mark.parametrize(
    "words",
    [
        *(["pub", "s", "x", f"--{name}", ""] for name in ("server", "host", "ca", "cert", "user", "token-file")),
        ["tree", ""],
        ["check", ""],
        ["rollup", "", "out"],
        ["rollup", "data", "out", "--stream", ""],
        ["man", "--install", ""],
        ["admin", "--socket", "", "workers"],
        ["user", "ls", "--file", ""],
        ["serve", "--config", "", "--check-config"],
    ],
)
def test_commands_refuse_it(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(words) == 2
    assert "must not be empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_paths(tmp_path: Path) -> None:
    assert FilePath().convert("a/b", None, None) == Path("a/b")
    with pytest.raises(click.BadParameter, match="is a directory"):
        FilePath(dir_okay=False).convert(str(tmp_path), None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "-1", "x", ""])
def test_no_numbers_of_seconds(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds(0).convert(text, None, None)


def test_numbers_of_seconds() -> None:
    assert [Seconds(0).convert(text, None, None) for text in ("0", "0.5", "1e9")] == [0, 0.5, SECONDS_MAX]
    with pytest.raises(click.BadParameter, match="0<x<=5"):
        Seconds(0, 5, min_open=True).convert("0", None, None)
