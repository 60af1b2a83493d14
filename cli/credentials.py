"""The login of a command, from its options and the environment. Secrets come from files, the environment or the
terminal, never from the command line, which `ps` shows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tailrace.cli.ending import USAGE, CommandError, is_somebody_there
from tailrace.cli.values import FILLED
from tailrace.core.options import ClientOptions

USER_VARIABLE: Final = "TAILRACE_USER"
PASSWORD_VARIABLE: Final = "TAILRACE_PASSWORD"
TOKEN_VARIABLE: Final = "TAILRACE_TOKEN"
SECRET_MAX_BYTES: Final = 1_024
LOGIN_HELP = {
    "user": f"Log in as this user [env: {USER_VARIABLE}]. Without a password or token it is asked for.",
    "password-file": f"File with the password of the user [env: {PASSWORD_VARIABLE}, the password itself].",
    "token-file": f"File with a token [env: {TOKEN_VARIABLE}, the token itself].",
}
_META = "tailrace.login"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Credentials:
    """Without a user, a token is the one that the broker wants of all clients."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def secret(self) -> str:
        return self.token or self.password or ""


def login_options(function: F) -> F:
    """--user, --password-file and --token-file, which `credentials` finds."""
    for name, text in reversed(LOGIN_HELP.items()):
        metavar = "NAME" if name == "user" else "FILE"
        function = click.option(
            f"--{name}", expose_value=False, callback=_keep, type=FILLED, metavar=metavar, help=text
        )(function)
    return function


def _keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    ctx.meta[f"{_META}.{parameter.name}"] = value


def is_user_named() -> bool:
    """Whether the command that runs was given --user."""
    return bool(_given("user"))


def credentials() -> Credentials:
    """Those of the command that runs. Raises CommandError."""
    user = _given("user") or os.environ.get(USER_VARIABLE) or None
    from_files = Credentials(user, _in_file("password_file"), _in_file("token_file"))
    if from_files.password and from_files.token:
        raise CommandError("--password-file and --token-file exclude each other", USAGE)
    if from_files.secret:
        found = from_files
    elif token := os.environ.get(TOKEN_VARIABLE):
        found = Credentials(user, None, token)
    else:
        found = Credentials(user, os.environ.get(PASSWORD_VARIABLE) or None if user else None)
    if found.password and not user:
        raise CommandError(f"a password goes with --user or {USER_VARIABLE}", USAGE)
    return Credentials(user, _ask(user)) if user and not found.secret else found


def client_options() -> ClientOptions:
    """The same, for what speaks the binary protocol by itself. Raises CommandError."""
    shown = credentials()
    return ClientOptions(user=shown.user, password=shown.password, token=shown.token)


def _given(name: str) -> str | None:
    context = click.get_current_context(silent=True)
    given: str | None = None if context is None else context.meta.get(f"{_META}.{name}")
    return given


def _in_file(option: str) -> str | None:
    path = _given(option)
    return None if path is None else secret_in(path)


def secret_in(path: str) -> str:
    """The line of a file. Raises CommandError."""
    try:
        with Path(path).open("rb") as file:
            secret = file.read(SECRET_MAX_BYTES + 1).decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: cannot be read: {error}", USAGE) from None
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror}", USAGE) from None
    if not secret or len(secret.encode()) > SECRET_MAX_BYTES or not secret.isprintable():
        raise CommandError(f"{path}: must hold one line of 1 to {SECRET_MAX_BYTES} bytes", USAGE)
    return secret


def _ask(user: str) -> str:
    """From the terminal, once for each run."""
    meta = click.get_current_context().meta
    asked: str | None = meta.get(f"{_META}.asked")
    if asked is None:
        if not is_somebody_there():
            text = f"no password or token for {user}: give --password-file, --token-file, {PASSWORD_VARIABLE} or "
            raise CommandError(text + TOKEN_VARIABLE, USAGE)
        asked = meta[f"{_META}.asked"] = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return asked
