"""Unix sockets in deep folders."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tailrace.shard.unix_socket import bind_unix, connect_unix


def test_a_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 20) / ("longer" * 10) / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as sock:
        with pytest.raises(FileNotFoundError):
            bind_unix(listener, path)
        path.parent.mkdir(parents=True)
        bind_unix(listener, path)
        with pytest.raises(OSError):
            bind_unix(sock, path)
        with pytest.raises(ConnectionRefusedError):
            connect_unix(sock, path)
        listener.listen()
        connect_unix(sock, path)
