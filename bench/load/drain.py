"""Receiving without looking: with MSG_TRUNC the kernel throws a socket's bytes away and tells how many there were."""

from __future__ import annotations

import socket

from bench.load.limits import PeerClosed

DRAIN_BYTES = 32 * 1024 * 1024  # more than any receive buffer holds
READ_BYTES = 1024 * 1024

# The kernel never writes to it, so it never becomes memory.
_NOWHERE = bytearray(DRAIN_BYTES)


def drain(sock: socket.socket, bytes_max: int = DRAIN_BYTES) -> int:
    """How many bytes were there, now gone; 0 if none. PeerClosed at the end of the stream."""
    return read_into(sock, _NOWHERE, min(bytes_max, DRAIN_BYTES), socket.MSG_TRUNC)


def read_into(sock: socket.socket, memory: bytearray, bytes_max: int = 0, flags: int = 0) -> int:
    """How many bytes were there, up to `bytes_max`, or 0 for as many as there is memory for; 0 if none. As `drain`."""
    try:
        count = sock.recv_into(memory, bytes_max, flags)
    except BlockingIOError:
        return 0
    except ConnectionError as error:
        raise PeerClosed(f"the server dropped a connection that was being drained: {error}") from error
    if not count:
        raise PeerClosed("the server closed a connection that was being drained")
    return count


def read(sock: socket.socket, bytes_max: int = READ_BYTES) -> bytes:
    """What is there, up to `bytes_max`; b"" if nothing. PeerClosed at the end of the stream."""
    try:
        data = sock.recv(bytes_max)
    except BlockingIOError:
        return b""
    except ConnectionError as error:
        raise PeerClosed(f"the server dropped a connection that was being read: {error}") from error
    if not data:
        raise PeerClosed("the server closed a connection that was being read")
    return data


def send_some(sock: socket.socket, view: memoryview) -> int:
    """How much of `view` the socket took; 0 if it is full. PeerClosed if the server is gone."""
    try:
        return sock.send(view)
    except BlockingIOError:
        return 0
    except ConnectionError as error:
        raise PeerClosed(f"the server dropped a connection that was being written: {error}") from error
