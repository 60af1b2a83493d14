"""What both drivers do with sockets: resolving names, options of the connection, its unacknowledged bytes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import socket
import ssl
import struct
import termios

from tailrace.core.address import Address
from tailrace.core.heartbeat import Transit
from tailrace.protocol.tls import TLSFailed

SocketAddress = tuple[socket.AddressFamily, tuple[object, ...]]

SILENT = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
"""Errors of a connection whose other end no longer sends anything."""
WITHOUT_TLS = frozenset({"WRONG_VERSION_NUMBER", "SSLV3_ALERT_HANDSHAKE_FAILURE"})
"""Reasons of TLS for a peer that speaks something else, or refuses TLS."""
KEEPALIVE_PART = 0.6
"""Of the silence that is allowed: so long nothing comes before the kernel asks whether the peer is there."""
TCP_INFO_BYTES, BYTES_ACKED_AT = 128, 120
"""Of struct tcp_info, and where its tcpi_bytes_acked is; see linux/tcp.h."""


class DialError(Exception):
    """Connecting failed; the text gives the reason."""


def resolve(address: Address) -> list[SocketAddress]:
    """Resolves a host name. Takes as long as the resolver does. Raises DialError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise DialError(f"cannot find the host {address.host!r}: {error.strerror}") from None
    except UnicodeError as error:
        raise DialError(f"{address.host!r} is not a valid host name: {error}") from None
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


def connect_blocking(address: Address, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    """A connected, blocking socket with this timeout, under TLS with a context. Raises OSError, such as TLSFailed."""
    sock = socket.create_connection((address.host, address.port), timeout_s)
    if context is None:
        return sock
    try:
        return context.wrap_socket(sock, server_hostname=address.host)
    except (OSError, ValueError) as error:
        sock.close()
        raise TLSFailed(tls_reason(error)) from error


def end_output(sock: socket.socket) -> None:
    """Says that no more is sent. Input can still be read. The method of a socket under TLS would end both."""
    socket.socket.shutdown(sock, socket.SHUT_WR)


def tls_reason(error: Exception) -> str:
    """Why a connection under TLS failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the certificate is refused: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        hint = "; does the broker have TLS at this port?" if error.reason in WITHOUT_TLS else ""
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}{hint}"
    return f"TLS: {getattr(error, 'strerror', None) or error}"


def is_numeric(host: str) -> bool:
    """Whether the host needs no resolver."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except (OSError, UnicodeError):
            pass
    return False


def why(error: int) -> str:
    """An error number of connect(2), in words."""
    return os.strerror(error) + ("; is the broker running there?" if error == errno.ECONNREFUSED else "")


def tune(sock: socket.socket, silence_s: float) -> None:
    """Sends small requests at once. The kernel detects a dead peer machine after `silence_s`, also while the connection
    is idle, or while nobody waits for the data sent.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if silence_s == math.inf or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s * KEEPALIVE_PART)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(silence_s * 1_000)))


def transit(sock: socket.socket, buffered: int = 0) -> Transit:
    """Bytes that the kernel has not delivered yet, plus the `buffered` ones."""
    info, waiting = b"", bytearray(4)
    with contextlib.suppress(OSError, ValueError):  # it is closed, or the kernel is not Linux: unknown
        fcntl.ioctl(sock, termios.TIOCOUTQ, waiting)
        info = sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_INFO", 11), TCP_INFO_BYTES)
    (acknowledged,) = struct.unpack_from("=Q", info, BYTES_ACKED_AT) if len(info) == TCP_INFO_BYTES else (0,)
    return Transit(acknowledged, int.from_bytes(waiting, "little") + buffered)
