"""Reaching a broker: which one is meant, and a connected socket or a clear sentence."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from tailrace.command.ending import NO_CONNECTION, USAGE, CommandError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 5_050
SERVER_VARIABLE = "TAILRACE_SERVER"
CONNECT_TIMEOUT_S = 10.0
RECEIVE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a broker."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_server(text: str) -> Server:
    """The address in `HOST`, `HOST:PORT`, `[V6]:PORT` or `:PORT`. Raises CommandError."""
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        if port and not port.startswith(":"):
            raise CommandError(f"{text!r} is not HOST:PORT", USAGE)
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise CommandError(f"{text!r} is not HOST:PORT: {port!r} is no port", USAGE)
    return Server(host or DEFAULT_HOST, int(port) if port else DEFAULT_PORT)


def choose_server(server: str | None, host: str | None, port: int | None) -> Server:
    """`--server` or the environment, with `--host` and `--port` over it. Raises CommandError."""
    chosen = parse_server(server or os.environ.get(SERVER_VARIABLE, ""))
    return Server(host or chosen.host, port or chosen.port)


def connect(server: Server) -> socket.socket:
    """A connected, blocking socket without Nagle's delay. Raises CommandError that says why not."""
    try:
        sock = socket.create_connection((server.host, server.port), CONNECT_TIMEOUT_S)
    except socket.gaierror as error:
        raise CommandError(f"cannot find the host {server.host!r}: {error.strerror}", NO_CONNECTION) from None
    except TimeoutError:
        text = f"cannot connect to {server}: no answer within {CONNECT_TIMEOUT_S:.0f} s"
        raise CommandError(text, NO_CONNECTION) from None
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = "; is the broker running there?" if isinstance(error, ConnectionRefusedError) else ""
        raise CommandError(f"cannot connect to {server}: {reason}{hint}", NO_CONNECTION) from None
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
