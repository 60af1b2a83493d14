"""The choice of the broker, and the error if it cannot be reached."""

from __future__ import annotations

import socket

import click
import pytest

from bench.ports import free_port
from tailrace.cli.credentials import TOKEN_VARIABLE
from tailrace.cli.ending import NO_CONNECTION, REFUSED, USAGE, CommandError
from tailrace.cli.options import server_options
from tailrace.cli.server import SERVER_VARIABLE, broker_errors, choose_server, connect, connect_socket
from tailrace.core.address import Address
from tailrace.errors import InvalidArgument
from tests.client.model_server import ModelServer


@click.command()
@server_options
def chosen() -> Address:
    """The broker that the options of a command name."""
    return choose_server()


def choice(*options: str) -> Address:
    found = chosen.main(list(options), standalone_mode=False)
    assert isinstance(found, Address)
    return found


def test_options_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    assert choice() == choose_server() == Address()
    monkeypatch.setenv(SERVER_VARIABLE, "env:1")
    assert choice() == choose_server() == Address("env", 1)
    assert choice("--server", "option:2") == choose_server("option:2") == Address("option", 2)
    assert choice("--server", "option:2", "--host", "host") == Address("host", 2)
    assert choice("--port", "3") == Address("env", 3)
    assert choice("--ca", "ca.pem") == Address("env", 1, tls=True)


def test_what_is_no_address() -> None:
    with pytest.raises(CommandError, match="is not HOST:PORT") as caught:
        choice("--server", "a:b")
    assert caught.value.exit_code == USAGE


def test_a_client(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.model.token = "secret"
    with pytest.raises(CommandError, match="denied") as caught:
        connect(Address(port=server.port))
    assert caught.value.exit_code == REFUSED
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with connect(Address(port=server.port), reconnect_s=0) as client:
        assert client.is_connected


def test_a_value_that_the_client_refuses_is_a_wrong_argument() -> None:
    """And is not told as an answer of the broker."""
    with pytest.raises(CommandError, match=r"^from nowhere$") as refused, broker_errors(Address("h", 1)):
        raise InvalidArgument("from nowhere")
    assert refused.value.exit_code == USAGE


def test_no_client() -> None:
    with pytest.raises(CommandError, match="Connection refused; is the broker running there") as caught:
        connect(Address(port=free_port()))
    assert caught.value.exit_code == NO_CONNECTION


def test_a_socket() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        connect_socket(Address(port=listener.getsockname()[1])) as sock,
    ):
        assert sock.gettimeout() is None
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="Connection refused; is the broker running there") as caught:
        connect_socket(Address(port=free_port()))
    assert caught.value.exit_code == NO_CONNECTION
    with pytest.raises(CommandError, match=r"cannot find the host 'no\.such\.host\.invalid'"):
        connect_socket(Address("no.such.host.invalid"))
    with pytest.raises(CommandError, match="is not a valid host name"):
        connect_socket(Address("a" * 80))

    def slow(_address: Address, _timeout_s: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", slow)
    with pytest.raises(CommandError, match="no answer within 10 s"):
        connect_socket(Address())
