"""Addresses of brokers, as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace.errors import InvalidArgument

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 5_050
TLS_SCHEME, PLAIN_SCHEME = "tails://", "tail://"


class Address(NamedTuple):
    """The address of a broker."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TLS_SCHEME if self.tls else ''}{host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address in `HOST`, `HOST:PORT`, `[V6]:PORT` or `:PORT`; `tails://` before it stands for TLS, `tail://` for a
    plain connection, as without. Raises InvalidArgument.
    """
    tls = text.startswith(TLS_SCHEME)
    text = text.removeprefix(TLS_SCHEME).removeprefix(PLAIN_SCHEME)
    if "/" in text or any(each.isspace() for each in text):
        raise InvalidArgument(f"{text!r} is not HOST:PORT, {PLAIN_SCHEME}HOST:PORT or {TLS_SCHEME}HOST:PORT")
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        if port and not port.startswith(":"):
            raise InvalidArgument(f"{text!r} is not HOST:PORT")
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise InvalidArgument(f"{text!r} is not HOST:PORT: {port!r} is not a port")
    return Address(host or DEFAULT_HOST, int(port) if port else DEFAULT_PORT, tls)


def parse_addresses(addresses: Iterable[str | Iterable[str]]) -> tuple[Address, ...]:
    """The addresses given one by one and in lists, in order, each once; the default without any."""
    found: dict[Address, None] = {}
    for each in addresses:
        for text in (each,) if isinstance(each, str) else each:
            found[parse_address(text)] = None
    return tuple(found) or (Address(),)
