"""Reaching a broker: which one is meant, and a client, or for administration a socket, or a clear sentence."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import tailrace
from tailrace.cli.credentials import credentials
from tailrace.cli.ending import NO_CONNECTION, REFUSED, USAGE, CommandError
from tailrace.core.address import Address, parse_address
from tailrace.shard.unix_socket import connect_unix
from tailrace.sockets import DialError, connect_blocking, resolve
from tailrace.tls import tls_context

SERVER_VARIABLE = "TAILRACE_SERVER"
TLS_OPTIONS = (("ca", "TAILRACE_CA"), ("cert", "TAILRACE_CERT"), ("cert_key", "TAILRACE_KEY"))
"""The options, as parameters, and the variables of the environment."""
CONNECT_TIMEOUT_S = 10.0
RECONNECT_S = 10.0
RECEIVE_BYTES = 256 << 10


def given_options() -> dict[str, Any]:
    """The options of the command that runs which `cli.options` has stored, as tailrace.NAME; {} outside of one."""
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta


def choose_server(server: str | None = None) -> Address:
    """`server`, `--server` or the environment, with `--host` and `--port` over it. Raises CommandError."""
    given = given_options()
    try:
        chosen = parse_address(server or given.get("tailrace.server") or os.environ.get(SERVER_VARIABLE, ""))
    except tailrace.InvalidArgument as error:
        raise CommandError(str(error), USAGE) from None
    host, port = given.get("tailrace.host"), given.get("tailrace.port")
    return Address(host or chosen.host, port or chosen.port, chosen.tls or bool(tls_files()))


def choose_servers() -> tuple[Address, ...]:
    """As `choose_server`, of several addresses with commas in between. Raises CommandError."""
    text = given_options().get("tailrace.server") or os.environ.get(SERVER_VARIABLE, "")
    return tuple(dict.fromkeys(choose_server(each.strip()) for each in text.split(",")))


def has_server_option() -> bool:
    """Whether an option names the broker."""
    given = given_options()
    return any(given.get(f"tailrace.{name}") for name in ("server", "host", "port"))


def is_server_named() -> bool:
    """Whether an option or the environment names the broker."""
    return has_server_option() or bool(os.environ.get(SERVER_VARIABLE))


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """The options for TLS of a command."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    asked: bool = False

    def __bool__(self) -> bool:
        return self.asked or any((self.ca, self.certificate, self.key))


def tls_files() -> TLSFiles:
    """The options --tls, --ca, --cert and --cert-key of the command that runs, or the environment."""
    given = given_options()
    ca, certificate, key = (given.get(f"tailrace.{name}") or os.environ.get(variable) for name, variable in TLS_OPTIONS)
    return TLSFiles(ca, certificate, key, bool(given.get("tailrace.tls")))


def context_of(server: Address) -> ssl.SSLContext | None:
    """For a connection to this broker; None for a plain one. Raises CommandError."""
    if not server.tls:
        return None
    files = tls_files()
    try:
        return tls_context(files.ca, certificate=files.certificate, key=files.key)
    except tailrace.InvalidArgument as error:
        raise CommandError(str(error), USAGE) from None


def connect(server: Address, reconnect_s: float = RECONNECT_S) -> tailrace.Client:
    """A client of the broker; one that is lost comes back within `reconnect_s`, or not. Raises CommandError."""
    shown, tls, reconnect_s = credentials(), context_of(server), max(reconnect_s, 0.001)
    user, password, token = shown.user, shown.password, shown.token
    try:
        return tailrace.connect(
            str(server), token=token, reconnect_s=reconnect_s, tls=tls, user=user, password=password
        )
    except tailrace.ConnectFailed as error:
        raise CommandError(str(error), NO_CONNECTION) from None
    except tailrace.InvalidArgument as error:
        raise CommandError(str(error), USAGE) from None
    except tailrace.TailraceError as error:
        raise CommandError(f"{server}: {error}", REFUSED) from None


@contextmanager
def broker_client(reconnect_s: float = RECONNECT_S) -> Iterator[tailrace.Client]:
    """A client of the broker that the options name, closed at the end. The client's errors become CommandErrors."""
    chosen = choose_server()
    with connect(chosen, reconnect_s) as client, broker_errors(chosen):
        yield client


@contextmanager
def broker_errors(server: Address | str) -> Iterator[None]:
    """Raises CommandError in place of the client's errors."""
    try:
        yield
    except tailrace.ConnectionLost as error:
        raise CommandError(f"connection to {server} lost ({error})", NO_CONNECTION) from None
    except tailrace.InvalidArgument as error:
        raise CommandError(str(error), USAGE) from None
    except tailrace.TailraceError as error:
        raise CommandError(f"{server}: {error}", REFUSED) from None


def connect_admin_socket(path: Path) -> socket.socket:
    """Returns a connected, blocking unix socket. Raises CommandError with the reason."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connect_unix(sock, path)
    except OSError as error:
        sock.close()
        raise CommandError(f"cannot connect to {path}: {error.strerror or error}", NO_CONNECTION) from None
    return sock


def connect_socket(server: Address) -> socket.socket:
    """Returns a connected, blocking socket without Nagle's delay. Raises CommandError with the reason."""
    try:
        resolve(server)
        sock = connect_blocking(server, CONNECT_TIMEOUT_S, context_of(server))
    except DialError as error:
        raise CommandError(str(error), NO_CONNECTION) from None
    except TimeoutError:
        text = f"cannot connect to {server}: no answer within {CONNECT_TIMEOUT_S:.0f} s"
        raise CommandError(text, NO_CONNECTION) from None
    except OSError as error:
        hint = "; is the broker running there?" if isinstance(error, ConnectionRefusedError) else ""
        raise CommandError(f"cannot connect to {server}: {error.strerror or error}{hint}", NO_CONNECTION) from None
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
