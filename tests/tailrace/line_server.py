"""A line-protocol server of a few lines, for tests of the client: streams in memory, and faults on demand.

Not a broker: it exists so that the client's tests do not depend on one, and can ask for what a broker never does.
"""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEADLINE_S = 20.0


class LineServer:
    """One thread a connection. `streams` may be filled before; timestamps are 1,000,000 + seq."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.streams: dict[bytes, list[bytes]] = defaultdict(list)
        self.lines: list[bytes] = []  # every command that is no pub
        self.publish_answer: Callable[[bytes, bytes, int], bytes | None] = lambda _name, _payload, _seq: None
        self.answers: dict[bytes, bytes] = {}  # command line -> what to say, instead of what would be said
        self.close_after_publishes = -1
        self.after_history = b""  # sent to a subscriber behind the last message
        self.close_after_history = False
        self._published = 0
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(DEADLINE_S)
        self.listener.close()
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _address = self.listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        rest, ack, alive = b"", False, True
        try:
            while alive and (received := sock.recv(1 << 16)):
                *lines, rest = (rest + received).split(b"\n")
                out = []
                for line in lines:
                    command = line.removesuffix(b"\r")
                    if command in (b"ack on", b"ack off"):
                        ack = command.endswith(b"on")
                    out.append(self._answer(command, ack))
                    if self._published == self.close_after_publishes or self._closes(command):
                        alive = False
                        break
                sock.sendall(b"".join(out))
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _closes(self, command: bytes) -> bool:
        return command.startswith(b"sub ") and not command.endswith(b" new") and self.close_after_history

    def _answer(self, command: bytes, ack: bool) -> bytes:
        if command.startswith(b"pub "):
            return self._publish(command, ack)
        self.lines.append(command)
        if command in self.answers:
            return self.answers[command]
        word, *args = command.split()
        if word == b"sub":
            return self._subscribe(args[0], args[1])
        return {b"ping": b"ok pong\r\n"}.get(word, b"ok " + command + b"\r\n")

    def _publish(self, command: bytes, ack: bool) -> bytes:
        head, _, payload = command.partition(b"|")
        name = head.split()[1]
        self._published += 1
        seq = len(self.streams[name])
        told = self.publish_answer(name, payload, seq)
        if told is not None:
            return told
        self.streams[name].append(payload)
        return b"ok pub %s %d\r\n" % (name, seq) if ack else b""

    def _subscribe(self, name: bytes, start: bytes) -> bytes:
        messages = self.streams[name]
        if start == b"new":
            return b"ok sub %s %d\r\n" % (name, len(messages))
        first = int(start[1:]) if start.startswith(b"#") else max(0, int(start) - 1_000_000)
        history = [
            b"msg %s %d %d %d |%s\r\n" % (name, seq, 1_000_000 + seq, len(messages[seq]), messages[seq])
            for seq in range(first, len(messages))
        ]
        return b"ok sub %s %d\r\n" % (name, first) + b"".join(history) + self.after_history


@contextmanager
def running_server() -> Iterator[LineServer]:
    server = LineServer()
    try:
        yield server
    finally:
        server.close()
