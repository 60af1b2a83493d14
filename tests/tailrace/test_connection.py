"""Which broker is meant, and what is said when it cannot be reached."""

from __future__ import annotations

import socket

import pytest

from tailrace.command.ending import NO_CONNECTION, USAGE, CommandError
from tailrace.connection import SERVER_VARIABLE, Server, choose_server, connect, parse_server


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("", Server("127.0.0.1", 5_050)),
        ("broker", Server("broker", 5_050)),
        ("broker:7", Server("broker", 7)),
        (":7", Server("127.0.0.1", 7)),
        ("[::1]:7", Server("::1", 7)),
        ("[::1]", Server("::1", 5_050)),
        ("::1", Server("::1", 5_050)),
    ],
)
def test_addresses(text: str, server: Server) -> None:
    assert parse_server(text) == server
    assert parse_server(str(server)) == server


@pytest.mark.parametrize("text", ["broker:x", "broker:0", "broker:65536", "[::1]7", "[::1]:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(CommandError, match="is not HOST:PORT") as caught:
        parse_server(text)
    assert caught.value.exit_code == USAGE


def test_options_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    assert choose_server(None, None, None) == Server()
    monkeypatch.setenv(SERVER_VARIABLE, "env:1")
    assert choose_server(None, None, None) == Server("env", 1)
    assert choose_server("option:2", None, None) == Server("option", 2)
    assert choose_server("option:2", "host", None) == Server("host", 2)
    assert choose_server(None, None, 3) == Server("env", 3)


def test_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(Server(port=listener.getsockname()[1])) as sock:
        assert sock.gettimeout() is None
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    with pytest.raises(CommandError, match="Connection refused; is the broker running there") as caught:
        connect(Server(port=port))
    assert caught.value.exit_code == NO_CONNECTION
    with pytest.raises(CommandError, match=r"cannot find the host 'no\.such\.host\.invalid'"):
        connect(Server("no.such.host.invalid"))
    with pytest.raises(CommandError, match="cannot connect to"):
        connect(Server("a" * 80))

    def slow(_address: tuple[str, int], _timeout_s: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", slow)
    with pytest.raises(CommandError, match="no answer within 10 s"):
        connect(Server())
