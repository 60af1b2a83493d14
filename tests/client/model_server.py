"""The broker in memory behind a real socket, in a thread of its own, for tests of the two shells."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.client.model import Model, ModelConnection

DEADLINE_S = 20.0


class ModelServer:
    """`call` runs something in the server's thread, where the model may be touched."""

    def __init__(self, port: int = 0) -> None:
        self.model = Model()
        self._cut_after: int | None = None
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._connections: dict[socket.socket, ModelConnection] = {}
        self._calls: list[Callable[[], None]] = []
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def call(self, what: Callable[[], None]) -> None:
        """Run it and wait for it."""
        done = threading.Event()
        self._calls.append(lambda: (what(), done.set())[0])  # type: ignore[func-returns-value]
        self._wake.send(b"!")
        assert done.wait(DEADLINE_S)

    def publish(self, stream: bytes, *payloads: bytes) -> None:
        self.call(lambda: self.model.publish(stream, *payloads))

    def cut_after(self, nbytes: int) -> None:
        """Breaks a connection after this many more bytes were sent to clients."""
        self.call(lambda: setattr(self, "_cut_after", nbytes))

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Within it, nothing is read from clients."""
        stands, go_on = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            go_on.wait(DEADLINE_S)

        self._calls.append(stand)
        self._wake.send(b"!")
        assert stands.wait(DEADLINE_S)
        try:
            yield
        finally:
            go_on.set()

    def cut(self) -> None:
        """Break every connection."""
        self.call(self._cut)

    def payloads(self, stream: bytes) -> list[bytes]:
        found: list[bytes] = []
        self.call(lambda: found.extend(self.model.stream(stream).payloads()))
        return found

    def close(self) -> None:
        self._ended = True
        self._wake.send(b"!")
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        for sock in (*self._connections, self._listener, self._wake, self._woken):
            sock.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4_096)
                    while self._calls:
                        self._calls.pop(0)()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._connections:
                    self._receive(key.fileobj)
            for sock, connection in list(self._connections.items()):
                self._send(sock, connection)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        self._connections[sock] = self.model.connect()
        self._selector.register(sock, selectors.EVENT_READ)

    def _receive(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 16)
        except OSError:
            data = b""
        if data:
            self._connections[sock].feed(data)
        else:
            self._drop(sock)

    def _send(self, sock: socket.socket, connection: ModelConnection) -> None:
        data = bytes(connection.out if self._cut_after is None else connection.out[: self._cut_after])
        connection.out.clear()
        try:
            sock.sendall(data)
        except OSError:
            self._drop(sock)
            return
        if self._cut_after is not None and data:
            self._cut_after -= len(data)
            if not self._cut_after:
                self._cut_after = None
                connection.closed = True
        if connection.closed:
            self._drop(sock)

    def _cut(self) -> None:
        for sock in list(self._connections):
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        connection = self._connections.pop(sock, None)
        if connection is not None:
            connection.closed = True
            self.model.connections.remove(connection)
            self._selector.unregister(sock)
            sock.close()


@contextmanager
def running_model(port: int = 0) -> Iterator[ModelServer]:
    server = ModelServer(port)
    try:
        yield server
    finally:
        server.close()
