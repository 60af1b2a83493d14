"""The login of a command: options over the environment, secrets never on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tailrace.cli.credentials import (
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    USER_VARIABLE,
    Credentials,
    client_options,
    credentials,
    login_options,
)
from tailrace.cli.ending import USAGE, CommandError


@click.command()
@login_options
def command() -> None:
    found = credentials()
    assert credentials() == found, "it is asked for once"
    click.echo(f"{found.user} {found.password} {found.token}")
    assert client_options().user == found.user


def run(*arguments: str, **environment: str) -> str:
    """The credentials found, or the reason for the failure."""
    done = CliRunner(env=environment).invoke(command, arguments, catch_exceptions=True)
    if isinstance(done.exception, CommandError):
        assert done.exception.exit_code == USAGE
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.output.strip()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    made = {"pw": "from file\n", "empty": "", "two": "a\nb\n", "long": "x" * 1_025}
    for name, text in made.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in (*made, "missing")}


def test_from_files_and_the_environment(files: dict[str, str]) -> None:
    assert run() == "None None None"
    assert run(**{TOKEN_VARIABLE: "t"}) == "None None t", "the token that the broker wants of all"
    assert run("--user", "ann", **{TOKEN_VARIABLE: "t"}) == "ann None t"
    assert run(**{USER_VARIABLE: "bob", PASSWORD_VARIABLE: "p"}) == "bob p None"
    assert run("--user", "ann", **{USER_VARIABLE: "bob", PASSWORD_VARIABLE: "p"}) == "ann p None"
    assert run(**{PASSWORD_VARIABLE: "p"}) == "None None None", "a password without a user is another command's"
    assert run("--user", "ann", "--password-file", files["pw"], **{TOKEN_VARIABLE: "t"}) == "ann from file None"
    assert run("--user", "ann", "--token-file", files["pw"], **{PASSWORD_VARIABLE: "p"}) == "ann None from file"


def test_what_is_no_login(files: dict[str, str]) -> None:
    assert "no password or token for ann: give --password-file" in run("--user", "ann")
    assert "a password goes with --user" in run("--password-file", files["pw"])
    assert "exclude each other" in run("--user", "a", "--password-file", files["pw"], "--token-file", files["pw"])
    for name in ("empty", "two", "long"):
        assert "must hold one line" in run("--user", "a", "--password-file", files[name])
    assert "cannot be read" in run("--user", "a", "--token-file", files["missing"])


def test_a_terminal_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("tailrace.cli.ending.sys.stdin", type("Terminal", (), {"isatty": lambda _self: True})())

    def prompt(text: str, **_options: object) -> str:
        asked.append(text)
        return "typed"

    monkeypatch.setattr(click, "prompt", prompt)
    with click.Context(command) as context:
        context.meta["tailrace.login.user"] = "ann"
        assert credentials() == credentials() == Credentials("ann", "typed")
    assert asked == ["Password of ann"] and "typed" not in repr(Credentials("ann", "typed"))
