"""A node that answers ASK with what a test has made up, on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tailrace.protocol import messages as m
from tailrace.protocol.replication import FEATURE, Ask, Told
from tests.protocol.plain_codec import PlainCodec

DEADLINE_S = 20.0


class AskedNode:
    """Accepts connections one after the other. `hellos` and `asked` are the messages received."""

    def __init__(self, answer: m.Response | bytes | None, *, features: tuple[str, ...] = (FEATURE,)) -> None:
        self.answer = answer  # None: no answer at all; bytes: sent at once
        self.hellos: list[m.Hello] = []
        self.asked: list[Ask] = []
        self._features = features
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        socket.create_connection(("127.0.0.1", self.port)).close()  # the one that accept waits for
        self._thread.join(DEADLINE_S)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with sock:
                if self._done.is_set():
                    return
                sock.settimeout(DEADLINE_S)
                with suppress(ConnectionError):  # one that did not like the answer has left
                    self._converse(sock)

    def _converse(self, sock: socket.socket) -> None:
        codec = PlainCodec(1 << 20, 1 << 20)
        codec.features = frozenset({FEATURE})
        if isinstance(self.answer, bytes):
            sock.sendall(self.answer)
        while data := sock.recv(1 << 16):
            for message in codec.feed(bytearray(data), len(data)):
                if isinstance(message, m.Hello):
                    self.hellos.append(message)
                    if isinstance(self.answer, m.Failed):
                        sock.sendall(m.pack(self.answer))
                    else:
                        sock.sendall(m.pack(m.Welcome(m.VERSION, self._features, "tailrace/9", "N", 0, {})))
                elif isinstance(message, Ask):
                    self.asked.append(message)
                    if isinstance(self.answer, Told):
                        sock.sendall(m.pack(m.Ping()) + m.pack(self.answer))


@contextmanager
def asked_node(answer: m.Response | bytes | None, *, features: tuple[str, ...] = (FEATURE,)) -> Iterator[AskedNode]:
    node = AskedNode(answer, features=features)
    try:
        yield node
    finally:
        node.close()
