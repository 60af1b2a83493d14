"""A file goes as it is into plain sockets only."""

from __future__ import annotations

import ast
import os
import socket
from pathlib import Path

import pytest

from tailrace.broker.connection.transport import TLSTransport, send_file
from tests.tidy import tree

TRANSPORT = "broker/connection/transport.py"


def test_a_file_is_sent_into_a_plain_socket(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    near, far = socket.socketpair()
    with near, far, path.open("rb") as file:
        assert send_file(near, file.fileno(), 2, 5) == 5
        assert far.recv(100) == b"23456"


def test_a_tls_transport_has_no_descriptor_that_sendfile_would_take() -> None:
    """`os.sendfile` takes a number or an object with `fileno`; `send_file`, its only caller in the broker, asks for
    that.
    """
    assert not hasattr(TLSTransport, "fileno") and not hasattr(TLSTransport, "send_file")
    transport = TLSTransport.__new__(TLSTransport)
    with pytest.raises(AttributeError, match="fileno"):
        send_file(transport, 0, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        os.sendfile(transport, 0, 0, 1)  # type: ignore[arg-type]


def test_nobody_else_calls_sendfile_or_turns_on_ktls() -> None:
    """With OpenSSL's kTLS option, a kernel without it would send a file unencrypted."""
    names = ("sendfile", "OP_ENABLE_KTLS")
    modules = tree.modules("broker", "protocol", "client", "supervisor")
    found = {
        tree.shown(path)
        for path in modules
        if any(name in path.read_text() for name in names)  # most need not be parsed
        for node in tree.nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert found == {TRANSPORT}
