"""The listening sockets, made by the supervisor and kept by it.

One is for the metrics process; each worker slot has one more, all of these on one address by SO_REUSEPORT. A listener
outlives the worker that serves it, so handshakes that are queued wait for the next one instead of being reset.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path

from tailrace.shard.unix_socket import bind_unix, connect_unix

ADMIN_MODE = 0o660
BACKLOG = 4_096  # capped by net.core.somaxconn


class CannotListen(Exception):
    """The address cannot be used for listening; the text gives the reason."""


def open_listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listeners on the same address. Raises CannotListen."""
    family, address = _resolve(host, port)
    listeners: list[socket.socket] = []
    try:
        with _bound(family, address, reuse_port=False) as probe:
            # SO_REUSEPORT would let two nodes of one user share a port in silence: find out without it first.
            address = probe.getsockname()
        for _ in range(count):
            listener = _bound(family, address, reuse_port=True)
            listeners.append(listener)
            listener.listen(BACKLOG)
    except OSError as error:
        for listener in listeners:
            with contextlib.suppress(OSError):
                listener.close()
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listeners


def open_udp_sockets(host: str, port: int, count: int, receive_bytes: int) -> list[socket.socket]:
    """`count` sockets for datagrams on the same address; the kernel chooses one of them by a datagram's addresses, as
    long as there are as many. Raises CannotListen.
    """
    family, address = _resolve(host, port)
    found: list[socket.socket] = []
    try:
        with _bound(family, address, reuse_port=False, kind=socket.SOCK_DGRAM) as probe:
            address = probe.getsockname()
        for _ in range(count):
            found.append(_bound(family, address, reuse_port=True, kind=socket.SOCK_DGRAM))
            found[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    except OSError as error:
        for each in found:
            each.close()
        raise CannotListen(f"cannot take datagrams on {host} port {port}: {error.strerror}") from error
    return found


def open_admin_listener(path: Path) -> socket.socket:
    """The unix socket of administration, for its user and group. Raises CannotListen."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        bind_unix(sock, path)
        path.chmod(ADMIN_MODE)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise CannotListen(f"cannot listen on {path}: {error.strerror or error}") from error
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket that a killed node has left. Raises OSError for one that is in use."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            connect_unix(probe, path)
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another node listens there")


def open_metrics_listener(host: str, port: int) -> socket.socket:
    """The listener of the metrics process. Raises CannotListen."""
    family, address = _resolve(host, port)
    try:
        listener = _bound(family, address, reuse_port=False)
        listener.listen(BACKLOG)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host} port {port} for metrics: {error.strerror}") from error
    return listener


def _resolve(host: str, port: int) -> tuple[int, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(f"cannot listen on {host}: {error.strerror}") from error
    family, _kind, _protocol, _name, address = found[0]
    return family, address


def _bound(
    family: int, address: tuple[object, ...], *, reuse_port: bool, kind: int = socket.SOCK_STREAM
) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:  # for datagrams it would let two nodes share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
