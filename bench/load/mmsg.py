"""Many datagrams with one system call: recvmmsg(2) and sendmmsg(2), called in the C library itself."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Sequence
from typing import Final

BATCH: Final = 64
DATAGRAM_BYTES_MAX: Final = 2_048
NAME_BYTES: Final = 16  # struct sockaddr_in
_libc = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    """struct iovec"""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct msghdr"""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vectors_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Header(ctypes.Structure):
    """struct mmsghdr"""

    _fields_ = (("message", _Message), ("datagram_bytes", ctypes.c_uint))


class Receiving:
    """BATCH slots for datagrams, which are counted and not looked at."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(BATCH * DATAGRAM_BYTES_MAX)
        place = ctypes.addressof(self._memory)
        starts = range(place, place + BATCH * DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MAX)
        self._vectors = (_Vector * BATCH)(*(_Vector(start, DATAGRAM_BYTES_MAX) for start in starts))
        self._headers = _headers(self._vectors)

    def receive(self, fd: int) -> int:
        """How many came with this call, 0 if none waits. Raises OSError."""
        return _checked(_libc.recvmmsg(fd, self._headers, BATCH, socket.MSG_DONTWAIT, None))


class Sending:
    """Equal datagrams to some addresses of IPv4 in turn: as many for each as BATCH has room for."""

    def __init__(self, datagram: bytes, addresses: Sequence[tuple[str, int]]) -> None:
        self.count = BATCH // len(addresses) * len(addresses)
        self._datagram = ctypes.create_string_buffer(datagram, len(datagram))
        self._names = ctypes.create_string_buffer(b"".join(map(_name, addresses)), NAME_BYTES * len(addresses))
        vector = _Vector(ctypes.addressof(self._datagram), len(datagram))
        self._vectors = (_Vector * self.count)(*[vector] * self.count)
        self._headers = _headers(self._vectors)
        for number in range(self.count):
            message = self._headers[number].message
            message.name = ctypes.addressof(self._names) + number % len(addresses) * NAME_BYTES
            message.name_bytes = NAME_BYTES

    def send(self, fd: int, most: int) -> int:
        """How many the socket took with this call, 0 if it takes none now. Raises OSError."""
        return _checked(_libc.sendmmsg(fd, self._headers, min(most, self.count), socket.MSG_DONTWAIT))


def _headers(vectors: ctypes.Array[_Vector]) -> ctypes.Array[_Header]:
    headers = (_Header * len(vectors))()
    for number, header in enumerate(headers):
        place = ctypes.byref(vectors, number * ctypes.sizeof(_Vector))
        header.message.vectors = ctypes.cast(place, ctypes.POINTER(_Vector))
        header.message.vectors_count = 1
    return headers


def _name(address: tuple[str, int]) -> bytes:
    host, port = address
    family = socket.AF_INET.to_bytes(2, "little")
    return (family + port.to_bytes(2, "big") + socket.inet_aton(host)).ljust(NAME_BYTES, b"\0")


def _checked(count: int) -> int:
    if count >= 0:
        return count
    number = ctypes.get_errno()
    if number == errno.EAGAIN:
        return 0
    raise OSError(number, errno.errorcode[number])
