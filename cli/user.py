"""`tailrace user`: edits the file of users of a node."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tailrace.broker.access.users import NAME_RULE, User, name_valid
from tailrace.broker.process.settings import USERS_FILE
from tailrace.cli.ending import OK, REFUSED, CommandError, is_somebody_there
from tailrace.cli.options import json_option
from tailrace.cli.tables import show_json
from tailrace.cli.values import FILLED, FilePath
from tailrace.protocol.scram import PASSWORD_CHARACTERS_MAX, make_verifier
from tailrace.shard.files import read_small
from tailrace.supervisor.user_file import COUNT_MAX, UserFileError, editing, hash_token, read_users, user_fault

F = TypeVar("F", bound=Callable[..., Any])

PASSWORD_VARIABLE: Final = "TAILRACE_PASSWORD"
PASSWORD_CHARACTERS_MIN: Final = 8
PASSWORD_FILE_BYTES_MAX: Final = 4 * PASSWORD_CHARACTERS_MAX + 2
TOKEN_BYTES: Final = 32
LIMITS: Final = {
    "max_connections": "Connections of the user to the node",
    "max_streams": "Streams that it may create in an hour, at each worker",
    "max_consumers": "Durable consumers that it may create in an hour, at each worker",
    "max_handles": "Handles of its binary connections, at each worker",
    "max_sessions": "Durable MQTT sessions, at each worker",
    "max_will_bytes": "Memory for the wills of its MQTT connections, at each worker",
    "bytes_in_per_s": "Bytes that it may send in a second, to each worker",
}

EPILOG = """\b
Examples:
  tailrace user add ann --group ops
  tailrace user add sensor-7 --token
  tailrace user passwd ann --password-file secret
  tailrace user limit sensor-7 --max-connections 2 --bytes-in-per-s 1000000
  tailrace user ls
  tailrace user rm ann

A running node takes the file with a reload. As soon as there is a file of users, every connection must log in.

