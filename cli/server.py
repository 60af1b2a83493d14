"""Reaching a broker: which one is meant, and a client, or for administration a socket, or a clear sentence."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import tailrace
from tailrace.cli.ending import NO_CONNECTION, REFUSED, USAGE, CommandError
from tailrace.core.address import Address, parse_address
from tailrace.shard.unix_socket import connect_unix
from tailrace.sockets import DialError, resolve

SERVER_VARIABLE = "TAILRACE_SERVER"
TOKEN_VARIABLE = "TAILRACE_TOKEN"
CONNECT_TIMEOUT_S = 10.0
RECONNECT_S = 10.0
RECEIVE_BYTES = 256 << 10


def choose_server(server: str | None, host: str | None, port: int | None) -> Address:
    """`--server` or the environment, with `--host` and `--port` over it. Raises CommandError."""
    try:
        chosen = parse_address(server or os.environ.get(SERVER_VARIABLE, ""))
    except tailrace.InvalidArgument as error:
        raise CommandError(str(error), USAGE) from None
    return Address(host or chosen.host, port or chosen.port)


def connect(server: Address, reconnect_s: float = RECONNECT_S) -> tailrace.Client:
    """A client of the broker; one that is lost comes back within `reconnect_s`, or not. Raises CommandError."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    try:
        return tailrace.connect(str(server), token=token, reconnect_s=max(reconnect_s, 0.001))
    except tailrace.ConnectFailed as error:
        raise CommandError(str(error), NO_CONNECTION) from None
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
        sock = socket.create_connection(server, CONNECT_TIMEOUT_S)
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
