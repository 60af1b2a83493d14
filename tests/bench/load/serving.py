"""A server with the behaviour that a test gives it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def serving(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that does `behave` with one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                    with sock:
                        behave(sock)
                except OSError:
                    return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
