"""The least that a broker of datagrams could do: it receives them, and sends as many to each subscriber.

`python -m bench.load.plain_udp PORT MESSAGE_BYTES`. A datagram sent has MESSAGE_BYTES. A line over TCP to
the same port is answered `ok NUMBER`: `count` with the datagrams received so far, and `subscribe PORT` with the number
of subscribers, of which this port is the next.
"""

from __future__ import annotations

import select
import socket
import sys

from bench.load.mmsg import Receiving, Sending

HOST = "127.0.0.1"
RECEIVE_BYTES = 4 << 20  # or what the system allows
_TURNS = 16  # of receiving, before the connections are looked at
_LINE_BYTES = 100


class PlainDatagrams:
    def __init__(self, port: int, message_bytes: int) -> None:
        self.received = 0
        self._message = b"m" * message_bytes
        self._subscribers: list[tuple[str, int]] = []
        self._receiving = Receiving()
        self._sending: Sending | None = None
        self._poller = select.epoll()
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._sock.bind((HOST, port))
        self._listener = socket.create_server((HOST, port))
        for sock in (self._sock, self._listener):
            self._poller.register(sock.fileno(), select.EPOLLIN)

    def serve_forever(self) -> None:
        while True:
            for fd, _events in self._poller.poll():
                if fd == self._listener.fileno():
                    self._answer()
                else:
                    self._relay(fd)

    def _relay(self, fd: int) -> None:
        for _turn in range(_TURNS):
            received = self._receiving.receive(fd)
            self.received += received
            left = received * len(self._subscribers)
            while self._sending is not None and left:
                sent = self._sending.send(fd, left)
                left -= sent
                if not sent:
                    select.select([], [fd], [])
            if not received:
                return

    def _answer(self) -> None:
        connection, _address = self._listener.accept()
        with connection:
            verb, _blank, port = connection.recv(_LINE_BYTES).decode().strip().partition(" ")
            if verb == "subscribe":
                self._subscribers.append((HOST, int(port)))
                self._sending = Sending(self._message, self._subscribers)
            number = len(self._subscribers) if verb == "subscribe" else self.received
            connection.sendall(b"ok %d\r\n" % number)


if __name__ == "__main__":
    PlainDatagrams(*map(int, sys.argv[1:])).serve_forever()
