"""A process that does the least a broker could do: it reads, and sends the bytes on if anybody subscribes.

It shows how much the generator itself can do at most. Each connection's first byte is its kind: P publishes, S
subscribes to everything. A publisher's chunk that ends in `!` is answered `done`; if answers are wanted, every whole
message gets a fixed number of meaningless bytes. Run as `python -m bench.load.plain PORT MESSAGE_BYTES ANSWER_BYTES`.
"""

from __future__ import annotations

import select
import socket
import sys
from dataclasses import dataclass

LOG_BYTES_MAX = 4 * 1024 * 1024 * 1024  # a run longer than that ends with an error instead of filling the machine
_READ_BYTES = 1024 * 1024
_SEND_BYTES = 256 * 1024


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    kind: bytes = b""
    position: int = 0  # a subscriber's place in the log; the bytes a publisher has sent
    answered: int = 0  # messages answered in full
    owed: bytes = b""  # the rest of an answer that did not fit the socket


class PlainServer:
    def __init__(self, port: int, message_bytes: int, answer_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._answer = b"k" * answer_bytes
        self._log = bytearray()
        self._buffer = bytearray(_READ_BYTES)
        self._connections: dict[int, _Connection] = {}
        self._subscribers: dict[int, _Connection] = {}
        self._poller = select.epoll()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._poller.register(self._listener.fileno(), select.EPOLLIN)

    def serve_forever(self) -> None:
        while True:
            grown = len(self._log)
            for fd, events in self._poller.poll():
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._serve(self._connections[fd], events)
            if len(self._log) > grown:
                for subscriber in list(self._subscribers.values()):
                    self._serve(subscriber, select.EPOLLOUT)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[sock.fileno()] = _Connection(sock)
        self._poller.register(sock.fileno(), select.EPOLLIN)

    def _serve(self, connection: _Connection, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                (self._send_log if connection.kind == b"S" else self._send_owed)(connection)
            if events & ~select.EPOLLOUT:
                (self._read if connection.kind else self._open)(connection)
        except BlockingIOError:
            return
        except ConnectionError:
            self._drop(connection)

    def _open(self, connection: _Connection) -> None:
        connection.kind = connection.sock.recv(1)
        if connection.kind not in (b"S", b"P"):
            self._drop(connection)
            return
        if connection.kind == b"S":
            connection.position = len(self._log)
            self._subscribers[connection.sock.fileno()] = connection
        connection.sock.send(connection.kind.lower())

    def _read(self, connection: _Connection) -> None:
        count = connection.sock.recv_into(self._buffer)
        if not count:
            self._drop(connection)
            return
        barrier = self._buffer[count - 1] == ord("!")
        self._append(connection, count - barrier)
        if barrier:
            connection.sock.send(b"done")
        elif self._answer:
            whole = connection.position // self._message_bytes
            connection.owed += self._answer * (whole - connection.answered)
            connection.answered = whole
            self._send_owed(connection)

    def _append(self, connection: _Connection, count: int) -> None:
        connection.position += count
        if not self._subscribers:
            return
        if len(self._log) + count > LOG_BYTES_MAX:
            raise SystemExit(f"more than {LOG_BYTES_MAX} bytes published to a process that keeps them in memory")
        self._log += memoryview(self._buffer)[:count]

    def _send_owed(self, connection: _Connection) -> None:
        """Send answers; while they do not fit, read no more from this publisher."""
        if connection.owed:
            connection.owed = connection.owed[connection.sock.send(connection.owed) :]
        self._poller.modify(connection.sock.fileno(), select.EPOLLOUT if connection.owed else select.EPOLLIN)

    def _send_log(self, subscriber: _Connection) -> None:
        """Send one chunk; the next one follows when the socket is writable."""
        with memoryview(self._log) as view, view[subscriber.position : subscriber.position + _SEND_BYTES] as chunk:
            try:
                subscriber.position += subscriber.sock.send(chunk)
            except BlockingIOError:
                pass
        behind = subscriber.position < len(self._log)
        self._poller.modify(subscriber.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if behind else 0))

    def _drop(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        self._connections.pop(fd, None)
        self._subscribers.pop(fd, None)
        self._poller.unregister(fd)
        connection.sock.close()


if __name__ == "__main__":
    PlainServer(*map(int, sys.argv[1:])).serve_forever()
