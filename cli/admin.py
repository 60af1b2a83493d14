"""`tailrace admin`: one command of the line protocol, and its answer."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from tailrace.cli.admin_answer import AS_TEXT, WITH_MESSAGES, Answer, JsonAnswer, parse_error
from tailrace.cli.credentials import Credentials, credentials, is_user_named
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, CommandError, complain
from tailrace.cli.options import server_options
from tailrace.cli.server import (
    CONNECT_TIMEOUT_S,
    RECEIVE_BYTES,
    choose_server,
    connect_admin_socket,
    connect_socket,
    is_server_named,
)
from tailrace.cli.values import FilePath
from tailrace.core.address import Address
from tailrace.protocol.strangers import stranger
from tailrace.sockets import end_output

F = TypeVar("F", bound=Callable[..., Any])

ANSWER_TIMEOUT_S = 60.0
GREETING = "ping\r\n"
"""With an empty line behind it, for which a broker does nothing, and which ends what a server of HTTP waits for."""
GREETING_BYTES = 4 << 10
"""The longest line in which a broker answers that it is one, or a login."""
SOCKET_VARIABLE = "TAILRACE_ADMIN_SOCKET"
SOCKET_HELP = "The node's socket of administration; without it and without an address it is looked for"
SOCKETS = (Path("/run/tailrace/admin.sock"), Path("data/admin.sock"))

EPILOG = """\b
Examples:
  tailrace admin streams
  tailrace admin stat access-log
  tailrace admin trim access-log '#1000'
  tailrace admin workers
  tailrace admin space
  tailrace admin --json workers | jq .connections
  tailrace admin shutdown NODE

On the broker's own machine its socket is used, which needs no login. Elsewhere, log in with --user as somebody with the
right admin, over TLS. `tailrace admin help` lists the commands.

With --json, which comes before COMMAND, each row of a table is an object in a line; a table of fields and values is one
object, and an answer of one line is {"answer": "trim orders 0 12"}, without its "ok".

Exit codes: 0 done, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""


def socket_option(function: F) -> F:
    text = f"{SOCKET_HELP} [env: {SOCKET_VARIABLE}]."
    return click.option("--socket", "path", type=FilePath(), metavar="FILE", help=text)(function)