Exit codes: 0 done, 1 not done, such as for a user that is not there, 2 wrong arguments.
"""


@click.group("user", epilog=EPILOG)
def command() -> None:
    """Add, change, list and remove the users of a node."""


def file_option(function: F) -> F:
    text = f"The file of users [default: {USERS_FILE}]."
    return click.option("--file", "path", type=FilePath(), default=USERS_FILE, help=text)(function)


def limit_options(function: F) -> F:
    """One for each field of `UserLimits`."""
    for key, text in reversed(LIMITS.items()):
        flag = f"--{key.replace('_', '-')}"
        function = click.option(flag, key, type=click.IntRange(0, COUNT_MAX), help=f"{text}; 0: no bound.")(function)
    return function


def password_option(function: F) -> F:
    text = f"Read the password from this file; else from {PASSWORD_VARIABLE}, else it is asked for."
    return click.option("--password-file", type=FilePath(), help=text)(function)


@command.command("add", epilog=EPILOG)
@click.argument("name")
@click.option("--group", "groups", multiple=True, help="A group of the user. May be repeated.")
@click.option("--token", is_flag=True, help="Make a token and print it; it is not shown again.")
@click.option(
    "--certificate",
    "certificates",
    type=FILLED,
    multiple=True,
    help="Subject or alternative name of a certificate.",
)
@click.option(
    "--address", "addresses", type=FILLED, multiple=True, metavar="HOST:PORT", help="Of a node: where it listens."
)
@limit_options
@password_option
@file_option
@json_option
def add(
    name: str,
    groups: tuple[str, ...],
    token: bool,
    certificates: tuple[str, ...],
    addresses: tuple[str, ...],
    password_file: Path | None,
    path: Path,
    as_json: bool,
    **limits: int | None,
) -> int:
    """Add the user NAME, who logs in with a password, a new token or a certificate."""
    for each in (name, *groups):
        if not name_valid(each):
            raise click.UsageError(f"{each!r}: the name of a user or group has {NAME_RULE}; anonymous is taken")
    user = User(name, frozenset(groups), certificates=certificates, addresses=addresses)
    if fault := user_fault(user):
        raise click.UsageError(fault)
    user = _limited(user, limits)
    made = secrets.token_urlsafe(TOKEN_BYTES)
    if token:
        user = replace(user, token_hashes=(hash_token(made),))
    if password_file or not (token or certificates):
        user = replace(user, scram=make_verifier(_password(password_file)))
    with _editing(path) as users:
        if name in users:
            raise CommandError(f"{path}: the user {name} is there already", REFUSED)
        users[name] = user
    _report(name, "added", made if token else None, as_json)
    return OK


@command.command("passwd", epilog=EPILOG)
@click.argument("name")
@click.option("--token", is_flag=True, help="Make a token in place of the old ones and print it.")
@password_option
@file_option
@json_option
def passwd(name: str, token: bool, password_file: Path | None, path: Path, as_json: bool) -> int:
    """Give the user NAME a new password, or a new token."""
    if token and password_file is not None:
        raise click.UsageError("--token and --password-file: pass one of them")
    made = secrets.token_urlsafe(TOKEN_BYTES)
    password = "" if token else _password(password_file)
    with _editing(path) as users:
        user = _known(users, name, path)
        if token:
            users[name] = replace(user, token_hashes=(hash_token(made),))
        else:
            users[name] = replace(user, scram=make_verifier(password))
    _report(name, "changed", made if token else None, as_json)
    return OK


@command.command("limit", epilog=EPILOG)
@click.argument("name")
@limit_options
@file_option
@json_option
def limit(name: str, path: Path, as_json: bool, **limits: int | None) -> int:
    """Bound the user NAME. Limits that are not given stay as they are."""
    if not any(value is not None for value in limits.values()):
        raise click.UsageError("which limit? Give one of the options")
    with _editing(path) as users:
        users[name] = _limited(_known(users, name, path), limits)
    _report(name, "changed", None, as_json)
    return OK


@command.command("rm", epilog=EPILOG)
@click.argument("name")
@file_option
@json_option
def rm(name: str, path: Path, as_json: bool) -> int:
    """Remove the user NAME."""
    with _editing(path) as users:
        _known(users, name, path)
        del users[name]
    _report(name, "removed", None, as_json)
    return OK


@command.command("ls", epilog=EPILOG)
@json_option
@file_option
def ls(as_json: bool, path: Path) -> int:
    """List the users: name, groups, ways to log in, limits."""
    try:
        users = read_users(path)
    except UserFileError as error:
        raise CommandError(str(error), REFUSED) from None
    for user in users:
        ways = {"password": user.scram, "token": user.token_hashes, "certificate": user.certificates}
        shown, groups = [way for way in ways if ways[way]], sorted(user.groups)
        limits = {key: value for key, value in asdict(user.limits).items() if value}
        if as_json:
            show_json([{"name": user.name, "groups": groups, "ways": shown, "limits": limits}])
        else:
            bounds = (f"{key}={value}" for key, value in limits.items())
            click.echo("\t".join((user.name, *(",".join(each) or "-" for each in (groups, shown, bounds)))))
    return OK


def _report(name: str, deed: str, token: str | None, as_json: bool) -> None:
    """`token`: one that was made, which is shown this once."""
    if as_json:
        show_json([{"name": name, deed: True, **({"token": token} if token else {})}])
    elif token:
        click.echo(token)


def _limited(user: User, limits: dict[str, int | None]) -> User:
    given = {key: value for key, value in limits.items() if value is not None}
    return replace(user, limits=replace(user.limits, **given))


def _known(users: dict[str, User], name: str, path: Path) -> User:
    if name not in users:
        raise CommandError(f"{path}: there is no user {name}", REFUSED)
    return users[name]


@contextmanager
def _editing(path: Path) -> Iterator[dict[str, User]]:
    try:
        with editing(path) as users:
            yield users
    except UserFileError as error:
        raise CommandError(str(error), REFUSED) from None
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror}", REFUSED) from None


def _password(path: Path | None) -> str:
    """From the file, the environment or the terminal; never from the command line, which `ps` shows."""
    if path is not None:
        try:
            password = read_small(path, PASSWORD_FILE_BYTES_MAX).content.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{path}: cannot be read: {error}") from None
        except OSError as error:
            raise click.UsageError(f"{path}: cannot be read: {error.strerror}") from None
    else:
        password = os.environ.get(PASSWORD_VARIABLE) or _ask()
    if not PASSWORD_CHARACTERS_MIN <= len(password) <= PASSWORD_CHARACTERS_MAX:
        raise click.UsageError(f"a password has {PASSWORD_CHARACTERS_MIN} to {PASSWORD_CHARACTERS_MAX} characters")
    return password


def _ask() -> str:
    if not is_somebody_there():
        raise click.UsageError(f"no password: nobody is there to be asked; give --password-file or {PASSWORD_VARIABLE}")
    asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return asked
