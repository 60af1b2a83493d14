"""Unix sockets at paths of any length: an address holds 107 bytes, so it goes by a descriptor of the folder."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


def connect_unix(sock: socket.socket, path: Path) -> None:
    """Raises OSError."""
    with _short(path) as address:
        sock.connect(address)


def bind_unix(sock: socket.socket, path: Path) -> None:
    """Raises OSError."""
    with _short(path) as address:
        sock.bind(address)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
