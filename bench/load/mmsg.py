"""Many datagrams with one system call: recvmmsg(2), called in the C library itself."""

from __future__ import annotations

import ctypes
import errno
import socket
from typing import Final

BATCH: Final = 64
MESSAGE_BYTES_MAX: Final = 65_536
UDP_GRO: Final = 104  # of linux/udp.h
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
    """Counts datagrams of one length and does not look at them. The kernel may join those that came together."""

    def __init__(self, sock: socket.socket, datagram_bytes: int) -> None:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        self._fd = sock.fileno()
        self._datagram_bytes = datagram_bytes
        self._memory = ctypes.create_string_buffer(BATCH * MESSAGE_BYTES_MAX)
        place = ctypes.addressof(self._memory)
        starts = range(place, place + BATCH * MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX)
        self._vectors = (_Vector * BATCH)(*(_Vector(start, MESSAGE_BYTES_MAX) for start in starts))
        self._headers = _headers(self._vectors)
        words = (ctypes.c_ubyte * ctypes.sizeof(self._headers)).from_buffer(self._headers)
        every = ctypes.sizeof(_Header) // 4
        self._lengths = memoryview(words).cast("B").cast("I")[_Header.datagram_bytes.offset // 4 :: every]

    def receive(self) -> int:
        """How many came with this call, 0 if none waits. Raises OSError."""
        messages = _checked(_libc.recvmmsg(self._fd, self._headers, BATCH, socket.MSG_DONTWAIT, None))
        return sum(self._lengths[:messages]) // self._datagram_bytes


def _headers(vectors: ctypes.Array[_Vector]) -> ctypes.Array[_Header]:
    headers = (_Header * len(vectors))()
    for number, header in enumerate(headers):
        place = ctypes.byref(vectors, number * ctypes.sizeof(_Vector))
        header.message.vectors = ctypes.cast(place, ctypes.POINTER(_Vector))
        header.message.vectors_count = 1
    return headers


def _checked(count: int) -> int:
    if count >= 0:
        return count
    number = ctypes.get_errno()
    if number == errno.EAGAIN:
        return 0
    raise OSError(number, errno.errorcode[number])
