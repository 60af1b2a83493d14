"""Bare sendfile: one file to every connection that asks, and nothing else. Replays are compared with it.

The parent accepts and deals the connections out to its children in turn, so that they share the work evenly. A
connection that sends G gets the file once; any other byte is answered with `!`.
Run as `python -m bench.load.bare PORT FILE PROCESSES`.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from itertools import cycle

CHUNK_BYTES = 4 * 1024 * 1024  # at one call; smaller ones were not faster


def main(port: str, path: str, processes: str) -> None:
    children = cycle([_start_child(path) for _ in range(int(processes))])
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=1024)
    while True:
        sock, _ = listener.accept()
        with sock:
            if sock.recv(1) == b"G":
                socket.send_fds(next(children), [b"G"], [sock.fileno()])
            else:
                sock.sendall(b"!")


def _start_child(path: str) -> socket.socket:
    """Start a child that sends the file to every connection that comes over the link; it ends when the link closes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    _Sender(theirs, path).serve()
    raise SystemExit(0)


class _Sender:
    def __init__(self, link: socket.socket, path: str) -> None:
        self._link = link
        self._file = os.open(path, os.O_RDONLY)
        self._size = os.fstat(self._file).st_size
        self._positions: dict[int, int] = {}
        self._poller = select.epoll()

    def serve(self) -> None:
        """Serve until the link closes."""
        self._poller.register(self._link.fileno(), select.EPOLLIN)
        while True:
            for fd, _ in self._poller.poll():
                if fd != self._link.fileno():
                    self._send(fd)
                elif not self._adopt():
                    return

    def _adopt(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._link, 1, 1)
        for fd in fds:
            os.set_blocking(fd, False)
            self._positions[fd] = 0
            self._poller.register(fd, select.EPOLLOUT)
        return bool(data)

    def _send(self, fd: int) -> None:
        try:
            self._positions[fd] += os.sendfile(fd, self._file, self._positions[fd], CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            self._positions[fd] = self._size
        if self._positions[fd] >= self._size:
            self._poller.unregister(fd)
            os.close(fd)
            del self._positions[fd]


if __name__ == "__main__":
    main(*sys.argv[1:])
