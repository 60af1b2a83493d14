"""The control channel between the supervisor and one worker: small msgpack messages, with file descriptors beside them.

A SOCK_SEQPACKET pair: message borders are kept, and either side sees end-of-file when the other process is gone,
which is how a worker learns that its supervisor died.

Supervisor to worker:
    link   slot generation + fd   a fresh sibling link to that worker
    owner  slot generation        the slot's shards belong to that worker from now on
    own                           take the shard locks of your slot and serve
    retire generation             give your shards up to that successor, then your connections, then leave
    rights + fd                   go by other rights from now on (`broker.access.renewal`)
    drain                         the node stops: finish what your clients have under way
    leave                         every worker has finished: close all and leave
Worker to supervisor:
    ready                         booted: standing by, or serving when it was started as owner
    owning                        the shard locks are taken, the catalog is read
    released                      the shard locks are given back
    drained                       nothing of my clients is under way any more
    shutdown                      an administrator asked the node to stop
"""

from __future__ import annotations

import array
import os
import socket
from typing import Any, NamedTuple

import msgpack

MESSAGE_MAX_BYTES = 4096
FDS_MAX = 4
_FD_BYTES = array.array("i").itemsize
KINDS = frozenset(
    ("link", "owner", "own", "retire", "rights", "drain", "leave", "drained", "ready", "owning", "released", "shutdown")
)


class ControlMessage(NamedTuple):
    kind: str
    fields: dict[str, Any]
    fds: list[int]


class ControlClosed(Exception):
    """The process at the other end is gone."""


class ControlChannel:
    """One end. Non-blocking to receive; sending waits for room (messages are few and tiny)."""

    __slots__ = ("sock",)

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    @classmethod
    def pair(cls) -> tuple[ControlChannel, ControlChannel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(left), cls(right)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: str, fds: tuple[int, ...] = (), **fields: int | str | bytes) -> None:
        """Send one message. Raises ControlClosed when the other end is gone."""
        if kind not in KINDS:
            raise ValueError(f"unknown control message {kind!r}")
        try:
            socket.send_fds(self.sock, [msgpack.packb({"kind": kind, **fields})], list(fds))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ControlClosed(f"cannot send {kind!r}: the other process is gone") from error

    def receive(self) -> ControlMessage | None:
        """The next message, or None if none has arrived. Raises ControlClosed at end-of-file."""
        # Not socket.recv_fds: before Python 3.12 it drops its flags, and waits.
        room = socket.CMSG_SPACE(FDS_MAX * _FD_BYTES)
        try:
            data, ancillary, _flags, _address = self.sock.recvmsg(MESSAGE_MAX_BYTES, room, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionResetError as error:
            raise ControlClosed("the other process is gone") from error
        if not data:
            raise ControlClosed("the other process is gone")
        fds = array.array("i")
        for _level, _kind, rights in ancillary:
            fds.frombytes(rights[: len(rights) - len(rights) % _FD_BYTES])
        for fd in fds:
            os.set_inheritable(fd, False)
        fields = msgpack.unpackb(data)
        return ControlMessage(fields.pop("kind"), fields, list(fds))

    def close(self) -> None:
        self.sock.close()