@click.command(
    "admin", epilog=EPILOG, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@server_options
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON, one object in a line.")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
def command(words: tuple[str, ...], path: Path | None, as_json: bool) -> int:
    """Send one COMMAND to the broker and print the answer."""
    line = " ".join(words)
    if "\n" in line or "\r" in line or not line.strip():
        raise click.UsageError("a command is one line, which is not empty")
    if line.startswith("-"):
        raise click.UsageError(f"No such option {words[0]!r}")
    verb = line.lower().split()[0]
    if as_json and verb in WITH_MESSAGES:
        raise click.UsageError(f"{verb} is answered with messages; {WITH_MESSAGES[verb]} prints them as JSON")
    if as_json and verb == AS_TEXT:
        raise click.UsageError(f"{verb} is answered with text, which is not shown as JSON")
    code = ask(line, path, JsonAnswer(verb) if as_json else Answer(), may_be_silent=verb == "pub")
    if code == REFUSED and any(word.startswith(("--", "-s", "-p")) for word in words[1:]):
        complain("tailrace: options stand before COMMAND, as in: tailrace admin --port 5060 workers")
    return code


def ask(line: str, path: Path | None, answer: Answer, *, may_be_silent: bool = False) -> int:
    """Send a line, give `answer` all that comes, and return the exit code. `may_be_silent`: there may be no answer if
    all is well. Raises CommandError."""
    chosen, sock = _connect(path)
    with sock:
        for received in _ask(sock, chosen, line.encode(errors="surrogateescape")):
            answer.take(received)
            if not answer.is_of_a_broker:
                raise _other(chosen, "it speaks another protocol")
    if not (answer.has_begun or may_be_silent):
        raise _lost(chosen, "the broker closed the connection without an answer")
    if answer.is_cut:
        raise _lost(chosen, "the broker closed the connection in the middle of its answer")
    answer.end()
    return REFUSED if answer.refused else OK


def _connect(path: Path | None) -> tuple[Address | Path, socket.socket]:
    """The node's socket of administration if it is named, or found where no address is named; else its TCP port. A
    broker has answered there: nothing but a ping is sent to anything else."""
    chosen, sock = _dial(path)
    try:
        _greet(sock, chosen)
        shown = credentials()
        if shown.user and isinstance(chosen, Address):
            _log_in(sock, chosen, shown)
    except BaseException:
        sock.close()
        raise
    return chosen, sock


def _dial(path: Path | None) -> tuple[Address | Path, socket.socket]:
    variable = os.environ.get(SOCKET_VARIABLE)
    named = path or (Path(variable) if variable else None)
    if named is not None:
        return named, connect_admin_socket(named)
    if not (is_server_named() or is_user_named()):
        for found in filter(Path.is_socket, SOCKETS):
            with contextlib.suppress(CommandError):  # of a node that was killed, or not for this user
                return found, connect_admin_socket(found)
    chosen = choose_server()
    return chosen, connect_socket(chosen)


def _greet(sock: socket.socket, server: Address | Path) -> None:
    """Raises CommandError unless a broker answers. Its refusal may be the answer, such as of too many connections."""
    try:
        received = _first_line(sock, server, GREETING, CONNECT_TIMEOUT_S)
    except TimeoutError:
        raise CommandError(
            f"cannot connect to {server}: no greeting within {CONNECT_TIMEOUT_S:g} s", NO_CONNECTION
        ) from None
    refused = parse_error(received)
    if refused is not None:
        raise CommandError(f"{refused[0]}: {refused[1]}", REFUSED)
    if received != b"ok pong":
        raise CommandError(f"cannot connect to {server}: {stranger(received)}", NO_CONNECTION)


def _log_in(sock: socket.socket, server: Address, shown: Credentials) -> None:
    """Raises CommandError. The broker takes the secret only over TLS, or from its own machine."""
    try:
        received = _first_line(sock, server, f"auth {shown.user} {shown.secret}", ANSWER_TIMEOUT_S)
    except TimeoutError:
        raise CommandError(f"{server} did not answer within {ANSWER_TIMEOUT_S:.0f} s", NO_CONNECTION) from None
    refused = parse_error(received)
    if refused is not None:
        raise CommandError(f"{server}: {refused[0]}: {refused[1]}", REFUSED)
    if not received.startswith(b"ok auth"):
        raise _other(server, "it speaks another protocol")


def _first_line(sock: socket.socket, server: Address | Path, line: str, timeout_s: float) -> bytes:
    """Sends `line` and returns the first line of the answer, without its end. Raises CommandError and TimeoutError."""
    received, ends_s = b"", time.monotonic() + timeout_s
    try:
        sock.settimeout(timeout_s)
        sock.sendall(f"{line}\r\n".encode())
        while b"\n" not in received and len(received) < GREETING_BYTES:
            sock.settimeout(max(ends_s - time.monotonic(), 0.001))
            more = sock.recv(GREETING_BYTES)
            if not more and not received:
                raise _other(server, "it closed the connection without an answer")
            if not more:
                break
            received += more
    except TimeoutError:
        raise
    except OSError as error:
        raise CommandError(f"connection to {server} lost ({error.strerror or error})", NO_CONNECTION) from None
    return received.partition(b"\r\n")[0]


def _ask(sock: socket.socket, server: Address | Path, line: bytes) -> Iterator[bytes]:
    """Sends `line`, then yields bytes until the broker closes. Raises CommandError."""
    try:
        sock.settimeout(ANSWER_TIMEOUT_S)
        sock.sendall(line + b"\r\n")
        end_output(sock)  # the broker answers everything, then closes
        while received := sock.recv(RECEIVE_BYTES):
            yield received
    except TimeoutError:
        raise CommandError(f"{server} did not answer within {ANSWER_TIMEOUT_S:.0f} s", NO_CONNECTION) from None
    except OSError as error:
        raise _lost(server, error.strerror or str(error)) from None


def _lost(server: Address | Path, reason: str) -> CommandError:
    return CommandError(f"connection to {server} lost ({reason}); the command may have been run", NO_CONNECTION)


def _other(server: Address | Path, reason: str) -> CommandError:
    return CommandError(f"cannot connect to {server}: this is not a tailrace broker: {reason}", NO_CONNECTION)
